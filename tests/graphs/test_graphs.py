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
    connectivity_bound,
    metropolis_hastings,
)
from tests.tensors import assert_near

SPECS = (
    Ring(), Torus(), Complete(), Star(), Exponential(), RandomRegular(degree=4),
    ErdosRenyi(probability=0.4),
)  # fmt: skip


@pytest.mark.golden
@pytest.mark.parametrize(
    ("spec", "published"),  # a and a_1; p, H and |W - J|^2 are checked elsewhere
    [(Ring(), (0.15224, 0.043705)), (Torus(), (2.0, 1.65708)), (Complete(), (16.0, 15.0))],
)
def test_the_constants_of_sixteen_nodes_are_the_published_ones(spec, published):
    found = [connectivity_bound(spec.build(16), q)[0] for q in (0, 1)]
    assert found == pytest.approx(published, rel=2e-5, abs=5e-5)


def every_entry_of(graph):
    """The mixing matrix of a graph as the formula says it, entry by entry."""
    degrees = np.array(graph.degrees)
    found = graph.adjacency / (1.0 + np.maximum(degrees[:, None], degrees[None, :]))
    return found + np.diag(1.0 - found.sum(1))


@pytest.mark.parametrize("spec", SPECS)
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
    assert graph.num_parts == 1
    weights = metropolis_hastings(graph)
    assert_near(weights.toarray(), every_entry_of(graph), 1e-15)
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
    coalitions = itertools.combinations(range(n), q)
    exact = min(np.linalg.eigvalsh(graph.without(gone).laplacian)[1] for gone in coalitions)
    assert bound <= exact + 1e-9
    if is_exact:
        assert bound == pytest.approx(exact, abs=1e-9)


@pytest.mark.slow
def test_large_coalitions_get_a_proved_bound():
    graph = RandomRegular(degree=20).build(40)
    bound, is_exact = connectivity_bound(graph, 6)
    assert not is_exact
    assert 0 < bound < connectivity_bound(graph, 0)[0]
    rng = np.random.default_rng(0)
    for _ in range(50):
        gone = rng.choice(40, 6, replace=False).tolist()
        assert connectivity_bound(graph.without(gone), 0)[0] >= bound


def test_an_edge_file_is_read_or_refused_with_its_line_unquoted(tmp_path):
    path = tmp_path / "edges.txt"
    path.write_text("# three sites\n0 1\n2 1  # twice\n1 2\n\n")
    assert EdgeList(path=path).build(3) == Graph(3, ((0, 1), (1, 2)))
    for text, said in (
        ("0 1\n1 x\n", "line 2"),
        ("0 1 2\n", "line 1"),
        ("0 -1\n", "line 1"),
        ("0 3\n", r"out of 0\.\.2"),
        ("1 1\n", r"\(1, 1\)"),
        ("0 1\nname,secret\n", "line 2"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=said) as refused:
            EdgeList(path=path).build(3)
        assert "secret" not in str(refused.value)
    path.write_bytes(b"\xff\xfe0 1")
    for unread in (path, tmp_path, tmp_path / "none"):
        with pytest.raises(ValueError, match="cannot be read"):
            EdgeList(path=unread).build(3)


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
)  # fmt: skip
def test_a_graph_that_takes_long_is_refused_before_it_is_built(spec):
    with pytest.raises(ValueError, match="take fewer nodes"):
        spec.build(10**8)


def test_draws_of_a_large_random_graph_are_few():
    began = time.process_time()
    with pytest.raises(ValueError, match="connected draw out of 1, got 1e-09 for 2050 nodes"):
        ErdosRenyi(probability=1e-9).build(2050)
    assert time.process_time() - began < 10
