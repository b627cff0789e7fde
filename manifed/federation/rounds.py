"""One round as a pure function: cohort, charge, exchange, replies, mean, server update, report.

Order of a round, and why: the charge is on disk *before* a message leaves, because to the server
the uploads are the release; so a crash, a retry or an abort can make the ledger show more than
was spent, never less. The new model is used only after that.

A `Course` goes through a run, exchange by exchange: `run_rounds` over a transport, and Flower's
strategies (manifed/flower/strategy.py), which give control away between two exchanges.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from manifed.algorithms.algorithm import Collected, Phase, State
from manifed.algorithms.payloads import Down, Payload, PerClient, Point
from manifed.errors import BudgetExhausted, ConfigError, RoundFailed
from manifed.federation.held_out import EVALUATE, Totals
from manifed.federation.plan import Plan, RoundReport
from manifed.federation.replies import Expectation, Failure, Header, Replies
from manifed.federation.stack import Asked, Transport
from manifed.manifolds.base import DRIFT, LARGEST
from manifed.privacy.noise import NoiseSource, Stream

log = logging.getLogger("manifed")

CLIP = "l2_norm_clip"
"""The adapted clip norm, kept in the server's state and so in its checkpoints."""

_Charge = Callable[..., None]
"""``charge(server_round, attempt, partitions)`` pays for an attempt before any message of it
leaves, and with a last argument ``disclosed`` for what its next exchange discloses of these
clients' masks; it raises `BudgetExhausted` when the run may not pay."""


class _BadState(RoundFailed):
    """A server update led to a state that could not be broadcast."""

    def __init__(self, text: str) -> None:
        super().__init__(text, is_computed=True)


def free(*_: object) -> None:
    """The charge of a run that protects nobody."""


def run_rounds(
    plan: Plan,
    state: State,
    transport: Transport,
    charge: _Charge = free,
    *,
    num_rounds: int,
    first_round: int = 1,
    attempts: Callable[[int], int] = lambda _: 0,
    last_accepted: Mapping[int, int] | None = None,
) -> Iterator[RoundReport]:
    """Rounds ``first_round`` to ``num_rounds`` over a transport, one by one.

    The exchanges before round 1 come first; they are round 0, and charged nothing. The arguments
    are those of `Course`.

    Raises:
        RoundFailed: when the policy is not content with the replies of the last attempt.
        BadState: when the server update leads to no usable state.
    """
    course = Course(plan, state, charge, first_round, attempts, last_accepted)

    def exchange() -> RoundReport | None:
        now = course.opened()
        phase = now.phases[now.index]
        asked = Asked(now.header, phase, sent(now), now.asked, course.accepted)
        came = transport.exchange(asked)
        return course.moved(course.judged(came))

    while course.round <= num_rounds:
        yield course.one_round(exchange)


class Attempt(NamedTuple):
    """One attempt of a round before its next exchange."""

    plan: Plan
    server_round: int
    attempt: int
    cohort: tuple[int, ...]
    asked: tuple[int, ...]
    """Who is sent the next message: the cohort without those that failed before."""
    state: State
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
    def header(self) -> Header:
        """What the next messages belong to, for nobody in particular."""
        return Header(self.plan.config_sha256, self.server_round, self.attempt, self.name, -1)

    @property
    def draws(self) -> "ServerDraws":
        """The server's randomness of this exchange."""
        return ServerDraws(self.plan.source, self.server_round, self.attempt, self.index)


def sent(now: Attempt) -> Down:
    """What goes down next: the model to be evaluated, or what the server update broadcasts."""
    if now.phase is EVALUATE:
        return Point(now.plan.server_update.model(now.state, now.plan.manifold))
    down = now.plan.server_update.down(now.state, now.name)
    if not isinstance(down, PerClient) or len(now.asked) == now.plan.num_clients:
        return down
    return PerClient(down.rows.take(torch.tensor(now.asked, dtype=torch.long)))


def _judged(now: Attempt, replies: Replies) -> Replies:
    """What the round goes on with.

    Under client-level privacy whether a reply is usable is a datum of one client, as its upload is:
    each failed one is the zero vector, in every exchange, so the round goes the same way whatever a
    client sends, and the sum still moves by at most one bound.

    Raises:
        RoundFailed: when the policy is not content, with the first failures.
    """
    plan, phase = now.plan, now.plan.phases[now.index]
    if plan.mechanism is not None:
        return replies.zero_filled(now.asked)
    size = len(now.asked if phase.needs_all else now.cohort)
    everyone = plan.needs_everyone or phase.needs_all
    why = plan.policy.refusal(replies, size, needs_everyone=everyone)
    if now.asked and why is not None:
        lost = {**now.failures, **replies.failures}
        where = f", exchange {phase.name!r}" if len(plan.phases) > 1 else ""
        raise RoundFailed(
            f"Round {now.server_round}{where}: {why}",
            is_computed=all(one.kind == "unusable" for one in lost.values()),
        )
    return replies


# -- from uploads to a mean ---------------------------------------------------------------------
class ServerDraws(NamedTuple):
    """Addressed randomness of the server in one exchange."""

    source: NoiseSource
    server_round: int
    attempt: int
    phase_index: int = 0

    def normals(self, shape: tuple[int, ...], step: int) -> Tensor:
        """Standard normals of the server's noise stream."""
        return self.source.normals(
            shape,
            stream=Stream.SERVER_NOISE,
            partition=0,
            server_round=self.server_round,
            attempt=self.attempt,
            step=self.phase_index * 16 + step,
        )

    def uniform(self) -> float:
        """One uniform for Option 2's choice."""
        drawn = self.source.uniforms(
            (1,),
            stream=Stream.ITERATE_CHOICE,
            partition=0,
            server_round=self.server_round,
            attempt=self.attempt,
            step=(1 << 24) - 1,
        )
        return float(drawn[0])


class Mean(NamedTuple):
    """What became of the uploads of an exchange: an array a field, none where nothing is."""

    fields: Mapping[str, Tensor]
    next_clip: float | None = None
    """The adapted clip norm, where a mechanism noised the mean."""


def weighted_mean(
    uploads: Payload,
    weights: Tensor,
    chunks: Sequence[int] = (),
    asked: Tensor | None = None,
) -> dict[str, Tensor]:
    """The weighted mean of every field, sum_i w_i u_i, with weights normalised to one.

    Each of ``chunks`` (neighbouring rows that were computed together; (): all) is summed first, and
    their sums in order, so the bits do not depend on who computed which chunk. Sums are divided by
    the weight of all that were ``asked``, and scaled where not all of them replied.
    """
    total = weights.sum()
    asked = total if asked is None else asked
    share, counts = weights / asked, list(chunks) if len(chunks) > 1 else [len(weights)]
    found: dict[str, Tensor] = {}
    for name, u in vars(uploads).items():
        columns = u.flatten(1).to(share.dtype)
        parts = zip(columns.split(counts), share.split(counts), strict=True)
        # A chunk's rows stand in memory of their own: where they begin may decide last bits.
        sums = [torch.mv(rows.clone().contiguous().t(), own) for rows, own in parts]
        mean = sum(sums[1:], start=sums[0])
        mean = mean if bool(total == asked) else mean * (asked / total)
        found[name] = mean.view(u.shape[1:]).to(u.dtype)
    return found


def aggregated(now: Attempt, replies: Replies) -> Mean:
    """One array a field: a mean, at client level a noised one; nothing where nothing is."""
    if now.plan.phases[now.index].aggregation == "none":
        return Mean({})
    return averaged(now, replies) if now.plan.mechanism is None else noised(now, replies)


def averaged(now: Attempt, replies: Replies) -> Mean:
    """The weighted mean of every field, with the weights of the server update."""
    plan = now.plan
    weights, asked = plan.weights_of(replies.partitions), None
    if replies.partitions != now.asked:
        asked = plan.weights_of(now.asked).sum()
    return Mean(weighted_mean(replies.uploads, weights, replies.chunks, asked))


def noised(now: Attempt, replies: Replies) -> Mean:
    """What the server's mechanism releases of the one field, at the point of the broadcast.

    Raises:
        ValueError: for uploads of several fields.
    """
    plan, mechanism = now.plan, now.plan.mechanism
    assert mechanism is not None
    ((name, stacked),) = replies.uploads.tensors().items()
    found = mechanism.noised_mean(
        stacked,
        plan.server_update.base(now.state, plan.manifold),
        plan.manifold,
        now.draws.normals,
        expected_cohort=plan.cohort.expected_size(plan.num_clients),
        is_tangent=plan.server_update.space == "tangent",
        l2_norm_clip=float(now.state.get(CLIP, mechanism.l2_norm_clip)),
    )
    return Mean({name: found.mean}, None if mechanism.adaptive is None else found.next_clip)


# -- the parts of a round ------------------------------------------------------------------------
def begin(
    plan: Plan,
    state: State,
    server_round: int,
    attempt: int,
) -> Attempt:
    """An attempt whose cohort is drawn; nothing is paid yet.

    Raises:
        ConfigError: a round behind the last that was priced, where rounds cost different amounts.
    """
    if plan.last_priced is not None and server_round > plan.last_priced:
        raise ConfigError(
            f"num_rounds: expected the rounds that were priced, at most {plan.last_priced}, got "
            f"round {server_round}"
        )
    cohort = plan.cohort.draw(plan.num_clients, server_round, attempt, plan.source)
    is_due = plan.evaluation is not None and plan.evaluation.is_due(server_round)
    phases = (*plan.phases, EVALUATE) if is_due else plan.phases
    return Attempt(plan, server_round, attempt, cohort, cohort, state, phases)


def _checked(now: Attempt, replies: Replies) -> Replies:
    """The replies without the uploads that no step could use; who was dropped is logged."""
    phase = now.phase
    assert phase is not None
    plan = now.plan
    base = plan.server_update.base(now.state, plan.manifold)
    names = phase.up.names()
    places = phase.uploads or (plan.server_update.space,) * len(names)
    expected = Expectation(base, dict(zip(names, places, strict=True)), plan.manifold)
    found = expected.checked(replies)
    totals, who = found.uploads, found.partitions
    if isinstance(totals, Totals) and plan.evaluation is not None:
        why = plan.evaluation.refused(plan.client_mechanism, plan.num_examples, totals.u, who)
    else:
        why = plan.server_update.refused(now.state, now.name, found.uploads, who)
    found = found.without({i: found.told(i, Failure("unusable", why[i])) for i in why})
    _tell_who_was_dropped(now, found)
    return found


_Aggregate = Callable[[Attempt, Replies], Mean]
"""What becomes of the replies that a round goes on with."""


def after(now: Attempt, replies: Replies, aggregate: _Aggregate = aggregated) -> Attempt:
    """The attempt after an exchange: replies judged, aggregated, and the server's step taken.

    Raises:
        RoundFailed, BadState: as `run_rounds`.
    """
    if now.phase is EVALUATE:  # it changes no state, and nobody who is silent fails the round
        held_out = (replies.uploads.tensors()["u"].sum(0), len(replies.partitions))
        return now._replace(index=now.index + 1, held_out=held_out)
    failures = {**now.failures, **replies.failures}
    taken = _judged(now, replies)
    try:
        state = _step(now, taken, aggregate)
    except _BadState as bad:
        left = _without_culprits(bad, now, taken, aggregate)
        _tell_who_was_dropped(now, left)
        failures |= left.failures
        taken = _judged(now._replace(failures=failures), left)
        state = _step(now, taken, aggregate)
    index = now.index + 1
    while index < len(now.phases) and now.phases[index] is not EVALUATE:
        if now.plan.server_update.is_due(state, now.phases[index].name):
            break  # some exchanges take place in some states alone
        index += 1
    return now._replace(asked=taken.partitions, state=state, index=index, failures=failures)


_NOTHING = RoundReport(0, {}, ())


class Course:
    """A run between two exchanges: its state, its next round, and the attempt that is under way."""

    def __init__(
        self,
        plan: Plan,
        state: State,
        charge: _Charge = free,
        first_round: int = 1,
        attempts: Callable[[int], int] = lambda _: 0,
        last_accepted: Mapping[int, int] | None = None,
    ) -> None:
        """``state`` is the one before ``first_round``.

        ``attempts(round)`` says how often a round was charged before (after a crash),
        ``last_accepted`` in which round each client's reply was last used.

        Raises:
            ConfigError: exchanges before round 1 were made by a run that is resumed.
        """
        if plan.setup_phases and first_round > 1:
            raise ConfigError(
                "output.resume: an algorithm with exchanges before round 1 cannot be resumed: "
                "clients would go on without what they learnt there; start a new run"
            )
        self.plan, self.state, self._charge = plan, state, charge
        self.round = 0 if plan.setup_phases else first_round
        """The next round; 0 for the exchanges before round 1."""
        self.accepted = dict(last_accepted or {})
        self.now: Attempt | None = None
        """The attempt that is under way; None begins another one."""
        self._attempts, self._tried, self._before = attempts, 0, 0
        self._seen = _NOTHING
        """What all attempts of the round sent and got."""

    def opened(self) -> Attempt:
        """The attempt before its next exchange, drawn and paid for.

        Raises:
            BudgetExhausted: the budget does not pay it; nothing was sent.
            ConfigError: as `begin`.
        """
        if self.now is None:
            plan = self.plan if self.round else self.plan.of_setup()
            if self._tried == 0:
                self._before = self._attempts(self.round)
            attempt = self._before + self._tried
            self._tried += 1
            now = begin(plan, self.state, self.round, attempt)
            self._pay(now)
            self.now = now
        now = self.now
        is_training = now.phase is not EVALUATE
        if is_training and (told := self.plan.server_update.disclosed(now.state, now.name)):
            self._pay(now, told)
        return now

    def _pay(self, now: Attempt, *disclosed: tuple[int, ...]) -> None:
        if now.server_round == 0:
            return
        try:
            self._charge(now.server_round, now.attempt, now.cohort, *disclosed)
        except BudgetExhausted as budget:
            budget.noise_origins = self._seen.noise_origins
            raise

    def judged(self, replies: Replies) -> Replies:
        """The replies without the uploads that no step could use; who was dropped is logged."""
        assert self.now is not None
        found, seen, plan = _checked(self.now, replies), self._seen, self.plan
        # with a mechanism of the server its noise is all that protects
        clients = found.noise_origins if plan.mechanism is None else frozenset[str]()
        self._seen = seen._replace(
            bytes_down=seen.bytes_down + found.bytes_down,
            bytes_up=seen.bytes_up + found.uploads.num_bytes(),
            failures={**seen.failures, **found.failures},
            noise_origins=seen.noise_origins | clients | {plan.source.origin},
        )
        return found

    def moved(self, replies: Replies, aggregate: _Aggregate = aggregated) -> RoundReport | None:
        """The report of the round that these replies end; None where more exchanges follow.

        Raises:
            RoundFailed, BadState: as `run_rounds`; the attempt is over then.
        """
        assert self.now is not None
        now, self.now = self.now, None
        now = after(now, replies, aggregate)
        if now.phase is not None:
            self.now = now
            return None
        report = self._seen._replace(
            server_round=now.server_round,
            state=now.state,
            participants=tuple(i for i in now.asked if i not in now.failures),
            failures={**self._seen.failures, **now.failures},
            held_out=now.held_out,
        )
        self.accepted |= dict.fromkeys(report.participants, self.round)
        self.state, self._seen, self._tried = now.state, _NOTHING, 0
        self.round += 1
        return report if report.server_round else None

    def one_round(self, exchange: Callable[[], RoundReport | None]) -> RoundReport:
        """The next round by calls of ``exchange``; a failed attempt again, as the policy says.

        Raises:
            RoundFailed, BadState: as `run_rounds`.
        """
        tries = self.plan.policy.attempts
        while True:
            try:
                if (report := exchange()) is not None:
                    return report
            except RoundFailed as failure:
                self.now = None
                if not 0 < self._tried < tries:
                    raise
                log.warning("Round %d failed and is paid for: %s", self.round, failure)


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


def _step(now: Attempt, replies: Replies, aggregate: _Aggregate) -> State:
    """The state after the server update on these replies, if it can be broadcast."""
    plan, state = now.plan, now.state
    if not replies.partitions and plan.mechanism is None:
        return state
    mean = aggregate(now, replies)
    if mean.next_clip is not None:
        state = state | {CLIP: torch.tensor(mean.next_clip, dtype=torch.float64)}
    seen = (None, ()) if plan.mechanism is not None else (replies.uploads, replies.partitions)
    collected = Collected(mean.fields, *seen, plan.num_clients, now.draws.uniform)
    try:
        new = plan.server_update.step(state, now.name, collected, now.server_round, plan.manifold)
    # torch exports the error from C, out of the sight of pyright
    except (torch.linalg.LinAlgError, ArithmeticError) as error:  # pyright: ignore[reportPrivateImportUsage]
        raise _BadState(
            f"Round {now.server_round}: the server update failed: {type(error).__name__}; "
            "the state of the round before stays (lower the step sizes?)"
        ) from None
    return _usable(new, plan, now.server_round)


def _without_culprits(
    bad: _BadState, now: Attempt, replies: Replies, aggregate: _Aggregate
) -> Replies:
    """The replies without each whose upload alone leads to a state that nobody can use.

    Raises:
        BadState: ``bad``, where no single upload does or all do, and under client-level privacy,
            where a clipped mean moves the model and no upload decides anything.
    """
    culprits: dict[int, Failure] = {}
    is_mean = now.plan.phases[now.index].aggregation == "mean"
    count = len(replies.partitions) if now.plan.mechanism is None and is_mean else 0
    for row in range(count):
        alone = replies.of_rows([row])
        try:
            _step(now, alone, aggregate)
        except _BadState:
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
        raise _BadState(f"{bad}; so does each upload alone, of the clients {some}") from None
    return replies._replace(failures={}).without(culprits)


def _usable(state: State, plan: Plan, server_round: int) -> State:
    """``state``, which a round may leave behind only if it can be broadcast.

    That is: finite, on the manifold, and with no entry above what clients take.

    Raises:
        BadState: with the tensor; the state before the round stays.
    """
    kept = "the state of the round before stays (lower the step sizes?)"
    for name, tensor in state.items():
        if not tensor.is_floating_point():
            continue
        bound = LARGEST[tensor.dtype]
        bad = int((~(tensor.abs() <= bound)).sum())
        if bad:
            raise _BadState(
                f"Round {server_round}: Expected a finite state after the server update, got "
                f"{bad} of {tensor.numel()} numbers in {name} that are not, or above {bound:g}; "
                f"{kept}"
            )
    model = plan.server_update.model(state, plan.manifold)
    bound = DRIFT[model.dtype]
    defect = float(plan.manifold.membership_defect(model))
    if not defect <= bound:
        raise _BadState(
            f"Round {server_round}: Expected a model on {plan.manifold.name} within {bound:g} "
            f"after the server update, got a relative distance of {defect:.3g}; {kept}"
        )
    return state
