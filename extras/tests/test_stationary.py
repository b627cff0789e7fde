"""Noise correlated over rounds and edges: exact covariances, prices never too low, designs."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manifed.graphs import ErdosRenyi, Graph, Ring, Star, Torus, metropolis_hastings
from manifed.privacy import secldp
from manifed.privacy.composition import gaussian_epsilon
from manifed_extras.stationary import (
    WHITE,
    Shape,
    StationaryNoise,
    against,
    coalitions,
    mean_precision,
    shapes,
    squared_mu,
    worst,
)
from manifed_extras.stationary_design import Workload, cost, optimise

EVERY = shapes((0.0, 0.6, 0.9))


def filter_matrix(shape, rounds, start=1.0):
    """Noise of all rounds as a linear map of (start state, normals), by running the code."""
    columns = np.eye(rounds + 1)
    state = start * columns[0]
    noise = []
    for t in range(rounds):
        state, drawn = shape.step(state, columns[t + 1])
        noise.append(drawn)
    return np.array(noise)


def covariance(noise, rounds, start=1.0):
    """Of all messages' noise, nodes before rounds, (n T, n T)."""
    blocks = []
    for j, shape in enumerate(noise.shapes):
        in_time = filter_matrix(shape, rounds, start)
        incidence = noise.graph.incidence
        spread = np.diag(noise.nodes[:, j]) + incidence * noise.edges[:, j] @ incidence.T
        blocks.append(np.kron(spread, in_time @ in_time.T))
    return sum(blocks)


def blocks_of_inverse(noise, rounds, start=1.0):
    """[Sigma^-1] of each node over rounds, (n, T, T)."""
    n = noise.graph.num_nodes
    inverse = np.linalg.inv(covariance(noise, rounds, start))
    return np.array([inverse.reshape(n, rounds, n, rounds)[i, :, i] for i in range(n)])


def drawn(seed, n=4, chosen=EVERY):
    rng = np.random.default_rng(seed)
    every = list(itertools.combinations(range(n), 2))
    graph = Graph.of(n, [pair for pair in every if rng.random() < 0.7])
    sparse = rng.random((n, len(chosen))) < 0.6
    nodes = rng.uniform(0, 2, (n, len(chosen))) * sparse
    nodes[:, 0] += rng.uniform(0.02, 1, n)
    return StationaryNoise(graph, chosen, nodes, rng.uniform(0, 9, (len(graph.edges), len(chosen))))


@pytest.mark.parametrize("shape", EVERY)
def test_streams_are_stationary_from_the_first_round_and_have_their_density(shape):
    rounds = 12
    fine = (np.arange(1 << 12) + 0.5) * math.pi / (1 << 12)
    found = filter_matrix(shape, rounds)
    found = found @ found.T
    for lag in range(rounds):
        expected = (shape.density(fine) * np.cos(lag * fine)).mean()
        assert np.diagonal(found, lag) == pytest.approx(expected, abs=1e-9)
        assert shape.autocovariance(np.array([lag]))[0] == pytest.approx(expected, abs=1e-9)
    inside = np.linspace(0.3, 0.7, 50)
    assert shape.least(np.array(0.3), np.array(0.7)) <= shape.density(inside).min()
    assert shape.most >= shape.density(fine).max()


def test_white_noise_costs_what_decor_costs():
    for graph, q in ((Ring().build(9), 0), (Ring().build(9), 1), (Star().build(6), 1)):
        noise = StationaryNoise(
            graph,
            (WHITE,),
            np.full((graph.num_nodes, 1), 0.49),
            np.full((len(graph.edges), 1), 3.0),
        )
        found = worst(noise, q)
        paper = secldp.worst(graph, secldp.Correlated(0.7, 3**0.5), q)
        assert paper.precision <= found.precision * (1 + 1e-12)
        assert found.precision <= paper.precision * 1.0002
        mu = math.sqrt(squared_mu(2.0, 30, found.precision))
        assert found.epsilon(1e-5, 30, 2.0) == pytest.approx(
            gaussian_epsilon(1e-5, mu=mu), rel=1e-9
        )


@given(st.integers(0, 10**6))
@settings(max_examples=5, deadline=None)
def test_the_price_is_never_below_the_dense_inverse(seed):
    noise = drawn(seed)
    rounds = 7
    for gone in ((), (1,), (0, 3)):
        hidden, left = noise.without(gone)
        found = against(noise, gone)
        blocks = blocks_of_inverse(hidden, rounds)
        assert found.node in left
        assert np.linalg.eigvalsh(blocks)[:, -1].max() <= found.precision
        mean = mean_precision(noise, gone)
        assert np.diagonal(blocks, axis1=1, axis2=2).max() <= mean <= found.precision * 1.001
        for k in (1, 2, 3):  # every choice of rounds, every sign
            worth = max(
                signs @ block[np.ix_(taken, taken)] @ signs
                for block in blocks
                for taken in itertools.combinations(range(rounds), k)
                for signs in map(np.array, itertools.product((1, -1), repeat=k))
            )
            assert 4 * worth <= squared_mu(2.0, k, found.precision, mean)


def test_eight_rounds_of_the_best_signs_show_nearly_what_is_charged():
    """On a ring with slow masks and fast noise of each node's own; more rounds show more of it."""
    law = np.array([[4.0, 0, 9]] * 6), np.array([[0, 36.0, 0]] * 6)
    noise = StationaryNoise(Ring().build(6), (WHITE, Shape("slow", 0.8), Shape("fast", 0.5)), *law)
    block = blocks_of_inverse(noise, 8)[0]
    shown = max(
        signs @ block @ signs for signs in map(np.array, itertools.product((1, -1), repeat=8))
    )
    assert 0.9 < shown / (8 * against(noise).precision) <= 1


def test_what_the_price_needs():
    """Cold starts, fast streams alone, masks known to a coalition: each would be underpriced."""
    pair = Graph.of(2, [(0, 1)])
    mixed = (WHITE, Shape("slow", 0.9), Shape("fast", 0.5))
    noise = StationaryNoise(pair, mixed, np.array([[0.09, 3.6, 5.4]] * 2), np.full((1, 3), 0.06))
    price = against(noise).precision
    assert np.linalg.eigvalsh(blocks_of_inverse(noise, 8))[:, -1].max() <= price
    cold = blocks_of_inverse(noise, 8, start=0.0)
    assert np.linalg.eigvalsh(cold)[:, -1].max() > 1.3 * price
    with pytest.raises(ValueError, match="none at node 0"):
        StationaryNoise(pair, (Shape("fast", 0.5),), np.ones((2, 1)), np.ones((1, 1)))
    white = StationaryNoise(pair, (WHITE,), np.ones((2, 1)), np.full((1, 1), 50.0))
    assert against(white).precision < 0.52
    assert against(white, [1]).precision == pytest.approx(1, rel=1e-3)
    for nodes, edges in ((np.ones((3, 1)), np.ones((1, 1))), (np.ones((2, 1)), -np.ones((1, 1)))):
        with pytest.raises(ValueError, match="expected"):
            StationaryNoise(pair, (WHITE,), nodes, edges)
    with pytest.raises(ValueError, match="coalitions"):
        coalitions(pair, 2)
    with pytest.raises(ValueError, match="memory"):
        Shape("slow", 1.0)


# -- designs ---------------------------------------------------------------------------------
def test_costs_are_those_of_the_recursion():
    """Against the sum over all lags of x(t+1) = W (rho x(t) - z(t)), by quadrature."""
    graph = Star().build(5)
    work = Workload(metropolis_hastings(graph).toarray(), 0.8)
    fine = (np.arange(2048) + 0.5) * math.pi / 2048
    found = work.costs(np.hstack([np.eye(5), graph.incidence]), EVERY)
    for a, u in enumerate(np.hstack([np.eye(5), graph.incidence]).T):
        reply = np.linalg.solve(
            np.exp(1j * fine)[:, None, None] * np.eye(5) - 0.8 * work.mixing,
            work.mixing @ u[:, None],
        )
        power = (np.abs(reply[..., 0]) ** 2).mean(1)
        for j, shape in enumerate(EVERY):
            assert found[a, j] == pytest.approx((power * shape.density(fine)).mean(), rel=1e-6)


def best_decor(graph, work):
    """The least cost of DECOR's two parameters at precision 1, by a fine scan."""
    eigenvalues = np.linalg.eigvalsh(graph.laplacian)
    assert len(set(graph.degrees)) == 1
    ratios = np.concatenate([[0], np.geomspace(1e-2, 1e4, 4000)])
    own = (1 / (1 + ratios[:, None] * eigenvalues)).mean(1)
    costs = work.costs(np.hstack([np.eye(graph.num_nodes), graph.incidence]), [WHITE])[:, 0]
    of_nodes = costs[: graph.num_nodes].sum()
    of_edges = costs[graph.num_nodes :].sum()
    return (own * (of_nodes + ratios * of_edges)).min()


def test_space_alone_gains_nothing_on_symmetric_graphs_and_rounds_do():
    for graph in (Ring().build(8), Torus().build(9)):
        work = Workload(metropolis_hastings(graph).toarray(), 0.98)
        decor = optimise(graph, work, [WHITE], is_uniform=True)
        edges = optimise(graph, work, [WHITE])
        both = optimise(graph, work, shapes((0.5, 0.95)), is_uniform=True, iterations=100)
        assert decor.cost == pytest.approx(best_decor(graph, work), rel=1e-4)
        assert edges.cost == pytest.approx(decor.cost, rel=1e-4)  # and no less: the bound says so
        assert edges.lower_bound >= decor.cost * (1 - 3e-4)
        assert both.cost < 0.95 * decor.cost
        for design in (decor, edges, both):
            assert design.lower_bound <= design.cost * (1 + 1e-9)
            assert design.gap < 0.1
            assert against(design.noise).precision <= 1 + 1e-4
            assert cost(work, design.noise) == design.cost


def test_irregular_graphs_gain_from_edges_for_both_adversaries():
    graph = ErdosRenyi(probability=0.5).build(6, seed=1)
    work = Workload(metropolis_hastings(graph).toarray(), 0.98)
    for q in (0, 1):
        gone = coalitions(graph, q)
        decor = optimise(graph, work, [WHITE], gone, is_uniform=True)
        edges = optimise(graph, work, [WHITE], gone)
        assert edges.cost < 0.97 * decor.lower_bound  # strictly: below what DECOR can reach
        assert worst(edges.noise, q).precision <= 1 + 1e-4
    with pytest.raises(ValueError, match="white"):
        optimise(graph, work, [Shape("slow", 0.5)])
    with pytest.raises(ValueError, match="nodes"):
        optimise(Ring().build(5), work, [WHITE])
