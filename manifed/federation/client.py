"""One turn of one client, or of a stacked cohort: from what came down to what goes up.

`run_update` is pure: the same call serves a Flower message and ten thousand stacked clients.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from manifed.algorithms.interface import ClientUpdate, Memory, Phase
from manifed.algorithms.payloads import Payload
from manifed.algorithms.rsvrg import RSVRG
from manifed.manifolds.base import Manifold
from manifed.oracles.draws import Draws
from manifed.oracles.minibatch import Full
from manifed.oracles.oracle import UNNOISED, Oracle
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

    def phase(self, name: str) -> tuple[int, Phase]:
        """Index and description of a phase.

        Raises:
            ValueError: naming the phases there are.
        """
        for index, phase in enumerate(self.training.phases):
            if phase.name == name:
                return index, phase
        known = [phase.name for phase in self.training.phases]
        raise ValueError(f"Expected a phase out of {known}, got {name!r}")


@dataclass(frozen=True)
class Seat:
    """Whose turn it is and when: one partition, or the partitions of a cohort."""

    partition: int | tuple[int, ...]
    server_round: int
    attempt: int
    phase: str


@dataclass(frozen=True)
class Turn:
    """What a turn produced: the upload, the new memory, and how often the oracle was asked."""

    up: Payload
    memory: Memory | None
    queries: Counter[str]


class Uncharged(RuntimeError):
    """An update whose answers are not what is charged; its upload must not leave."""


def run_update(
    half: ClientSetup,
    seat: Seat,
    down: Payload,
    memory: Memory | None,
    examples: Examples,
    num_examples: Sequence[int] | torch.Tensor | int,
    source: NoiseSource,
    device: str = "cpu",
) -> Turn:
    """The turn of the client(s) in ``seat``; a cohort has a leading dimension everywhere."""
    index, phase = half.phase(seat.phase)
    if not isinstance(down, phase.down):
        raise ValueError(f"Expected a {phase.down.__name__}, got a {type(down).__name__}")
    draws = Draws(source, seat.partition, seat.server_round, seat.attempt, index, device)
    counts = torch.as_tensor(num_examples, device=device)
    oracle = Oracle(half.problem, examples, counts, half.mechanism, draws)
    up, after = half.training.update(seat.phase, down, memory, oracle, half.manifold, draws)
    key = (half.training, half.mechanism, int(counts.min()))
    charged = _charged(*key)  # pyright: ignore[reportArgumentType] (frozen: hashable)
    if charged is not None:
        check_charged(half.training.kind, oracle.queries, charged)
    return Turn(up, after, oracle.queries)


@lru_cache(maxsize=256)
def _charged(
    training: ClientUpdate, mechanism: ExampleMechanism, num_examples: int
) -> Counter[str] | None:
    """How often a round's releases charge each label; None where no noise is added."""
    if mechanism.l2_norm_clip is None or mechanism.noise.stddev(1.0, 1) == 0:
        return None
    charged: Counter[str] = Counter()
    for release in training.releases(mechanism, num_examples):
        charged[release.label] += release.count
    return charged


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
    """What a client's process holds: its half, the shards, and the rehearsal's noise source."""

    half: ClientSetup
    shards: Sequence[Examples]
    point_shape: tuple[int, ...]
    source: NoiseSource | None
    """None in a release: a fresh key from the operating system is drawn for every turn."""
    release: Callable[[], NoiseSource] = NoiseSource.from_os
    """Makes a source with a fresh key, for the next turn of a release."""
    dtype: torch.dtype = torch.float64

    def turn_source(self) -> NoiseSource:
        """The source of one turn."""
        return self.source or self.release()

    def iterates_in_a_turn(self) -> int:
        """How many points a turn may keep until its end."""
        training = self.half.training
        if isinstance(training, RSVRG):
            return training.epochs * training.inner_steps
        return int(getattr(training, "local_steps", 1))

    def gradients_in_a_step(self, num_examples: int) -> float:
        """How many points' worth of per-example gradients, with temporaries, a step may hold."""
        each = self.half.problem.points_per_example
        if isinstance(self.half.training, RSVRG):
            each = ProblemBase.points_per_example
        batch = getattr(self.half.training, "minibatch", Full()).expected_size(num_examples)
        return each * batch
