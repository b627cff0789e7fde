"""One round as a pure function: cohort, charge, exchange, replies, mean, server update, report.

Order of a round, and why: the charge is on disk *before* a message leaves, because to the server
the uploads are the release; so a crash, a retry or an abort can make the ledger show more than
was spent, never less. The new model is used only after that.

A `Course` goes through a run, exchange by exchange: `run_rounds` over a transport, and Flower's
strategies (manifed/flower/strategy.py), which give control away between two exchanges.
"""

import logging
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from manifed.algorithms.algorithm import Collected, Phase, There
from manifed.algorithms.payloads import (
    Down,
    Expectation,
    Partitions,
    Payload,
    PerClient,
    Point,
    State,
)
from manifed.errors import BudgetExhausted, ConfigError, RoundFailed
from manifed.federation.cohorts import Everyone
from manifed.federation.exchange import Asked, Failure, Header, Replies, Transport
from manifed.federation.held_out import EVALUATE, Totals
from manifed.federation.plan import Plan, RoundReport, ServerDraws
from manifed.manifolds.base import DRIFT, LARGEST

log = logging.getLogger("manifed")

CLIP = "l2_norm_clip"
"""The adapted clip norm, kept in the server's state and so in its checkpoints."""

_Charge = Callable[..., None]
"""``charge(server_round, attempt, partitions)`` pays for an attempt before any message of it
leaves, and with a last argument, the number of clients that could be in a sum of these
``partitions``, for the sum that its next exchange opens; it raises `BudgetExhausted` when the run
may not pay."""


class _BadState(RoundFailed):
    """A server update led to a state that could not be broadcast."""


def free(*_: object) -> None:
    """Charges nothing; replaces `Account.charge` in a run without privacy."""


def run_rounds(
    plan: Plan,
    state: State,
    transport: Transport,
    charge: _Charge = free,
    *,
    num_rounds: int,
    first_round: int = 1,
    attempts: Callable[[int], int] | None = None,
    last_accepted: Mapping[int, int] | None = None,
) -> Iterator[RoundReport]:
    """Runs rounds ``first_round`` to ``num_rounds`` over a transport, one by one.

    The exchanges before round 1 come first; they are round 0, and charged nothing. The arguments
    are those of `Course`.

    Raises:
        RoundFailed: when the policy is not content with the replies of the last attempt, or the
            server update leads to no usable state.
    """
    course = Course(plan, state, charge, first_round, attempts, last_accepted)

    def exchange() -> RoundReport | None:
        now = course.opened()
        came = transport.exchange(course.asked(sent(now)))
        return course.moved(course.judged(came))

    while course.round <= num_rounds:
        yield course.one_round(exchange)


class Attempt(NamedTuple):
    """One attempt of a round before its next exchange."""

    plan: Plan
    server_round: int
    attempt: int
    cohort: Partitions
    asked: Partitions
    """Who is sent the next message: the cohort without those that failed before."""
    state: State
    phases: tuple[Phase, ...]
    """The exchanges of this round."""
    phase: Phase
    """The next of them."""
    index: int = 0
    failures: Mapping[int, Failure] = MappingProxyType({})
    held_out: tuple[Tensor, int] | None = None
    """What hold-outs said: the sum of what so many clients sent."""
    is_opening: bool = False
    """Whether the next exchange opens a sum, which is paid for and needs no more replies than it
    takes."""

    @property
    def draws(self) -> ServerDraws:
        """The server's randomness of this exchange."""
        return ServerDraws(self.plan.source, self.server_round, self.attempt, self.index)


def sent(now: Attempt) -> Down:
    """Returns the next downlink: the server update's payload, or the model to be evaluated."""
    if now.phase is EVALUATE or not now.asked:
        return Point(now.plan.server_update.model(now.state, now.plan.manifold))
    down = now.plan.server_update.down(now.state, now.phase.name)
    if not isinstance(down, PerClient) or len(now.asked) == len(down.rows.point):
        return down  # a row for each who is asked
    return PerClient(down.rows.take(torch.tensor(now.asked, dtype=torch.long)))


# -- from uploads to a mean ---------------------------------------------------------------------
class Mean(NamedTuple):
    """The aggregate of an exchange's uploads: an array for each field, or nothing."""

    fields: Mapping[str, Tensor]
    next_clip: float | None = None
    """The adapted clip norm, where a mechanism noised the mean."""


def rows_at_once(entries: int) -> int:
    """Returns how many uploads of so many entries are added up in one call: 2 MiB, at least 64."""
    return max(64, 2**18 // max(1, entries))


class Sums:
    """Weighted means of uploads, which are added as they come and need not be kept.

    Rows are added up in blocks, whose sizes follow from the shape of an upload alone: no bit of a
    sum depends on how many came together.
    """

    def __init__(self, now: Attempt, expected: Expectation | None = None) -> None:
        """Adds up the uploads of one exchange; with ``expected``, those that look so."""
        self._weights = now.plan.weights
        self._all = list(now.asked)
        self._asked = self._weights[self._all].sum()
        self._expected = expected
        self._who, self._summed = list[int](), 0
        self._waiting = list[Payload]()
        self._sums = dict[str, Tensor]()

    def add(self, uploads: Payload, partitions: Sequence[int]) -> dict[int, str]:
        """Adds stacked uploads, and returns a reason for each client whose upload is unusable."""
        flaws = self._expected.flaws(uploads, partitions) if self._expected else {}
        if flaws:
            uploads = uploads.take(torch.tensor([i not in flaws for i in partitions]))
            partitions = [i for i in partitions if i not in flaws]
        self._who += partitions
        self._waiting.append(uploads)
        first, *_ = vars(uploads).values()
        size = rows_at_once(first.shape[1:].numel())
        while len(self._who) - self._summed > size:
            self._take(size)
        return flaws

    def mean(self) -> dict[str, Tensor]:
        """Returns sum_i w_i u_i of every field, with weights normalised to one.

        Sums are divided by the weight of all that were asked, and scaled where not all came.
        """
        found = dict[str, Tensor]()
        if not self._who:
            return found
        rows = self._take(len(self._who) - self._summed)
        total = self._asked if self._who == self._all else self._weights[self._who].sum()
        for name, u in vars(rows).items():
            mean = self._sums[name]
            mean = mean if bool(total == self._asked) else mean * (self._asked / total)
            found[name] = mean.view(u.shape[1:]).to(u.dtype)
        return found

    def _take(self, count: int) -> Payload:
        """Add up the first rows that wait, and return the others."""
        rows, *more = self._waiting
        rows = type(rows).stack(self._waiting, torch.cat) if more else rows
        share = self._weights[self._who[self._summed : self._summed + count]] / self._asked
        for name, u in vars(rows).items():
            first = u[:count].flatten(1).to(share.dtype).contiguous()
            found = torch.mv(first.t(), share)
            self._sums[name] = self._sums[name] + found if name in self._sums else found
        self._summed += count
        self._waiting = [rows if self._summed == len(self._who) else rows.take(slice(count, None))]
        return rows


def _expected(now: Attempt, names: Collection[str]) -> Expectation:
    """What the uploads of this exchange, with these fields, must look like."""
    update = now.plan.server_update
    places = now.phase.uploads or (update.space,) * len(names)
    base = update.base(now.state, now.plan.manifold)
    return Expectation(base, dict(zip(names, places, strict=True)), now.plan.manifold)


def _judged_sums(now: Attempt) -> Sums | None:
    """What adds up uploads as they come; None where somebody looks at each of them."""
    is_summed = now.plan.is_summed and now.phase is not EVALUATE
    return Sums(now, _expected(now, now.phase.up.names())) if is_summed else None


def aggregated(now: Attempt, replies: Replies) -> Mean:
    """Computes one array for each field; nothing where an exchange has no mean."""
    if now.phase.aggregation == "none":
        return Mean({})
    return (averaged if now.plan.mechanism is None else noised)(now, replies)


def averaged(now: Attempt, replies: Replies) -> Mean:
    """Computes the mean of every field with the server update's weights."""
    if replies.mean is not None:
        return Mean(replies.mean)
    sums = Sums(now)
    sums.add(replies.uploads, replies.partitions)
    return Mean(sums.mean())


def noised(now: Attempt, replies: Replies) -> Mean:
    """Releases the one field through the server's mechanism, at the point of the broadcast.

    Raises:
        ValueError: for uploads of several fields.
    """
    plan = now.plan
    mechanism = plan.mechanism
    assert mechanism is not None
    ((name, stacked),) = vars(replies.uploads).items()
    mean, next_clip = mechanism.noised_mean(
        stacked,
        plan.server_update.base(now.state, plan.manifold),
        plan.manifold,
        now.draws.normals,
        expected_cohort=plan.cohort.expected_size(plan.num_clients),
        is_tangent=plan.server_update.space == "tangent",
        l2_norm_clip=float(now.state.get(CLIP, mechanism.l2_norm_clip)),
    )
    return Mean({name: mean}, None if mechanism.adaptive is None else next_clip)


# -- a step --------------------------------------------------------------------------------------
_Aggregate = Callable[[Attempt, Replies], Mean]
"""What becomes of the replies that a round goes on with."""


def _enough(now: Attempt, replies: Replies) -> Replies:
    """What the round goes on with.

    Under client-level privacy whether a reply is usable is a datum of one client, as its upload is:
    each failed one is the zero vector, in every exchange, so the round goes the same way whatever a
    client sends, and the sum still moves by at most one bound.

    Raises:
        RoundFailed: when the policy is not content, with the first failures.
    """
    plan = now.plan
    if plan.mechanism is not None:
        if replies.partitions == now.asked:
            return replies
        rows = torch.tensor([bisect_left(now.asked, i) for i in replies.partitions]).long()
        whole = replies.uploads.each(
            lambda t: t.new_zeros(len(now.asked), *t.shape[1:]).index_copy(0, rows.to(t.device), t)
        )
        return replies._replace(partitions=now.asked, uploads=whole)
    if not (now.asked and replies.failures) or (now.is_opening and replies.partitions):
        return replies
    if why := plan.policy.refusal(replies, len(now.cohort), needs_everyone=plan.needs_everyone):
        lost = {**now.failures, **replies.failures}
        where = f", exchange {now.phase.name!r}" if len(plan.phases) > 1 else ""
        raise RoundFailed(
            f"Round {now.server_round}{where}: {why}",
            is_computed=all(one.kind == "unusable" for one in lost.values()),
        )
    return replies


def _step(now: Attempt, replies: Replies, aggregate: _Aggregate) -> State:
    """The state after the server update: finite, on the manifold, and no longer than clients take.

    Raises:
        RoundFailed: it cannot be broadcast; the state before the round stays.
    """
    plan = now.plan
    state = now.state
    if not replies.partitions and plan.mechanism is None:
        return state
    mean = aggregate(now, replies)
    if mean.next_clip is not None:
        state = state | {CLIP: torch.tensor(mean.next_clip, dtype=torch.float64)}
    seen = (None, ()) if plan.mechanism is not None else (replies.uploads, replies.partitions)
    collected = Collected(mean.fields, *seen, plan.num_clients, now.draws.uniform)
    update = plan.server_update
    why = ""
    try:
        first = next(iter(mean.fields.values()), torch.empty(0))
        there = There(plan.manifold, now.phase.name, now.server_round, collected)
        state = update.server(dict(state), first, there)
    # torch exports the error from C, out of the sight of pyright
    except (torch.linalg.LinAlgError, ArithmeticError) as error:  # pyright: ignore[reportPrivateImportUsage]
        why = f"the server update failed: {type(error).__name__}"
    for key, tensor in {} if why else state.items():
        if tensor.is_floating_point():
            bound = LARGEST[tensor.dtype]
            if bad := int((~(tensor.abs() <= bound)).sum()):
                why = (
                    "Expected a finite state after the server update, got "
                    f"{bad} of {tensor.numel()} numbers in {key} that are not, or above {bound:g}"
                )
                break
    if not why:
        model = update.model(state, plan.manifold)
        bound = DRIFT[model.dtype]
        defect = float(plan.manifold.membership_defect(model))
        if defect <= bound:
            return state
        why = (
            f"Expected a model on {plan.manifold.name} within {bound:g} "
            f"after the server update, got a relative distance of {defect:.3g}"
        )
    raise _BadState(
        f"Round {now.server_round}: {why}; the state of the round before stays (lower the step "
        "sizes?)",
        is_computed=True,
    )


def _culprits(now: Attempt, replies: Replies, aggregate: _Aggregate) -> dict[int, str]:
    """Those whose upload alone leads to a state that nobody can use.

    None under client-level privacy, where a clipped mean moves the model and no upload decides
    anything.
    """
    found: dict[int, str] = {}
    is_kept = now.plan.mechanism is None and replies.mean is None
    if not is_kept or now.phase.aggregation != "mean":
        return found
    for row, client in enumerate(replies.partitions):
        alone = replies.of_rows([row])
        try:
            _step(now, alone, aggregate)
        except _BadState:
            largest = max(float(u.abs().max()) for u in vars(alone.uploads).values())
            found[client] = (
                "Expected an upload that the model can take a step along, got one with "
                f"entries up to {largest:.3g} that alone leads to no usable state"
            )
    return found


def _stepped(now: Attempt, replies: Replies, aggregate: _Aggregate) -> Attempt:
    """The attempt after the server's step; without the uploads that alone break it.

    Raises:
        RoundFailed: as `run_rounds`.
    """
    now = now._replace(failures={**now.failures, **replies.failures})
    taken = _enough(now, replies)
    try:
        state = _step(now, taken, aggregate)
    except _BadState as bad:
        culprits = _culprits(now, taken, aggregate)
        if not culprits:
            raise
        if len(culprits) == len(taken.partitions):  # the step is at fault, or there is one client
            some = ", ".join(map(str, list(culprits)[:5]))
            raise _BadState(
                f"{bad}; each upload alone does it too, of the clients {some}", is_computed=True
            ) from None
        left = taken._replace(failures={}).without(culprits)
        _tell_who_was_dropped(now, left)
        now = now._replace(failures={**now.failures, **left.failures})
        taken = _enough(now, left)
        state = _step(now, taken, aggregate)
    return now._replace(asked=taken.partitions, state=state)


def _tell_who_was_dropped(now: Attempt, replies: Replies) -> None:
    for client, failure in sorted(replies.failures.items()):
        log.warning(
            "Round %d, attempt %d, phase %s: client %d is dropped (%s): %s",
            *(now.server_round, now.attempt, now.phase.name),
            *(client, failure.kind, failure.text),
        )


# -- a run ---------------------------------------------------------------------------------------
class Course:
    """The state of a run between two exchanges: model, next round, and attempt under way."""

    def __init__(
        self,
        plan: Plan,
        state: State,
        charge: _Charge = free,
        first_round: int = 1,
        attempts: Callable[[int], int] | None = None,
        last_accepted: Mapping[int, int] | None = None,
    ) -> None:
        """``state`` is the one before ``first_round``.

        ``attempts(round)`` says how often a round was charged before (after a crash; None: none
        was), ``last_accepted`` in which round each client's reply was last used.

        Raises:
            ConfigError: exchanges before round 1 were made by a run that is resumed.
        """
        if plan.setup_phases and first_round > 1:
            raise ConfigError(
                "output.resume: an algorithm with exchanges before round 1 cannot be resumed, "
                "since clients would resume without their results; start a new run"
            )
        self.plan = plan
        self.state = state
        self._charge = charge
        self.round = 0 if plan.setup_phases else first_round
        """The next round; 0 for the exchanges before round 1."""
        self.accepted = dict(last_accepted or {})
        self.now: Attempt | None = None
        """The attempt that is under way; None begins another one."""
        self._attempts = attempts
        self._tried = 0
        self._before = 0
        self._seen = RoundReport(0, {}, ())
        """What all attempts of the round sent and got."""

    def opened(self) -> Attempt:
        """Returns the attempt before its next exchange, after its cohort was drawn and paid for.

        Raises:
            BudgetExhausted: the budget does not pay it; nothing was sent.
            ConfigError: a round behind the last that was priced, where rounds cost different
                amounts.
        """
        if self.now is None:
            now = self._drawn()
            self._pay(now)
            self.now = now
        return self.now

    def _drawn(self) -> Attempt:
        """Another attempt of the next round, its cohort drawn; nothing is paid yet."""
        plan = self.plan
        number = self.round
        if number == 0:
            plan = replace(
                plan,
                phases=plan.setup_phases,
                cohort=Everyone(),
                needs_everyone=True,
                evaluation=None,
            )
        if plan.last_priced is not None and number > plan.last_priced:
            raise ConfigError(
                f"num_rounds: expected the rounds that were priced, at most {plan.last_priced}, "
                f"got round {number}"
            )
        if self._tried == 0:
            self._before = self._attempts(number) if self._attempts else 0
        attempt = self._before + self._tried
        self._tried += 1
        cohort = plan.cohort.draw(plan.num_clients, number, attempt, plan.source)
        is_due = plan.evaluation is not None and plan.evaluation.is_due(number)
        phases = (*plan.phases, EVALUATE) if is_due else plan.phases
        now = Attempt(plan, number, attempt, cohort, cohort, self.state, phases, phases[0])
        if not plan.server_update.opens_sums:
            return now
        state = plan.server_update.attempted(self.state, number, attempt, cohort)
        return now._replace(asked=()) if state is None else now._replace(state=state)

    def _pay(self, now: Attempt, *opened: int) -> None:
        if now.server_round == 0:
            return
        try:
            self._charge(now.server_round, now.attempt, now.cohort, *opened)
        except BudgetExhausted as budget:
            budget.noise_origins = self._seen.noise_origins
            raise

    def asked(self, down: Down) -> Asked:
        """Returns the next exchange of the attempt; an evaluation is sent the model."""
        now = self.now
        assert now is not None
        down = sent(now) if now.phase is EVALUATE else down
        header = Header(now.plan.config_sha256, now.server_round, now.attempt, now.phase.name, -1)
        sums = partial(_judged_sums, now)
        return Asked(header, now.phase, down, now.asked, self.accepted, sums)

    def judged(self, replies: Replies) -> Replies:
        """Drops the uploads that no step could use, and logs whose they were."""
        now = self.now
        seen = self._seen
        assert now is not None
        plan = now.plan
        update = plan.server_update
        found = replies
        if replies.mean is None:
            expected = _expected(now, vars(replies.uploads))
            if flaws := expected.flaws(replies.uploads, replies.partitions):
                found = replies.without(flaws)
        totals = found.uploads
        who = found.partitions
        why: Mapping[int, str] = {}
        if isinstance(totals, Totals) and plan.evaluation is not None:
            why = plan.evaluation.refused(plan.client_mechanism, plan.num_examples, totals.u, who)
        elif update.judges_uploads:
            why = update.refused(now.state, now.phase.name, totals, who)
        if why:
            found = found.without(why)
        if found.failures:
            found = found.told()
            _tell_who_was_dropped(now, found)
        # with a mechanism of the server its noise is all that protects
        clients = found.noise_origins if plan.mechanism is None else frozenset[str]()
        self._seen = seen._replace(
            bytes_down=seen.bytes_down + found.bytes_down,
            bytes_up=seen.bytes_up + len(found.partitions) * found.uploads.bytes_each(),
            failures={**seen.failures, **found.failures},
            noise_origins=seen.noise_origins | clients | {plan.source.origin},
        )
        return found

    def moved(self, replies: Replies, aggregate: _Aggregate = aggregated) -> RoundReport | None:
        """Takes the step on these replies; returns the round's report, or None before its end.

        Raises:
            RoundFailed: as `run_rounds`; the attempt is over then.
        """
        assert self.now is not None
        now = self.now
        self.now = None
        if now.phase is EVALUATE:  # it changes no state, and nobody who is silent fails the round
            totals = vars(replies.uploads)["u"]
            now = now._replace(held_out=(totals.sum(0), len(totals)))
        else:
            before = now.state
            now = _stepped(now, replies, aggregate)
            if (update := now.plan.server_update).opens_sums:
                opens = update.opening(before, now.phase.name, now.asked)
                if opens is not None:
                    offered, alive = opens
                    self._pay(now._replace(cohort=alive), offered)
                    now = now._replace(is_opening=True)
        index = now.index + 1
        if index < len(now.phases):
            self.now = now._replace(phase=now.phases[index], index=index)
            return None
        report = self._seen._replace(
            server_round=now.server_round,
            state=now.state,
            participants=tuple([i for i in now.asked if i not in now.failures]),
            failures={**self._seen.failures, **now.failures},
            held_out=now.held_out,
        )
        self.accepted |= dict.fromkeys(report.participants, self.round)
        self.state, self._seen, self._tried = now.state, RoundReport(0, {}, ()), 0
        self.round += 1
        return report if report.server_round else None

    def one_round(self, exchange: Callable[[], RoundReport | None]) -> RoundReport:
        """Runs the next round by calls of ``exchange``, and tries it again as the policy says.

        Raises:
            RoundFailed: as `run_rounds`.
        """
        while True:
            try:
                if (report := exchange()) is not None:
                    return report
            except RoundFailed as failure:
                self.now = None
                if not 0 < self._tried < self.plan.policy.attempts:
                    raise
                is_paid = "" if self.plan.promise.realised else " and is paid for"
                log.warning("Round %d failed%s: %s", self.round, is_paid, failure)
