"""Trees, their closures, their embeddings and their spectral features."""

from pathlib import Path

import numpy as np
import pytest

from manifed.experiment.figure_files import read_figure
from manifed.experiment.load import load
from manifed.problems import hyperbolic_trees as trees
from manifed.problems.federation import dataset

FIGURES = Path(__file__).resolve().parents[2] / "configs" / "figures"


def lorentz_dist(x, y):
    product = x[..., 0] * y[..., 0] - (x[..., 1:] * y[..., 1:]).sum(-1)
    return np.arccosh(np.maximum(product, 1.0))


def tree(seed: int = 0, n: int = 60) -> np.ndarray:
    return trees.random_recursive_tree(n, np.random.default_rng(seed))


def test_a_recursive_tree_has_earlier_parents_and_repeats():
    parents = tree()
    assert parents[0] == -1
    assert (parents[1:] < np.arange(1, 60)).all()
    assert (parents[1:] >= 0).all()
    assert np.array_equal(parents, tree())


def test_depths_sizes_and_closure_agree():
    parents = tree(1)
    edges = trees.closure_edges(parents)
    assert np.array_equal(np.bincount(edges[:, 0], minlength=60), trees.depths(parents))
    assert np.array_equal(np.bincount(edges[:, 1], minlength=60) + 1, trees.subtree_sizes(parents))


@pytest.mark.parametrize("seed", range(4))
def test_the_tree_of_a_closure_is_the_tree(seed):
    parents = tree(seed)
    shuffle = np.random.default_rng(seed).permutation(60)
    pairs = shuffle[trees.closure_edges(parents)]
    order, found = trees.tree_of_closure(pairs, 60)
    assert (found[1:] < np.arange(1, 60)).all()
    back = np.argsort(shuffle)[order]
    assert np.array_equal(back[found[1:]], parents[back[1:]])


def test_a_closure_with_two_roots_is_refused():
    with pytest.raises(ValueError, match="exactly one root"):
        trees.tree_of_closure(np.array([[1, 0]]), 3)


@pytest.mark.parametrize("seed", range(3))
def test_sarkar_edges_have_one_length_and_the_tree_fits_the_radius(seed):
    parents = tree(seed)
    points = trees.sarkar(parents, radius=2.5)
    square = -np.square(points[:, 0]) + np.square(points[:, 1:]).sum(-1)
    assert np.abs(square + 1).max() < 1e-12
    lengths = lorentz_dist(points[1:], points[parents[1:]])
    assert lengths == pytest.approx(2.5 / trees.depths(parents).max(), rel=1e-7)
    assert lorentz_dist(points, points[0]).max() <= 2.5 + 1e-9


@pytest.mark.parametrize("seed", range(3))
def test_the_stand_in_of_figure_5_is_as_curved_as_the_published_embedding(seed):
    figure = read_figure(FIGURES / "000_5_tree.toml")
    config = load(figure.source("000_5_tree-rsgd"), [f"federation.seed={seed}"])
    found = dataset(config.data, seed, None)
    away = lorentz_dist(found.examples["target"].numpy(), found.meta["query_target"].numpy())
    assert 0.9 * 7.67 < np.median(away) < 1.1 * 7.67


def test_sarkar_spreads_siblings_evenly():
    points = trees.sarkar(np.array([-1, 0, 0, 0]), radius=1.0)
    gaps = [lorentz_dist(points[i], points[j]) for i, j in ((1, 2), (2, 3), (3, 1))]
    assert gaps == pytest.approx([gaps[0]] * 3, rel=1e-12)


def test_sarkar_refuses_a_single_node():
    with pytest.raises(ValueError, match="at least one edge"):
        trees.sarkar(np.array([-1]))


def test_the_eigenmap_is_that_of_scikit_learn():
    from sklearn.manifold import SpectralEmbedding

    edges = trees.closure_edges(tree(2))
    found = trees.laplacian_eigenmap(edges, 60, 2)
    affinity = np.eye(60)
    affinity[edges[:, 0], edges[:, 1]] = affinity[edges[:, 1], edges[:, 0]] = 1.0
    expected = SpectralEmbedding(2, affinity="precomputed", random_state=0).fit_transform(affinity)
    for mine, theirs in zip(found.T, expected.T, strict=True):
        cosine = abs(float(mine @ theirs)) / np.linalg.norm(mine) / np.linalg.norm(theirs)
        assert cosine == pytest.approx(1.0, abs=1e-6)


def test_the_eigenmap_is_deterministic():
    edges = trees.closure_edges(tree(2))
    first, again = (trees.laplacian_eigenmap(edges, 60) for _ in range(2))
    assert np.array_equal(first, again)
    assert (first[np.abs(first).argmax(0), np.arange(3)] > 0).all()
