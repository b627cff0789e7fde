"""The server loop as a Flower Strategy: `start` runs it, and so does Flower's own `Strategy.start`.

Under Flower's own loop an algorithm with several exchanges takes as many of Flower's rounds for one
of its own. A failed round raises there, because only this class's `start` knows how to retry.
"""

from collections.abc import Callable, Iterable, Mapping

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from manifed.algorithms.interface import ServerState
from manifed.errors import RoundFailed
from manifed.federation.plan import Plan, RoundReport
from manifed.federation.rounds import (
    Attempt,
    Charge,
    Traffic,
    after,
    begin,
    checked,
    free,
    report_of,
    run_rounds,
)
from manifed.flower import keys
from manifed.flower.records import tensors_from_record, tensors_to_record
from manifed.flower.transport import MessageTransport


def ignore(report: RoundReport) -> None:
    """Nothing."""


class ServerLoop(Strategy):
    """The rounds of one plan over a Grid, from the handshake to the result."""

    def __init__(
        self,
        plan: Plan,
        state: ServerState,
        charge: Charge = free,
        on_round: Callable[[RoundReport], None] = ignore,
        *,
        first_round: int = 1,
        attempts: Callable[[int], int] = lambda _: 0,
        last_accepted: Mapping[int, int] | None = None,
    ) -> None:
        """``charge`` pays for an attempt before its messages leave, ``on_round`` sees each report.

        ``attempts(round)`` says how often a round was charged before (after a crash).
        """
        self.plan, self.state = plan, state
        self._charge, self._on_round = charge, on_round
        self._first_round, self._attempts = first_round, attempts
        self._last_accepted = dict(last_accepted or {})
        self._transport: MessageTransport | None = None
        self._open: tuple[Attempt, Traffic] | None = None
        self._sent: tuple[int, list[Message]] | None = None
        self._is_fresh = True

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """All rounds up to ``num_rounds``; the result holds the model's arrays.

        How long replies are waited for is the plan's: ``plan.policy.timeout``.
        """
        self._begin_at(initial_arrays)
        self.summary()
        result = Result()
        for report in run_rounds(
            self.plan,
            self.state,
            self._meet(grid),
            self._charge,
            num_rounds=num_rounds,
            first_round=self._first_round,
            attempts=self._attempts,
            last_accepted=self._last_accepted,
        ):
            self._finish_round(report)
            if evaluate_fn is not None:
                metrics = evaluate_fn(report.server_round, self._arrays())
                if metrics is not None:
                    result.evaluate_metrics_serverapp[report.server_round] = metrics
        result.arrays = self._arrays()
        return result

    def _begin_at(self, arrays: ArrayRecord | None) -> None:
        """Start from ``arrays`` unless a round was made or they hold nothing."""
        if self._is_fresh and arrays:
            x = tensors_from_record(arrays)["x"]
            self.state = self.plan.server_update.initial(x)
        self._is_fresh = False

    def _finish_round(self, report: RoundReport) -> None:
        self.state = report.state
        self._last_accepted |= dict.fromkeys(report.participants, report.server_round)
        self._on_round(report)

    def _meet(self, grid: Grid) -> MessageTransport:
        """The handshake, once."""
        if self._transport is None:
            self._transport = MessageTransport.meet(grid, self.plan)
        return self._transport

    def _arrays(self) -> ArrayRecord:
        model = self.plan.server_update.model(self.state, self.plan.manifold)
        return tensors_to_record({"x": model})

    # -- Flower's own loop -------------------------------------------------------------------
    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages of the next exchange; a round is charged before its first are handed out."""
        transport = self._meet(grid)
        self._begin_at(arrays)
        if self._open is None:
            phases = len(self.plan.phases)
            own = self._first_round + (server_round - 1) // phases
            attempt = self._attempts(own)
            self._open = (begin(self.plan, self.state, own, attempt, self._charge), Traffic())
        now, _ = self._open
        messages = transport.messages(now.header, now.down, now.asked, self._last_accepted)
        self._sent = (server_round, messages)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The model after the exchange whose messages `configure_train` made.

        An exchange is used once: its round was charged once.

        Raises:
            RoundFailed: without such messages, or as `manifed.federation.rounds.run_round`.
        """
        transport, current, sent = self._transport, self._open, self._sent
        self._open = self._sent = None
        if transport is None or current is None or sent is None or sent[0] != server_round:
            raise RoundFailed(f"Expected configure_train for round {server_round} first")
        now, seen = current
        assert now.phase is not None
        came = checked(now, transport.read(now.header, now.phase, now.down, sent[1], replies))
        now, seen = after(now, came), seen.plus(came)
        if now.phase is not None:
            self._open = (now, seen)
        else:
            self._finish_round(report_of(now, seen))
        return self._arrays(), MetricRecord({keys.SERVER_ROUND: now.server_round})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Nothing: client-side evaluation would send un-noised numbers."""
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Nothing."""
        return None

    def summary(self) -> None:
        """One line of what runs."""
        plan = self.plan
        log(
            20,
            "manifed: %s on %s, %d clients, cohort %s",
            plan.server_update.kind,
            plan.manifold.name,
            plan.num_clients,
            plan.cohort.kind,
        )


class ManifoldStrategy(ServerLoop):
    """A server update as a Flower strategy of one's own ServerApp: no config, no run folder.

    It sends what the server update broadcasts, aggregates replies by it, charges every cohort draw
    to a ledger before its messages leave, and stops at the draw that the budget does not pay.
    """

    def __init__(
        self,
        manifold: Manifold,
        update: ClientUpdate,
        server_update: ServerUpdate,
        *,
        num_clients: int | None = None,
        cohort: Cohort | None = None,
        privacy: Privacy | None = None,
        budget: tuple[float, float] | None = None,
        ledger: str | Path | None = None,
        num_rounds: int = MOST_ROUNDS,
        replies: ReplyPolicy | None = None,
        source: NoiseSource | None = None,
    ) -> None:
        """``budget`` is (epsilon, delta); ``ledger`` a file that is not there yet.

        ``num_rounds`` bounds how many are ever run. ``source`` is a seeded one in rehearsals and
        tests; None is keyed by the operating system.

        Raises:
            ConfigError: for parts that do not go together.
        """
        sizes = tuple(privacy.num_examples) if privacy is not None else ()
        count = num_clients or len(sizes)
        if count < 1:
            raise ConfigError("num_clients: expected it without privacy.num_examples, got none")
        if ledger is not None and privacy is None:
            raise ConfigError("ledger: expected privacy beside a ledger, got none")
        people, policy = cohort or Everyone(), replies or ReplyPolicy()
        if server_update.needs_everyone and people.kind != "all":
            raise ConfigError(
                f"cohort: {type(self).__name__} needs every client in every round, got "
                f"{people.kind!r}"
            )
        privacy = with_update(privacy, update)
        self.promise = promise_of(privacy, count, people, budget, num_rounds)
        self._ledger, self._open_files, self._is_stopped = ledger, ExitStack(), False
        self._account: Account | None = None
        self._odometer = self.promise.odometer()
        plan = Plan(
            server_update=server_update,
            manifold=manifold,
            phases=update.phases,
            cohort=people,
            policy=policy,
            source=source or NoiseSource.from_os(),
            num_examples=sizes or (ANY_SIZE,) * count,
            config_sha256=agreement(manifold, update, privacy),
            mechanism=None if privacy is None else privacy.client_mechanism,
            needs_everyone=server_update.needs_everyone,
        )
        super().__init__(plan, None, self._pay, self._note)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """As `ServerLoop.start`; a budget that runs out ends it with the last paid model."""
        try:
            return super().start(grid, initial_arrays, num_rounds, timeout, evaluate_fn=evaluate_fn)
        except BudgetExhausted as budget:
            self._stop(budget)
            return Result(arrays=self._arrays())
        finally:
            self.close()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As `ServerLoop.configure_train`; no messages once the budget has run out."""
        try:
            return [] if self._is_stopped else super().configure_train(
                server_round, arrays, config, grid
            )
        except BudgetExhausted as budget:
            self._stop(budget)
            return []

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """As `ServerLoop.aggregate_train`; nothing new once the budget has run out."""
        if self._is_stopped:
            return self._arrays(), None
        return super().aggregate_train(server_round, replies)

    def statement(self) -> Mapping[str, object]:
        """The privacy statement so far, as data."""
        return self.promise.statement(self.odometer, noise_origins=self._origins)

    @property
    def odometer(self) -> Odometer:
        """What is spent."""
        return self._odometer if self._account is None else self._account.odometer

    def close(self) -> None:
        """Settle and release the ledger; whoever runs Flower's own loop calls it at the end."""
        if self._account is not None:
            self._odometer = self._account.odometer
        self._open_files.close()
        self._account = None

    # -- what is paid ------------------------------------------------------------------------
    _origins: frozenset[str] = frozenset()

    def _pay(self, server_round: int, attempt: int, partitions: tuple[int, ...]) -> None:
        """The charge of an attempt: asked of the filter, on disk, then counted."""
        if self._ledger is not None and self._account is None:
            self._account = self._open_files.enter_context(
                opened(
                    Path(self._ledger),
                    self.promise,
                    last_round=self.promise.filter.most_draws,
                    header={"config_sha256": self.plan.config_sha256},
                )
            )
            self._ledger = None
        if self._account is not None:
            self._account.charge(server_round, attempt, partitions)
        else:
            charge_unwritten(self.promise, self._odometer, server_round, attempt, partitions)

    def _note(self, report: RoundReport) -> None:
        self._origins |= report.noise_origins
        if self._account is not None:
            self._account.note_origins(report.server_round, report.noise_origins)

    def _stop(self, budget: BudgetExhausted) -> None:
        self._is_stopped = True
        log(30, "%s", budget)
