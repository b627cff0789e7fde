"""One turn of one client, or of a stacked cohort: from what came down to what goes up.

`take_turn` is pure: the same call serves a Flower message and ten thousand stacked clients.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from clients.draws import Draws
from clients.local_training import LocalTraining, Memory, Phase
from clients.oracle import Oracle
from manifolds.base import Manifold
from privacy.mechanism import ExampleLens
from privacy.noise import NoiseSource
from problems.base import Examples, Problem
from wire.payloads import Payload


@dataclass(frozen=True)
class ClientHalf:
    """All a client needs besides its shard: the problem, the algorithm and its own lens."""

    problem: Problem
    training: LocalTraining
    lens: ExampleLens

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


def take_turn(
    half: ClientHalf,
    seat: Seat,
    down: Payload,
    memory: Memory | None,
    examples: Examples,
    num_examples: Sequence[int] | int,
    source: NoiseSource,
    device: str = "cpu",
) -> Turn:
    """The turn of the client(s) in ``seat``; a cohort has a leading dimension everywhere."""
    index, phase = half.phase(seat.phase)
    if not isinstance(down, phase.down):
        raise ValueError(f"Expected a {phase.down.__name__}, got a {type(down).__name__}")
    draws = Draws(source, seat.partition, seat.server_round, seat.attempt, index, device)
    counts = torch.as_tensor(num_examples, device=device)
    oracle = Oracle(half.problem, examples, counts, half.lens, draws)
    up, after = half.training.turn(seat.phase, down, memory, oracle, half.manifold, draws)
    return Turn(up, after, oracle.queries)
