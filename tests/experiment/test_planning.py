"""A plan is made of public numbers, is a config before it is hashed, and predicts what is run."""

import math
from functools import lru_cache

import numpy as np
import pytest

from manifed.errors import ConfigError
from manifed.experiment.assembly import load_shards
from manifed.experiment.load import from_toml, load, parse, table_of, to_toml
from manifed.experiment.planner import planned, public_numbers, stand_in, with_option
from manifed.experiment.predictions import Descent
from manifed.experiment.schema import sha256
from manifed.plan import example_mechanism
from tests.algorithms.gossip_runs import reports_of
from tests.command import invoke
from tests.fresh import QUICKSTART

BEST = QUICKSTART.with_name("best.toml")


@lru_cache
def options(*sets):
    return planned(table_of(BEST, sets), parse)


def gap(config):
    """(f(x) - f*) / |f*| of a run in one process."""
    data = load_shards(config)
    problem = data.problem
    done = reports_of(config, "stacked")[-1].state
    found = config.server_update.output(done, problem.manifold)
    best = problem.optimum(data.examples).value
    return (float(problem.objective(found, data.examples)) - best) / abs(best)


# -- resolving -----------------------------------------------------------------------------------
def test_what_is_hashed_and_written_down_is_the_resolved_config():
    config = load(BEST, ["federation.num_rounds=1"])
    assert (config.training.kind, config.federation.num_rounds) == ("second-moment", 1)
    assert 'kind = "auto"' not in to_toml(config)
    by_hand = load(BEST, ["training={kind='second-moment'}", "federation.num_rounds=1"])
    assert sha256(config) == sha256(by_hand)
    config = load(BEST)
    assert (config.training.kind, config.strategy.average.kind) == ("scheduled-rsgd", "projector")
    assert from_toml(to_toml(config)) == config


def test_the_most_rounds_and_the_guess_change_the_plan():
    one, few = (
        {option.name: option for option in options(f"federation.num_rounds={most}")}
        for most in (30, 4)
    )
    assert few["rsgd, average"].num_rounds <= 4 < one["rsgd, average"].num_rounds
    assert few["rsgd, average"].gap > one["rsgd, average"].gap
    steep, guessed, flat = (
        options("federation.num_rounds=1", f"training.decay={decay}")[0].gap for decay in (4, 2, 1)
    )
    assert steep < guessed < flat


def test_no_plan_asks_for_more_numbers_than_may_go_up():
    found = options("training.numbers_up=1280")
    assert {option.name for option in found} >= {"rsgd", "rsgd, average", "rsgd, momentum"}
    assert all(option.numbers_up <= 20 * 64 for option in found)
    with pytest.raises(ConfigError, match=r"training.numbers_up: expected at least 64, .* got 63"):
        load(BEST, ["training.numbers_up=63"])


def test_of_several_components_the_release_comes_first_where_it_may_be_sent():
    """A descent is predicted to be better at epsilon 2, and was measured to be worse."""
    two = 'problem={kind="kpca",num_components=2}'
    first, *others = options(two)
    assert first.training.kind == "second-moment"
    assert min(one.gap for one in others) < first.gap
    assert options(two, "training.numbers_up=1500")[0].training.kind != "second-moment"


def test_a_plan_reads_no_record(monkeypatch):
    """Of the data it takes the number of rows and columns; a file of a site stays shut."""
    own = QUICKSTART.parent / "examples" / "own_principal_components.toml"
    table = table_of(own, ["training={kind='auto'}", "privacy.noise.delta=1e-4"])
    config = parse(stand_in(table))
    monkeypatch.setattr(type(config.data), "read", lambda *_: pytest.fail("a file was opened"))
    found = public_numbers(config)
    assert (found.sizes, found.point_shape) == ((60, 40, 80), (4, 2))
    assert parse(table).training.kind == "second-moment"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.decay=1e-16", r"training.decay: .*greater than or equal to 0.001, got 1e-16"),
        ("training.step_size=1", r"training.step_size: unknown key"),
        (
            "privacy.noise={kind='multiplier',noise_multiplier=1}",
            r"privacy.delta: required|'target'",
        ),
        ("problem={kind='kpca',num_components=64}", r"fewer than the 64 columns, got 64"),
        ("data={kind='synthetic-pca',dimension=1,num_clients=10}", r"on one of dimension 0"),
        ("federation.num_rounds=0", r"federation.num_rounds: .*greater than or equal to 1, got 0"),
    ],
)
def test_what_has_no_plan_is_refused_in_one_line(override, message):
    with pytest.raises(ConfigError, match=message) as refused:
        load(BEST, [override])
    assert "\n" not in str(refused.value)


def test_the_command_prints_the_methods_and_writes_the_best(tmp_path):
    out = tmp_path / "planned.toml"
    few = "federation.num_rounds=8"
    done = invoke("plan", BEST, "--set", few, "--out", out)
    assert done.exit_code == 0, done.stderr
    assert done.stdout.index("second-moment") < done.stdout.index("rsgd")
    assert load(out) == load(BEST, [few])
    wrong = invoke("plan", BEST, "--set", "privacy={kind='none'}")
    assert wrong.exit_code == 2
    assert wrong.stderr.count("\n") == 1


# -- predictions ---------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["scheduled-rsgd, average", "rsgd, momentum, average"])
def test_noise_of_a_planned_descent_is_that_of_its_mechanism(name):
    (one,) = (o for o in options() if o.name == name)
    config = parse(with_option(table_of(BEST), one))
    sizes = public_numbers(config).sizes
    mechanism = example_mechanism(config.setting, sizes)
    (release,) = config.training.in_round(1).releases(mechanism, sizes[0])
    assert release.noise_multiplier == pytest.approx(one.noise_multiplier, rel=2e-3)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("ratio", [1.0, 0.9])
@pytest.mark.parametrize("first", [None, 3])
def test_errors_of_a_linear_system_are_those_of_a_simulation(momentum, ratio, first):
    """All shares of noises and start by running the system on unit vectors."""
    h = np.array([0.5, 2.0])
    eta = 0.3
    rounds = 8
    descent = Descent(np.array([eta]), rounds, momentum, ratio, first)
    variance, start = descent.errors(eta * h[None])
    for j, curvature in enumerate(h):
        shares = []
        for unit in range(rounds + 1):
            x = float(unit == 0)
            velocity = 0.0
            mean = 0.0
            for r in range(1, rounds + 1):
                velocity = momentum * velocity - eta * (curvature * x + float(unit == r))
                x += velocity
                mean += descent.weights[r] * x
            shares.append(mean)
        z = ratio ** np.arange(1, rounds + 1)
        expected = (np.array(shares[1:]) ** 2 * z**2).sum() * (z**-2).sum()
        assert variance[0, j] == pytest.approx(expected, rel=1e-10)
        assert start[0, j] == pytest.approx(shares[0] ** 2, rel=1e-10)


@pytest.mark.parametrize(("kind", "smoothness"), [("logistic", 2**2), ("least-squares", 2)])
def test_no_step_is_so_long_that_a_linear_model_of_such_rows_is_unstable(kind, smoothness):
    found = options(*KINDS[kind][0], "privacy.noise.delta=1e-4", "privacy.l2_norm_clip=2")
    assert found
    for option in found:
        assert option.training.step_size <= 2 / smoothness * (1 + 5e-3)


def test_where_noise_carries_everything_off_the_safe_default_is_left():
    drowned = "privacy.noise={kind='target',epsilon=0.0001,delta=1e-9}"
    assert [option.gap for option in options(*KINDS["hyperbolic"][0], drowned)] == [None]


KINDS = {
    "log-euclidean": (
        ("problem={kind='frechet-mean',manifold='spd-log-euclidean'}",
         "data={kind='spd-lognormal',num_examples=200,dimension=3}"),
        "log-euclidean", 0.00903961457789104,
    ),
    "hyperbolic": (
        ("problem={kind='frechet-mean',manifold='lorentz'}",
         "data={kind='reproduction.recipes:HyperbolicCloud',num_examples=200,dimension=3}"),
        "scheduled-rsgd", 0.004778777685727004,
    ),
    "least-squares": (
        ("problem={kind='least-squares'}",
         "data={kind='synthetic-least-squares',rows=20,dimension=4}"),
        "scheduled-rsgd", 0.06507149447010754,
    ),
    "logistic": (
        ("problem={kind='logistic'}", "data={kind='breast-cancer'}"),
        "rsgd, momentum", 0.092622800642476,
    ),
    "matrix-completion": (
        ("problem={kind='reproduction.matrix_completion:MatrixCompletion',scaling='mean'}",
         "data={kind='reproduction.recipes:LowRank'}"),
        "scheduled-rsgd", 0.4815007132427313,
    ),
    "geometric-median": (
        ("problem={kind='geometric-median'}", "data={kind='spd-lognormal',num_examples=200}"),
        "rsgd, safe default", None,
    ),
}  # fmt: skip
"""Problem and data; the method that is put first, and its gap, as recorded."""


@pytest.mark.parametrize(("parts", "name", "gap"), KINDS.values(), ids=KINDS)
def test_auto_serves_every_kind_of_problem(parts, name, gap):
    sets = [*parts, "privacy.noise.delta=1e-4", "federation.num_rounds=12"]
    config = load(BEST, sets)
    assert config.training.kind != "auto"
    assert config.federation.num_rounds <= 12
    found = options(*sets)
    assert all(math.isfinite(option.gap) for option in found if option.gap is not None)
    assert (found[0].name, found[0].gap) == (name, gap and pytest.approx(gap, rel=1e-9))


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "bound"), [(2.0, 6.0e-4), (0.5, 0.011)])
def test_the_best_config_is_as_good_as_it_is_said_to_be(epsilon, bound):
    sets = [f"privacy.noise.epsilon={epsilon}"]
    gaps = [gap(load(BEST, [*sets, f"federation.seed={seed}"])) for seed in range(20)]
    assert sum(gaps) / 20 <= bound
