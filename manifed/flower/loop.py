"""The server loop as a Flower Strategy: `start` runs it, and so does Flower's own `Strategy.start`.

What a round sends, how it judges and aggregates replies, and what it charges are methods: those of
`manifed.federation.rounds.Rules`, and `charge`. A subclass overrides the ones that it does in its
own way, and both loops call them.

Under Flower's own loop an algorithm with several exchanges takes as many of Flower's rounds for one
of its own. A failed round raises there, because only this class's `start` knows how to retry.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import Tensor

from manifed.algorithms.interface import MayDisclose, ServerState
from manifed.errors import BudgetExhausted, ConfigError, RoundFailed
from manifed.federation.plan import Plan, RoundReport
from manifed.federation.rounds import (
    Attempt,
    Charge,
    Rules,
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
from manifed.manifolds.defects import TOLERANCE


def ignore(report: RoundReport) -> None:
    """Nothing."""


class ServerLoop(Rules, Strategy):
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
        self._begin_at(initial_arrays)
        self.summary()
        result = Result()
        try:
            for report in self.rounds(grid, num_rounds):
                if evaluate_fn is not None:
                    metrics = evaluate_fn(report.server_round, self._arrays())
                    if metrics is not None:
                        result.evaluate_metrics_serverapp[report.server_round] = metrics
        except BudgetExhausted as budget:
            self._stop(budget)
        result.arrays = self._arrays()
        return result

    def rounds(self, grid: Grid, num_rounds: int) -> Iterator[RoundReport]:
        """The rounds up to ``num_rounds``, one by one, from the state on.

        Raises:
            ConfigError: for a second run. Others as `manifed.federation.rounds.run_rounds`.
        """
        if self._has_begun:
            raise ConfigError(
                f"{type(self).__name__}: expected one run an object, got a second; make a new one: "
                "its rounds would draw the noise of the first again"
            )
        self._has_begun = True
        for report in run_rounds(
            self.plan,
            self.state,
            self._meet(grid),
            self._charge,
            num_rounds=num_rounds,
            first_round=self._first_round,
            attempts=self._attempts,
            last_accepted=self._last_accepted,
            rules=self,
            charge_more=self.charge_more,
        ):
            self._finish_round(report)
            yield report

    def go_on_at(
        self,
        server_round: int,
        state: ServerState,
        last_accepted: Mapping[int, int],
        attempts: Callable[[int], int],
    ) -> None:
        """Begin at ``server_round`` with the state of the round before; as in the constructor."""
        self._state, self._first_round, self._is_fresh = state, server_round, False
        self._last_accepted, self._attempts = dict(last_accepted), attempts

    def charge_more(
        self,
        server_round: int,
        attempt: int,
        partitions: tuple[int, ...],
        disclosed: tuple[int, ...],
    ) -> None:
        """Pay for what an exchange discloses; a loop without a promise charges nothing."""

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
        if not defect <= TOLERANCE[x.dtype]:
            raise ConfigError(
                f"initial_arrays: expected x on {self.plan.manifold.name} within "
                f"{TOLERANCE[x.dtype]:g}, got a relative distance of {defect:.3g}"
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
        messages = transport.messages(now.header, self.send(now), now.asked, self._last_accepted)
        self._sent = (server_round, messages)
        return messages

    def _begun(self, server_round: int) -> Attempt:
        """The attempt whose first exchange is this round of Flower's: of round 0, or of a round."""
        if isinstance(self.plan.server_update, MayDisclose):
            raise ConfigError(
                f"{type(self).__name__}: an exchange that some rounds leave out cannot be told to "
                "Flower's own loop, in which every round has as many; call its start"
            )
        phases = len(self.plan.phases)
        setup = len(self.plan.setup_phases) if self._first_round == 1 else 0
        own = 0
        if server_round > setup:
            own = self._first_round + (server_round - 1 - setup) // phases
        attempt = self._made[own] + (self._attempts(own) if own else 0)
        self._made[own] += 1
        if own == 0:
            return begin(self.plan.of_setup(), self.state, 0, attempt, free, self)
        return begin(self.plan, self.state, own, attempt, self._charge, self)

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
        came = checked(now, transport.read(now.header, now.phase, self.send(now), sent[1], replies))
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
