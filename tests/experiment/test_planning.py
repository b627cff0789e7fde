"""A plan is made of public numbers, is a config before it is hashed, and predicts what is run."""

import math
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from manifed.cli import commands, main
from manifed.errors import ConfigError
from manifed.experiment import planning
from manifed.experiment.assembly import client_side, initial_point, load_shards, plan_of
from manifed.experiment.load import from_toml, load, parse, sha256, table_of, to_toml
from manifed.experiment.planning import Auto, plan, public_numbers
from manifed.experiment.predictions import Spectrum, descent_gap, one_shot_gap
from manifed.experiment.privacy import example_mechanism
from manifed.federation.rounds import run_rounds
from manifed.federation.stacked import StackedTransport

CONFIGS = Path(__file__).parents[2] / "configs"
BEST = CONFIGS / "best.toml"
OWN = CONFIGS / "examples" / "own_principal_components.toml"


def options(*sets, rounds=100, auto=None):
    return plan(load(BEST, sets), auto or Auto(), rounds)


def gap(config):
    """(f(x) - f*) / |f*| of a run in one process."""
    transport = StackedTransport(client_side(config), device="cpu", memory_budget_mb=256)
    made, x = plan_of(config), initial_point(config)
    *_, done = run_rounds(
        made, made.server_update.initial(x), transport, num_rounds=config.federation.num_rounds
    )
    found, data = made.server_update.output(done.state, made.manifold), load_shards(config)
    best = data.problem.optimum(data.examples).value
    return (float(data.problem.objective(found, data.examples)) - best) / abs(best)


# -- resolving -----------------------------------------------------------------------------------
def test_what_is_hashed_and_written_down_is_the_resolved_config():
    config = load(BEST)
    assert (config.training.kind, config.federation.num_rounds) == ("second-moment", 1)
    assert 'kind = "auto"' not in to_toml(config)
    by_hand = load(BEST, ["training={kind='second-moment'}", "federation.num_rounds=1"])
    assert sha256(config) == sha256(by_hand)
    assert from_toml(to_toml(config)) == config


def test_the_most_rounds_and_the_guess_change_the_plan():
    one, few = (
        options("privacy.noise.epsilon=1")[1],
        options("privacy.noise.epsilon=1", rounds=4)[1],
    )
    assert (one.training.kind, few.training.kind) == ("rsgd", "rsgd")
    assert few.num_rounds <= 4 < one.num_rounds
    assert few.gap > one.gap
    steep, flat = (options(auto=Auto(decay=decay))[0].gap for decay in (4.0, 1.0))
    assert steep < options()[0].gap < flat


def test_a_plan_reads_no_record(monkeypatch):
    """Of the data it takes the number of rows and columns; a file of a site stays shut."""
    table = table_of(OWN, ["training={kind='auto'}", "privacy.noise.delta=1e-4"])
    config = parse(planning.stand_in(table))
    monkeypatch.setattr(type(config.data), "read", lambda *_: pytest.fail("a file was opened"))
    assert public_numbers(config) == ((60, 40, 80), (4, 2))
    assert parse(table).training.kind == "second-moment"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.decay=-1", r"training.decay: .*greater than 0, got -1"),
        ("training.step_size=1", r"training.step_size: Extra inputs are not permitted"),
        ("privacy={kind='none'}", r"training.kind: 'auto' plans for .*got 'none'"),
        (
            "privacy.noise={kind='multiplier',noise_multiplier=1}",
            r"privacy.delta: required|'target'",
        ),
        ("federation.cohort={kind='fixed-size',cohort_size=3}", r"cohort.kind = 'all', got"),
        ("problem={kind='kpca',num_components=64}", r"fewer than the 64 columns, got 64"),
        ("federation.num_rounds=0", r"federation.num_rounds: expected the most rounds .* got 0"),
    ],
)
def test_what_has_no_plan_is_refused_in_one_line(override, message):
    with pytest.raises(ConfigError, match=message) as refused:
        load(BEST, [override])
    assert "\n" not in str(refused.value)


def test_the_command_prints_the_methods_and_writes_the_best(tmp_path):
    commands.register(main.app)
    out = str(tmp_path / "planned.toml")
    done = CliRunner().invoke(main.app, ["plan", str(BEST), "--out", out])
    assert done.exit_code == 0, done.stderr
    assert done.stdout.index("second-moment") < done.stdout.index("rsgd")
    assert load(tmp_path / "planned.toml") == load(BEST)
    wrong = CliRunner().invoke(main.app, ["plan", str(BEST), "--set", "privacy={kind='none'}"])
    assert wrong.exit_code == 2
    assert wrong.stderr.count("\n") == 1


# -- predictions ---------------------------------------------------------------------------------
def test_noise_of_one_release_is_that_of_its_mechanism():
    config = load(BEST)
    sizes, _ = public_numbers(config)
    (one,) = (o for o in options() if o.training.kind == "second-moment")
    assert example_mechanism(config, sizes).noise.multiplier == one.noise_multiplier
    spectrum = Spectrum(64, 1, 1.0, 2.0)
    s = one.noise_multiplier * math.sqrt(10) / sum(sizes)
    first_order = (s**2 / 2 / spectrum.gaps).sum() / spectrum.best
    assert one.gap == pytest.approx(first_order, rel=1e-3)


def test_a_drowned_component_costs_no_more_than_a_typical_direction():
    spectrum = Spectrum(20, 2, 1.0, 2.0)
    lost = float(spectrum.gaps.mean(1).sum()) / spectrum.best
    assert one_shot_gap(spectrum, 1e6) <= 1.2 * lost
    assert descent_gap(spectrum, 1e6, 0.1, 10, 1.0) <= 1.2 * lost
    assert descent_gap(spectrum, 0.0, 100.0, 10, 1.0) == math.inf
    assert one_shot_gap(spectrum, 0.0) == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_both_methods_are_predicted_within_a_factor_of_two(epsilon):
    for option in options(f"privacy.noise.epsilon={epsilon}"):
        table = table_of(BEST, [f"privacy.noise.epsilon={epsilon}"])
        found = []
        for seed in range(5):
            table["federation"]["seed"] = seed
            found.append(gap(parse(planning.with_option(table, option))))
        assert 0.5 < option.gap / (sum(found) / len(found)) < 2.0, (option, found)


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "bound"), [(2.0, 9.0e-4), (0.5, 0.011)])
def test_the_best_config_is_as_good_as_it_is_said_to_be(epsilon, bound):
    gaps = torch.tensor(
        [
            gap(load(BEST, [f"privacy.noise.epsilon={epsilon}", f"federation.seed={seed}"]))
            for seed in range(20)
        ]
    )
    assert float(gaps.mean()) <= bound
