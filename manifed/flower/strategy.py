"""The server loop as a Flower Strategy: `start` runs it, and so does Flower's own `Strategy.start`.

Under Flower's own loop an algorithm with several exchanges takes as many of Flower's rounds for one
of its own. A failed round raises there, because only this class's `start` knows how to retry.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import Tensor

from manifed.algorithms.interface import ClientUpdate, ServerState, ServerUpdate, setup_phases_of
from manifed.errors import BudgetExhausted, ConfigError, RoundFailed
from manifed.federation.cohorts import Cohort, Everyone
from manifed.federation.plan import Plan, RoundReport
from manifed.federation.replies import ReplyPolicy
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
from manifed.flower.privacy import ClientLevel, Privacy, agreement, promise_of
from manifed.flower.records import tensors_from_record, tensors_to_record
from manifed.flower.transport import MessageTransport
from manifed.manifolds.base import Manifold
from manifed.manifolds.defects import tolerance
from manifed.privacy.account import Account, count_only, opened
from manifed.privacy.noise import NoiseSource
from manifed.privacy.odometer import Odometer
from manifed.runs.statement import statement_of

MOST_ROUNDS = 10**6
"""Of a ledger whose run does not say how many there will be."""


def ignore(report: RoundReport) -> None:
    """Nothing."""


class ServerLoop(Strategy):
    """The rounds of one plan over a Grid, from the handshake to the result."""

    def __init__(
        self,
        plan: Plan,
        state: ServerState | None,
        charge: Charge = free,
        on_round: Callable[[RoundReport], None] = ignore,
        *,
        first_round: int = 1,
        attempts: Callable[[int], int] = lambda _: 0,
        last_accepted: Mapping[int, int] | None = None,
    ) -> None:
        """``charge`` pays for an attempt before its messages leave, ``on_round`` sees each report.

        ``attempts(round)`` says how often a round was charged before (after a crash). Without a
        ``state`` the first call's ``initial_arrays`` say where it starts.
        """
        self.plan, self._state = plan, state
        self._charge, self._on_round = charge, on_round
        self._first_round, self._attempts = first_round, attempts
        self._last_accepted = dict(last_accepted or {})
        self._transport: MessageTransport | None = None
        self._open: tuple[Attempt, Traffic] | None = None
        self._sent: tuple[int, list[Message]] | None = None
        self._is_fresh, self._has_begun = True, False
        self._made: Counter[int] = Counter()
        """Attempts of each round that Flower's own loop began."""

    @property
    def state(self) -> ServerState:
        """The state after the last round.

        Raises:
            ConfigError: before there is one.
        """
        if self._state is None:
            raise ConfigError("initial_arrays: expected a point x to start from, got none")
        return self._state

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
        if self._has_begun:
            raise ConfigError(
                f"{type(self).__name__}: expected one run an object, got a second; make a new one: "
                "its rounds would draw the noise of the first again"
            )
        self._begin_at(initial_arrays)
        self.summary()
        result, self._has_begun = Result(), True
        try:
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
        except BudgetExhausted as budget:
            self._stop(budget)
        result.arrays = self._arrays()
        return result

    def _stop(self, budget: BudgetExhausted) -> None:
        """What is done with a round that the budget does not pay: here the caller's business."""
        raise budget

    def _begin_at(self, arrays: ArrayRecord | None) -> None:
        """Start from ``arrays`` unless a round was made or they hold nothing."""
        if self._is_fresh and arrays:
            if "x" not in arrays:
                raise ConfigError(f"initial_arrays: expected an array 'x', got {list(arrays)[:5]}")
            x = tensors_from_record(arrays)["x"]
            self._state = self.plan.server_update.initial(self._point(x))
        self._is_fresh = False

    def _point(self, x: Tensor) -> Tensor:
        """``x``, which must lie on the manifold.

        Raises:
            ConfigError: with its defect.
        """
        defect = float(self.plan.manifold.membership_defect(x))
        if not defect <= tolerance(x.dtype):
            raise ConfigError(
                f"initial_arrays: expected x on {self.plan.manifold.name} within "
                f"{tolerance(x.dtype):g}, got a relative distance of {defect:.3g}"
            )
        return x

    def _finish_round(self, report: RoundReport) -> None:
        self._state = report.state
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
        """The messages of the next exchange; a round is charged before its first are handed out.

        Messages whose replies were not aggregated are out of use: the round is begun, and charged,
        once more.
        """
        transport = self._meet(grid)
        self._begin_at(arrays)
        self._has_begun = True
        if self._sent is not None:
            self._open = self._sent = None
        if self._open is None:
            self._open = (self._begun(server_round), Traffic())
        now, _ = self._open
        messages = transport.messages(now.header, now.down, now.asked, self._last_accepted)
        self._sent = (server_round, messages)
        return messages

    def _begun(self, server_round: int) -> Attempt:
        """The attempt whose first exchange is this round of Flower's: of round 0, or of a round."""
        phases = len(self.plan.phases)
        setup = len(self.plan.setup_phases) if self._first_round == 1 else 0
        own = 0
        if server_round > setup:
            own = self._first_round + (server_round - 1 - setup) // phases
        attempt = self._made[own] + (self._attempts(own) if own else 0)
        self._made[own] += 1
        if own == 0:
            return begin(self.plan.of_setup(), self.state, 0, attempt, free)
        return begin(self.plan, self.state, own, attempt, self._charge)

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
            report = report_of(now, seen)
            if report.server_round == 0:
                self._state = report.state
            else:
                self._finish_round(report)
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
        num_examples: Sequence[int] | None = None,
        cohort: Cohort | None = None,
        privacy: Privacy | None = None,
        budget: tuple[float, float] | None = None,
        ledger: str | Path | None = None,
        num_rounds: int | None = None,
        replies: ReplyPolicy | None = None,
        source: NoiseSource | None = None,
    ) -> None:
        """``num_examples`` are public: weights, and the sizes that prices use.

        None takes those of ``privacy``. ``budget`` is (epsilon, delta), ``ledger`` a file that is
        not there yet. ``num_rounds`` is for Flower's own loop, which does not say how many rounds
        there will be; `start` does. ``source`` is a seeded one in tests; None is keyed by the
        operating system.

        Raises:
            ConfigError: for parts that do not go together.
        """
        sizes = tuple(num_examples or (privacy.num_examples if privacy is not None else ()))
        people, policy = cohort or Everyone(), replies or ReplyPolicy()
        _check(type(self).__name__, sizes, people, server_update, privacy, ledger)
        means = sum(len(phase.up.names()) for phase in update.phases)
        if isinstance(privacy, ClientLevel) and means != 1:
            raise ConfigError(
                "privacy: ClientLevel releases and charges one noised mean a round, got an update "
                f"that sends {means}; use ExampleLevel"
            )
        privacy = None if privacy is None else replace(privacy, update=update, num_examples=sizes)
        self._planned = num_rounds
        own = source or NoiseSource.from_os()
        self.promise = promise_of(privacy, len(sizes), people, budget, num_rounds or 0, own.origin)
        self._ledger, self._open_files = ledger, ExitStack()
        self._is_stopped = self._is_closed = False
        self._account: Account | None = None
        self._odometer = self.promise.odometer()
        self._origins: frozenset[str] = frozenset()
        plan = Plan(
            server_update=server_update,
            manifold=manifold,
            phases=update.phases,
            setup_phases=setup_phases_of(update),
            cohort=people,
            policy=policy,
            source=own,
            num_examples=sizes,
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
        self._plan_for(num_rounds)
        try:
            return super().start(grid, initial_arrays, num_rounds, timeout, evaluate_fn=evaluate_fn)
        finally:
            self.close()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As `ServerLoop.configure_train`; no messages once the budget has run out."""
        if self._is_stopped:
            return []
        self._plan_for(self._planned)
        try:
            return super().configure_train(server_round, arrays, config, grid)
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

    def statement(self) -> dict[str, Any]:
        """The privacy statement so far, as data; clients declare where their noise came from."""
        return self.promise.statement(self.odometer, noise_origins=self._origins, is_declared=True)

    @property
    def text(self) -> str:
        """The privacy statement so far, one fact a line."""
        return statement_of(self.statement())

    @property
    def odometer(self) -> Odometer:
        """What is spent."""
        return self._odometer if self._account is None else self._account.odometer

    def close(self) -> None:
        """Settle and release the ledger; whoever runs Flower's own loop calls it at the end."""
        if self._account is not None:
            self._odometer = self._account.odometer
        self._open_files.close()
        self._account, self._is_closed = None, True

    # -- what is paid ------------------------------------------------------------------------
    def _plan_for(self, num_rounds: int | None) -> None:
        """Price an outsider for all planned draws (privacy/filter.py says why).

        Raises:
            ConfigError: when cohorts are drawn and nobody said how many there will be.
        """
        if num_rounds is not None:
            draws = num_rounds * (
                self.plan.policy.max_attempts if self.plan.policy.on_failure == "retry" else 1
            )
            self.promise, self._planned = self.promise.for_draws(draws), num_rounds
            self._odometer.declare(self.promise.terms)
        elif self.promise.adversaries and self.promise.terms.participation_probability < 1:
            raise ConfigError(
                f"num_rounds: expected it in the call of {type(self).__name__} under Flower's own "
                "loop, got none; an outsider is priced for all cohorts that may be drawn"
            )

    def _pay(self, server_round: int, attempt: int, partitions: tuple[int, ...]) -> None:
        """The charge of an attempt: asked of the filter, on disk, then counted."""
        if self._ledger is not None and self._account is None:
            if self._is_closed:
                raise ConfigError(
                    f"ledger: expected no round after close(), got round {server_round}; make a "
                    f"new {type(self).__name__} with a ledger of its own"
                )
            self._account = self._open_files.enter_context(
                opened(
                    Path(self._ledger),
                    self.promise,
                    last_round=self._planned or MOST_ROUNDS,
                    header={"config_sha256": self.plan.config_sha256},
                )
            )
        if self._account is not None:
            self._account.charge(server_round, attempt, partitions)
        else:
            count_only(self.promise, self._odometer, server_round, attempt, partitions)

    def _note(self, report: RoundReport) -> None:
        self._origins |= report.noise_origins
        if self._account is not None:
            self._account.note_origins(report.server_round, report.noise_origins)

    def _stop(self, budget: BudgetExhausted) -> None:
        self._is_stopped = True
        self._origins |= budget.noise_origins
        log(30, "%s", budget)


def _check(
    name: str,
    sizes: tuple[int, ...],
    cohort: Cohort,
    server_update: ServerUpdate,
    privacy: Privacy | None,
    ledger: str | Path | None,
) -> None:
    """Refuse parts that do not go together.

    Raises:
        ConfigError: naming the argument.
    """
    if not sizes or min(sizes) < 1:
        raise ConfigError(
            "num_examples: expected the public size, at least 1, of every client's shard, got "
            f"{list(sizes[:5])}"
        )
    if ledger is not None and privacy is None:
        raise ConfigError("ledger: expected privacy beside a ledger, got none")
    if server_update.needs_everyone and cohort.kind != "all":
        raise ConfigError(f"cohort: {name} needs every client in every round, got {cohort.kind!r}")
