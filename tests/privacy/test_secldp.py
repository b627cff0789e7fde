"""The SecLDP accountant: published vectors, laws, and independent checks of the effective noise."""

import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from typer.testing import CliRunner

from manifed.cli import commands
from manifed.cli.main import app
from manifed.graphs.graph import Graph, connectivity_bound
from manifed.graphs.specs import Complete, ErdosRenyi, RandomRegular, Ring, Star, Torus
from manifed.privacy.secldp import (
    Correlated,
    Rounds,
    _near,
    adversary_of,
    against,
    calibrate_masks,
    pairs,
    paper_slope,
    paper_total,
    precision_bound,
    precisions,
    public_code_epsilon,
    worst,
)

GRAPHS = {s.kind: s.build(16) for s in (Ring(), Torus(), Complete(), Star())}
DELTA = 1e-5
H6 = [  # spec 004 §8.2: noise, q, graph, Algorithm 3, Theorem 6; C = 1
    ((1, 1), 0, "ring", 0.894428, 1.752264), ((1, 1), 0, "torus", 0.526984, 0.75),
    ((1, 1), 0, "complete", 0.235294, 0.235294), ((1, 1), 1, "ring", 1.236068, 1.921834),
    ((1, 1), 1, "torus", 0.636249, 0.835860), ((1, 1), 1, "complete", 0.25, 0.25),
    ((1, 1), 2, "ring", 2.0, 2.0), ((1, 1), 2, "torus", 0.812213, 1.028566),
    ((1, 1), 2, "complete", 0.266667, 0.266667), ((0.5, 2), 0, "ring", 1.029697, 2.682863),
    ((0.5, 2), 0, "torus", 0.631254, 0.727273), ((0.5, 2), 0, "complete", 0.529183, 0.529183),
    ((0.5, 2), 1, "ring", 1.767839, 4.927360), ((0.5, 2), 1, "torus", 0.710194, 0.804718),
    ((0.5, 2), 1, "complete", 0.564315, 0.564315), ((1, 1), 0, "star", 1.058824, 1.0625),
    ((1, 1), 1, "star", 2.0, 2.0),
]  # fmt: skip


def on_budget(slope):
    return lambda found: 2 * found.precision <= slope


@pytest.mark.golden
@pytest.mark.parametrize(("sigmas", "q", "name", "exact", "bound"), H6)
def test_published_vectors_of_one_round(sigmas, q, name, exact, bound):
    graph, noise = GRAPHS[name], Correlated(*sigmas)
    found = worst(graph, noise, q)
    assert found.is_exact
    assert 2 * found.precision == pytest.approx(exact, abs=6e-7)
    a_q, is_exact = connectivity_bound(graph, q)
    assert is_exact
    assert 2 * precision_bound(16 - q, a_q, noise) == pytest.approx(bound, abs=6e-7)


@pytest.mark.golden
def test_published_conversions_and_calibrations():
    """H9 to H12 of spec 004."""
    for epsilon, rounds, slope in ((5, 1000, 4.496235e-4), (10, 3500, 4.429586e-4)):
        assert paper_slope(epsilon, rounds, DELTA) == pytest.approx(slope, rel=1e-6)
        assert paper_total(slope, rounds, DELTA) == pytest.approx(epsilon, rel=1e-6)
    slope = paper_slope(5, 1000, DELTA)
    local = math.sqrt(2 / slope)
    assert (local, local / 4) == pytest.approx((66.69457, 16.67364), rel=1e-6)
    for r, masks in ((1.05, (249.3814, 112.8109, 52.7661)), (2, (64.6157, 34.8955, 16.67364))):
        for name, expected in zip(("ring", "torus", "complete"), masks, strict=True):
            found = calibrate_masks(GRAPHS[name], r * local / 4, 0, on_budget(slope))
            assert found.sigma_cor == pytest.approx(expected, rel=1e-5)
            assert 2 * worst(GRAPHS[name], found, 0).precision <= slope
    for name, expected in zip(
        ("ring", "torus", "complete"), (220.036, 65.442, 27.165), strict=True
    ):
        found = calibrate_masks(GRAPHS[name], 1.25 * 17.2204, 1, on_budget(slope))
        assert found.sigma_cor == pytest.approx(expected, rel=1e-5)
    for name, masks, total in (("ring", 311.123, 2.894), ("torus", 85.839, 3.282)):
        found = worst(GRAPHS[name], Correlated(30.3485, masks), 0)
        assert paper_total(2 * found.precision, 1000, DELTA) == pytest.approx(total, abs=6e-4)
    curve = {1: 8.4261, 10: 7.9509, 50: 4.9589, 100: 3.5285, 200: 2.5577, 500: 2.0285, 1000: 1.9278}
    for masks, total in curve.items():
        found = worst(GRAPHS["ring"], Correlated(41.68411, masks), 0)
        assert paper_total(2 * found.precision, 1000, DELTA) == pytest.approx(total, abs=6e-5)


@pytest.mark.golden
def test_figure_3_as_published_is_one_step_without_delta():
    rate, clip = 64 / 3750, 1 / 64
    for masks, printed in ((0.001, 28.82), (0.01, 2.1559), (0.02, 0.08516), (0.1, 0.007580)):
        slope = 2 * clip**2 * worst(GRAPHS["ring"], Correlated(0.005, masks), 0).precision
        assert public_code_epsilon(slope, rate) == pytest.approx(printed, rel=2e-4)
    true = Rounds(1000, clip, rate).epsilon(worst(GRAPHS["ring"], Correlated(0.005, 0.1), 0), DELTA)
    assert true > 100 * 0.00758


def random_graph(n, bits):
    every = list(itertools.combinations(range(n), 2))
    return Graph.of(n, [pair for k, pair in enumerate(every) if bits >> k & 1])


def by_brute_force(graph, noise, gone):
    left = graph.without(gone)
    covariance = noise.sigma_cdp**2 * np.eye(left.num_nodes)
    covariance += noise.sigma_cor**2 * left.incidence @ left.incidence.T
    return np.diag(np.linalg.inv(covariance))


@given(st.integers(3, 7), st.integers(0, 2**21 - 1), st.floats(0.1, 3), st.floats(0, 10))
@settings(max_examples=25, deadline=None)
def test_the_worst_coalition_is_that_of_brute_force(n, bits, own, masks):
    graph, noise = random_graph(n, bits), Correlated(own, masks)
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
    graph = Torus().build(16)
    steps = [worst(graph, Correlated(1.0, s), 0).precision for s in (0, 0.5, 1, 4, 100)]
    assert steps[-1] == pytest.approx(1 / 16, rel=0.01)
    assert steps == sorted(steps, reverse=True)
    assert steps[0] == 1.0
    halves = Graph.of(8, [(0, 1), (1, 2), (2, 3), (0, 3), (4, 5), (5, 6), (6, 7), (4, 7)])
    assert worst(halves, Correlated(1.0, 1e4), 0).precision == pytest.approx(1 / 4, rel=1e-5)
    leaf = Graph.of(5, [(0, 1), (1, 2), (2, 3), (0, 3), (3, 4)])
    for masks in (0.0, 1.0, 100.0):
        assert worst(leaf, Correlated(0.5, masks), 1).precision == pytest.approx(4.0)
    assert against(leaf, Correlated(0.5, 100.0), [3]).node == 4
    assert [adversary_of(graph, q) for q in (0, 1, 2, 15)] == ["I", "II", "III", "IV"]


def test_masks_so_large_that_float64_says_nothing_hide_nothing():
    """Beyond its digits the accountant falls back on the node's own noise alone."""
    for masks in (1e7, 1e8, 1e9, 1e12):
        found = worst(Ring().build(16), Correlated(1.0, masks), 0).precision
        assert 1 / 16 <= found <= 1.0
    assert precisions(Ring().build(16), Correlated(1.0, 1e12)).max() == 1.0


def test_one_node_of_many_leaves_by_an_update_of_the_inverse():
    graph, noise = RandomRegular(degree=4).build(120), Correlated(1.0, 2.0)
    found = worst(graph, noise, 1)
    direct = max(against(graph, noise, (v,)).precision for v in range(120))
    assert direct <= found.precision <= direct * (1 + 1e-6)
    assert against(graph, noise, found.coalition).node == found.node


def test_of_large_graphs_the_nodes_around_each_node_bound_its_price(monkeypatch):
    """Never below the price by the whole matrix; with everybody in the ball it is that price."""
    graphs = [Ring().build(10), Torus(rows=2).build(10), Star().build(10), Complete().build(10)]
    graphs += [random_graph(10, 3**k) for k in (16, 20, 24, 28)]  # some of them in parts
    graphs += [Graph(10, tuple((k // 2, k + 1) for k in range(9)))]  # a tree
    noises = [Correlated(1.0, 0.3), Correlated(2.0, 20.0)]
    asked = list(itertools.product(graphs, noises, range(4)))
    exact = [worst(*each).precision for each in asked]
    named = [against(graph, noise, (3, 7)).precision for graph, noise, _ in asked]
    monkeypatch.setattr("manifed.privacy.secldp.MOST_EXACT", 9)
    for near, most in ((4, 64), (10, 64), (4, 0), (10, 0)):
        monkeypatch.setattr("manifed.privacy.secldp._AROUND", near)
        monkeypatch.setattr("manifed.privacy.secldp._TREE", near)
        monkeypatch.setattr("manifed.privacy.secldp._MOST_BALLS", most)
        _near.cache_clear()
        for (graph, noise, q), least, without in zip(asked, exact, named, strict=True):
            found = worst(graph, noise, q)
            assert least * (1 - 1e-8) <= found.precision <= 1 / noise.sigma_cdp**2
            assert against(graph, noise, (3, 7)).precision >= without * (1 - 1e-8)
            if near == 10 and most and graph.is_connected and q < 2:
                assert found.precision == pytest.approx(least, rel=1e-3)


def test_masks_of_a_large_random_graph_count_against_coalitions(monkeypatch):
    """Trees alone bound what is too irregular for balls: no star of four masks hides as much."""
    monkeypatch.setattr("manifed.privacy.secldp.MOST_EXACT", 9)
    graph, noise = RandomRegular(degree=4).build(300), Correlated(1.0, 3.0)
    found = [worst(graph, noise, q).precision for q in range(5)]
    for q in range(4):
        assert found[q] < 1 / (1 + (4 - q) * 9 / 10)
    assert found == sorted(found)
    assert found[4] == 1.0


def test_updates_that_lose_digits_of_a_large_graph_are_priced_with_what_they_lose(monkeypatch):
    graph, noise = ErdosRenyi(probability=0.3).build(60), Correlated(3.0, 60.0)
    each = max((against(graph, noise, (v,)) for v in range(60)), key=lambda w: w.precision)
    monkeypatch.setattr("manifed.privacy.secldp._DIRECT", 10)
    found = worst(graph, noise, 1)
    assert each.precision < found.precision <= 1.01 * each.precision
    assert (found.node, found.coalition, found.is_exact) == (each.node, each.coalition, False)


def test_a_bound_for_coalitions_that_cannot_be_enumerated():
    graph, noise = RandomRegular(degree=20).build(40), Correlated(1.0, 1.0)
    found = worst(graph, noise, 6)
    assert not found.is_exact
    rng = np.random.default_rng(1)
    for _ in range(30):
        gone = rng.choice(40, 6, replace=False).tolist()
        assert against(graph, noise, gone).precision <= found.precision
    assert found.precision < 1.0


@pytest.mark.slow
def test_two_thousand_nodes_are_priced_in_seconds():
    import time

    graph, noise = RandomRegular(degree=6).build(2000), Correlated(1.0, 1.0)
    began = time.process_time()
    found = worst(graph, noise, 0)
    assert time.process_time() - began < 5.0  # on one core: 1 s
    solved = np.linalg.solve(np.eye(2000) + graph.laplacian, np.eye(2000)[found.node])
    assert found.precision == pytest.approx(solved[found.node], rel=1e-9)


@pytest.mark.statistical
def test_the_best_linear_attack_is_exactly_as_good_as_the_price():
    """H8: project on S^-1 e_i. Its ROC area is Phi(d' / sqrt 2) with d' = 2 C sqrt([S^-1]_ii)."""
    graph, noise, count = Ring().build(8), Correlated(1.0, 1.0), 40_000
    rng = np.random.default_rng(0)
    edges = noise.sigma_cor * rng.standard_normal((count, len(graph.edges)))
    masks = edges @ graph.incidence.T
    seen = masks + noise.sigma_cdp * rng.standard_normal((count, 8))
    covariance = np.eye(8) + graph.laplacian
    score = seen @ np.linalg.solve(covariance, np.eye(8)[3])
    precision = against(graph, noise, ()).precision
    assert score.var() == pytest.approx(precision, rel=5 * math.sqrt(2 / count))
    shift = 2.0 * np.linalg.inv(covariance)[3, 3]  # what 2 C e_i adds to the score
    separation = shift / score.std()
    assert separation == pytest.approx(2 * math.sqrt(precision), rel=0.03)
    other = score[: count // 2] + shift
    area = np.mean(np.searchsorted(np.sort(score[count // 2 :]), other) / (count // 2))
    assert area == pytest.approx(norm.cdf(separation / math.sqrt(2)), abs=0.015)


def test_masks_that_are_used_twice_are_no_masks():
    """D1 of the public code: two rounds with one mask differ by the nodes' own noise alone."""
    noise = Correlated(1.0, 100.0)
    rng = np.random.default_rng(0)
    graph = Ring().build(8)
    masks = noise.sigma_cor * rng.standard_normal((5000, 8)) @ graph.incidence.T
    first, second = (masks + rng.standard_normal((5000, 8)) for _ in range(2))
    fresh = 100.0 * rng.standard_normal((5000, 8)) @ graph.incidence.T
    assert (first - second).std() == pytest.approx(math.sqrt(2), rel=0.05)
    assert (first - fresh - rng.standard_normal((5000, 8))).std() > 100


def test_a_run_is_a_gaussian_mechanism_with_the_effective_noise():
    found = worst(GRAPHS["ring"], Correlated(41.68411, 100.0), 0)
    exact = Rounds(1000, 2.0).epsilon(found, DELTA)
    mu = 2.0 * math.sqrt(1000 * found.precision)

    def delta(eps):
        return norm.cdf(mu / 2 - eps / mu) - math.exp(eps) * norm.cdf(-mu / 2 - eps / mu)

    assert delta(exact) <= DELTA * (1 + 1e-9)
    assert delta(exact * (1 - 1e-6)) > DELTA
    assert exact < paper_total(2 * found.precision, 1000, DELTA)
    for printed, true in ((5.0, 4.117), (10.0, 8.555), (1.0, 0.742)):  # spec 004 §3.5
        slope = paper_slope(printed, 1, DELTA)
        lone = worst(Graph(1, ()), Correlated(math.sqrt(2 / slope), 0.0), 0)
        assert Rounds(1, 2.0).epsilon(lone, DELTA) == pytest.approx(true, abs=6e-4)


def test_pairs_on_budget_end_on_the_private_side():
    rounds = Rounds(100, 2.0)
    met = [0.0]

    def is_met(found):
        met[0] = rounds.epsilon(found, DELTA)
        return met[0] <= 3.0

    found = pairs(GRAPHS["torus"], 1, is_met, (1.0, 20.0, 40.0))
    assert len(found) == 1 or all(a.sigma_cor >= b.sigma_cor for a, b in itertools.pairwise(found))
    for noise in found:
        assert rounds.epsilon(worst(GRAPHS["torus"], noise, 1), DELTA) <= 3.0
    with pytest.raises(ValueError, match="sigma_cdp"):
        calibrate_masks(GRAPHS["torus"], 0.1, 1, is_met)
    with pytest.raises(ValueError, match="sigma_cdp"):
        Correlated(0.0, 1.0)
    with pytest.raises(ValueError, match="sigma_cor"):
        Correlated(1.0, math.inf)


def test_the_command_prints_the_price_and_refuses_in_one_line(tmp_path):
    commands.register(app)
    run = CliRunner().invoke
    given_ = ["privacy", "secldp", "--graph", "ring", "--nodes", "12", "--sigma-cdp", "0.7"]
    given_ += ["--sigma-cor", "1.9", "--clip", "1", "--collusion", "0", "--json"]
    found = json.loads(run(app, given_).stdout.splitlines()[-1])
    one = worst(Ring().build(12), Correlated(0.7, 1.9), 0)
    assert found["epsilon_step"] == pytest.approx(2 * one.precision)
    assert found["theorem_bound"] >= found["epsilon_step"]
    assert (found["worst_node"], found["adversary"]) == (one.node, "I")
    whole = json.loads(
        run(app, [*given_, "--rounds", "10", "--delta", "1e-5"]).stdout.splitlines()[-1]
    )
    totals = [whole["totals"][name]["epsilon"] for name in ("I", "II", "III", "IV")]
    assert totals == sorted(totals)
    assert totals[0] == pytest.approx(Rounds(10, 2.0).epsilon(one, 1e-5))
    local = [*given_[:4], "--nodes", "12", "--sigma-cdp", "0.05", "--sigma-cor", "0.1"]
    local += ["--json"]
    local += ["--batch", "10", "--examples", "1000", "--rounds", "10", "--delta", "1e-5"]
    sampled = json.loads(run(app, local).stdout.splitlines()[-1])["totals"]["I"]
    assert sampled["epsilon_public_code_one_step"] < sampled["epsilon"]
    edges = tmp_path / "edges.txt"
    edges.write_text("0 1\n1 2\n")
    by_file = ["privacy", "secldp", "--graph", str(edges), "--nodes", "3"]
    assert run(app, [*by_file, "--sigma-cdp", "1", "--sigma-cor", "1"]).exit_code == 0
    for extra in (
        ["--sigma-cor", "-1"], ["--clip", "nan"], ["--collusion", "12"], ["--rounds", "3"],
        ["--graph", "line"], ["--graph", "torus"], ["--rounds", "3", "--delta", "2"],
        ["--batch", "3"],
    ):  # fmt: skip
        bad = run(app, [*given_, *extra])
        assert bad.exit_code == 2
        assert len(bad.stderr.strip().splitlines()) == 1
