"""The library's own loop, with a look at what clients uploaded and remember."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from manifed.algorithms.interface import ClientUpdate, Memory, ServerState, ServerUpdate
from manifed.algorithms.payloads import Payload
from manifed.federation.client import ClientSetup, ClientSide
from manifed.federation.plan import Plan
from manifed.federation.replies import ReplyPolicy
from manifed.federation.rounds import run_rounds
from manifed.federation.stacked import StackedTransport
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


class Watched(StackedTransport):
    """Keeps the uploads of the last exchange; may start from a given memory of all clients."""

    uploads: Payload

    def remember(self, memory: Memory | None, clients: int) -> None:
        (stack,) = self.stacks.values()
        stack.memory, stack.tags = memory, dict.fromkeys(range(clients), (0, 0))

    @property
    def memory(self) -> Memory | None:
        (stack,) = self.stacks.values()
        kept = stack.memory
        return kept and type(kept)(*[t.clone() for t in kept.tensors().values()])

    def exchange(self, *asked):
        replies = super().exchange(*asked)
        assert not replies.failures, replies.failures
        self.uploads = replies.uploads
        return replies


@dataclass(frozen=True)
class Members:
    """Who takes part, said round by round."""

    of_round: Callable[[int], tuple[int, ...]]

    def draw(self, num_clients, server_round, attempt, source):
        return self.of_round(server_round)

    def expected_size(self, num_clients):
        return float(len(self.of_round(1)))


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
    everyone = tuple(range(len(shards)))
    setup = ClientSetup(problem, training, mechanism or ExampleMechanism())
    side = ClientSide(setup, shards, tuple(x.shape), source)
    transport = Watched(side, device="cpu", memory_budget_mb=256)
    if memory is not None:
        transport.remember(memory, len(shards))
    plan = Plan(
        server_update=strategy,
        manifold=problem.manifold,
        phases=training.phases,
        cohort=Members(cohort or (lambda _: everyone)),  # type: ignore[arg-type]  # a test's own
        policy=ReplyPolicy(),
        source=source,
        num_examples=tuple(len(shard) for shard in shards),
        config_sha256="",
        mechanism=client_mechanism,
    )
    for report in run_rounds(plan, strategy.initial(x), transport, num_rounds=num_rounds):
        yield Played(report.server_round, report.state, transport.memory, transport.uploads)


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
