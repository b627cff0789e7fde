"""One update of one client, or of a stacked cohort: from what came down to what goes up.

`run_update` is pure: the same call serves a Flower message and ten thousand stacked clients.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from geoopt import ManifoldTensor

from manifed.algorithms.interface import (
    ClientUpdate,
    Memory,
    Phase,
    Scheduled,
    in_round,
    setup_phases_of,
)
from manifed.algorithms.payloads import Payload
from manifed.manifolds.base import Manifold
from manifed.manifolds.tensors import as_plain, as_point, as_tangent
from manifed.oracles.draws import Draws
from manifed.oracles.oracle import UNNOISED, Oracle, Query
from manifed.privacy.mechanism import ExampleMechanism
from manifed.privacy.noise import NoiseSource
from manifed.problems.base import Examples, Problem, ProblemBase


@dataclass(frozen=True)
class ClientSetup:
    """All a client needs besides its shard: the problem, the algorithm and its own mechanism."""

    problem: Problem
    training: ClientUpdate
    mechanism: ExampleMechanism

    @property
    def manifold(self) -> Manifold:
        """Where the model lives."""
        return self.problem.manifold

    def in_round(self, server_round: int) -> "ClientSetup":
        """The setup of a round, whose queries and releases may be its own."""
        if not isinstance(self.training, Scheduled):
            return self
        found = self._rounds.get(server_round)
        if found is None:
            found = replace(self, training=in_round(self.training, server_round))
            self._rounds.clear()  # rounds follow each other
            self._rounds[server_round] = found
        return found

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
    def _phases(self) -> tuple[Phase, ...]:
        return (*self.training.phases, *setup_phases_of(self.training))

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


@dataclass(frozen=True)
class Seat:
    """Whose update it is and when: one partition, or the partitions of a cohort."""

    partition: int | tuple[int, ...]
    server_round: int
    attempt: int
    phase: str


@dataclass(frozen=True)
class UpdateResult:
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
    num_examples: Sequence[int] | torch.Tensor | int,
    source: NoiseSource,
    device: str = "cpu",
) -> UpdateResult:
    """The update of the client(s) in ``seat``; a cohort has a leading dimension everywhere."""
    setup = setup.in_round(max(1, seat.server_round))
    index, phase = setup.phase(seat.phase)
    if not isinstance(down, phase.down):
        raise ValueError(f"Expected a {phase.down.__name__}, got a {type(down).__name__}")
    draws = Draws(source, seat.partition, seat.server_round, seat.attempt, index, device)
    counts = torch.as_tensor(num_examples, device=device)
    sizes = counts.reshape(-1).tolist()
    asked = {n: setup.queries(n) for n in set(sizes)}
    oracle = Oracle(setup.problem, examples, counts, [asked[n] for n in sizes], draws)
    placed, base = _placed(phase, down, oracle.manifold)
    up, after = setup.training.update(seat.phase, placed, memory, oracle, oracle.manifold, draws)
    charged = setup.charged(min(sizes))
    if charged is not None and seat.server_round == 0:
        charged = Counter()  # the exchanges before round 1 are charged nothing
    if charged is not None:
        check_charged(setup.training.kind, oracle.queries, charged)
    up = _leaving(phase, up, base, oracle.manifold)
    return UpdateResult(up, _plain(after), oracle.queries)


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
    for i, place in enumerate(phase.places):
        if place == "tangent":
            values[i] = as_tangent(values[i], base)
        elif place == "point" and i != first:
            values[i] = as_point(values[i], manifold)
    return type(down)(*values), base


def _leaving(phase: Phase, up: Payload, base: ManifoldTensor | None, manifold: Manifold) -> Payload:
    """What goes up, placed where the phase says and the base is known."""
    if base is None or not ("tangent" in phase.uploads or "point" in phase.uploads):
        return up
    values = list(up.tensors().values())
    for i, place in enumerate(phase.uploads):
        if place == "tangent":
            values[i] = as_tangent(values[i], base)
        elif place == "point":
            values[i] = as_point(values[i], manifold)
    return type(up)(*values)


def _plain(memory: Memory | None) -> Memory | None:
    """Memory is kept and stacked: plain tensors."""
    return memory and type(memory)(*[as_plain(t) for t in memory.tensors().values()])


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

    def turn_source(self) -> NoiseSource:
        """The source of one update."""
        return self.source or self.release()

    def gradients_in_a_step(self, num_examples: int) -> float:
        """How many points' worth of per-example gradients, with temporaries, a query may hold."""
        summed, each = self.setup.problem.points_per_example, ProblemBase.points_per_example
        if isinstance(self.setup.training, Scheduled):  # a batch may grow to the whole shard
            return each * num_examples
        sizes = (
            (summed if query.form == "gradient" else each) * query.expected_size
            for query in self.setup.queries(num_examples)
        )
        return max(sizes, default=0.0)
