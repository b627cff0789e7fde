"""The SecLDP accountant: published vectors, laws, and independent checks of the effective noise."""

import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from manifed.graphs import (
    Complete,
    ErdosRenyi,
    Graph,
    RandomRegular,
    Ring,
    Star,
    Torus,
    connectivity_bound,
)
from manifed.privacy.secldp import (
    Correlated,
    against,
    calibrate_masks,
    precision_bound,
    precisions,
    worst,
)
from reproduction.decor_prices import paper_slope, paper_total
from tests.command import invoke
from tests.graphs.test_graphs import edges_of
from tests.runs.running import refused

RING = Ring().build(16)
TORUS = Torus().build(16)
DELTA = 1e-5


def by_brute_force(graph, noise, gone):
    left = graph.without(gone)
    covariance = noise.sigma_cdp**2 * np.eye(left.num_nodes)
    for i, j in left.edges:
        covariance[[i, j], [i, j]] += noise.sigma_cor**2
        covariance[[i, j], [j, i]] -= noise.sigma_cor**2
    return np.diag(np.linalg.inv(covariance))


@given(st.integers(3, 7), st.integers(0, 2**21 - 1), st.floats(0.1, 3), st.floats(0, 10))
@settings(max_examples=25, deadline=None)
def test_the_worst_coalition_is_that_of_brute_force(n, bits, own, masks):
    graph = edges_of(n, bits)
    noise = Correlated(own, masks)
    last = 0.0
    for q in range(n):
        exact = max(
            by_brute_force(graph, noise, gone).max() for gone in itertools.combinations(range(n), q)
        )
        found = worst(graph, noise, q)
        assert found.is_exact
        assert found.precision == pytest.approx(exact, rel=1e-6)
        assert found.precision >= exact * (1 - 1e-12)
        assert found.node not in found.coalition
        assert len(found.coalition) == q
        named = by_brute_force(graph, noise, found.coalition).max()
        assert named == pytest.approx(exact, rel=1e-6)
        a_q, _ = connectivity_bound(graph, q)
        assert precision_bound(n - q, a_q, noise) >= exact * (1 - 1e-9)
        assert found.precision >= last * (1 - 1e-9)
        last = found.precision
    assert last == pytest.approx(1 / own**2)


def test_laws_of_one_round():
    steps = [worst(TORUS, Correlated(1.0, s), 0).precision for s in (0, 0.5, 1, 4, 100)]
    assert steps[-1] == pytest.approx(1 / 16, rel=0.01)
    assert steps == sorted(steps, reverse=True)
    assert steps[0] == 1.0
    halves = Graph.of(8, [(0, 1), (1, 2), (2, 3), (0, 3), (4, 5), (5, 6), (6, 7), (4, 7)])
    assert worst(halves, Correlated(1.0, 1e4), 0).precision == pytest.approx(1 / 4, rel=1e-5)
    leaf = Graph.of(5, [(0, 1), (1, 2), (2, 3), (0, 3), (3, 4)])
    for masks in (0.0, 1.0, 100.0):
        assert worst(leaf, Correlated(0.5, masks), 1).precision == pytest.approx(4.0)
    assert against(leaf, Correlated(0.5, 100.0), [3]).node == 4


def test_masks_so_large_that_float64_says_nothing_hide_nothing():
    """Beyond its digits the accountant falls back on the node's own noise alone."""
    for masks in (1e7, 1e8, 1e9, 1e12):
        found = worst(RING, Correlated(1.0, masks), 0).precision
        assert 1 / 16 <= found <= 1.0
    assert precisions(RING, Correlated(1.0, 1e12)).max() == 1.0


def test_one_node_of_many_leaves_by_an_update_of_the_inverse():
    graph = RandomRegular(degree=4).build(120)
    noise = Correlated(1.0, 2.0)
    found = worst(graph, noise, 1)
    direct = max(against(graph, noise, (v,)).precision for v in range(120))
    assert direct <= found.precision <= direct * (1 + 1e-6)
    assert against(graph, noise, found.coalition).node == found.node


def test_of_large_graphs_the_nodes_around_each_node_bound_its_price(monkeypatch):
    """Never below the price by the whole matrix; a tree that holds everybody gives that price."""
    graphs = [Ring().build(10), Torus(rows=2).build(10), Star().build(10), Complete().build(10)]
    graphs += [edges_of(10, 3**k) for k in (16, 20, 24, 28)]  # some of them in parts
    graphs += [Graph(10, tuple((k // 2, k + 1) for k in range(9)))]  # a tree
    noises = [Correlated(1.0, 0.3), Correlated(2.0, 20.0)]
    asked = list(itertools.product(graphs, noises, range(4)))
    exact = [worst(*each).precision for each in asked]
    named = [against(graph, noise, (3, 7)).precision for graph, noise, _ in asked]
    monkeypatch.setattr("manifed.privacy.secldp.MOST_EXACT", 9)
    for size in (4, 10):
        monkeypatch.setattr("manifed.privacy.secldp._TREE", size)
        for (graph, noise, q), least, without in zip(asked, exact, named, strict=True):
            found = worst(graph, noise, q)
            assert least * (1 - 1e-8) <= found.precision <= 1 / noise.sigma_cdp**2
            assert against(graph, noise, (3, 7)).precision >= without * (1 - 1e-8)
            if size == 10 and q == 0 and graph in (graphs[2], graphs[-1]):
                assert found.precision == pytest.approx(least, rel=1e-9)


def test_masks_of_a_large_random_graph_count_against_coalitions(monkeypatch):
    """Trees bound it: no star of four masks hides as much."""
    monkeypatch.setattr("manifed.privacy.secldp.MOST_EXACT", 9)
    graph = RandomRegular(degree=4).build(300)
    noise = Correlated(1.0, 3.0)
    found = [worst(graph, noise, q).precision for q in range(5)]
    for q in range(4):
        assert found[q] < 1 / (1 + (4 - q) * 9 / 10)
    assert found == sorted(found)
    assert found[4] == 1.0


def test_updates_that_lose_digits_of_a_large_graph_are_priced_with_what_they_lose(monkeypatch):
    graph = ErdosRenyi(probability=0.3).build(60)
    noise = Correlated(3.0, 60.0)
    each = max((against(graph, noise, (v,)) for v in range(60)), key=lambda w: w.precision)
    monkeypatch.setattr("manifed.privacy.secldp._DIRECT", 10)
    found = worst(graph, noise, 1)
    assert each.precision < found.precision <= 1.01 * each.precision
    assert (found.node, found.coalition, found.is_exact) == (each.node, each.coalition, False)


def test_a_bound_for_coalitions_that_cannot_be_enumerated():
    graph = RandomRegular(degree=20).build(40)
    noise = Correlated(1.0, 1.0)
    found = worst(graph, noise, 6)
    assert not found.is_exact
    rng = np.random.default_rng(1)
    for _ in range(30):
        gone = rng.choice(40, 6, replace=False).tolist()
        assert against(graph, noise, gone).precision <= found.precision
    assert found.precision < 1.0


def test_a_run_is_a_gaussian_mechanism_with_the_effective_noise():
    found = worst(RING, Correlated(41.68411, 100.0), 0)
    exact = found.epsilon(DELTA, 1000, 2.0)
    mu = 2.0 * math.sqrt(1000 * found.precision)

    def delta(eps):
        return norm.cdf(mu / 2 - eps / mu) - math.exp(eps) * norm.cdf(-mu / 2 - eps / mu)

    assert delta(exact) <= DELTA * (1 + 1e-9)
    assert delta(exact * (1 - 1e-6)) > DELTA
    assert exact < paper_total(2 * found.precision, 1000, DELTA)
    for printed, true in ((5.0, 4.117), (10.0, 8.555), (1.0, 0.742)):
        slope = paper_slope(printed, 1, DELTA)
        lone = worst(Graph(1, ()), Correlated(math.sqrt(2 / slope), 0.0), 0)
        assert lone.epsilon(DELTA, 1, 2.0) == pytest.approx(true, abs=6e-4)


def test_pairs_on_budget_end_on_the_private_side():
    met = [0.0]

    def is_met(found):
        met[0] = found.epsilon(DELTA, 100, 2.0)
        return met[0] <= 3.0

    found = [calibrate_masks(TORUS, own, 1, is_met) for own in (20.0, 40.0)]
    assert found[0].sigma_cor >= found[1].sigma_cor
    for noise in found:
        assert worst(TORUS, noise, 1).epsilon(DELTA, 100, 2.0) <= 3.0
    with pytest.raises(ValueError, match="sigma_cdp"):
        calibrate_masks(TORUS, 0.1, 1, is_met)
    for name, deviations in (("sigma_cdp", (0.0, 1.0)), ("sigma_cor", (1.0, math.inf))):
        with pytest.raises(ValueError, match=name):
            Correlated(*deviations)


def test_the_command_prints_the_price_and_refuses_in_one_line(tmp_path):
    given_ = ["privacy", "secldp", "--graph", "ring", "--nodes", "12", "--sigma-cdp", "0.7"]
    given_ += ["--sigma-cor", "1.9", "--clip", "1", "--collusion", "0", "--json"]
    found = json.loads(invoke(*given_).stdout.splitlines()[-1])
    one = worst(Ring().build(12), Correlated(0.7, 1.9), 0)
    assert found["epsilon_step"] == pytest.approx(2 * one.precision)
    assert found["theorem_bound"] >= found["epsilon_step"]
    assert (found["worst_node"], found["adversary"]) == (one.node, "I")
    whole = json.loads(invoke(*given_, "--rounds", "10", "--delta", "1e-5").stdout.splitlines()[-1])
    totals = [whole["totals"][name]["epsilon"] for name in ("I", "II", "III", "IV")]
    assert totals == sorted(totals)
    assert totals[0] == pytest.approx(one.epsilon(1e-5, 10, 2.0))
    edges = tmp_path / "edges.txt"
    edges.write_text("0 1\n1 2\n")
    by_file = ["privacy", "secldp", "--graph", str(edges), "--nodes", "3"]
    assert invoke(*by_file, "--sigma-cdp", "1", "--sigma-cor", "1").exit_code == 0
    for extra in (
        ["--sigma-cor", "-1"], ["--clip", "nan"], ["--collusion", "12"], ["--delta", "2"],
        ["--graph", "line"], ["--graph", "torus"],
    ):  # fmt: skip
        refused(*given_, *extra)
