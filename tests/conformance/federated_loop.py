"""The library's own loop, with a look at what clients uploaded and remember."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from manifed.algorithms.payloads import Memory, Payload, State
from manifed.federation.client import ClientSetup, ClientSide
from manifed.federation.exchange import Failure
from manifed.federation.rounds import run_rounds
from manifed.federation.stack import StackTransport
from manifed.plan import plan as planned
from manifed.privacy.mechanism import ExampleMechanism
from manifed.privacy.random_numbers import NoiseSource
from manifed.problems.problem import Problem
from manifed.setting import Federation, Setting

SOURCE = NoiseSource.from_seed(5)


@dataclass(frozen=True)
class Played:
    """What is known after a round; ``memory`` has a row for every client."""

    server_round: int
    state: State
    memory: Memory | None
    uploads: Payload


class Watched(StackTransport):
    """Keeps the uploads of the last exchange; may start from a given memory of all clients."""

    uploads: Payload

    def remember(self, memory, clients):
        (stack,) = self.stacks.values()
        stack.memory, stack.tags = memory, dict.fromkeys(range(clients), (0, 0))

    @property
    def memory(self):
        (stack,) = self.stacks.values()
        kept = stack.memory
        return kept and type(kept)(*[t.clone() for t in kept.tensors().values()])

    def exchange(self, *asked):
        replies = super().exchange(*asked)
        assert not replies.failures, replies.failures
        self.uploads = replies.uploads
        return replies


def stacked(side, at_once=None, memory_budget_mb=64, **more):
    """All clients in one stack, or so many at once."""
    return StackTransport(side, at_once=at_once, memory_budget_mb=memory_budget_mb, **more)


def losing(server_round, who=None):
    """A transport on which these clients, or all, get no reply to the first attempt of a round."""

    class Losing(StackTransport):
        def exchange(self, asked):
            found = super().exchange(asked)
            if (asked.header.server_round, asked.header.attempt) != (server_round, 0):
                return found
            lost = dict.fromkeys(who or found.partitions, Failure("late", "no reply"))
            return found._replace(failures=lost)

    return Losing


def broken(monkeypatch, kind, who, error=None):
    """Updates of ``kind`` with one of these clients raise, or what it uploads is NaN."""
    plain = kind.client

    def client(self, x, oracle, here):
        owners = here.draws.partition
        is_bad = torch.tensor(
            [i in who for i in owners] if isinstance(owners, tuple) else owners in who
        )
        if error is not None and bool(is_bad.any()):
            raise error
        made = plain(self, x, oracle, here)
        return made if error is not None else torch.where(is_bad.unsqueeze(-1), torch.nan, made)

    monkeypatch.setattr(kind, "client", client)


@dataclass(frozen=True)
class Members:
    """Who takes part, said round by round."""

    of_round: Callable[[int], tuple[int, ...]]

    def draw(self, num_clients, server_round, attempt, source):
        return self.of_round(server_round)

    def expected_size(self, num_clients):
        return float(len(self.of_round(1)))


def federate(
    problem,
    shards,
    training,
    strategy,
    x,
    num_rounds,
    *,
    cohort=None,
    mechanism=None,
    client_mechanism=None,
    memory=None,
    source=SOURCE,
):
    """The rounds, one by one; ``cohort(server_round)`` says who takes part (default: all)."""
    everyone = tuple(range(len(shards)))
    setup = ClientSetup(problem, training, mechanism or ExampleMechanism())
    side = ClientSide(setup, shards, tuple(x.shape), source)
    transport = Watched(side, at_once=None, memory_budget_mb=256)
    if memory is not None:
        transport.remember(memory, len(shards))
    federation = Federation(num_clients=len(shards), num_rounds=num_rounds)
    setting = Setting(federation, training, problem.manifold, strategy, problem=problem)
    plan = replace(
        planned(setting, tuple(len(shard) for shard in shards), source=source),
        cohort=Members(cohort or (lambda _: everyone)),
        needs_everyone=False,
        mechanism=client_mechanism,
    )
    for report in run_rounds(plan, strategy.start(x), transport, num_rounds=num_rounds):
        yield Played(report.server_round, report.state, transport.memory, transport.uploads)


def last(rounds):
    """The last round."""
    *_, final = rounds
    return final


class Linear(Problem):
    """f_j(x) = -<a_j, x> on any submanifold: heterogeneous, with a closed-form gradient."""

    def __init__(self, manifold):
        self._manifold = manifold

    @property
    def manifold(self):
        return self._manifold

    def point_shape(self, examples):
        return tuple(examples["a"].shape[-self._manifold.ndim :])

    def losses(self, x, examples):
        dims = self._manifold.point_dims()
        return -(examples["a"] * x.unsqueeze(-1 - self._manifold.ndim)).sum(dims)

    def rgrads(self, x, examples):
        return self._manifold.proju(x.unsqueeze(-1 - self._manifold.ndim), -examples["a"])

    def gradient(self, x, shards):
        """Grad f(x) with weights 1/n."""
        return torch.stack([self.rgrads(x, s).mean(0) for s in shards]).mean(0)
