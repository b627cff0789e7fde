"""Any torch module: gradients of each example, the point of its parameters, what is refused."""

import geoopt
import pytest
import torch
from torch import nn
from torch.nn import functional

import manifed
from manifed.algorithms.rsgd import RSGD
from manifed.errors import ConfigError
from manifed.federation.held_out import judged
from manifed.oracles.minibatch import Full
from manifed.oracles.oracle import Draws, Oracle
from manifed.privacy.mechanism import ExampleMechanism
from manifed.privacy.noise import NoiseSource
from manifed.problems.examples import Examples
from manifed.problems.module_problem import ModuleProblem, NotPrivate
from manifed.setting import ExampleLevel, Multiplier
from manifed.torch import load

WIDTH = 5
CLASSES = 3


class Net(nn.Module):
    """An orthonormal layer, points of a ball, a tied and a frozen parameter, a number, a buffer."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        frame = torch.linalg.qr(torch.randn(WIDTH, 4, generator=generator))[0]
        self.frame = geoopt.ManifoldParameter(frame, manifold=geoopt.EuclideanStiefel())
        ball = 0.3 * torch.rand(CLASSES, 4, generator=generator)
        self.ball = geoopt.ManifoldParameter(ball, manifold=geoopt.PoincareBall())
        self.shift = nn.Linear(4, 4, bias=False)
        self.same = nn.Linear(4, 4, bias=False)
        self.same.weight = self.shift.weight
        self.fixed = nn.Parameter(torch.ones(4), requires_grad=False)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("offset", torch.full((4,), 0.1))
        with torch.no_grad():
            self.shift.weight.copy_(0.4 * torch.randn(4, 4, generator=generator))

    def forward(self, feature):
        hidden = self.same(torch.tanh(self.shift(feature @ self.frame)) + self.offset) * self.fixed
        return self.scale * hidden @ self.ball.mT


def examples(n=6, seed=2):
    generator = torch.Generator().manual_seed(seed)
    feature = torch.randn(n, WIDTH, generator=generator, dtype=torch.float64)
    label = torch.randint(CLASSES, (n,), generator=generator)
    return Examples({"feature": feature, "label": label}, {"feature": 1, "label": 0})


def test_the_point_holds_what_is_trained_and_gives_it_back():
    problem = ModuleProblem(Net())
    model = Net()
    names = set(problem.shapes)
    assert names == {"frame", "ball", "shift.weight", "scale"}
    assert problem.manifold.check_point_on_manifold(problem.start)
    moved = problem.manifold.projx(problem.start + 0.05)
    state = problem.state_dict(moved)
    model.load_state_dict(state, strict=True)
    assert torch.equal(model.shift.weight, model.same.weight)
    assert torch.equal(model.fixed, torch.ones(4))
    again = ModuleProblem(model).start
    torch.testing.assert_close(again, moved, rtol=0, atol=1e-6)  # the model is float32


class Tokens(nn.Module):
    """A row of ten tokens, looked up and summed; an eleventh has no row, and torch raises."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 4)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, feature):
        return self.head(self.table(feature).sum(1))


@pytest.mark.parametrize("bad", [10, -1, 2**62])
@pytest.mark.parametrize("where", ["feature", "label"])
def test_a_record_that_makes_the_model_raise_adds_nothing_and_stops_nobody(bad, where):
    """That a client falls silent would tell whoever listens that the record is there."""
    generator = torch.Generator().manual_seed(5)
    rows = {
        "feature": torch.randint(10, (6, 3), generator=generator),
        "label": torch.randint(CLASSES, (6,), generator=generator),
    }
    rows[where][-1] = bad
    ndim = {"feature": 1, "label": 0}
    problem = ModuleProblem(Tokens(), functional.nll_loss)
    problem.is_classifier = True
    found = []
    for n in (6, 5):
        shard = Examples({k: t[:n] for k, t in rows.items()}, ndim)
        queries = RSGD(step_size=0.1, minibatch=Full()).queries(
            ExampleMechanism(l2_norm_clip=0.5), 5
        )
        oracle = Oracle(problem, shard, [queries], Draws(NoiseSource.from_seed(0), 0, 1))
        found.append(oracle.gradient(problem.start))
        shorter = oracle.gradient(problem.start.float())
        torch.testing.assert_close(shorter, found[-1].float(), rtol=0, atol=1e-6)
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-12)
    assert float(found[1].norm()) > 0.1
    losses, _ = judged(problem, problem.start, Examples(rows, ndim), worst=7.0)
    assert float(losses[-1]) == 7.0
    assert float(losses[:-1].max()) < 7.0


def test_a_private_run_stays_on_the_manifolds_and_its_folder_gives_the_state(tmp_path):
    shards = [examples(20, seed).tensors for seed in (4, 5)]
    privacy = ExampleLevel(l2_norm_clip=0.5, noise=Multiplier(noise_multiplier=1.0), delta=1e-3)
    found = manifed.fit(model=Net(), sites=shards, rounds=4, step_size=0.5, privacy=privacy)
    assert ModuleProblem(Net()).manifold.check_point_on_manifold(found.model, atol=1e-10)
    folder = found.save(tmp_path / "run")
    torch.testing.assert_close(load(folder, Net()), found.state_dict, rtol=0, atol=0)
    with pytest.raises(ConfigError, match="expected 20 parameters"):
        load(folder, nn.Linear(4, 4))
    with pytest.raises(ConfigError, match="no such file"):
        load(tmp_path, Net())


class Mixing(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, CLASSES)

    def forward(self, feature):
        return self.layer(feature - feature.mean(0))


class Remembering(Mixing):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, feature):
        self.seen += feature.detach().abs().max()
        return self.layer(feature)


class Branching(Mixing):
    def forward(self, feature):
        return self.layer(feature if float(feature.sum()) > 0 else -feature)


class Unknown(nn.Module):
    def __init__(self):
        super().__init__()
        point = torch.full((2, 2), 0.5)
        self.point = geoopt.ManifoldParameter(point, manifold=geoopt.BirkhoffPolytope())


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (nn.Sequential(nn.Linear(WIDTH, 4), nn.BatchNorm1d(4)), "BatchNorm1d.*GroupNorm"),
        (nn.Sequential(nn.InstanceNorm1d(4, track_running_stats=True)), "InstanceNorm1d"),
        (nn.LSTM(WIDTH, 4), "LSTMCell"),
        (nn.MultiheadAttention(4, 2), "scaled_dot_product"),
        (nn.Sequential(nn.Linear(WIDTH, 4), nn.Dropout(0.1)), "Dropout.*set p = 0"),
        (Mixing(), "moving one example"),
        (Remembering(), "buffer 'seen' changes"),
        (Branching(), "no gradient of each example|forward fails"),
        (nn.Sequential(nn.Flatten(0), nn.Linear(4 * WIDTH, 1)), "one row an example"),
        (nn.Linear(7, CLASSES), "forward fails"),
    ],
)
def test_what_lets_examples_meet_is_refused_in_one_line(model, said):
    with pytest.raises(NotPrivate, match=said) as raised:
        ModuleProblem(model).point_shape(examples())
    assert "\n" not in str(raised.value)


def test_an_evaluated_dropout_is_allowed():
    ModuleProblem(nn.Sequential(nn.Linear(WIDTH, CLASSES), nn.Dropout(0.1)).eval())


def test_unknown_manifolds_losses_and_sites_are_named():
    with pytest.raises(ValueError, match=r"'point'.*Stiefel"):
        ModuleProblem(Unknown())
    tiny = geoopt.Scaled(geoopt.Sphere(), 1e-20)
    model = Unknown()
    model.point = geoopt.ManifoldParameter(torch.eye(3)[0], manifold=tiny)
    with pytest.raises(ValueError, match=r"'point'.*scale: expected a number from 1e-10"):
        ModuleProblem(model)
    with pytest.raises(ValueError, match="cross-entropy"):
        ModuleProblem(Net(), "hinge")
    with pytest.raises(ValueError, match="requires_grad"):
        ModuleProblem(Net().requires_grad_(requires_grad=False))
    with pytest.raises(ConfigError, match=r"sites\[0\].*pairs"):
        manifed.fit(model=Net(), sites=[[torch.zeros(3)]], rounds=1)
