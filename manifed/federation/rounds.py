"""One round as a pure function: cohort, charge, exchange, replies, mean, server update, report.

Order of a round, and why: the charge is on disk *before* a message leaves, because to the server
the uploads are the release; so a crash, a retry or an abort can make the ledger show more than
was spent, never less. The new model is used only after that.

What a round sends, which replies it goes on with and how they are aggregated are the three methods
of `Rules`; a strategy may have its own.

`run_round` runs a whole round over a transport. Who must give control away between two exchanges
(Flower's own `Strategy.start`) calls its parts: `begin`, `checked`, `after`, `report_of`.
"""

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from manifed.algorithms.held_out import EVALUATE
from manifed.algorithms.interface import Collected, JudgesUploads, Phase, ServerState
from manifed.algorithms.payloads import Down, PerClient, Point
from manifed.errors import BudgetExhausted, ConfigError, RoundFailed
from manifed.federation.aggregation import (
    Mean,
    ServerDraws,
    mean_of,
    mean_of_all,
    only_field,
    weighted_mean,
)
from manifed.federation.header import Header
from manifed.federation.plan import Plan, RoundReport
from manifed.federation.replies import Failure, Fetched, Replies
from manifed.federation.transport import Transport, gives_sums
from manifed.federation.uploads import Expectation, refuse_bad_rows, told
from manifed.manifolds.defects import DRIFT, LARGEST, is_short

log = logging.getLogger("manifed")

CLIP = "l2_norm_clip"
"""The adapted clip norm, kept in the server's state and so in its checkpoints."""

Charge = Callable[[int, int, tuple[int, ...]], None]
"""``charge(server_round, attempt, partitions)`` pays for an attempt before any message of it
leaves; it raises `BudgetExhausted` when the run may not pay."""


ChargeMore = Callable[[int, int, tuple[int, ...], tuple[int, ...]], None]
"""``charge_more(server_round, attempt, partitions, disclosed)`` pays for what an exchange within an
attempt discloses of some clients' masks, before its messages leave; errors as `Charge`."""


class BadState(RoundFailed):
    """A server update led to a state that could not be broadcast."""

    def __init__(self, text: str) -> None:
        super().__init__(text, is_computed=True)


def free_of_more(
    server_round: int, attempt: int, partitions: tuple[int, ...], disclosed: tuple[int, ...]
) -> None:
    """The same for what an exchange discloses."""


def free(server_round: int, attempt: int, partitions: tuple[int, ...]) -> None:
    """The charge of a run that protects nobody."""


def run_rounds(
    plan: Plan,
    state: ServerState,
    transport: Transport,
    charge: Charge = free,
    *,
    num_rounds: int,
    first_round: int = 1,
    attempts: Callable[[int], int] = lambda _: 0,
    last_accepted: Mapping[int, int] | None = None,
    rules: "Rules | None" = None,
    charge_more: ChargeMore = free_of_more,
) -> Iterator[RoundReport]:
    """Rounds ``first_round`` to ``num_rounds``, one by one; errors as `run_round` and ``charge``.

    The exchanges before round 1 come first; they are round 0, and charged nothing.

    ``attempts(round)`` says how often a round was charged before (after a crash),
    ``last_accepted`` in which round each client's reply was last used.
    """
    accepted = dict(last_accepted or {})
    if plan.setup_phases and first_round > 1:
        raise ConfigError(
            "output.resume: an algorithm with exchanges before round 1 cannot be resumed: clients "
            "would go on without what they learnt there; start a new run"
        )
    if plan.setup_phases:
        state = run_round(plan.of_setup(), state, 0, transport, free, accepted, rules=rules).state
    for server_round in range(first_round, num_rounds + 1):
        report = run_round(
            plan, state, server_round, transport, charge, accepted, attempts(server_round), rules,
            charge_more,
        )  # fmt: skip
        state = report.state
        accepted |= dict.fromkeys(report.participants, server_round)
        yield report


def run_round(
    plan: Plan,
    state: ServerState,
    server_round: int,
    transport: Transport,
    charge: Charge,
    last_accepted: Mapping[int, int],
    first_attempt: int = 0,
    rules: "Rules | None" = None,
    charge_more: ChargeMore = free_of_more,
) -> RoundReport:
    """One round, retries included; ``state`` is the one before it.

    Raises:
        RoundFailed: when the policy is not content with the replies of the last attempt.
        BadState: when the server update leads to no usable state.
    """
    tries = plan.policy.max_attempts if plan.policy.on_failure == "retry" else 1
    seen = NO_TRAFFIC
    for attempt in range(first_attempt, first_attempt + tries):
        try:
            now = begin(plan, state, server_round, attempt, charge, rules)
        except BudgetExhausted as budget:
            budget.noise_origins = _origins(plan, seen) if attempt > first_attempt else frozenset()
            raise
        try:
            while (phase := now.phase) is not None:
                _pay_more(now, seen, charge_more)
                replies = _exchanged(transport, now, phase, last_accepted)
                seen = seen.plus(replies)
                now = after(now, replies)
            return report_of(now, seen)
        except RoundFailed as failure:
            if attempt == first_attempt + tries - 1:
                raise
            log.warning(
                "Round %d, attempt %d failed and is paid for: %s", server_round, attempt, failure
            )
    raise AssertionError("unreachable: a round ends by a report or an error")


def _exchanged(
    transport: Transport, now: "Attempt", phase: Phase, last_accepted: Mapping[int, int]
) -> Replies:
    """The checked replies of the next exchange: rows, or their sums where these will do."""
    down, plan = sent(now), now.plan
    is_mean = phase.aggregation == "mean" and phase is not EVALUATE and plan.mechanism is None
    if not (is_mean and now.rules is AS_PLANNED and gives_sums(transport)):
        return checked(now, transport.exchange(now.header, phase, down, now.asked, last_accepted))
    shares = plan.shares(now.asked)
    found = transport.exchange_sums(
        now.header, phase, down, now.asked, last_accepted, _expected(now, phase), shares
    )
    _tell_who_was_dropped(now, found)
    return found


def _pay_more(now: "Attempt", seen: "Traffic", charge_more: ChargeMore) -> None:
    """Pay for what the next exchange discloses, before its messages leave."""
    if not (disclosed := now.disclosed):
        return
    try:
        charge_more(now.server_round, now.attempt, now.cohort, disclosed)
    except BudgetExhausted as budget:
        budget.noise_origins = _origins(now.plan, seen)
        raise


class Traffic(NamedTuple):
    """What all attempts of a round sent and got, and who was dropped."""

    bytes_down: int = 0
    bytes_up: int = 0
    failures: Mapping[int, Failure] = MappingProxyType({})
    noise_origins: frozenset[str] = frozenset()

    def plus(self, replies: Replies) -> "Traffic":
        """With one exchange more."""
        return Traffic(
            self.bytes_down + replies.bytes_down,
            self.bytes_up + replies.bytes_up,
            {**self.failures, **replies.failures},
            self.noise_origins | replies.noise_origins,
        )


NO_TRAFFIC = Traffic()


class Attempt(NamedTuple):
    """One attempt of a round before its next exchange."""

    plan: Plan
    server_round: int
    attempt: int
    cohort: tuple[int, ...]
    asked: tuple[int, ...]
    """Who is sent the next message: the cohort without those that failed before."""
    state: ServerState
    rules: "Rules"
    phases: tuple[Phase, ...]
    """The exchanges of this round."""
    index: int = 0
    failures: Mapping[int, Failure] = MappingProxyType({})
    held_out: tuple[Tensor, int] | None = None
    """What hold-outs said: the sum of what so many clients sent."""

    @property
    def phase(self) -> Phase | None:
        """The next exchange; None after the last."""
        return self.phases[self.index] if self.index < len(self.phases) else None

    @property
    def name(self) -> str:
        """The name of the next exchange."""
        return self.phases[self.index].name

    @property
    def disclosed(self) -> tuple[int, ...]:
        """Whose masks the next exchange discloses."""
        server = self.plan.discloser
        if server is None or self.phase is EVALUATE:
            return ()
        return server.disclosed(self.state, self.name)

    @property
    def header(self) -> Header:
        """What the next messages belong to, for nobody in particular."""
        return Header(self.plan.config_sha256, self.server_round, self.attempt, self.name, -1)

    @property
    def draws(self) -> ServerDraws:
        """The server's randomness of this exchange."""
        return ServerDraws(self.plan.source, self.server_round, self.attempt, self.index)

    def uniform(self) -> float:
        """The one uniform of the exchange, drawn when somebody asks."""
        return self.draws.uniform()


class Rules:
    """What a round does in the order above: by its plan, unless a strategy overrides a method."""

    def send(self, now: Attempt) -> Down:
        """What goes down next: what the server update broadcasts, to those who are asked."""
        down = now.plan.server_update.down(now.state, now.name)
        if not isinstance(down, PerClient) or len(now.asked) == now.plan.num_clients:
            return down
        return PerClient(down.rows.take(torch.tensor(now.asked, dtype=torch.long)))

    def judge(self, now: Attempt, replies: Replies) -> Replies:
        """What the round goes on with.

        Under client-level privacy whether a reply is usable is a datum of one client, as its upload
        is: each failed one is the zero vector, in every exchange, so the round goes the same way
        whatever a client sends, and the sum still moves by at most one bound.

        Raises:
            RoundFailed: when the policy is not content.
        """
        if now.plan.mechanism is not None:
            return replies.zero_filled(now.asked)
        return enough(now, replies)

    def aggregate(self, now: Attempt, replies: Replies) -> Mean:
        """One array a field: a mean, at client level a noised one; nothing where nothing is."""
        if now.plan.phases[now.index].aggregation == "none":
            return Mean({})
        return averaged(now, replies) if now.plan.mechanism is None else noised(now, replies)


AS_PLANNED = Rules()


def sent(now: Attempt) -> Down:
    """What goes down next: by the rules, and for an evaluation the model itself."""
    if now.phase is EVALUATE:
        return Point(now.plan.server_update.model(now.state, now.plan.manifold))
    return now.rules.send(now)


def enough(now: Attempt, replies: Replies) -> Replies:
    """The replies, if the reply policy is content with them.

    Raises:
        RoundFailed: with the first failures.
    """
    plan, phase = now.plan, now.plan.phases[now.index]
    size = len(now.asked if phase.needs_all else now.cohort)
    everyone = plan.needs_everyone or phase.needs_all
    if now.asked and not plan.policy.is_enough(replies, size, needs_everyone=everyone):
        lost = {**now.failures, **replies.failures}
        where = f", exchange {phase.name!r}" if len(plan.phases) > 1 else ""
        why = plan.policy.explain(replies, size, needs_everyone=everyone)
        raise RoundFailed(
            f"Round {now.server_round}{where}: {why}",
            is_computed=all(one.kind == "unusable" for one in lost.values()),
        )
    return replies


def averaged(now: Attempt, replies: Replies) -> Mean:
    """The weighted mean of every field, with the weights of the server update."""
    plan, fields = now.plan, replies.uploads.tensors()
    is_all = replies.sums is None and replies.partitions == now.asked
    if is_all and len(replies.chunks) <= 1:
        return Mean(mean_of_all(fields, plan.shares(now.asked)))
    weights, asked = plan.weights_of(replies.partitions), plan.weights_of(now.asked)
    if replies.sums is not None:
        return Mean(mean_of(replies.sums.fields, fields, weights.sum(), asked.sum()))
    return Mean(weighted_mean(replies.uploads, weights, replies.chunks, asked.sum()))


def noised(now: Attempt, replies: Replies) -> Mean:
    """What the server's mechanism releases of the one field, at the point of the broadcast.

    Raises:
        ValueError: for uploads of several fields, or without a mechanism.
    """
    plan, mechanism = now.plan, now.plan.mechanism
    if mechanism is None:
        raise ValueError("Expected client-level privacy to noise a mean, got no mechanism")
    name, stacked = only_field(replies.uploads)
    found = mechanism.noised_mean(
        stacked,
        plan.server_update.base(now.state, plan.manifold),
        plan.manifold,
        now.draws.normals,
        expected_cohort=plan.cohort.expected_size(plan.num_clients),
        is_tangent=plan.server_update.space == "tangent",
        l2_norm_clip=float(now.state.tensors.get(CLIP, mechanism.l2_norm_clip)),
    )
    return Mean({name: found.mean}, None if mechanism.adaptive is None else found.next_clip)


def begin(
    plan: Plan,
    state: ServerState,
    server_round: int,
    attempt: int,
    charge: Charge,
    rules: Rules | None = None,
) -> Attempt:
    """An attempt whose cohort is drawn and paid for."""
    cohort = plan.cohort.draw(plan.num_clients, server_round, attempt, plan.source)
    charge(server_round, attempt, cohort)
    phases = plan.phases if plan.evaluation is None else plan.phases_in(server_round)
    return Attempt(plan, server_round, attempt, cohort, cohort, state, rules or AS_PLANNED, phases)


def checked(now: Attempt, replies: Replies) -> Replies:
    """The replies without the uploads that no step could use; who was dropped is logged."""
    phase = now.phase
    assert phase is not None
    found = refuse_bad_rows(_expected(now, phase), replies)
    judge = now.plan.believed if phase is EVALUATE else now.plan.judge
    if judge is not None:
        found = _without_refused(judge, now, found)
    _tell_who_was_dropped(now, found)
    return found


def _without_refused(judge: JudgesUploads, now: Attempt, found: Replies) -> Replies:
    """The replies without those that are refused for what is in them."""
    why = judge.refused(now.state, now.name, found.uploads, found.partitions)
    return found.without({i: told(found, i, Failure("unusable", why[i])) for i in why})


def _expected(now: Attempt, phase: Phase) -> Expectation:
    """Where the uploads of the next exchange must lie."""
    plan = now.plan
    base = plan.server_update.base(now.state, plan.manifold)
    return Expectation(base, plan.upload_places[phase.name], plan.manifold)


def after(now: Attempt, replies: Replies) -> Attempt:
    """The attempt after an exchange: replies judged, aggregated, and the server's step taken.

    Raises:
        RoundFailed, BadState: as `run_round`.
    """
    if now.phase is EVALUATE:  # it changes no state, and nobody who is silent fails the round
        held_out = (replies.uploads.tensors()["u"].sum(0), len(replies.partitions))
        return now._replace(index=now.index + 1, held_out=held_out)
    failures = {**now.failures, **replies.failures}
    taken = now.rules.judge(now, replies)
    try:
        state = _step(now, taken)
    except BadState as bad:
        left = _without_culprits(bad, now, taken)
        _tell_who_was_dropped(now, left)
        failures |= left.failures
        taken = now.rules.judge(now._replace(failures=failures), left)
        state = _step(now, taken)
    index = _next_due(now, state)
    return Attempt(
        now.plan, now.server_round, now.attempt, now.cohort, taken.partitions, state, now.rules,
        now.phases, index, failures, now.held_out,
    )  # fmt: skip


def _next_due(now: Attempt, state: ServerState) -> int:
    """The next exchange that takes place in this state."""
    server, index = now.plan.discloser, now.index + 1
    if server is not None:
        while index < len(now.phases) and now.phases[index] is not EVALUATE:
            if server.is_due(state, now.phases[index].name):
                break
            index += 1
    return index


def report_of(now: Attempt, seen: Traffic) -> RoundReport:
    """The report of a round whose last exchange is done."""
    origins = _origins(now.plan, seen)
    lost = now.failures
    used = tuple(i for i in now.asked if i not in lost) if lost else now.asked
    failures = {**seen.failures, **lost}
    return RoundReport(
        now.server_round, now.state, used, failures, seen.bytes_down, seen.bytes_up, origins,
        now.held_out,
    )  # fmt: skip


def _origins(plan: Plan, seen: "Traffic") -> frozenset[str]:
    """Where the noise of a round came from that protects somebody."""
    own = frozenset({plan.source.origin})
    if plan.mechanism is not None:  # the server's noise is all that protects
        return own
    return own | seen.noise_origins


def _tell_who_was_dropped(now: Attempt, replies: Replies) -> None:
    for client in sorted(replies.failures):
        failure = replies.failures[client]
        log.warning(
            "Round %d, attempt %d, phase %s: client %d is dropped (%s): %s",
            now.server_round,
            now.attempt,
            now.name,
            client,
            failure.kind,
            failure.text,
        )


def _step(now: Attempt, replies: Replies) -> ServerState:
    """The state after the server update on these replies, if it can be broadcast."""
    plan, state = now.plan, now.state
    if not replies.partitions and plan.mechanism is None:
        return state
    mean = now.rules.aggregate(now, replies)
    if mean.next_clip is not None:
        state = state.replace(**{CLIP: torch.tensor(mean.next_clip, dtype=torch.float64)})
    seen = (None, ()) if plan.mechanism is not None else (replies.uploads, replies.partitions)
    collected = Collected(mean.fields, *seen, plan.num_clients, now.uniform)
    if replies.sums is not None:
        collected = Fetched(collected, replies.sums.fetch)
    try:
        new = plan.server_update.step(state, now.name, collected, now.server_round, plan.manifold)
    # torch exports the error from C, out of the sight of pyright
    except (torch.linalg.LinAlgError, ArithmeticError) as error:  # pyright: ignore[reportPrivateImportUsage]
        raise BadState(
            f"Round {now.server_round}: the server update failed: {type(error).__name__}; "
            "the state of the round before stays (lower the step sizes?)"
        ) from None
    return _usable(new, plan, now.server_round)


def _without_culprits(bad: BadState, now: Attempt, replies: Replies) -> Replies:
    """The replies without each whose upload alone leads to a state that nobody can use.

    Raises:
        BadState: ``bad``, where no single upload does or all do, and under client-level privacy,
            where a clipped mean moves the model and no upload decides anything.
    """
    culprits, replies = dict[int, Failure](), replies.with_rows()
    is_mean = now.plan.phases[now.index].aggregation == "mean"
    count = len(replies.partitions) if now.plan.mechanism is None and is_mean else 0
    for row in range(count):
        alone = replies.of_rows([row])
        try:
            _step(now, alone)
        except BadState:
            largest = max(float(u.abs().max()) for u in alone.uploads.tensors().values())
            culprits[alone.partitions[0]] = Failure(
                "unusable",
                "Expected an upload that the model can take a step along, got one with "
                f"entries up to {largest:.3g} that alone leads to no usable state",
            )
    if not culprits:
        raise bad
    if len(culprits) == count:  # then the step is at fault, or there is one client
        some = ", ".join(str(i) for i in list(culprits)[:5])
        raise BadState(f"{bad}; so does each upload alone, of the clients {some}") from None
    return replies._replace(failures={}).without(culprits)


def _usable(state: ServerState, plan: Plan, server_round: int) -> ServerState:
    """``state``, which a round may leave behind only if it can be broadcast.

    That is: finite, on the manifold, and with no entry above what clients take.

    Raises:
        BadState: with the tensor; the state before the round stays.
    """
    kept = "the state of the round before stays (lower the step sizes?)"
    passed: set[int] = set()  # objects that ``state`` keeps alive: one may have two names
    for name, tensor in state.tensors.items():
        if not tensor.is_floating_point() or id(tensor) in passed:
            continue
        bound = LARGEST[tensor.dtype]
        if not is_short(tensor) and not bool((tensor.abs() <= bound).all()):
            bad = int((~(tensor.abs() <= bound)).sum())
            raise BadState(
                f"Round {server_round}: Expected a finite state after the server update, got "
                f"{bad} of {tensor.numel()} numbers in {name} that are not, or above {bound:g}; "
                f"{kept}"
            )
        passed.add(id(tensor))
    is_flat = plan.manifold.is_whole_space
    if is_flat and plan.has_mean_model:
        return state
    model = plan.server_update.model(state, plan.manifold)
    if is_flat and (id(model) in passed or math.isfinite(float(model.sum()))):
        return state
    bound = DRIFT[model.dtype]
    defect = float(plan.manifold.membership_defect(model))
    if not defect <= bound:
        raise BadState(
            f"Round {server_round}: Expected a model on {plan.manifold.name} within {bound:g} "
            f"after the server update, got a relative distance of {defect:.3g}; {kept}"
        )
    return state
