"""What the checks of DP-RSVRG count on, and numbers that their verdicts do not show."""

import pytest
import torch

from reproduction.checks_003.central import solve
from reproduction.checks_003.settings import centrally, cloud, example_level, rsvrg
from reproduction.trials import experiment, gradients_a_round
from tests.algorithms.gossip_runs import reports_of

pytestmark = pytest.mark.golden
TREE = "003_3c_tree_eps0.1"


# -- configs and the central solver ----------------------------------------------------------
def test_the_noise_of_every_printed_curve_of_the_tree_meets_its_target():
    for epsilon in (0.1, 0.3, 0.5):
        for curve in ("rgd", "rsgd", "rsvrg", "reuse"):
            privacy = experiment(f"003_3c_tree_eps{epsilon}_{curve}").privacy
            assert (privacy.noise.epsilon, privacy.noise.delta) == (epsilon, 1e-6)
            assert privacy.neighboring_relation == "replace-one"


@pytest.mark.parametrize("curve", ["rgd", "rsvrg"])
def test_a_central_solver_is_a_federation_of_one_client(curve):
    """The federation averages log, then exp: equal to rounding."""
    config = experiment(f"{TREE}_{curve}", "federation.num_rounds=2")
    found = reports_of(config, "stacked")[-1].state["x"]
    torch.testing.assert_close(found, solve(config, (0,)).points[0], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("curve", "count"), [("rgd", 1180), ("rsgd", 118), ("rsvrg", 1416)])
def test_gradients_are_counted_as_the_paper_counts_them(curve, count):
    """n a step of DP-RGD, b of DP-RSGD, n + 2 m b an epoch of DP-RSVRG."""
    assert gradients_a_round(experiment(f"{TREE}_{curve}"), 1180) == count


# -- convergence -----------------------------------------------------------------------------
def test_runs_repeat_bit_for_bit_and_seeds_do_not_mix():
    config = centrally(cloud(100, 5), rsvrg(0.01, 10), 2, example_level(1.0, 1.0, 0.1))
    both = solve(config, (3, 4))
    one = solve(config, (4,))
    assert torch.equal(both.points, solve(config, (3, 4)).points)
    torch.testing.assert_close(both.points[1], one.points[0], rtol=1e-12, atol=1e-14)
