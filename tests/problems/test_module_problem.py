"""Any torch module: gradients of each example, the point of its parameters, what is refused."""

import geoopt
import pytest
import torch
from torch import nn
from torch.nn import functional

import manifed
from manifed.errors import ConfigError
from manifed.federation.held_out import judged
from manifed.problems.examples import Examples
from manifed.problems.module_problem import ModuleProblem, NotPrivate
from manifed.setting import ExampleLevel, Multiplier
from manifed.torch import load
from tests.conformance.manifold_cases import generator, normals
from tests.privacy.test_clip_bound import one_client
from tests.tensors import assert_near

WIDTH = 5
CLASSES = 3


class Of(nn.Module):
    """Parts by name, and what is computed of them."""

    def __init__(self, compute, **parts):
        super().__init__()
        self.compute = compute
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, feature):
        return self.compute(self, feature)


class Net(nn.Module):
    """An orthonormal layer, points of a ball, a tied and a frozen parameter, a number, a buffer."""

    def __init__(self):
        super().__init__()
        drawn = generator(1)
        frame = torch.linalg.qr(torch.randn(WIDTH, 4, generator=drawn))[0]
        self.frame = geoopt.ManifoldParameter(frame, manifold=geoopt.EuclideanStiefel())
        ball = 0.3 * torch.rand(CLASSES, 4, generator=drawn)
        self.ball = geoopt.ManifoldParameter(ball, manifold=geoopt.PoincareBall())
        self.shift = nn.Linear(4, 4, bias=False)
        self.same = nn.Linear(4, 4, bias=False)
        self.same.weight = self.shift.weight
        self.fixed = nn.Parameter(torch.ones(4), requires_grad=False)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("offset", torch.full((4,), 0.1))
        with torch.no_grad():
            self.shift.weight.copy_(0.4 * torch.randn(4, 4, generator=drawn))

    def forward(self, feature):
        hidden = self.same(torch.tanh(self.shift(feature @ self.frame)) + self.offset) * self.fixed
        return self.scale * hidden @ self.ball.mT


def examples(n=6, seed=2):
    label = torch.randint(CLASSES, (n,), generator=generator(seed))
    return Examples({"feature": normals(seed, n, WIDTH), "label": label})


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
    assert_near(again, moved, 1e-6)  # the model is float32


@pytest.mark.parametrize("bad", [10, -1, 2**62])
@pytest.mark.parametrize("where", ["feature", "label"])
def test_a_record_that_makes_the_model_raise_adds_nothing_and_stops_nobody(bad, where):
    """That a client falls silent would tell whoever listens that the record is there."""
    rows = {
        "feature": torch.randint(10, (6, 3), generator=generator(5)),
        "label": torch.randint(CLASSES, (6,), generator=generator(6)),
    }
    rows[where][-1] = bad
    tables = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(12, CLASSES))
    problem = ModuleProblem(tables, functional.nll_loss)
    problem.is_classifier = True
    sums = []
    for n in (6, 5):
        shard = Examples({k: t[:n] for k, t in rows.items()})
        oracle = one_client(problem, shard, 0.5)
        sums.append(n * oracle.gradient(problem.start))
        shorter = n * oracle.gradient(problem.start.float())
        assert_near(shorter, sums[-1].float(), 1e-5)
    assert_near(*sums, 1e-12)
    assert float(sums[1].norm()) > 0.5
    losses, _ = judged(problem, problem.start, Examples(rows), worst=7.0)
    assert float(losses[-1]) == 7.0
    assert float(losses[:-1].max()) < 7.0


def test_a_private_run_stays_on_the_manifolds_and_its_folder_gives_the_state(tmp_path):
    shards = [examples(20, seed).tensors for seed in (4, 5)]
    privacy = ExampleLevel(l2_norm_clip=0.5, noise=Multiplier(noise_multiplier=1.0), delta=1e-3)
    found = manifed.fit_module(Net(), shards, rounds=4, step_size=0.5, privacy=privacy)
    assert ModuleProblem(Net()).manifold.check_point_on_manifold(found.model, atol=1e-10)
    folder = found.save(tmp_path / "run")
    assert_near(load(folder, Net()), found.state_dict)
    with pytest.raises(ConfigError, match="expected 20 parameters"):
        load(folder, nn.Linear(4, 4))
    with pytest.raises(ConfigError, match="no such file"):
        load(tmp_path, Net())


class Remembering(nn.Linear):
    def __init__(self):
        super().__init__(WIDTH, CLASSES)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, feature):
        self.seen += feature.detach().abs().max()
        return super().forward(feature)


def mixing(own, feature):
    return own.layer(feature - feature.mean(0))


def branching(own, feature):
    return own.layer(feature if float(feature.sum()) > 0 else -feature)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (nn.Sequential(nn.Linear(WIDTH, 4), nn.BatchNorm1d(4)), "BatchNorm1d.*GroupNorm"),
        (nn.Sequential(nn.InstanceNorm1d(4, track_running_stats=True)), "InstanceNorm1d"),
        (nn.LSTM(WIDTH, 4), "LSTMCell"),
        (nn.MultiheadAttention(4, 2), "scaled_dot_product"),
        (nn.Sequential(nn.Linear(WIDTH, 4), nn.Dropout(0.1)), "Dropout.*set p = 0"),
        (Of(mixing, layer=nn.Linear(WIDTH, CLASSES)), "moving one example"),
        (Remembering(), "buffer 'seen' changes"),
        (
            Of(branching, layer=nn.Linear(WIDTH, CLASSES)),
            "no gradient of each example|forward fails",
        ),
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


@pytest.mark.parametrize(
    ("manifold", "said"),
    [
        (geoopt.BirkhoffPolytope(), r"'point'.*Stiefel"),
        (geoopt.Scaled(geoopt.Sphere(), 1e-20), r"'point'.*scale: expected a number from 1e-10"),
    ],
)
def test_unknown_manifolds_are_named(manifold, said):
    point = geoopt.ManifoldParameter(torch.full((2, 2), 0.5), manifold=manifold)
    with pytest.raises(ValueError, match=said):
        ModuleProblem(Of(None, point=point))


def test_unknown_losses_and_sites_are_named():
    with pytest.raises(ValueError, match="cross-entropy"):
        ModuleProblem(Net(), "hinge")
    with pytest.raises(ValueError, match="requires_grad"):
        ModuleProblem(Net().requires_grad_(requires_grad=False))
    with pytest.raises(ConfigError, match=r"sites\[0\].*pairs"):
        manifed.fit_module(Net(), [[torch.zeros(3)]], rounds=1)
