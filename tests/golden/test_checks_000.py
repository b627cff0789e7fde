"""Numbers of the checks of PriRFed that verdicts do not show, and long runs."""

import pytest

from reproduction.checks_000 import calibration, optimum, theorem
from reproduction.trials import experiment
from tests.algorithms.gossip_runs import reports_of

pytestmark = pytest.mark.golden
LONG_ONES = [pytest.mark.slow, pytest.mark.one_week_in(3)]


# -- privacy: checks 3 and 13 ----------------------------------------------------------------
def test_the_sound_price_of_table_1_is_six_times_the_printed_one():
    found = theorem.check_3().numbers
    assert found["300_10_500"]["published"] == pytest.approx(15.5, rel=5e-3)
    assert found["300_10_500"]["parallel"] == pytest.approx(0.4617, rel=1e-3)
    assert found["100_1_50"]["external"] == pytest.approx(0.2705, rel=5e-3)
    assert found["100_1_500"]["external"] == pytest.approx(0.8778, rel=5e-3)


FULL_BATCH = [
    ("Fig 1 column 1, epsilon 0.08", 0.150, 3.16),
    ("Fig 1 column 1, epsilon 0.15", 0.298, 3.52),
    ("Fig 1 column 1, epsilon 0.3", 0.634, 3.95),
    ("delta 1e-4, epsilon 0.15", 0.272, 2.88),
]


@pytest.mark.parametrize(("name", "exact", "constant"), FULL_BATCH)
def test_the_constant_one_halves_the_epsilon_of_dp_rsgd(name, exact, constant):
    setting = calibration.FULL_BATCH[name]
    assert calibration.full_batch_price(setting) == pytest.approx(exact, rel=5e-3)
    assert calibration.needed_constant(setting) == pytest.approx(constant, rel=5e-3)


RSVRG = [
    ("Fig 1 column 3, epsilon 0.3", 3.75),
    ("MNIST N=50", 24.8),
    ("MNIST N=100", 2.2),
    ("SPD N_i=250", 18.1),
    ("SPD N_i=100", 2.7),
    ("hyperbolic", 10.5),
]


@pytest.mark.parametrize(("name", "least"), RSVRG)
def test_dp_rsvrg_as_printed_spends_far_more_than_it_states(name, least):
    setting = calibration.RSVRG[name]
    assert calibration.transcript_lower_bound(setting) == pytest.approx(least, rel=2e-2)


# -- algorithms: checks 5, 15 and 16 ---------------------------------------------------------
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=LONG_ONES if name.startswith("SPD") else [])
        for name in optimum.RUNS
    ],
)
def test_without_noise_the_optimum_is_reached(name):
    assert optimum.relative_gap(name, 0) < 1e-6


# -- feasibility -----------------------------------------------------------------------------
LONG = {
    "sphere": ("000_2_digits-rsgd-N-12", 50),
    "SPD": ("000_3_wishart-rsgd-N-50", 20),
    "hyperboloid": ("000_5_tree-dp-rsgd", 50),
}


@pytest.mark.slow
@pytest.mark.one_week_in(3)
@pytest.mark.parametrize("space", LONG)
def test_a_private_run_stays_on_its_manifold_for_a_thousand_rounds(space):
    name, shard = LONG[space]
    sets = (
        f"federation.partition.shard_size={shard}",
        "training.local_steps=1",
        'training.minibatch={ kind = "full" }',
        "federation.num_rounds=1000",
    )
    config = experiment(name, *sets)
    defect = config.setting.manifold.membership_defect
    worst = [float(defect(report.state["x"])) for report in reports_of(config, "stacked")]
    assert len(worst) == 1000
    assert max(worst) <= 1e-10
