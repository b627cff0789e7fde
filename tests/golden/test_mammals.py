"""PriRFed's Figure 5 on the published embedding: our numbers are those that its authors published.

The file has no licence and is no part of the project: these tests read it below MANIFED_DATA.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

from manifed.experiment.assembly import initial_point, load_shards
from manifed.experiment.evaluation import client_shares
from manifed.experiment.load import load
from manifed.manifolds.hyperbolic import Lorentz
from manifed.problems.real import find
from manifed.problems.shards import data_folder
from reproduction.figure_files import read_figure
from tests.tensors import assert_near

pytestmark = pytest.mark.data
FIGURE = Path(__file__).resolve().parents[2] / "configs" / "figures" / "000_5.toml"
CURVE = "000_5_mammals-rsgd"


@pytest.fixture(scope="module")
def published():
    with np.load(find("wordnet-embedding", data_folder(), "wordnet_hsp/wordnet_hsp.npz")) as file:
        return {name: torch.as_tensor(file[name]) for name in ("alpha", "start_lorentz")}


def loaded(*sets):
    config = load(read_figure(FIGURE).source(CURVE), sets)
    return config, load_shards(config)


def cost(found, x):
    losses = [found.problem.losses(x, shard).mean() for shard in found.examples]
    return float(torch.stack(losses).mean())


def test_the_agents_and_their_kernel_weights_are_the_published_ones(published):
    _, found = loaded()
    weights = torch.stack([shard["weight"] for shard in found.examples])
    assert weights.shape == (9, 131)
    assert_near(weights, published["alpha"], 1e-9)
    assert float(weights.abs().max()) * 4 <= 0.87  # tau = max|alpha| M


def test_the_cost_at_the_published_start_is_the_published_one(published):
    config, found = loaded()
    assert cost(found, published["start_lorentz"]) == pytest.approx(0.47472048, abs=1e-8)
    off = Lorentz().dist(initial_point(config), published["start_lorentz"])
    assert float(off) < 0.005  # the config says it to two decimals


def test_the_targets_are_as_far_from_the_truth_as_the_page_says():
    _, found = loaded()
    targets = torch.cat([shard["target"] for shard in found.examples])
    away = Lorentz().dist(found.meta["query_target"], targets)
    assert len(targets) == 1179
    assert float(away.median()) == pytest.approx(7.67, abs=0.01)


@pytest.mark.parametrize(
    ("sets", "away"),
    [((), 0.328), (("problem.bandwidth=0.3", "problem.kernel_width=printed"), 3.073)],
)
def test_the_minimiser_is_near_the_truth_for_the_narrow_kernel_alone(sets, away):
    _, found = loaded(*sets)
    best = found.problem.optimum(found.examples, client_shares(found.sizes, "uniform")).x
    off = float(Lorentz().dist(best, found.meta["query_target"]))
    assert off == pytest.approx(away, abs=0.002)
