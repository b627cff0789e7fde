"""The reference loop: rounds of the pure halves, no Flower, all clients stacked."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from manifed.algorithms.interface import ClientUpdate, Collected, Memory, ServerState, ServerUpdate
from manifed.algorithms.payloads import Payload
from manifed.federation.aggregation import ServerDraws, private_mean, weighted_mean
from manifed.federation.client import ClientSetup, Seat, run_update
from manifed.manifolds.base import Manifold
from manifed.privacy.mechanism import ClientMechanism, ExampleMechanism
from manifed.privacy.noise import NoiseSource
from manifed.problems.base import Examples, Problem, ProblemBase

SOURCE = NoiseSource.from_seed(5)


@dataclass(frozen=True)
class Played:
    """What is known after a round; ``memory`` has a row for every client."""

    server_round: int
    state: ServerState
    memory: Memory | None
    uploads: Payload


def federate(
    problem: Problem,
    shards: Sequence[Examples],
    training: ClientUpdate,
    strategy: ServerUpdate,
    x: Tensor,
    num_rounds: int,
    *,
    cohort: Callable[[int], tuple[int, ...]] | None = None,
    mechanism: ExampleMechanism | None = None,
    client_mechanism: ClientMechanism | None = None,
    memory: Memory | None = None,
    source: NoiseSource = SOURCE,
) -> Iterator[Played]:
    """The rounds, one by one; ``cohort(server_round)`` says who takes part (default: all)."""
    half = ClientSetup(problem, training, mechanism or ExampleMechanism())
    manifold, n = half.manifold, len(shards)
    stacked, sizes = Examples.stack(list(shards)), torch.tensor([len(s) for s in shards])
    state = strategy.initial(x)
    if memory is None:
        memory = training.initial_memory(x.expand(n, *x.shape))
    for r in range(1, num_rounds + 1):
        members = cohort(r) if cohort else tuple(range(n))
        rows = torch.tensor(members)
        mine = None if memory is None else memory.take(rows)
        examples = Examples({k: t[rows] for k, t in stacked.tensors.items()}, stacked.feature_ndim)
        for index, phase in enumerate(training.phases):
            down = strategy.down(state, phase.name)
            spread = type(down)(*[t.expand(len(rows), *t.shape) for t in down.tensors().values()])
            seat = Seat(members, r, 0, phase.name)
            turn = run_update(half, seat, spread, mine, examples, sizes[rows].tolist(), source)
            mine = turn.memory
            draws = ServerDraws(source, r, 0, index)
            if client_mechanism is None:
                weights = sizes[rows].double()
                if strategy.weights == "uniform":
                    weights = torch.ones_like(weights)
                mean = weighted_mean(turn.up, weights)
            else:
                base = strategy.base(state, manifold)
                mean = private_mean(
                    turn.up, base, strategy.space, manifold, client_mechanism, len(rows), draws
                ).mean
            collected = Collected(mean, turn.up, members, n, draws.uniform())
            state = strategy.step(state, phase.name, collected, r, manifold)
        if mine is not None and memory is not None:
            old, new = memory.tensors().values(), mine.tensors().values()
            memory = type(mine)(*[a.index_copy(0, rows, b) for a, b in zip(old, new, strict=True)])
        yield Played(r, state, memory, turn.up)


def last(rounds: Iterator[Played]) -> Played:
    """The last round."""
    *_, final = rounds
    return final


class Linear(ProblemBase):
    """f_j(x) = -<a_j, x> on any submanifold: heterogeneous, with a closed-form gradient."""

    def __init__(self, manifold: Manifold) -> None:
        self._manifold = manifold

    @property
    def manifold(self) -> Manifold:
        return self._manifold

    def point_shape(self, examples: Examples) -> tuple[int, ...]:
        return tuple(examples["a"].shape[-self._manifold.ndim :])

    def losses(self, x: Tensor, examples: Examples) -> Tensor:
        dims = self._manifold.point_dims()
        return -(examples["a"] * x.unsqueeze(-1 - self._manifold.ndim)).sum(dims)

    def rgrads(self, x: Tensor, examples: Examples) -> Tensor:
        points = x.unsqueeze(-1 - self._manifold.ndim)
        return self._manifold.proju(points, -examples["a"])

    def gradient(self, x: Tensor, shards: Sequence[Examples]) -> Tensor:
        """Grad f(x) with weights 1/n."""
        return torch.stack([self.rgrads(x, s).mean(0) for s in shards]).mean(0)
