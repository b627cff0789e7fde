"""One update of one client, or of a stacked cohort: from what came down to what goes up.

`run_update` is pure: the same call serves a Flower message and ten thousand stacked clients.
`answer` is a node's whole answer to one message, whoever carried it. What protects a client (clip,
noise, normaliser) comes from its own reading of the config, never from the message.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple
from weakref import ReferenceType, ref

import torch
from geoopt import ManifoldTensor

from manifed.algorithms.broadcast import check_broadcast
from manifed.algorithms.held_out import EVALUATE, LABEL, PrivateEvaluation
from manifed.algorithms.interface import (
    ClientUpdate,
    Memory,
    Phase,
    ReadsInOrder,
    Scheduled,
    in_round,
    remembers_setup,
    setup_phases_of,
)
from manifed.algorithms.payloads import Payload, Point
from manifed.algorithms.rsgd import RSGD
from manifed.federation.header import BadMessage, Header
from manifed.federation.memory import Kept, remembered
from manifed.manifolds.base import Manifold, as_point, as_tangent
from manifed.oracles.oracle import POINTS_AT_ONCE, Answers, Draws, Oracle, pays_at_once
from manifed.oracles.query import UNNOISED, Query
from manifed.privacy.events import Event, PrivacyUnit
from manifed.privacy.mechanism import ExampleMechanism
from manifed.privacy.noise import NoiseSource
from manifed.problems.base import Examples, Problem, ProblemBase, Quadratic
from manifed.problems.finite_sum import FiniteSum


@dataclass(frozen=True)
class ClientSetup:
    """All a client needs besides its shard: the problem, the algorithm and its own mechanism."""

    problem: Problem
    training: ClientUpdate
    mechanism: ExampleMechanism
    evaluation: PrivateEvaluation | None = None
    """What it says of the examples that training does not use; None: nothing, and it uses all."""

    def trained_on(self, num_examples: int) -> int:
        """The public size of what training uses."""
        held = self.evaluation
        return num_examples if held is None else held.trained_on(num_examples)

    def releases(self, server_round: int, num_examples: int) -> tuple[Event, ...]:
        """What a client with so many examples in all releases in a round."""
        return releases_in(
            server_round, self.training, self.evaluation, self.mechanism, num_examples
        )

    @property
    def manifold(self) -> Manifold:
        """Where the model lives."""
        return self.problem.manifold

    def in_round(self, server_round: int) -> "ClientSetup":
        """The setup of a round, whose queries and releases may be its own."""
        if not self._is_scheduled:
            return self
        found = self._rounds.get(server_round)
        if found is None:
            found = replace(self, training=in_round(self.training, server_round))
            self._rounds.clear()  # rounds follow each other
            self._rounds[server_round] = found
        return found

    @cached_property
    def _is_scheduled(self) -> bool:
        return isinstance(self.training, Scheduled)

    @cached_property
    def _rounds(self) -> dict[int, "ClientSetup"]:
        return {}

    @cached_property
    def _charged(self) -> dict[int, Counter[str] | None]:
        return {}

    def charged(self, num_examples: int) -> Counter[str] | None:
        """How often a round's releases charge each label; None where no noise is added."""
        if num_examples not in self._charged:
            is_noised = self.mechanism.l2_norm_clip is not None
            is_noised = is_noised and self.mechanism.noise.stddev(1.0, 1) > 0
            charged: Counter[str] = Counter()
            for release in self.training.releases(self.mechanism, num_examples):
                charged[release.label] += release.count
            self._charged[num_examples] = charged if is_noised else None
        return self._charged[num_examples]

    @cached_property
    def _queries(self) -> dict[int, tuple[Query, ...]]:
        return {}

    def queries(self, num_examples: int) -> tuple[Query, ...]:
        """Clips, noise and charges of a shard of that size, of one round."""
        if num_examples not in self._queries:
            self._queries[num_examples] = self.training.queries(self.mechanism, num_examples)
        return self._queries[num_examples]

    @cached_property
    def _known(self) -> "dict[int, tuple[tuple[object, ...], ReferenceType[Examples], Answers]]":
        return {}

    def oracle(self, examples: Examples, num_examples: tuple[int, ...], draws: Draws) -> Oracle:
        """The oracle of one update; ``num_examples`` are the public sizes of all its clients.

        What it knows before it is asked is that of the last update of these very records, with
        the same sizes: a stack of everybody.

        Raises:
            WrongSize: as `Oracle`.
        """
        key = (num_examples, isinstance(draws.partition, int), draws.device)
        found = self._known.get(id(examples))
        if found is not None and found[0] == key and found[1]() is examples:
            return Oracle(self.problem, examples, found[2], draws)
        sizes = [self.trained_on(size) for size in num_examples]
        asked = {n: self.queries(n) for n in set(sizes)}
        answers = Answers.of(self.problem, examples, [asked[n] for n in sizes], draws)
        self._known[id(examples)] = (key, ref(examples, self._forget_at(id(examples))), answers)
        return Oracle(self.problem, examples, answers, draws)

    def _forget_at(self, address: int) -> Callable[[object], None]:
        """Drops what is known of the records there when they go, before others can lie there."""
        setup = ref(self)  # no cycle, which would keep all that is known until it is collected

        def forget(_: object) -> None:
            if (alive := setup()) is not None:
                alive._known.pop(address, None)

        return forget

    @cached_property
    def setup_phases(self) -> tuple[Phase, ...]:
        """The exchanges before round 1."""
        return setup_phases_of(self.training)

    @cached_property
    def remembers_setup(self) -> bool:
        """Whether a client's memory outlives a failed attempt."""
        return remembers_setup(self.training)

    @cached_property
    def _phases(self) -> tuple[Phase, ...]:
        own = (*self.training.phases, *self.setup_phases)
        return own if self.evaluation is None else (*own, EVALUATE)

    def phase(self, name: str) -> tuple[int, Phase]:
        """Index and description of a phase.

        Raises:
            ValueError: naming the phases there are.
        """
        for index, phase in enumerate(self._phases):
            if phase.name == name:
                return index, phase
        known = [phase.name for phase in self._phases]
        raise ValueError(f"Expected a phase out of {known}, got {name!r}")


class Seat(NamedTuple):
    """Whose update it is and when: one partition, or the partitions of a cohort."""

    partition: int | tuple[int, ...]
    server_round: int
    attempt: int
    phase: str


class UpdateResult(NamedTuple):
    """What an update produced: the upload, the new memory, and how often the oracle was asked."""

    bare: Payload
    """What goes up, as the update made it."""
    memory: Memory | None
    queries: Counter[str]
    phase: Phase
    manifold: Manifold
    base: ManifoldTensor | None = None
    """The point that came down; None: nothing of the upload lies at one."""

    @property
    def up(self) -> Payload:
        """What goes up, placed where the phase says and the base is known."""
        phase, base = self.phase, self.base
        if base is None or not ("tangent" in phase.uploads or "point" in phase.uploads):
            return self.bare
        values = list(self.bare.tensors().values())
        for i, place in enumerate(phase.uploads):
            if place == "tangent":
                values[i] = as_tangent(values[i], base)
            elif place == "point":
                values[i] = as_point(values[i], self.manifold)
        return type(self.bare)(*values)


class Uncharged(RuntimeError):
    """An update whose answers are not what is charged; its upload must not leave."""


def run_update(
    setup: ClientSetup,
    seat: Seat,
    down: Payload,
    memory: Memory | None,
    examples: Examples,
    num_examples: Sequence[int] | int,
    source: NoiseSource,
    device: str = "cpu",
) -> UpdateResult:
    """The update of the client(s) in ``seat``; a cohort has a leading dimension everywhere.

    ``num_examples`` is the public size N_i of each shard: it normalises means, scales noise and
    fixes the rate of a Poisson batch. How many ``examples`` there really are is a client's secret.

    Raises:
        WrongSize: they are not N_i, where the price needs that they are.
    """
    setup = setup.in_round(max(1, seat.server_round))
    index, phase = setup.phase(seat.phase)
    if not isinstance(down, phase.down):
        raise ValueError(f"Expected a {phase.down.__name__}, got a {type(down).__name__}")
    draws = Draws(source, seat.partition, seat.server_round, seat.attempt, index, device)
    if phase is EVALUATE:
        return _evaluated(setup, seat, down, examples, draws)
    given = (num_examples,) if isinstance(num_examples, int) else tuple(num_examples)
    oracle = setup.oracle(examples, given, draws)
    placed, base = _placed(phase, down, oracle.manifold)
    up, after = setup.training.update(seat.phase, placed, memory, oracle, oracle.manifold, draws)
    charged = setup.charged(setup.trained_on(min(given)))
    if charged is not None and seat.server_round == 0:
        charged = Counter()  # the exchanges before round 1 are charged nothing
    if charged is not None:
        check_charged(setup.training.kind, oracle.queries, charged)
    return UpdateResult(up, _plain(after), oracle.queries, phase, oracle.manifold, base)


def releases_in(
    server_round: int,
    training: ClientUpdate,
    evaluation: PrivateEvaluation | None,
    mechanism: ExampleMechanism,
    num_examples: int,
) -> tuple[Event, ...]:
    """What a client with so many examples in all releases in a round, evaluation included."""
    update = in_round(training, max(1, server_round))
    if evaluation is None:
        return update.releases(mechanism, num_examples)
    own = update.releases(mechanism, evaluation.trained_on(num_examples))
    return (*own, evaluation.release(mechanism)) if evaluation.is_due(server_round) else own


def _evaluated(
    setup: ClientSetup, seat: Seat, down: Payload, examples: Examples, draws: Draws
) -> UpdateResult:
    """What a client says of its hold-out.

    Raises:
        Uncharged: in a round that is not charged for it.
    """
    held, problem = setup.evaluation, setup.problem
    assert held is not None
    assert isinstance(down, Point)
    assert isinstance(problem, FiniteSum)
    if not held.is_due(seat.server_round):
        raise Uncharged(f"evaluation.every: round {seat.server_round} is not charged for one")
    stddev = held.stddev(setup.mechanism)
    up = held.totals(problem, down.x, examples, stddev, draws)
    return UpdateResult(up, None, Counter({LABEL: 1}), EVALUATE, setup.manifold)


def _placed(
    phase: Phase, down: Payload, manifold: Manifold
) -> tuple[Payload, ManifoldTensor | None]:
    """What came down, its points with their manifold and its tangents with their base; the base.

    The base is the first point; what comes down without one stays as it is.
    """
    if "point" not in phase.places:
        return down, None
    values, first = list(down.tensors().values()), phase.places.index("point")
    base = values[first] = as_point(values[first], manifold)
    for i, place in enumerate(phase.places if len(values) > 1 else ()):
        if place == "tangent":
            values[i] = as_tangent(values[i], base)
        elif place == "point" and i != first:
            values[i] = as_point(values[i], manifold)
    return type(down)(*values), base


def _plain(memory: Memory | None) -> Memory | None:
    """Memory is kept and stacked: plain tensors."""
    return memory and type(memory)(*[t.detach() for t in memory.tensors().values()])


def check_charged(kind: str, queries: Counter[str], charged: Counter[str]) -> None:
    """Refuse an update that asked its oracle for more than its releases are charged for.

    An un-noised answer must be charged too, and be covered by as many noised ones of another label
    (the reference of Algorithm 3 as printed).

    Raises:
        Uncharged: with the label and both counts, which depend on no record unless the number of
            queries does.
    """
    noised = sum(n for label, n in queries.items() if not label.endswith(UNNOISED))
    for label, asked in queries.items():
        name = label.removesuffix(UNNOISED)
        paid, how = charged[name], "noised"
        if name != label:
            paid, how = (paid if 0 < paid <= noised else 0), "un-noised"
        if asked > paid:
            raise Uncharged(
                f"training.kind: {kind!r} asked for {asked} {how} answers {name!r} in a "
                f"phase whose releases charge {paid}; noise them and state them in releases()"
            )


@dataclass(frozen=True)
class ClientSide:
    """What a client's process holds: its setup, the shards, and the source of a seeded run."""

    setup: ClientSetup
    shards: Sequence[Examples]
    point_shape: tuple[int, ...]
    source: NoiseSource | None
    """None in a release: a fresh key from the operating system is drawn for every update."""
    release: Callable[[], NoiseSource] = NoiseSource.from_os
    """Makes a source with a fresh key, for the next update of a release."""
    dtype: torch.dtype = torch.float64
    num_examples: Sequence[int] = ()
    """The public size N_i of each shard; empty: as many as there are."""
    hold_outs: Sequence[Examples] = ()
    """What is kept out of each shard."""
    rate: float = 1.0
    """The share of all clients that a round asks, as expected."""
    unit: PrivacyUnit = "example"
    """Who is protected. Where it is a client, each is a stack of its own: what pads a shard, and
    how many are in a stack, moves last bits, of which many local steps may make any difference."""

    def of(self, members: range) -> "ClientSide":
        """The same of some neighbours alone."""
        part = slice(members.start, members.stop)
        return replace(
            self,
            shards=self.shards[part],
            num_examples=self.num_examples[part],
            hold_outs=self.hold_outs[part],
        )

    def public_size(self, client: int) -> int:
        """N_i, by which a client's means are divided."""
        return self.num_examples[client] if self.num_examples else len(self.shards[client])

    def turn_source(self) -> NoiseSource:
        """The source of one update."""
        return self.source or self.release()

    def examples_in_a_step(self, client: int) -> float:
        """How many a query of a client uses, as expected."""
        training, size = self.setup.training, self.setup.trained_on(self.public_size(client))
        if isinstance(training, ReadsInOrder | Scheduled):
            return float(size)
        return max((query.expected_size for query in self.setup.queries(size)), default=1.0)

    def gradients_in_a_step(self, num_examples: int) -> float:
        """How many points' worth of per-example gradients, with temporaries, a query may hold."""
        summed, each = self.setup.problem.points_per_example, ProblemBase.points_per_example
        if isinstance(self.setup.training, ReadsInOrder):
            return each * self.setup.training.largest_batch(num_examples)
        if isinstance(self.setup.training, Scheduled):  # a batch may grow to the whole shard
            return each * num_examples
        sizes = (
            (summed if query.form == "gradient" else each) * query.expected_size
            for query in self.setup.queries(num_examples)
        )
        return max(*sizes, self._held_at_once(num_examples), 0.0)

    def bytes_of_answers(self, num_examples: int) -> int:
        """What an oracle knows of a client's records between rounds (`Answers`)."""
        weights = 0 if self.shards[0].stream is not None else 8 * num_examples
        d = self.point_shape[-1]
        return weights + (
            d * (d + 1) * self.dtype.itemsize if self._held_at_once(num_examples) else 0
        )

    def _held_at_once(self, num_examples: int) -> float:
        """What steps that are taken at once hold (`Oracle.descended`), in sizes of a point."""
        training, bare = self.setup.training, self.setup.mechanism.l2_norm_clip is None
        if not (bare and isinstance(training, RSGD) and isinstance(self.setup.problem, Quadratic)):
            return 0.0
        d = self.point_shape[-1]
        at_once = pays_at_once(d, training.local_steps, num_examples)
        return float(POINTS_AT_ONCE * d) if at_once else 0.0


# -- the answer of a node ------------------------------------------------------------------------
@dataclass(frozen=True)
class Node:
    """What a node brings to a run: its client setup, its own shard, and what it agrees to."""

    setup: ClientSetup
    shard: Examples
    partition: int
    digest: str
    """Hash of the config, or of the privacy parameters, that this node reads for itself."""
    point_shape: tuple[int, ...]
    source: Callable[[], NoiseSource]
    """Makes the source of one client update."""
    dtype: torch.dtype = torch.float64
    declared: int | None = None
    """N_i, where it is not the number of examples."""
    hold_out: Examples | None = None
    """What is kept out of the shard."""

    @property
    def num_examples(self) -> int:
        """N_i, public: the normaliser of its means, whatever number of examples there are."""
        return len(self.shard) if self.declared is None else self.declared

    def examples(self, phase: Phase) -> Examples:
        """What an exchange is about."""
        if phase is not EVALUATE:
            return self.shard
        assert self.hold_out is not None
        return self.hold_out


@dataclass(frozen=True)
class Answer:
    """What goes up, where the key of its noise came from, and what is to be kept."""

    up: Payload
    noise_origin: str
    kept: Kept | None


ReadPayload = Callable[[type[Payload], tuple[int, ...], torch.dtype], Payload]
"""Reads what came down, of this kind, where a point has this shape and type."""


def answer(
    node: Node,
    header: Header,
    read: ReadPayload,
    kept: Kept | None,
    pay: Callable[[], object] = lambda: None,
) -> Answer:
    """What a node answers; whoever calls writes ``kept`` down once the reply is made.

    ``pay`` is called when all that came down was checked and before a record is looked at.

    Raises:
        BadMessage: the message is for another config or client, or holds another payload.
        BadBroadcast: what came down is not where the phase says.
        ValueError: the algorithm has no such phase.
    """
    if (header.config_sha256, header.partition_id) != (node.digest, node.partition):
        raise BadMessage(
            f"Expected a message for config {node.digest}, client {node.partition}, got config "
            f"{header.config_sha256}, client {header.partition_id}"
        )
    _, phase = node.setup.phase(header.phase)
    down = read(phase.down, node.point_shape, node.dtype)
    check_broadcast(phase, down, node.setup.problem.manifold)
    point = next(iter(down.tensors().values()))  # the first field of everything that goes down
    blank = node.setup.training.initial_memory(point)
    lasts = node.setup.remembers_setup
    memory = None if blank is None else remembered(blank, kept, header, lasts=lasts)
    if header.server_round > 0 and memory is blank and node.setup.setup_phases:
        raise BadMessage(
            f"Expected a client that remembers the exchanges before round 1 in round "
            f"{header.server_round}, got client {node.partition} without: it was started again or "
            "a reply of its was lost; start a new run"
        )
    pay()
    seat = Seat(node.partition, header.server_round, header.attempt, header.phase)
    source = node.source()
    made = run_update(
        node.setup, seat, down, memory, node.examples(phase), node.num_examples, source
    )
    if made.memory is not None:
        written = header.config_sha256, header.server_round, header.attempt
        return Answer(made.up, source.origin, Kept(*written, made.memory.tensors()))
    return Answer(made.up, source.origin, None)
