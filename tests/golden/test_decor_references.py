"""The plain numpy of DECOR's learning tasks against the library, and its Figures 2 and 3."""

import numpy as np
import pytest
import torch

from manifed.graphs import Complete, Ring
from manifed.oracles.minibatch import Ask, Query
from manifed.oracles.noisy_oracle import Draws, Oracle
from manifed.privacy.mechanism import ExampleMechanism
from manifed.privacy.random_numbers import NoiseSource
from manifed.privacy.secldp import Correlated, Worst, worst
from manifed.problems.data import build
from reproduction import decor_curves
from reproduction.checks_004.learning import local_stddev
from reproduction.decor_learning import Logistic, Method, Network, curves, train
from reproduction.mlp import MLP

pytestmark = pytest.mark.golden


def test_clipped_sums_of_the_network_are_the_librarys():
    rng = np.random.default_rng(0)
    z = rng.standard_normal((3, 8, 5))
    labels = rng.integers(0, 4, (3, 8))
    task = Network(z, labels, hidden=6, classes=4, batch=8, rounds=1)
    problem = MLP(6, 4)
    clip = 0.4
    x = rng.standard_normal((1, 3, 6 * 6 + 4 * 7))
    found = task.gradients(x, np.full((1, 1, 1), clip), np.random.default_rng(1))[0]
    mechanism = ExampleMechanism(l2_norm_clip=clip)
    source = NoiseSource.from_seed(0)
    for i in range(3):
        arrays = {"z": z[i], "label": labels[i].astype(float)}
        shard = build(arrays).examples
        oracle = Oracle(problem, shard, [(Query.of(mechanism, Ask(), 8),)], Draws(source, 0, 1))
        expected = oracle.gradient(torch.tensor(x[0, i]))
        assert np.allclose(found[i], expected.numpy(), rtol=1e-10, atol=1e-12)


def test_masks_leave_complete_mixing_as_it_is_and_methods_share_their_draws():
    rng = np.random.default_rng(2)
    shards = tuple((rng.standard_normal((9, 3)), np.sign(rng.standard_normal(9))) for _ in range(4))
    task = Logistic(shards, 5, 20)
    graphs = {"ring": Ring().build(4), "complete": Complete().build(4)}
    methods = [
        Method((graph, 1.0), graph, 0.1, masks, 0.1, 1.0)
        for graph, masks in (("complete", 0.0), ("ring", 0.0), ("complete", 5.0))
    ]
    first, other, masked = train(methods, graphs, task, 0)
    assert np.allclose(first, masked, atol=1e-12)
    assert 0 < np.abs(first - other).max() < 0.1
    alone = train(methods[2:], graphs, task, 0)
    assert np.allclose(alone[0], masked, atol=1e-12)


def test_every_curve_of_a_comparison_meets_its_budget():
    """DECOR's worst effective noise is LDP's, and never less."""
    graphs = {"ring": Ring().build(8), "complete": Complete().build(8)}
    for method in curves(graphs, {3.0: 2.0}, 1.25, [(0.1, 0.5)]):
        if method.curve[0] == "CDP":
            assert method.sigma_cdp == pytest.approx(0.5 * 2 / 8**0.5)
            continue
        noise = Correlated(method.sigma_cdp, method.sigma_cor)
        stddev = worst(graphs[method.graph], noise, 0).stddev
        assert 1.0 * (1 - 1e-12) <= stddev <= 1.0 * (1 + 1e-5)


@pytest.mark.slow
def test_noise_of_a_network_meets_its_budget_from_the_private_side():
    stddev = local_stddev(2.0, 50, 8, 100)
    spent = Worst(1 / stddev**2, None, None, is_exact=True).epsilon(1e-5, 50, 1 / 8, 8 / 100)
    assert 1.99 < spent <= 2.0


def test_figures_2_and_3_are_the_recovered_numbers():
    printed = {1: 8.4261, 10: 7.9509, 50: 4.9589, 100: 3.5285, 200: 2.5577, 500: 2.0285}
    for masks, epsilon in printed.items():
        found = decor_curves.user_level(masks)
        assert found["as printed"] == pytest.approx(epsilon, abs=6e-5)
        assert found["exact"] < found["as printed"]
    assert decor_curves.own_2() == pytest.approx(41.68411, abs=1e-5)
    found = decor_curves.example_level(0.02)
    assert found["as printed: one step"] == pytest.approx(0.08516, abs=1e-5)
    assert found["1000 rounds at delta 1e-5"] > 40 * found["as printed: one step"]


@pytest.mark.slow
def test_a_curve_of_the_accountant_is_drawn_with_its_table(tmp_path):
    picture, _, table = decor_curves.draw("004-2", tmp_path)
    assert picture.read_bytes()[:4] == b"\x89PNG"
    head, *rows = table.read_text().splitlines()
    assert head == "sigma_cor,as printed,exact"
    assert len(rows) == len(decor_curves.FIGURES["004-2"].masks)
