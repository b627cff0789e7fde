"""One update of one client, or of a stacked cohort: from what came down to what goes up.

`run_update` is pure: the same call serves a Flower message and ten thousand stacked clients.
`answer` is a node's whole answer to one message, whoever carried it. What protects a client (clip,
noise, normaliser) comes from its own reading of the config, never from the message.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from manifed.algorithms.algorithm import ClientUpdate, Memory, Phase
from manifed.algorithms.broadcast import check_broadcast
from manifed.algorithms.payloads import P, Payload
from manifed.federation.held_out import EVALUATE, LABEL, PrivateEvaluation
from manifed.federation.memory import Kept, remembered
from manifed.federation.replies import BadMessage, Header
from manifed.manifolds.base import as_point
from manifed.oracles.minibatch import UNNOISED, Query
from manifed.oracles.oracle import Draws, Oracle
from manifed.privacy.events import PrivacyUnit, Release
from manifed.privacy.mechanism import ExampleMechanism
from manifed.privacy.noise import NoiseSource
from manifed.problems.examples import Examples
from manifed.problems.problem import Problem


@dataclass(frozen=True)
class ClientSetup:
    """All a client needs besides its shard: the problem, the algorithm and its own mechanism."""

    problem: Problem
    training: ClientUpdate
    mechanism: ExampleMechanism
    evaluation: PrivateEvaluation | None = None
    """How held-out examples are evaluated; None: training uses all examples."""

    def releases(self, server_round: int, num_examples: int) -> tuple[Release, ...]:
        """What a client with so many examples in all releases in a round."""
        return releases_in(
            server_round, self.training, self.evaluation, self.mechanism, num_examples
        )

    def in_round(self, server_round: int) -> "ClientSetup":
        """The setup of a round, whose queries and releases may be its own."""
        if not self.training.is_scheduled:
            return self
        return replace(self, training=self.training.in_round(server_round))

    def queries(self, num_examples: int) -> tuple[Query, ...]:
        """Clips, noise and charges of a shard of that size, of one round."""
        return self._of_size(num_examples)[0]

    @cached_property
    def _of_size(self) -> Callable[[int], tuple[tuple[Query, ...], Counter[str] | None]]:
        """The `queries`, and how often a round charges each label; None where there is no noise.

        By size, because the clients of a cohort have few.
        """
        training = self.training
        mechanism = self.mechanism
        is_noised = mechanism.l2_norm_clip is not None and mechanism.noise.stddev(1.0, 1) > 0

        @cache
        def of_size(size: int) -> tuple[tuple[Query, ...], Counter[str] | None]:
            charged = Counter[str]()
            for release in training.releases(mechanism, size):
                charged[release.label] += release.count
            return training.queries(mechanism, size), charged if is_noised else None

        return of_size

    @cached_property
    def _phases(self) -> dict[str, tuple[int, Phase]]:
        phases = (*self.training.phases, *self.training.setup_phases)
        phases += () if self.evaluation is None else (EVALUATE,)
        return {phase.name: (index, phase) for index, phase in enumerate(phases)}

    def phase(self, name: str) -> tuple[int, Phase]:
        """Index and description of a phase.

        Raises:
            ValueError: naming the phases there are.
        """
        if name not in self._phases:
            raise ValueError(f"Expected a phase out of {list(self._phases)}, got {name!r}")
        return self._phases[name]


class Seat(NamedTuple):
    """Whose update it is and when: one partition, or the partitions of a cohort."""

    partition: int | tuple[int, ...]
    server_round: int
    attempt: int
    phase: str


class _UpdateResult(NamedTuple):
    """What an update produced: the upload, the new memory, and how often the oracle was asked."""

    up: Payload
    memory: Memory | None
    queries: Counter[str]


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
) -> _UpdateResult:
    """The update of the client(s) in ``seat``; a cohort has a leading dimension everywhere.

    ``num_examples`` is the public size N_i of each shard: it normalises means, scales noise and
    fixes the rate of a Poisson batch. How many ``examples`` there really are is a client's secret.

    Raises:
        WrongSize: they are not N_i, where the price needs that they are.
        Uncharged: the update asked for more than is charged.
    """
    setup = setup.in_round(max(1, seat.server_round))
    index, phase = setup.phase(seat.phase)
    if not isinstance(down, phase.down):
        raise ValueError(f"Expected a {phase.down.__name__}, got a {type(down).__name__}")
    draws = Draws(source, seat.partition, seat.server_round, seat.attempt, index, device)
    held = setup.evaluation
    problem = setup.problem
    training = setup.training
    if phase is EVALUATE:
        if held is None or not held.is_due(seat.server_round):
            raise Uncharged(f"evaluation.every: round {seat.server_round} is not charged for one")
        x = next(iter(vars(down).values()))
        up = held.totals(problem, x, examples, held.stddev(setup.mechanism), draws)
        return _UpdateResult(up, None, Counter({LABEL: 1}))
    sizes = (num_examples,) if isinstance(num_examples, int) else num_examples
    sizes = sizes if held is None else [held.trained_on(size) for size in sizes]
    asked = [setup.queries(size) for size in sizes]
    oracle = Oracle(problem, examples, asked, draws)
    places = zip(phase.places, vars(down).values(), strict=True)
    at = [as_point(t, problem.manifold) if place == "point" else t for place, t in places]
    up, after = training.update(
        seat.phase, type(down)(*at), memory, oracle, problem.manifold, draws
    )
    _, charged = setup._of_size(min(sizes))
    if charged is not None and seat.server_round == 0:
        charged = Counter()  # the exchanges before round 1 are charged nothing
    if charged is not None:
        _check_charged(training.kind, oracle.queries, charged)
    return _UpdateResult(_plain(up), after and _plain(after), oracle.queries)


def releases_in(
    server_round: int,
    training: ClientUpdate,
    evaluation: PrivateEvaluation | None,
    mechanism: ExampleMechanism,
    num_examples: int,
) -> tuple[Release, ...]:
    """What a client with so many examples in all releases in a round, evaluation included."""
    update = training.in_round(max(1, server_round))
    if evaluation is None:
        return update.releases(mechanism, num_examples)
    own = update.releases(mechanism, evaluation.trained_on(num_examples))
    return (*own, evaluation.release(mechanism)) if evaluation.is_due(server_round) else own


def _plain(record: P) -> P:
    """What goes up and what is kept is stacked: tensors without gradients."""
    return type(record)(*[t.detach().as_subclass(Tensor) for t in vars(record).values()])


def _check_charged(kind: str, queries: Counter[str], charged: Counter[str]) -> None:
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
        paid = charged[name]
        how = "noised"
        if name != label:
            paid = paid if 0 < paid <= noised else 0
            how = "un-noised"
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
    source: Callable[[], NoiseSource]
    """Makes the source of one exchange: in a release with a fresh key of the operating system."""
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
        """The client side of the clients ``members`` alone."""
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

    def gradients_in_a_step(self, num_examples: int) -> float:
        """How many points' worth of per-example gradients, with temporaries, a query may hold."""
        summed = self.setup.problem.points_per_example
        each = Problem.points_per_example
        if (most := self.setup.training.largest_batch(num_examples)) is not None:
            return each * most
        held = (
            (summed if query.form == "gradient" else each) * query.expected_size
            for query in self.setup.queries(num_examples)
        )
        return max(held, default=0.0)


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


class _Answer(NamedTuple):
    """What goes up, where the key of its noise came from, and what is to be kept."""

    up: Payload
    noise_origin: str
    kept: Kept | None


def answer(
    node: Node,
    header: Header,
    read: Callable[[type[Payload], tuple[int, ...], torch.dtype], Payload],
    kept: Kept | None,
    pay: Callable[[], object] = lambda: None,
) -> _Answer:
    """What a node answers; whoever calls writes ``kept`` down once the reply is made.

    ``read`` reads what came down, of this kind, where a point has this shape and type.
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
    training = node.setup.training
    # the first field of everything that goes down is like a point
    blank = training.initial_memory(next(iter(vars(down).values())))
    memory = blank and remembered(blank, kept, header, lasts=training.remembers_setup)
    if memory is not None and memory is blank and header.server_round > 0 and training.setup_phases:
        raise BadMessage(
            f"Expected a client that remembers the exchanges before round 1 in round "
            f"{header.server_round}, got client {node.partition} without: it was started again or "
            "a reply of its was lost; start a new run"
        )
    pay()
    examples = node.hold_out if phase is EVALUATE else node.shard
    source = node.source()
    assert examples is not None
    seat = Seat(node.partition, header.server_round, header.attempt, header.phase)
    made = run_update(node.setup, seat, down, memory, examples, node.num_examples, source)
    kept = None if made.memory is None else Kept(header, made.memory.tensors())
    return _Answer(made.up, source.origin, kept)
