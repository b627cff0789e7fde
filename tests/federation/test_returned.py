"""What methods of somebody's own classes return: one line before round 1, with what to return."""

import math
from functools import partial

import numpy as np
import pytest
import torch

import manifed
from manifed.algorithms import RSGD
from manifed.algorithms.algorithm import Phase
from manifed.algorithms.payloads import Displacement, MeanGradient, Point
from manifed.errors import ConfigError, RoundFailed
from manifed.federation.client import ClientSetup, Seat, run_update
from manifed.federation.stack import StackTransport
from manifed.manifolds import Sphere
from manifed.oracles.minibatch import Full
from manifed.privacy.mechanism import ExampleMechanism, Noise
from manifed.privacy.random_numbers import NoiseSource
from manifed.problems import Examples, FrechetMean

D = 3
X = torch.eye(D, dtype=torch.float64)[0]
SHARDS = list(Sphere().random(2, 6, D, generator=torch.Generator().manual_seed(0)))
BAD = {
    "None": None,
    "a number": 1.0,
    "a list": [1.0] * D,
    "an array": np.ones(D),
    "float32": torch.zeros(D),
    "one number": torch.zeros(1).double(),
    "a row": torch.zeros(1, D).double(),
    "NaN": torch.full((D,), math.nan).double(),
}


class Own(manifed.Algorithm):
    """Two exchanges and a memory."""

    kind: str = "own"

    @property
    def phases(self):
        second = Phase("second", MeanGradient, Displacement, ("tangent",), uploads=("tangent",))
        return (Phase("first", Point, Displacement, uploads=("tangent",)), second)

    def asks(self):
        return (manifed.Ask(count=2),)

    def remember(self, x):
        return {"at": x, "last": 0 * x}

    def client(self, x, oracle, here):
        at = here.memory["at"] if here.exchange == "second" else x
        u = oracle.gradient(at)
        return -0.1 * u, {"last": u, "at": at}

    def start(self, x):
        return {"x": x, "g": 0 * x}

    def down(self, state, phase):
        return Point(state["x"]) if phase == "first" else MeanGradient(state["g"])

    def server(self, state, mean, here):
        return {**state, "g": mean} if here.exchange == "first" else state


class OwnSphere(Sphere):
    """Of another package."""


class OwnMean(FrechetMean):
    """Of another package."""

    def rgrads(self, x, examples):
        return super().rgrads(x, examples)


class Asked(StackTransport):
    """Knows whether a client was asked for anything."""

    is_asked = False

    def exchange(self, asked):
        Asked.is_asked = True
        return super().exchange(asked)


def fitted():
    Asked.is_asked = False
    level = manifed.ExampleLevel(
        l2_norm_clip=1.0, noise=manifed.Multiplier(noise_multiplier=1.0), delta=1e-5
    )
    return manifed.fit(
        OwnMean(OwnSphere()), SHARDS, Own(),
        rounds=1, privacy=level, start=X, transport=Asked,
    )  # fmt: skip


def memory(bad):
    return lambda self, x, oracle, here: (oracle.gradient(x), bad)


def named(name, bad):
    return lambda *_: {name: bad, "x": X}


def returns(bad):
    return lambda *_: bad


VECTORS = ("from_coords", "proju", "egrad2rgrad", "retr", "expmap", "logmap", "transp", "projx")
NUMBERS = ("inner", "norm_bound", "dist", "tangency_defect")
GRADIENTS = "OwnMean.rgrads: expected a torch tensor|OwnMean: its gradients: expected norms"
TENSORS = "None", "a list", "an array"


def rows(cls, method, made, said, names=tuple(BAD)):
    return [(cls, method, made(BAD[name]), said, name) for name in names]


WRONG = [
    *rows(Own, "client", returns, "Own.client: "),
    *rows(Own, "client", memory, "Own.client, memory: ", [*BAD][1:]),
    *rows(Own, "client", lambda bad: memory({"at": X, "last": bad}), "Own.client"),
    (Own, "client", memory({"last": X}), "Own.client, memory.*'at', 'last'", "another key"),
    (Own, "client", returns({"v": X}), "Own.client: expected the tensors .'u'", "another key"),
    (Own, "remember", returns(None), "Own.client: expected no memory", "None"),
    *rows(Own, "remember", returns, "Own.remember: expected a dict", [*BAD][1:]),
    *rows(Own, "remember", lambda bad: named("last", bad), "Own.remember, 'last'", TENSORS),
    *rows(Own, "asks", returns, "Own.asks: expected a tuple of Ask"),
    *rows(Own, "start", returns, "Own.start: expected a dict"),
    *rows(Own, "start", lambda bad: named("g", bad), "Own.start, 'g'", TENSORS),
    *rows(Own, "server", returns, "Own.server: expected a dict"),
    *rows(Own, "server", lambda bad: named("g", bad), "Own.server, 'g'", TENSORS),
    *rows(Own, "model", returns, "Own.model: Expected"),
    *rows(OwnMean, "rgrads", returns, GRADIENTS, [*BAD][:-1]),
    *rows(OwnMean, "gradients", returns, "OwnMean .*no attribute 'norms'"),
    *[
        row
        for how in (*VECTORS, *NUMBERS)
        for row in rows(OwnSphere, how, returns, f"OwnSphere.{how}: Expected")
    ],
]


def test_healthy_classes_run():
    assert fitted().curves["round"] == [1]


@pytest.mark.parametrize(
    ("cls", "method", "made", "said"),
    [row[:4] for row in WRONG],
    ids=[f"{cls.__name__}.{method}, {name}" for cls, method, _, _, name in WRONG],
)
def test_a_method_that_returns_something_else_is_named_before_a_client_is_asked(
    cls, method, made, said, monkeypatch
):
    monkeypatch.setattr(cls, method, made, raising=False)
    with pytest.raises(ConfigError, match=said) as refused:
        fitted()
    assert "\n" not in str(refused.value)
    assert not Asked.is_asked


@pytest.mark.parametrize("at_once", [1, None])
def test_what_a_client_returns_in_a_later_round_stays_with_it(at_once):
    class Later(RSGD):
        def client(self, x, oracle, here):
            made = super().client(x, oracle, here)
            return made if here.round == 1 else made[..., None]

    rounds = manifed.federate(
        FrechetMean(Sphere()), SHARDS, Later(step_size=0.1, minibatch=Full()), rounds=3, start=X,
        transport=partial(StackTransport, at_once=at_once),
    )  # fmt: skip
    assert next(rounds).participants == (0, 1)
    with pytest.raises(RoundFailed, match=r"Later.client: Expected u of shape .*, 1\)"):
        next(rounds)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda true: true[..., :1],  # broadcast to a point, it would be longer than its clip
        lambda true: true[..., :1, :],
    ],
)
def test_a_gradient_that_would_be_broadcast_past_its_clip_is_refused_at_the_client(wrong):
    class Broad(OwnMean):
        def rgrads(self, x, examples):
            return wrong(super().rgrads(x, examples))

    setup = ClientSetup(
        Broad(Sphere()), RSGD(step_size=0.1, minibatch=Full()),
        ExampleMechanism(l2_norm_clip=1.0, noise=Noise(multiplier=1.0)),
    )  # fmt: skip
    with pytest.raises(ConfigError, match="Broad: its gradients: expected norms"):
        run_update(
            setup, Seat(0, 1, 0, "train"), Point(X), None, Examples({"z": SHARDS[0]}), 6,
            NoiseSource.from_seed(0),
        )  # fmt: skip
