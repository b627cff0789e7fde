"""One round over a Flower Grid: cohort, charge, messages, replies, step.

`Rounds` keeps the server's state; it is the only mutable object of the server, and everything it
calls is a pure function of frozen data.

Order of a round, and why: the ledger is charged and on disk *before* a message leaves, because in
the server's view the uploads are the release; so a crash, a retry or an abort can make the ledger
show more than was spent, never less. The new model is used only after that.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from flwr.app import Message, MessageType
from flwr.common.logger import log
from flwr.serverapp import Grid
from torch import Tensor

from manifed.algorithms.interface import Collected, ServerState
from manifed.algorithms.payloads import Payload
from manifed.errors import RoundFailed
from manifed.federation.aggregation import PrivateMean, ServerDraws, private_mean, weighted_mean
from manifed.federation.header import Header
from manifed.federation.plan import Exchange, Plan, RoundReport, StackedGrid, Treasurer
from manifed.federation.replies import Replies
from manifed.flower.inbox import Expectation, answers_by_node, read_replies, refuse_bad_rows
from manifed.flower.records import pack
from manifed.manifolds.defects import largest_allowed, tolerance
from manifed.privacy.mechanism import ClientMechanism

DRIFT = 1e-4
"""What part of the clients' tolerance a model may be off its manifold: 1e-10 in float64, where
2000 exponential maps without a projection leave less than 1e-13."""


class BadState(RoundFailed):
    """A server update led to a state that could not be broadcast."""


CLIP = "l2_norm_clip"
"""The adapted clip norm, kept in the server's state and so in its checkpoints."""


class Rounds:
    """Runs the rounds of one plan, one at a time."""

    def __init__(
        self,
        plan: Plan,
        state: ServerState,
        treasurer: Treasurer,
        *,
        attempts: Callable[[int], int] = lambda _: 0,
        last_accepted: Mapping[int, int] | None = None,
    ) -> None:
        """``attempts(round)`` says how often a round was charged before (after a crash)."""
        self.plan, self.state = plan, state
        self._treasurer, self._attempts = treasurer, attempts
        self._nodes: dict[int, int] = {}
        self._last_accepted: dict[int, int] = dict(last_accepted or {})

    def run_round(self, server_round: int, grid: Grid) -> RoundReport:
        """One round, retries included; needs the handshake that `start` does."""
        plan, first = self.plan, self._attempts(server_round)
        tries = plan.policy.max_attempts if plan.policy.on_failure == "retry" else 1
        seen = _Seen()
        for attempt in range(first, first + tries):
            partitions = plan.cohort.draw(plan.num_clients, server_round, attempt, plan.source)
            self._treasurer.charge(server_round, attempt, partitions)
            try:
                return self._attempt(server_round, attempt, partitions, grid, seen)
            except RoundFailed as failure:
                if attempt == first + tries - 1:
                    raise
                log(
                    30,
                    "Round %d, attempt %d failed and is paid for: %s",
                    server_round,
                    attempt,
                    failure,
                )
        raise AssertionError("unreachable: a round ends by a report or an error")

    def _attempt(
        self,
        server_round: int,
        attempt: int,
        partitions: tuple[int, ...],
        grid: Grid,
        seen: "_Seen",
    ) -> RoundReport:
        plan, state, asked = self.plan, self.state, partitions
        dropped: set[int] = set()
        for index, exchange in enumerate(plan.exchanges):
            header = Header(plan.config_sha256, server_round, attempt, exchange.name, -1)
            down = plan.half.down(state, exchange.name)
            replies = self._exchange(header, exchange, down, asked, grid)
            seen.add(replies)
            dropped |= set(replies.failures)
            draws = ServerDraws(plan.source, server_round, attempt, index)
            judged = self._judged(header, replies, asked, len(partitions))
            try:
                state = self._step(state, exchange, judged, draws)
            except BadState as bad:
                replies = self._without_culprits(bad, state, exchange, judged, draws)
                seen.failures |= replies.failures
                dropped |= set(replies.failures)
                judged = self._judged(header, replies, asked, len(partitions))
                state = self._step(state, exchange, judged, draws)
            asked = judged.partitions
        self.state = state
        used = tuple(i for i in asked if i not in dropped)
        self._last_accepted |= dict.fromkeys(used, server_round)
        origins = frozenset({plan.source.origin})
        if (
            plan.mechanism is None
        ):  # else the server's noise is all that protects, whatever clients say
            origins |= seen.noise_origins
        return RoundReport(
            server_round, state, used, seen.failures, seen.bytes_down, seen.bytes_up, origins
        )

    def _judged(
        self, header: Header, replies: Replies, asked: tuple[int, ...], cohort_size: int
    ) -> Replies:
        """What the round goes on with.

        Under client-level privacy whether a reply is usable is a datum of one client, as its upload
        is: each failed one is the zero vector, in every exchange, so the round goes the same way
        whatever a client sends, and the sum still moves by at most one bound.

        Raises:
            RoundFailed: when the policy is not content.
        """
        self._tell_who_was_dropped(header, replies)
        plan = self.plan
        if plan.mechanism is not None:
            return replies.zero_filled(asked)
        if asked and not plan.policy.is_enough(
            replies, cohort_size, needs_everyone=plan.needs_everyone
        ):
            raise RoundFailed(
                f"Round {header.server_round}: {plan.policy.explain(replies, cohort_size)}"
            )
        return replies

    def _tell_who_was_dropped(self, header: Header, replies: Replies) -> None:
        for client, reason in sorted(replies.failures.items()):
            log(
                30,
                "Round %d, attempt %d, phase %s: client %d is dropped: %s",
                header.server_round,
                header.attempt,
                header.phase,
                client,
                reason,
            )

    def _step(
        self, state: ServerState, exchange: Exchange, replies: Replies, draws: ServerDraws
    ) -> ServerState:
        plan = self.plan
        if not replies.partitions and plan.mechanism is None:
            return state
        collected = Collected(
            {}, replies.uploads, replies.partitions, plan.num_clients, draws.uniform()
        )
        if plan.mechanism is None:
            collected = replace(collected, mean=self._weighted_mean(replies))
        else:
            clip = float(state.tensors.get(CLIP, plan.mechanism.l2_norm_clip))
            private = self._private_mean(plan.mechanism, state, replies, draws, clip)
            collected = replace(collected, mean=private.mean)
            if plan.mechanism.adaptive is not None:
                state = state.replace(
                    **{CLIP: torch.tensor(private.next_clip, dtype=torch.float64)}
                )
        try:
            after = plan.half.step(
                state, exchange.name, collected, draws.server_round, plan.manifold
            )
        except (torch.linalg.LinAlgError, ArithmeticError) as error:  # pyright: ignore[reportPrivateImportUsage]
            raise BadState(
                f"Round {draws.server_round}: the server update failed: {type(error).__name__}; "
                "the state of the round before stays (lower the step sizes?)"
            ) from None
        return _usable(after, plan, draws.server_round)

    def _without_culprits(
        self,
        bad: BadState,
        state: ServerState,
        exchange: Exchange,
        replies: Replies,
        draws: ServerDraws,
    ) -> Replies:
        """The replies without each whose upload alone leads to a state that nobody can use.

        Raises:
            BadState: ``bad``, where no single upload does or all do, and under client-level
                privacy, where a clipped mean moves the model and no upload decides anything.
        """
        culprits: dict[int, str] = {}
        if self.plan.mechanism is None:
            for row, client in enumerate(replies.partitions):
                alone = replace(
                    replies,
                    partitions=(client,),
                    uploads=replies.uploads.take(torch.tensor([row], device=self.plan.device)),
                )
                try:
                    self._step(state, exchange, alone, draws)
                except BadState:
                    largest = max(float(u.abs().max()) for u in alone.uploads.tensors().values())
                    culprits[client] = (
                        "Expected an upload that the model can take a step along, got one with "
                        f"entries up to {largest:.3g} that alone leads to no usable state"
                    )
        if not culprits:
            raise bad
        if len(culprits) == len(replies.partitions):  # then the step is at fault, or one client
            some = ", ".join(str(i) for i in list(culprits)[:5])
            raise BadState(f"{bad}; so does each upload alone, of the clients {some}") from None
        rows = [row for row, i in enumerate(replies.partitions) if i not in culprits]
        return replace(
            replies,
            partitions=tuple(replies.partitions[row] for row in rows),
            uploads=replies.uploads.take(
                torch.tensor(rows, dtype=torch.long, device=self.plan.device)
            ),
            failures=culprits,
        )

    def _weighted_mean(self, replies: Replies) -> Mapping[str, Tensor]:
        plan = self.plan
        sizes = [plan.num_examples[i] for i in replies.partitions]
        weights = torch.tensor(sizes, dtype=torch.float64, device=plan.device)
        if plan.half.weights == "uniform":
            weights = torch.ones_like(weights)
        return weighted_mean(replies.uploads, weights)

    def _private_mean(
        self,
        mechanism: ClientMechanism,
        state: ServerState,
        replies: Replies,
        draws: ServerDraws,
        clip: float,
    ) -> PrivateMean:
        plan = self.plan
        base = plan.half.base(state, plan.manifold)
        expected = plan.cohort.expected_size(plan.num_clients)
        return private_mean(
            replies.uploads, base, plan.half.space, plan.manifold, mechanism, expected, draws, clip
        )

    # -- the exchange ------------------------------------------------------------------------
    def _exchange(
        self,
        header: Header,
        exchange: Exchange,
        down: Payload,
        partitions: tuple[int, ...],
        grid: Grid,
    ) -> Replies:
        if isinstance(grid, StackedGrid):
            replies = grid.exchange_cohort(header, down, partitions, self._last_accepted)
            return refuse_bad_rows(self._expect(header, exchange), replies)
        messages = self._messages(header, down, partitions)
        answers = grid.send_and_receive(messages, timeout=self.plan.policy.timeout)
        return self._read(header, exchange, down.num_bytes(), messages, answers)

    def _read(
        self,
        header: Header,
        exchange: Exchange,
        down_bytes: int,
        messages: Sequence[Message],
        answers: Iterable[Message],
    ) -> Replies:
        """The usable ones of the ``answers`` to ``messages``; a failure names client and node."""
        owner = {node: i for i, node in self._nodes.items()}
        by_client = {
            owner[node]: found for node, found in answers_by_node(messages, answers).items()
        }
        partitions = tuple(owner[message.metadata.dst_node_id] for message in messages)
        replies = read_replies(self._expect(header, exchange), down_bytes, partitions, by_client)
        named = {i: f"{why} (node {self._nodes[i]})" for i, why in replies.failures.items()}
        return replace(replies, failures=named)

    def _messages(
        self, header: Header, down: Payload, partitions: tuple[int, ...]
    ) -> list[Message]:
        messages: list[Message] = []
        for i in partitions:
            mine = Header(
                header.config_sha256,
                header.server_round,
                header.attempt,
                header.phase,
                i,
                self._last_accepted.get(i, 0),
            )
            messages.append(
                Message(
                    pack(mine, down),
                    dst_node_id=self._nodes[i],
                    message_type=MessageType.TRAIN,
                    group_id=str(header.server_round),
                )
            )
        return messages

    def _expect(self, header: Header, exchange: Exchange) -> Expectation:
        plan = self.plan
        base = plan.half.base(self.state, plan.manifold)
        return Expectation(
            header, exchange.up, base, plan.half.space, plan.manifold, plan.policy.timeout
        )


@dataclass
class _Seen:
    """What all attempts of a round sent and got, and who was dropped."""

    bytes_down: int = 0
    bytes_up: int = 0
    failures: dict[int, str] = field(default_factory=dict[int, str])
    noise_origins: set[str] = field(default_factory=set[str])

    def add(self, replies: Replies) -> None:
        self.bytes_down += replies.bytes_down
        self.bytes_up += replies.bytes_up
        self.failures |= replies.failures
        self.noise_origins |= replies.noise_origins


def _usable(state: ServerState, plan: Plan, server_round: int) -> ServerState:
    """``state``, which a round may leave behind only if it can be broadcast.

    That is: finite, on the manifold, and with no entry above what clients take.

    Raises:
        BadState: with the tensor; the state before the round stays.
    """
    kept = "the state of the round before stays (lower the step sizes?)"
    for name, tensor in state.tensors.items():
        bound = largest_allowed(tensor.dtype)
        if not bool((tensor.abs() <= bound).all()):
            bad = int((~(tensor.abs() <= bound)).sum())
            raise BadState(
                f"Round {server_round}: Expected a finite state after the server update, got "
                f"{bad} of {tensor.numel()} numbers in {name} that are not, or above {bound:g}; "
                f"{kept}"
            )
    model = plan.half.model(state, plan.manifold)
    bound = DRIFT * tolerance(model.dtype)
    defect = float(plan.manifold.membership_defect(model))
    if not defect <= bound:
        raise BadState(
            f"Round {server_round}: Expected a model on {plan.manifold.name} within {bound:g} "
            f"after the server update, got a relative distance of {defect:.3g}; {kept}"
        )
    return state
