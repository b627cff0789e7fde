"""Gossip on a ring: keys are exchanged once, models go down by node, and the server mixes."""

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from flwr.app import RecordDict
from flwr.serverapp.strategy import Strategy
from torch import Tensor

from manifed.algorithms.interface import Memory, Phase, ServerState
from manifed.algorithms.payloads import Displacement, Payload, PerClient, Point
from manifed.algorithms.rsgd import RSGD
from manifed.errors import ConfigError, RoundFailed
from manifed.experiment.schema import Engine
from manifed.federation.client import ClientSetup, ClientSide, Node
from manifed.federation.cohorts import Everyone
from manifed.federation.plan import Plan
from manifed.federation.replies import ReplyPolicy
from manifed.federation.rounds import begin, free, run_rounds
from manifed.federation.stacked import StackedTransport
from manifed.federation.transport import MemoryTransport
from manifed.flower.client import client_app
from manifed.flower.inline import InlineGrid
from manifed.flower.loop import ServerLoop
from manifed.flower.transport import MessageTransport
from manifed.manifolds.euclidean import Euclidean
from manifed.manifolds.sphere import Sphere
from manifed.privacy.mechanism import ClientMechanism, ExampleMechanism, RelativeNoise
from manifed.privacy.noise import NoiseSource, Stream
from manifed.problems.base import Examples
from manifed.problems.frechet_mean import FrechetMean
from manifed.runs.driver import _start

NODES, DIM, BYTES = 5, 4, 32
SOURCE = NoiseSource.from_seed(3)
WAYS = ("memory", "stacked", "messages")
KEYS = (BYTES,), torch.uint8


@dataclass(frozen=True)
class PublicKey(Payload):
    """Up, before round 1."""

    key: Tensor

    @classmethod
    def layout(cls, shape, dtype):
        return {"key": KEYS}


@dataclass(frozen=True)
class NeighbourKeys(Payload):
    """Down, before round 1: the keys of both neighbours, behind a point."""

    x: Tensor
    keys: Tensor

    @classmethod
    def layout(cls, shape, dtype):
        return {"x": (shape, dtype), "keys": ((2, BYTES), torch.uint8)}


@dataclass(frozen=True)
class Known(Memory):
    """The keys of both neighbours."""

    keys: Tensor


def ring(n=NODES):
    """Each node keeps a third and takes a third of each neighbour: doubly stochastic."""
    eye = torch.eye(n, dtype=torch.float64)
    return (eye + eye.roll(1, 0) + eye.roll(-1, 0)) / 3


@dataclass(frozen=True)
class Gossip:
    """Both sides: a node sends its own model, the server mixes them by ``ring`` at each node."""

    kind: str = "gossip"
    space: str = "ambient"
    weights: str = "uniform"
    needs_everyone: bool = True
    phases = (Phase("mix", Point, Point, uploads=("point",), aggregation="none"),)
    setup_phases = (
        Phase("offer", Point, PublicKey, uploads=("any",), aggregation="none"),
        Phase("learn", NeighbourKeys, PublicKey, ("point", "any"), ("any",), "none"),
    )

    # the client
    def initial_memory(self, x):
        return Known(x.new_zeros((*x.shape[:-1], 2, BYTES), dtype=torch.uint8))

    def queries(self, mechanism, num_examples):
        return ()

    def releases(self, mechanism, num_examples):
        return ()

    def update(self, phase, down, memory, oracle, manifold, draws):
        if phase == "offer":
            drawn = draws.uniforms((BYTES,), Stream.ITERATE_CHOICE, 0)
            return PublicKey((drawn * 256).to(torch.uint8)), memory
        if phase == "learn":  # the answer shows what was learnt
            return PublicKey(down.keys.sum(-2).to(torch.uint8)), Known(down.keys)
        assert bool(memory.keys.any()), "the keys of round 0 are remembered"
        return down, memory

    # the server
    def initial(self, x):
        models = torch.stack([torch.linspace(i + 1, 3.0, DIM, dtype=x.dtype) for i in range(NODES)])
        keys = torch.zeros(NODES, BYTES, dtype=torch.uint8)
        return ServerState({"models": models / models.norm(dim=-1, keepdim=True), "keys": keys})

    def down(self, state, phase):
        models, keys = state["models"], state["keys"]
        if phase == "learn":
            return PerClient(
                NeighbourKeys(models, torch.stack([keys.roll(1, 0), keys.roll(-1, 0)], 1))
            )
        return PerClient(Point(models))

    def base(self, state, manifold):
        return state["models"][0]

    def step(self, state, phase, collected, server_round, manifold):
        assert collected.partitions == tuple(range(NODES))
        assert not collected.mean
        if phase == "offer":
            return state.replace(keys=collected.uploads.key)
        if phase == "learn":
            return state.replace(learnt=collected.uploads.key)
        models = collected.uploads.x
        towards = manifold.logmap(models.unsqueeze(1), models.unsqueeze(0))  # of j, seen from i
        return state.replace(
            models=manifold.expmap(models, torch.einsum("ij,ij...->i...", ring(), towards))
        )

    def model(self, state, manifold):
        return manifold.projx(state["models"].mean(0))

    output = model


def side_of(manifold):
    shards = [Examples({"z": torch.eye(DIM, dtype=torch.float64)}, {"z": 1})] * NODES
    setup = ClientSetup(FrechetMean(manifold), Gossip(), ExampleMechanism())
    return ClientSide(setup, shards, (DIM,), SOURCE)


def plan_of(manifold):
    gossip = Gossip()
    return Plan(
        server_update=gossip,
        manifold=manifold,
        phases=gossip.phases,
        setup_phases=gossip.setup_phases,
        cohort=Everyone(),
        policy=ReplyPolicy(),
        source=SOURCE,
        num_examples=(DIM,) * NODES,
        config_sha256="ring",
        needs_everyone=True,
    )


def grid_of(side):
    def node(context):
        i = context.node_config["partition-id"]
        return Node(side.setup, side.shards[i], i, "ring", (DIM,), lambda: SOURCE)

    return InlineGrid(client_app(node), NODES, {})


def transport_of(way, manifold):
    side = side_of(manifold)
    if way == "memory":
        return MemoryTransport(side)
    if way == "stacked":
        return StackedTransport(side, device="cpu", memory_budget_mb=64)
    return MessageTransport.meet(grid_of(side), plan_of(manifold))


def start_of():
    return Gossip().initial(torch.zeros(DIM, dtype=torch.float64))


def rounds_of(way, manifold, num_rounds=4, **changes):
    plan = replace(plan_of(manifold), **changes)
    return list(run_rounds(plan, start_of(), transport_of(way, manifold), num_rounds=num_rounds))


@pytest.mark.parametrize("manifold", [Euclidean(), Sphere()], ids=lambda m: m.name)
def test_the_three_ways_mix_to_one_state(manifold):
    ends = [rounds_of(way, manifold)[-1] for way in WAYS]
    for end in ends:
        assert end.participants == tuple(range(NODES))
        for name, tensor in end.state.tensors.items():
            torch.testing.assert_close(tensor, ends[0].state[name], rtol=0, atol=1e-12)


def test_each_node_learns_the_keys_of_its_neighbours_before_round_1():
    first = rounds_of("messages", Sphere(), 1)[0]
    keys = first.state["keys"]
    assert len({tuple(key.tolist()) for key in keys}) == NODES
    told = (keys.roll(1, 0).int() + keys.roll(-1, 0).int()).to(torch.uint8)
    assert torch.equal(first.state["learnt"], told)


def test_consensus_comes_at_the_rate_of_the_second_eigenvalue():
    spread = []
    for one in rounds_of("stacked", Euclidean(1), 20):
        models = one.state["models"]
        spread.append(float((models - models.mean(0)).norm()))
    second = float(torch.linalg.eigvalsh(ring())[-2])
    assert second == pytest.approx((1 + 2 * math.cos(2 * math.pi / NODES)) / 3)
    rates = [after / before for before, after in pairwise(spread)]
    assert max(rates) <= second * (1 + 1e-9)
    assert rates[-1] == pytest.approx(second, rel=1e-6)
    mean = start_of()["models"].mean(0)
    torch.testing.assert_close(models, mean.expand(NODES, -1), rtol=0, atol=1e-4)


def test_flowers_own_loop_takes_the_setup_first():
    loop = ServerLoop(plan_of(Sphere()), start_of())
    Strategy.start(
        loop, grid_of(side_of(Sphere())), initial_arrays=loop._arrays(), num_rounds=2 + 4
    )
    expected = rounds_of("memory", Sphere())[-1].state
    for name in ("models", "keys", "learnt"):
        torch.testing.assert_close(loop.state[name], expected[name], rtol=0, atol=1e-12)


def test_a_node_that_lost_what_it_learnt_before_round_1_says_so():
    plan, grid = plan_of(Sphere()), grid_of(side_of(Sphere()))
    transport = MessageTransport.meet(grid, plan)
    rounds = run_rounds(plan, start_of(), transport, num_rounds=3)
    assert next(rounds).server_round == 1
    for context in grid._contexts.values():
        context.state = RecordDict()
    with pytest.raises(RoundFailed, match="remembers the exchanges before round 1 in round 2"):
        next(rounds)


def test_a_run_with_exchanges_before_round_1_is_not_gone_on_with():
    past = SimpleNamespace(checkpoint=SimpleNamespace(server_round=2))
    config = SimpleNamespace(engine=Engine(), training=Gossip())
    with pytest.raises(ConfigError, match=r"output.resume.*'gossip'.*start a new run"):
        _start(config, plan_of(Sphere()), past)


def test_an_upload_off_the_manifold_or_of_another_layout_is_dropped(monkeypatch):
    monkeypatch.setattr(
        Gossip,
        "update",
        lambda self, phase, down, memory, *_: (
            (PublicKey(torch.zeros(BYTES - 1, dtype=torch.uint8)) if phase == "offer" else down),
            memory,
        ),
    )
    with pytest.raises(RoundFailed, match=r"Expected key of shape \(32,\).* got \[?\(?31"):
        rounds_of("messages", Sphere(), 1)
    monkeypatch.setattr(
        Gossip, "update", lambda self, phase, down, memory, *_: (Point(2 * down.x), memory)
    )
    with pytest.raises(RoundFailed, match=r"Expected x on Sphere within .* take manifold.projx"):
        rounds_of("stacked", Sphere(), 1, setup_phases=())


def test_client_level_privacy_shows_no_uploads_to_mix():
    mechanism = ClientMechanism(l2_norm_clip=1.0, noise_multiplier=1.0)
    with pytest.raises(ValueError, match="shows the server uploads"):
        replace(plan_of(Sphere()), mechanism=mechanism)


def test_only_the_clients_asked_get_their_own_rows():
    now = begin(replace(plan_of(Sphere()), needs_everyone=False), start_of(), 1, 0, free)
    some = now._replace(asked=(4, 1))
    assert torch.equal(some.rules.send(some).rows.x, start_of()["models"][[4, 1]])


def test_a_question_to_the_oracle_before_round_1_is_refused():
    private = ExampleMechanism(l2_norm_clip=1.0, noise=RelativeNoise(multiplier=1.0))
    side = replace(
        side_of(Sphere()), setup=ClientSetup(FrechetMean(Sphere()), Asking(step_size=0.1), private)
    )
    plan = replace(
        plan_of(Sphere()),
        setup_phases=Asking(step_size=0.1).setup_phases,
        phases=Asking(step_size=0.1).phases,
    )
    with pytest.raises(RoundFailed, match="asked for 1 noised answers 'gradient'"):
        next(run_rounds(plan, start_of(), MemoryTransport(side), num_rounds=1))


class Asking(RSGD):
    """Takes its one charged gradient before round 1, too."""

    @property
    def setup_phases(self):
        return (Phase("offer", Point, Displacement, aggregation="none"),)
