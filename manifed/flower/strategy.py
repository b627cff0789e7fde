"""A federation as Flower runs it: all rounds of a plan, and Flower's own names for their parts.

A `ServerLoop` is a `flwr.serverapp.strategy.Strategy`: `start` runs the whole story (rounds.py),
and who prefers a loop of their own calls `configure_train` and `aggregate_train`.
"""

from collections.abc import Callable, Iterable, Mapping

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from manifed.algorithms.interface import ServerState
from manifed.errors import RoundFailed
from manifed.federation.aggregation import ServerDraws
from manifed.federation.header import Header
from manifed.federation.plan import Plan, RoundReport, StackedGrid, Treasurer
from manifed.flower import keys
from manifed.flower.handshake import meet
from manifed.flower.records import tensors_from_record, tensors_to_record
from manifed.flower.rounds import Rounds


class ServerLoop(Rounds, Strategy):
    """Runs the rounds of one plan, from the handshake to the result."""

    def __init__(
        self,
        plan: Plan,
        state: ServerState,
        treasurer: Treasurer,
        on_round: Callable[[RoundReport], None],
        *,
        first_round: int = 1,
        attempts: Callable[[int], int] = lambda _: 0,
        last_accepted: Mapping[int, int] | None = None,
    ) -> None:
        """``attempts(round)`` says how often a round was charged before (after a crash)."""
        super().__init__(plan, state, treasurer, attempts=attempts, last_accepted=last_accepted)
        self._on_round, self._first_round = on_round, first_round
        self._configured: tuple[Header, list[Message]] | None = None

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
        """All rounds up to ``num_rounds``; the result holds the model's arrays."""
        if initial_arrays is not None:
            x = tensors_from_record(initial_arrays)["x"]
            self.state = self.plan.half.initial(x)
        self.summary()
        self._meet(grid)
        result = Result()
        for server_round in range(self._first_round, num_rounds + 1):
            report = self.run_round(server_round, grid)
            self._on_round(report)
            if evaluate_fn is not None:
                metrics = evaluate_fn(server_round, self._arrays())
                if metrics is not None:
                    result.evaluate_metrics_serverapp[server_round] = metrics
        result.arrays = self._arrays()
        return result

    def _meet(self, grid: Grid) -> None:
        """The handshake, once."""
        if not self._nodes and not isinstance(grid, StackedGrid):
            plan = self.plan
            self._nodes = meet(grid, plan.config_sha256, plan.num_examples, plan.policy.timeout)

    # -- Flower's names ----------------------------------------------------------------------
    def _arrays(self) -> ArrayRecord:
        return tensors_to_record({"x": self.plan.half.model(self.state, self.plan.manifold)})

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages of the first phase of a round, charged before they are handed out."""
        self._meet(grid)
        plan, attempt = self.plan, self._attempts(server_round)
        partitions = plan.cohort.draw(plan.num_clients, server_round, attempt, plan.source)
        self._treasurer.charge(server_round, attempt, partitions)
        phase = plan.exchanges[0].name
        header = Header(plan.config_sha256, server_round, attempt, phase, -1)
        messages = self._messages(header, plan.half.down(self.state, phase), partitions)
        self._configured = (header, messages)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The model after a single-phase round whose messages `configure_train` made.

        A round is used once: its messages were charged once.
        """
        plan, exchange = self.plan, self.plan.exchanges[0]
        if len(plan.exchanges) != 1:
            raise NotImplementedError(f"{plan.half.kind} has several phases a round; use start()")
        if self._configured is None or self._configured[0].server_round != server_round:
            raise RoundFailed(f"Expected configure_train for round {server_round} first")
        (header, messages), self._configured = self._configured, None
        read = self._read(header, exchange, 0, messages, replies)
        owner = {node: i for i, node in self._nodes.items()}
        asked = tuple(owner[message.metadata.dst_node_id] for message in messages)
        judged = self._judged(header, read, asked, len(asked))
        draws = ServerDraws(plan.source, server_round, header.attempt)
        self.state = self._step(self.state, exchange, judged, draws)
        self._last_accepted |= dict.fromkeys(read.partitions, server_round)
        return self._arrays(), MetricRecord({keys.SERVER_ROUND: server_round})

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
            plan.half.kind,
            plan.manifold.name,
            plan.num_clients,
            plan.cohort.kind,
        )
