"""`manifed.fit` with a torch module: short privacy, what is shown, what is refused in one line."""

import math

import geoopt
import pytest
import torch
from torch import nn

import manifed
from manifed.algorithms.rsgd import RSGD
from manifed.errors import ConfigError
from manifed.manifolds.sphere import Sphere
from manifed.privacy import epsilon_bounds
from manifed.privacy.events import PoissonSampled, Release, repeated
from manifed.problems.frechet import FrechetMean
from manifed.problems.module_checks import NotPrivate
from manifed.problems.module_problem import ModuleProblem, made
from tests.tensors import assert_near

FRAME = torch.linalg.qr(torch.randn(6, 3, generator=torch.Generator().manual_seed(0)))[0]


class Frame(nn.Module):
    def __init__(self):
        super().__init__()
        self.frame = geoopt.ManifoldParameter(FRAME.clone(), manifold=geoopt.EuclideanStiefel())

    def forward(self, feature):
        return feature @ self.frame


def sites(count=3, rows=30):
    generator = torch.Generator().manual_seed(1)
    made = []
    for _ in range(count):
        label = torch.randint(3, (rows,), generator=generator)
        feature = torch.randn(rows, 6, generator=generator)
        feature[torch.arange(rows), label] += 4.0
        made.append((feature, label))
    return made


SHORT = manifed.ExampleLevel(epsilon=2, delta=1e-4)
SEEDED = SHORT.model_copy(update={"noise_source": "seed"})


def trained(**changes):
    *mine, test = sites(4)
    settings = {"model": Frame(), "sites": mine, "test": test, "privacy": SHORT, "rounds": 3}
    return manifed.fit_module(**(settings | changes))


def test_a_module_is_trained_within_its_budget_and_stays_on_its_manifold():
    found = trained(rounds=8, metrics={"spread": lambda outputs, labels: outputs.std()})
    assert found.curves["epsilon"][-1] <= 2.0
    assert found.curves["epsilon"][-1] == pytest.approx(2.0, abs=0.02)
    assert "RELEASE" in found.text
    assert not any("oracle" in note for note in found.statement["notes"]), "the test is public"
    assert all(math.isfinite(value) for value in found.curves["spread"])
    assert "gap" not in " ".join(found.curves), "nobody knows the optimum of a module"
    frame = found.state_dict["frame"].to(torch.float64)
    assert_near(frame.mT @ frame, torch.eye(3).double(), 1e-6)
    Frame().load_state_dict(found.state_dict, strict=True)


@pytest.mark.parametrize("held", [Frame, lambda: ModuleProblem(Frame())])
def test_a_loop_over_a_module_gives_the_model_of_the_fit(held):
    *_, last = manifed.federate(held(), sites(4)[:3], rounds=3, privacy=SEEDED)
    assert torch.equal(last.model, trained(privacy=SEEDED).model)


def test_a_shorter_type_costs_what_the_longer_one_costs():
    model = made(lambda: nn.Sequential(Frame(), nn.Linear(3, 3)), 0)
    ways = {}, {"compute": "float32"}
    plain, short = (trained(model=model, privacy=SEEDED, **way) for way in ways)
    assert short.statement["adversaries"] == plain.statement["adversaries"]
    assert_near(short.model, plain.model, 1e-4)


def test_what_is_priced_is_what_the_sites_and_the_rounds_are():
    """A site of 20 rows of 30 pays its own rate, over all local steps, and no site another's."""
    (feature, label), *others = sites(3)
    few = [(feature[:20], label[:20]), *others[:1]]
    noise = manifed.ExampleLevel(
        l2_norm_clip=1.0, noise={"kind": "multiplier", "noise_multiplier": 2.0}, delta=1e-4
    )
    found = trained(sites=few, privacy=noise, rounds=4, local_steps=3, batch_size=10.0)
    worst = Release(
        unit="example", neighboring_relation="add-or-remove", noise_multiplier=2.0,
        sampling=PoissonSampled(sampling_probability=0.5),
    )  # fmt: skip
    assert found.statement["adversaries"][0]["epsilon"] == pytest.approx(
        epsilon_bounds.epsilon(repeated([worst], 12), 1e-4), rel=1e-6
    )


def test_the_figure_shows_what_was_measured_and_what_is_promised():
    figure = trained().plot()
    shown = [axes.get_ylabel() for axes in figure.axes]
    assert shown[:2] == ["test loss", "test accuracy"]
    assert [len(axes.get_lines()[0].get_ydata()) for axes in figure.axes] == [3, 3, 3]
    assert "release; (2" in figure.get_suptitle()
    assert "for each example" in figure.get_suptitle()
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert trained(privacy=None).plot().get_suptitle() == "not private"


@pytest.mark.parametrize("level", [manifed.ExampleLevel, manifed.ClientLevel])
def test_the_short_form_is_a_release_under_that_target(level):
    short = level(epsilon=2, delta=1e-5)
    long = level(l2_norm_clip=1.0, noise=manifed.Target(epsilon=2, delta=1e-5), noise_source="os")
    assert short == long
    assert level(epsilon=2, delta=1e-5, l2_norm_clip=0.5).l2_norm_clip == 0.5
    for wrong, said in (
        ({"epsilon": 2}, "expected delta beside it"),
        ({"epsilon": 2, "delta": 1e-5, "noise": long.noise}, "no noise"),
        ({"epsilon": True, "delta": 1e-5}, "valid number"),
        ({"epsilon": -1, "delta": 1e-5}, "greater than 0"),
        ({"epsilon": 2, "delta": 1e-5, "clip": 1.0}, "clip: expected no such field"),
    ):
        with pytest.raises(ConfigError, match=said):
            level(**wrong)


def raising(output, label):
    raise KeyError("weights")


class Broken(Frame):
    def forward(self, feature):
        return {}["layer"]


def changed(position, feature=lambda x: x, label=lambda y: y):
    mine = sites()
    mine[position] = feature(mine[position][0]), label(mine[position][1])
    return {"sites": mine}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": "net"}, "model: expected a torch.nn.Module, got str"),
        ({"sites": []}, "sites: expected the examples of at least one site"),
        ({"loss": raising}, "loss: no gradient of each example.*KeyError: 'weights'"),
        ({"loss": "hinge"}, "loss: expected one of"),
        ({"compute": "float16"}, "compute: expected 'float64' or 'float32', got 'float16'"),
        ({"model": Broken()}, "forward fails.*KeyError"),
        ({"metrics": {"bad": lambda outputs, labels: outputs}}, r"metrics\['bad'\]: expected one"),
        ({"test": None, "metrics": {"f": raising}}, "metrics: expected test= beside them"),
        ({"evaluate": lambda x: x}, "evaluate: expected a dict of numbers of a model .*Error"),
        (
            {"algorithm": RSGD(step_size=0.1), "step_size": 0.2},
            "step_size: expected algorithm=None beside it",
        ),
        ({"model": FrechetMean(Sphere())}, "model: expected a torch.nn.Module, got FrechetMean"),
        ({"sites": sites()[0][0]}, "sites: expected a list with one entry a site, got Tensor"),
        (changed(1, label=lambda y: y[:, None]), "client 1: .* like"),
        (changed(1, lambda x: x[:0], lambda y: y[:0]), r"sites\[1\]: .* at least"),
        (changed(1, label=lambda y: y[:5]), r"sites\[1\]: .* 5 labels"),
        (changed(1, lambda x: [["a"]] * 30), r"sites\[1\], 'feature': expected real numbers"),
        (changed(1, lambda x: x[0, 0]), r"sites\[1\]: .* got 0 features"),
        ({"start": 2 * FRAME.double().reshape(-1)}, "start: Expected a"),
        ({"test": (torch.ones(5, 4), torch.zeros(5).long())}, "test: "),
    ],
)
def test_what_cannot_work_is_said_in_one_line_before_a_ledger_is_made(changes, said, tmp_path):
    with pytest.raises((ConfigError, NotPrivate), match=said) as raised:
        trained(ledger=tmp_path / "ledger.jsonl", **changes)
    assert "\n" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []
