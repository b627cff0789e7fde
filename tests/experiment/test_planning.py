"""A plan is made of public numbers, is a config before it is hashed, and is charged as said."""

import math
from functools import lru_cache

import pytest

from manifed.audit.of_config import attacks_of
from manifed.errors import ConfigError
from manifed.experiment.assembly import load_shards
from manifed.experiment.load import from_toml, load, parse, table_of, to_toml
from manifed.experiment.planner import planned, public_numbers, stand_in, trusts
from manifed.experiment.schema import sha256
from manifed.plan import example_mechanism, promise_of
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
    found = config.setting.server_update.output(done, problem.manifold)
    best = problem.optimum(data.examples).value
    return (float(problem.objective(found, data.examples)) - best) / abs(best)


# -- resolving -----------------------------------------------------------------------------------
def test_what_is_hashed_and_written_down_is_the_resolved_config():
    two = 'problem={kind="kpca",num_components=2}'
    config = load(BEST, [two])
    assert (config.training.kind, config.federation.num_rounds) == ("second-moment", 1)
    assert 'kind = "auto"' not in to_toml(config)
    by_hand = load(BEST, [two, "training={kind='second-moment'}", "federation.num_rounds=1"])
    assert sha256(config) == sha256(by_hand)
    config = load(BEST)
    assert (config.training.kind, config.strategy.kind) == ("scheduled-rsgd", "measured-steps")
    assert config.strategy.average.kind == "projector"
    assert from_toml(to_toml(config)) == config


@pytest.mark.parametrize("most", [1, 2, 4, 30])
def test_no_plan_takes_more_rounds_than_it_may(most):
    for parts, _ in KINDS.values():
        first, *_ = options(*parts, "privacy.noise.delta=1e-4", f"federation.num_rounds={most}")
        assert first.num_rounds <= most
        if first.adaptive is not None:  # a clip that has few rounds to rise starts higher
            assert (first.adaptive.start > 0.05) == (most < 15)


def test_no_plan_asks_for_more_numbers_than_may_go_up():
    for sets in ((), KINDS["logistic"][0]):
        found = options(*sets, "privacy.noise.delta=1e-4", "training.numbers_up=1280")
        assert all(option.numbers_up <= 1280 for option in found)
    assert options("training.numbers_up=1300")[0].num_rounds == 20  # a model, and a count
    with pytest.raises(ConfigError, match=r"training.numbers_up: expected at least 64, .* got 63"):
        load(BEST, ["training.numbers_up=63"])


def test_of_several_components_the_release_comes_first_where_it_may_be_sent():
    """It was measured to be better than descent (docs/choosing.md)."""
    two = 'problem={kind="kpca",num_components=2}'
    assert [one.training.kind for one in options(two)] == ["second-moment", "scheduled-rsgd"]
    assert options(two, "training.numbers_up=1500")[0].training.kind != "second-moment"


def test_public_statements_move_the_clip_and_nothing_else():
    parts = (*KINDS["least-squares"][0], "privacy.l2_norm_clip=40")
    plain, symmetric, typical = (
        options(*parts, "training.kind='auto'", *said)[0]
        for said in ((), ("training.residuals='symmetric'",), ("training.typical_norm=8.0",))
    )
    assert plain.adaptive.start == 0.05
    assert typical.adaptive.start == 0.2
    assert symmetric.adaptive.target_quantile <= 0.5
    assert symmetric.adaptive.target_quantile <= plain.adaptive.target_quantile
    assert {one.noise_multiplier for one in (plain, symmetric, typical)} == {plain.noise_multiplier}
    with pytest.raises(ConfigError, match="residuals: 'symmetric' is a statement about"):
        load(BEST, ["training.residuals='symmetric'"])


def test_the_target_of_the_clip_falls_with_the_noise():
    parts = KINDS["logistic"][0]
    noises, targets = zip(
        *(
            (one.relative_noise, one.adaptive.target_quantile)
            for epsilon in (0.1, 1.0, 4.0, 100.0)
            for one in options(*parts, f"privacy.noise.epsilon={epsilon}")[:1]
        ),
        strict=True,
    )
    assert list(noises) == sorted(noises, reverse=True)
    assert list(targets) == sorted(targets)
    assert (targets[0], targets[-1]) == (0.3, 0.97)
    for noise, target in zip(noises, targets, strict=True):
        assert target == pytest.approx(min(max(1 - 4 * noise, 0.3), 0.97), rel=1e-3)


@pytest.mark.parametrize(("kind", "least"), [("logistic", 0.4), ("least-squares", 0.15)])
def test_noise_falls_to_ten_times_its_length_and_momentum_grows_where_it_is_short(kind, least):
    falls = set()
    for epsilon in (0.1, 1.0, 4.0, 100.0):
        plan, *_ = options(*KINDS[kind][0], f"privacy.noise.epsilon={epsilon}")
        ratio = plan.training.noise_multipliers.ratio
        fall = min(1.0, max(least, 10 * plan.relative_noise))
        assert ratio ** (plan.num_rounds - 1) == pytest.approx(fall, rel=0.01)
        noise = plan.relative_noise
        grown = min(0.7, 0.9 - 30 * noise) if kind == "least-squares" else 0.5
        assert plan.strategy.factor == 0.5
        assert plan.strategy.momentum == pytest.approx(max(0.5, grown), abs=1e-4)
        if kind == "least-squares":
            most = max(0.6, min(0.95, 1 - 45 * noise))
            target = min(max(0.3, 1 - 20 * noise), most)
            assert plan.adaptive.target_quantile == pytest.approx(target, rel=1e-3)
        falls.add(fall)
    assert {least, 1.0} <= falls


def test_steps_of_a_component_have_momentum_where_noise_is_short():
    for epsilon in (0.5, 2.0, 10.0):
        plan, *_ = options(f"privacy.noise.epsilon={epsilon}")
        assert (plan.strategy.momentum == 0.5) == (plan.relative_noise <= 0.02)


def test_loud_noise_leaves_a_quarter_of_the_iterates_to_average():
    shares = set()
    for epsilon in (0.1, 0.3, 1.0, 4.0):
        plan, *_ = options(f"privacy.noise.epsilon={epsilon}")
        share = 0.25 if plan.relative_noise > 0.15 else 0.5
        last = math.ceil((1 - share) * plan.num_rounds)
        assert plan.strategy.average.from_round == last
        shares.add(share)
    assert shares == {0.25, 0.5}


def test_a_clip_settles_where_early_rounds_cost_little():
    parts = KINDS["least-squares"][0]
    loud, quiet = (options(*parts, f"privacy.noise.epsilon={e}")[0] for e in (0.1, 100.0))
    assert (loud.strategy.settles, quiet.strategy.settles) == (0, 8)
    ratio = quiet.training.noise_multipliers.ratio
    spent = [ratio ** (-2 * r) for r in range(quiet.num_rounds)]
    assert sum(spent[:8]) < 0.02 * sum(spent)
    # twelve times the distance at the bound, where the clip is: that of the start at a twelfth
    assert quiet.strategy.distance == pytest.approx(12 * loud.strategy.distance, rel=1e-5)


@pytest.mark.parametrize(("dimension", "most"), [(4, 0.02), (25, 0.02), (26, 0.0)])
def test_steps_have_a_matrix_where_noise_is_short_and_directions_are_few(dimension, most):
    data = f"data={{kind='synthetic-least-squares',rows=200,dimension={dimension}}}"
    parts = ("problem={kind='least-squares'}", data)
    found = set()
    for epsilon in (0.1, 1.0, 4.0, 100.0):
        plan, *_ = options(*parts, f"privacy.noise.epsilon={epsilon}")
        assert (plan.strategy.scaling == "matrix") == (plan.relative_noise <= most)
        found.add(plan.strategy.scaling)
    assert ("matrix" in found) == (most > 0)
    assert options(*KINDS["logistic"][0])[0].strategy.scaling == "norm"  # 31 columns


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
        ("training.decay=1.5", r"training.decay: unknown key"),
        ("training.typical_norm=0", r"training.typical_norm: .*greater than 0, got 0"),
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
    assert done.stdout.index("descent") < done.stdout.index("second-moment")
    assert load(out) == load(BEST, [few])
    wrong = invoke("plan", BEST, "--set", "privacy={kind='none'}")
    assert wrong.exit_code == 2
    assert wrong.stderr.count("\n") == 1


def test_a_row_for_each_trust_says_how_long_its_noise_is_and_what_it_asks():
    table = table_of(BEST)
    local, summed, client = trusts(table, parse)
    assert [row["trust"] for row in (local, summed, client)] == [
        "each client", "secure-sum", "client-level"]  # fmt: skip
    assert local["relative_noise"] == options()[0].relative_noise
    # one of ten clients may tell what it added: nine shares are sized for the whole noise
    assert summed["relative_noise"] == pytest.approx(local["relative_noise"] / 3, rel=1e-3)
    multiplier = example_mechanism(load(BEST).setting, (180,) * 10).noise.multiplier
    count = options()[0].num_rounds
    once = multiplier * sum(0.12 ** (-2 * r / (count - 1)) for r in range(count)) ** -0.5
    assert client["relative_noise"] == pytest.approx(once * math.sqrt(63) / 10, rel=1e-2)
    assert table == table_of(BEST)  # a plan changes no trust
    alone = table_of(BEST, ["federation.num_clients=1"])
    assert "privacy.trust" in trusts(alone, parse)[1]["method"]  # why no sum is possible
    assert "collude" in invoke("plan", BEST).stdout


def test_a_named_method_may_leave_its_clip_to_a_plan():
    own = ("training={kind='rsgd',step_size=0.5,minibatch={kind='full'}}",
           "federation.num_rounds=40", "privacy.adaptive='auto'")  # fmt: skip
    config = load(BEST, [*KINDS["logistic"][0], *own])
    planned_clip = options(*KINDS["logistic"][0])[0].adaptive
    assert config.privacy.adaptive.target_quantile == planned_clip.target_quantile
    assert config.training.kind == "rsgd"
    assert from_toml(to_toml(config)) == config
    with pytest.raises(ConfigError, match=r"'auto' plans for privacy.noise.kind"):
        load(BEST, [*own, "privacy.noise={kind='multiplier',noise_multiplier=2}",
                    "privacy.delta=1e-5"])  # fmt: skip


def test_the_audit_of_an_adaptive_clip_attacks_the_answer_and_says_so():
    """Its noise is that of a budget less the share that the count takes."""
    config = load(BEST, KINDS["logistic"][0])
    own, _ = attacks_of(config, 40)
    mechanism = example_mechanism(config.setting, public_numbers(config).sizes)
    assert own.attack.mechanism.noise.multiplier == pytest.approx(
        mechanism.noise.multiplier / math.sqrt(1 - config.privacy.adaptive.budget_share)
    )
    assert own.how.endswith("the count beside an answer is not attacked")


# -- every kind ----------------------------------------------------------------------------------
KINDS = {
    "log-euclidean": (
        ("problem={kind='frechet-mean',manifold='spd-log-euclidean'}",
         "data={kind='spd-lognormal',num_examples=200,dimension=3}"),
        "descent, adaptive clip",
    ),
    "hyperbolic": (
        ("problem={kind='frechet-mean',manifold='lorentz'}",
         "data={kind='reproduction.recipes:HyperbolicCloud',num_examples=200,dimension=3}"),
        "descent, adaptive clip",
    ),
    "least-squares": (
        ("problem={kind='least-squares'}",
         "data={kind='synthetic-least-squares',rows=20,dimension=4}"),
        "descent, adaptive clip",
    ),
    "logistic": (
        ("problem={kind='logistic'}", "data={kind='breast-cancer'}"), "descent, adaptive clip",
    ),
    "matrix-completion": (
        ("problem={kind='reproduction.matrix_completion:MatrixCompletion',scaling='mean'}",
         "data={kind='reproduction.recipes:LowRank'}"),
        "descent, fixed clip",
    ),
    "geometric-median": (
        ("problem={kind='geometric-median'}", "data={kind='spd-lognormal',num_examples=200}"),
        "descent, fixed clip",
    ),
}  # fmt: skip
"""Problem and data, and the method that is put first."""


@pytest.mark.parametrize(("parts", "name"), KINDS.values(), ids=KINDS)
def test_auto_serves_every_kind_of_problem_and_is_charged_as_the_target_says(parts, name):
    sets = [*parts, "privacy.noise.delta=1e-4", "federation.num_rounds=12"]
    config = load(BEST, sets)
    first = options(*sets)[0]
    assert (first.name, config.federation.num_rounds) == (name, 12)
    sizes = public_numbers(config).sizes
    told = promise_of(config.setting, sizes).planned(12)
    assert 0.99 * 2.0 < told["adversaries"][0]["epsilon"] <= 2.0
    mechanism = example_mechanism(config.setting, sizes)
    round_1 = config.setting.training.in_round(1).releases(mechanism, sizes[0])
    whole = sum(one.noise_multiplier**-2 for one in round_1) ** -0.5
    assert whole == pytest.approx(first.noise_multiplier, rel=2e-3)
    assert math.isfinite(gap(config))


@pytest.mark.parametrize("loose", [1, 30])
def test_a_bound_that_is_thirty_times_too_large_costs_little(loose):
    """The clip rises from a twentieth of it: a mean ends as near as with a tight bound."""
    parts, _ = KINDS["hyperbolic"]
    sets = [*parts, "privacy.noise={kind='target',epsilon=4.0,delta=1e-4}"]
    gaps = [
        gap(load(BEST, [*sets, f"privacy.l2_norm_clip={6.0 * loose}", f"federation.seed={seed}"]))
        for seed in range(5)
    ]
    assert sum(gaps) / 5 < 0.12


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "bound"), [(2.0, 6.0e-4), (0.5, 0.008)])
def test_the_best_config_is_as_good_as_it_is_said_to_be(epsilon, bound):
    sets = [f"privacy.noise.epsilon={epsilon}"]
    gaps = [gap(load(BEST, [*sets, f"federation.seed={seed}"])) for seed in range(20)]
    assert sum(gaps) / 20 <= bound
