"""Plain D-SGD: every way is the numpy loop, mixing leaves the mean, nobody is left out."""

import resource
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from manifed.algorithms.gossip import Gossip
from manifed.errors import ConfigError, RoundFailed
from manifed.experiment.assembly import initial_point, load_shards
from manifed.graphs import (
    ErdosRenyi,
    Exponential,
    RandomRegular,
    Ring,
    Star,
    Torus,
)
from manifed.problems.linear import LeastSquares
from tests.algorithms.gossip_runs import (
    EVERY_WAY,
    experiment,
    least_squares_of,
    models_in_numpy,
    models_of,
    reports_of,
)
from tests.tensors import assert_near, normals

GRAPHS = {
    "ring": {"kind": "ring"},
    "star": {"kind": "star"},
    "random": {"kind": "erdos-renyi", "probability": 0.6},
}


@EVERY_WAY
def test_every_way_is_the_loop_in_numpy(way):
    for name, graph in GRAPHS.items():
        config = experiment(graph=graph, decay_rounds=3.0)
        found = models_of(config, way)
        expected = models_in_numpy(config)
        assert np.abs(found - expected).max() <= 1e-12, name


def test_complete_mixing_keeps_one_model_and_is_gradient_descent():
    config = experiment(rounds=200, step_size=0.05, mixing_weights="complete")
    models = models_of(config, "stacked")
    task = least_squares_of(config)
    assert np.abs(models - models[0]).max() <= 1e-14
    assert_near(models[0], task.optimum[0, 0], 1e-6)


LARGE = (
    Ring(), Torus(), Star(), Exponential(), RandomRegular(degree=4),
    ErdosRenyi(probability=0.1),
)  # fmt: skip


@pytest.mark.parametrize("spec", LARGE, ids=lambda spec: spec.kind)
@pytest.mark.parametrize("shape", [(3,), (2, 5)])
def test_a_row_is_the_sum_of_its_entries_in_the_order_of_the_nodes(spec, shape):
    """To the bit where W is kept by its entries: so whoever else is mixed changes nothing."""
    net = Gossip(step_size=1.0, graph=spec, num_nodes=144).network
    x = normals(1, 144, *shape)
    expected = torch.zeros_like(x)
    for i, near in enumerate(net.graph.neighbors):
        for j in sorted([i, *near]):
            expected[i] += net.weights[i, j] * x[j]
    found = net.mixed(x)
    assert torch.equal(found, expected)
    assert abs(net.weights.sum(1) - 1).max() <= 1e-13
    assert (net.mixed(x.float()) - expected).abs().max() <= 1e-6


@contextmanager
def little_memory(more):
    """So many bytes of address space beside those that the process has."""
    has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (has + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits address space")
def test_ten_thousand_nodes_on_a_ring_take_a_round_in_little_memory(monkeypatch):
    """A matrix of all pairs of nodes would take 800 MB."""
    monkeypatch.setattr("manifed.privacy.secldp._TREE", 8)  # what it costs is not asked here
    masked = {"kind": "correlated", "l2_norm_clip": 1.0, "noise_stddev": 3.0, "delta": 1e-5}
    masked["mask_stddev"] = 20.0
    with little_memory(400 << 20):
        (report,) = reports_of(experiment(rounds=1, nodes=10_000), "stacked")
        private = experiment(rounds=1, nodes=10_000, kind="decor", privacy=masked)
        (hidden,) = reports_of(private, "stacked")
    moved = hidden.state["x"] - initial_point(private)
    assert report.state["x"].shape == moved.shape == (10_000, 3)
    assert 0.05 < moved.std() < 1.0  # masks of 0.02 * 20 on two edges, mixed
    assert moved.mean(0).norm() < 0.03  # in the mean they vanish: a clipped step is left
    with pytest.raises(RuntimeError, match="memory"), little_memory(400 << 20):
        torch.zeros(10_000, 10_000).double()


def test_a_missing_node_fails_the_round(monkeypatch):
    right = LeastSquares.gradients

    def broken(self, x, examples):
        if float(examples["target"].abs().sum()) == doomed:
            raise RuntimeError("its disk is gone")
        return right(self, x, examples)

    config = experiment()
    doomed = float(load_shards(config).examples[4]["target"].abs().sum())
    monkeypatch.setattr(LeastSquares, "gradients", broken)
    monkeypatch.setattr("manifed.oracles.sums.is_fused", lambda *_: False)
    with pytest.raises(RoundFailed, match=r"Expected replies from 6 clients.*client 4: Runtime"):
        reports_of(config)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"graph": {"kind": "edges", "edges": [[0, 1], [2, 3]]}}, "training.graph: expected a con"),
        ({"graph": {"kind": "torus", "rows": 4}}, "training.graph.rows: expected a divisor"),
    ],
)
def test_what_does_not_go_together_is_one_line(changes, text):
    with pytest.raises(ConfigError, match=text):
        experiment(**changes)
