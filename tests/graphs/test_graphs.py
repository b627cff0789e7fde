"""Graphs: constants of the paper's examples, mixing matrices, and what is refused."""

import itertools
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from manifed.graphs import (
    Complete,
    EdgeList,
    ErdosRenyi,
    Exponential,
    Graph,
    GraphSpec,
    RandomRegular,
    Ring,
    Star,
    Torus,
    algebraic_connectivity,
    connectivity_bound,
    connectivity_without,
    metropolis_hastings,
)

SPECS = (
    Ring(), Torus(), Complete(), Star(), Exponential(), RandomRegular(degree=4),
    ErdosRenyi(probability=0.4),
)  # fmt: skip
PUBLISHED = {  # spec 004, H5, n = 16: a and a_1; p, H and |W - J|^2 are checked in reproduction/
    "ring": (0.15224, 0.043705),
    "torus": (2.0, 1.65708),
    "complete": (16.0, 15.0),
}


@pytest.mark.golden
@pytest.mark.parametrize("spec", SPECS[:3], ids=lambda s: s.kind)
def test_the_constants_of_sixteen_nodes_are_the_published_ones(spec):
    graph = spec.build(16)
    found = algebraic_connectivity(graph), connectivity_without(graph, 1)
    assert found == pytest.approx(PUBLISHED[spec.kind], rel=2e-5, abs=5e-5)


def every_entry_of(graph):
    """The mixing matrix of a graph as the formula says it, entry by entry."""
    degrees = np.array(graph.degrees)
    found = graph.adjacency / (1.0 + np.maximum(degrees[:, None], degrees[None, :]))
    return found + np.diag(1.0 - found.sum(1))


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.kind)
@pytest.mark.parametrize("n", [2, 4, 16])
def test_every_graph_is_connected_and_has_a_mixing_matrix(spec, n):
    if spec.kind == "random-regular" and n <= spec.degree:
        with pytest.raises(ValueError, match=r"graph\.degree"):
            spec.build(n)
        return
    if spec.kind == "torus" and n == 2:
        with pytest.raises(ValueError, match=r"graph\.rows"):
            spec.build(n)
        return
    graph = spec.build(n)
    assert graph.num_nodes == n
    assert graph.is_connected
    weights = metropolis_hastings(graph)
    assert np.abs(weights.toarray() - every_entry_of(graph)).max() <= 1e-15
    assert np.linalg.eigvalsh(graph.laplacian)[0] == pytest.approx(0.0, abs=1e-12)


def test_random_graphs_follow_their_seed_alone():
    for spec in SPECS[-2:]:
        assert spec.build(16, seed=3) == spec.build(16, seed=3)
        assert spec.build(16, seed=3) != spec.build(16, seed=4)


def edges_of(n, bits):
    pairs = list(itertools.combinations(range(n), 2))
    return Graph.of(n, [pair for k, pair in enumerate(pairs) if bits >> k & 1])


@given(st.integers(4, 7), st.integers(0, 2**21 - 1), st.integers(0, 2))
@settings(max_examples=60, deadline=None)
def test_the_bound_is_below_the_enumeration_and_says_when_it_is_exact(n, bits, q):
    graph = edges_of(n, bits)
    bound, is_exact = connectivity_bound(graph, q)
    exact = connectivity_without(graph, q)
    assert bound <= exact + 1e-9
    if is_exact:
        assert bound == pytest.approx(exact, abs=1e-9)


@pytest.mark.slow
def test_large_coalitions_get_a_proved_bound():
    graph = RandomRegular(degree=20).build(40)
    bound, is_exact = connectivity_bound(graph, 6)
    assert not is_exact
    assert 0 < bound < algebraic_connectivity(graph)
    rng = np.random.default_rng(0)
    for _ in range(50):
        gone = rng.choice(40, 6, replace=False).tolist()
        assert algebraic_connectivity(graph.without(gone)) >= bound


def test_an_edge_file_is_read_or_refused_with_its_line(tmp_path):
    path = tmp_path / "edges.txt"
    path.write_text("# three sites\n0 1\n2 1  # twice\n1 2\n\n")
    assert EdgeList(path=path).build(3) == Graph(3, ((0, 1), (1, 2)))
    for text, said in (
        ("0 1\n1 x\n", "line 2"),
        ("0 1 2\n", "line 1"),
        ("0 -1\n", "line 1"),
        ("0 3\n", r"out of 0\.\.2"),
        ("1 1\n", r"\(1, 1\)"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=said):
            EdgeList(path=path).build(3)
    with pytest.raises(ValueError, match="cannot be read"):
        EdgeList(path=tmp_path / "none").build(3)
    path.write_bytes(b"\xff\xfe0 1")
    with pytest.raises(ValueError, match="cannot be read"):
        EdgeList(path=path).build(3)


def test_bad_graphs_are_refused():
    adapter = TypeAdapter(GraphSpec)
    for bad in (
        {"kind": "edges"},
        {"kind": "edges", "edges": [[0, 1]], "path": "x"},
        {"kind": "erdos-renyi", "probability": 0},
        {"kind": "ring", "degree": 2},
        {"kind": "line"},
    ):
        with pytest.raises(ValidationError):
            adapter.validate_python(bad)
    with pytest.raises(ValueError, match=r"graph\.probability"):
        ErdosRenyi(probability=1e-6).build(10)
    with pytest.raises(ValueError, match="0 <= q"):
        connectivity_bound(Graph(3, ()), 3)


@pytest.mark.parametrize(
    "spec",
    [
        Ring(), Complete(), Star(), Exponential(), ErdosRenyi(probability=1e-9),
        RandomRegular(degree=2), Torus(rows=1),
    ],
    ids=lambda spec: spec.kind,
)  # fmt: skip
def test_a_graph_that_takes_long_is_refused_before_it_is_built(spec):
    with pytest.raises(ValueError, match="take fewer nodes"):
        spec.build(10**8)


def test_draws_of_a_large_random_graph_are_few():
    began = time.process_time()
    with pytest.raises(ValueError, match="connected draw out of 1, got 1e-09 for 2050 nodes"):
        ErdosRenyi(probability=1e-9).build(2050)
    assert time.process_time() - began < 10


def test_an_error_about_a_file_of_edges_does_not_quote_it(tmp_path):
    path = tmp_path / "records.csv"
    path.write_text("0 1\nname,secret\n")
    with pytest.raises(ValueError, match="line 2") as refused:
        EdgeList(path=path).build(2)
    assert "secret" not in str(refused.value)
    with pytest.raises(ValueError, match="cannot be read"):
        EdgeList(path=tmp_path).build(2)
