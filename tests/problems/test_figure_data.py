"""Data of figures alone: trees and their embeddings, the mammals, descriptors of photographs."""

import io
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from manifed.manifolds.hyperbolic import Lorentz
from manifed.problems.real import DataDamaged, DataMissing
from reproduction import mammals, photos, trees
from tests.problems.test_real_data import put


def tree(seed):
    return trees.random_recursive_tree(60, np.random.default_rng(seed))


# -- trees ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_the_tree_of_a_closure_is_the_tree(seed):
    parents = tree(seed)
    shuffle = np.random.default_rng(seed).permutation(60)
    pairs = shuffle[trees.closure_edges(parents)]
    order, found = trees.tree_of_closure(pairs, 60)
    assert (found[1:] < np.arange(1, 60)).all()
    back = np.argsort(shuffle)[order]
    assert np.array_equal(back[found[1:]], parents[back[1:]])
    with pytest.raises(ValueError, match="exactly one root"):
        trees.tree_of_closure(np.array([[1, 0]]), 3)


@pytest.mark.parametrize("seed", range(3))
def test_sarkar_edges_have_one_length_and_the_tree_fits_the_radius(seed):
    parents = tree(seed)
    points = torch.from_numpy(trees.sarkar(parents, radius=2.5))
    space = Lorentz()
    assert space.membership_defect(points).max() < 1e-12
    lengths = space.dist(points[1:], points[parents[1:]]).numpy()
    assert lengths == pytest.approx(2.5 / trees.depths(parents).max(), rel=1e-7)
    assert space.dist(points, points[0]).max() <= 2.5 + 1e-9


def test_the_largest_subtree_is_held_out_unless_another_node_is_named():
    data = mammals.HyperbolicTree(num_nodes=90).load(None, 0)
    assert len(data.examples) == 89
    assert data.meta["query"] != 0
    assert data.meta["query_target"].shape == (3,)
    assert mammals.HyperbolicTree(num_nodes=90, held_out=7).load(None, 0).meta["query"] == 7
    with pytest.raises(ValueError, match="held_out < num_nodes = 90, got 90"):
        mammals.HyperbolicTree(num_nodes=90, held_out=90).load(None, 0)


# -- mammals --------------------------------------------------------------------------------------
def test_wordnet_drops_the_pairs_of_a_node_with_itself(tmp_path):
    text = b"mammal.n.01\tmammal.n.01\t1\ncat.n.01\tmammal.n.01\t1\n"
    put(tmp_path, "wordnet_mammals/wordnet_mammals.tsv", text)
    names, pairs = mammals.wordnet_mammals(tmp_path)
    assert names == ["mammal.n.01", "cat.n.01"]
    assert pairs.tolist() == [[1, 0]]


@pytest.mark.parametrize(
    ("line", "text"),
    [(1, b"cat\n"), (2, b"cat\tmammal\n\tmammal\n"), (2, b"a\tb\nc\t\n"), (2, b"a\tb\n\xfe\tb\n"),
     (None, b""), (None, b"a\ta\n")],
)  # fmt: skip
def test_a_damaged_closure_names_the_line(tmp_path, line, text):
    put(tmp_path, "wordnet_mammals/wordnet_mammals.tsv", text)
    with pytest.raises(DataDamaged, match=r"tsv: " if line is None else f"tsv, line {line}:"):
        mammals.wordnet_mammals(tmp_path)


def embedding(**arrays):
    """An archive of a few names, features and points."""
    whole = {"names": np.array(["a.n.01", "b.n.01"]), "features": np.eye(2),
             "poincare": np.full((2, 2), 0.5)}  # fmt: skip
    file = io.BytesIO()
    np.savez(file, **(whole | arrays))
    return file.getvalue()


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (b"", "arrays names"),
        (embedding(names=np.array([1, 2])), "for each name"),
        (embedding(features=np.array(["x", "y"], dtype=object)), "arrays names"),
        (embedding(features=np.array([[np.nan], [0.0]])), "finite features"),
        (embedding(poincare=np.ones((2, 2))), "inside the unit disk"),
        (embedding(poincare=np.full((2, 2), np.nan)), "inside the unit disk"),
    ],
)
def test_a_damaged_embedding_says_what_it_lacks(tmp_path, raw, told):
    put(tmp_path, "wordnet_hsp/wordnet_hsp.npz", raw)
    with pytest.raises(DataDamaged, match=f"npz: .*{told}"):
        mammals.wordnet_embedding(tmp_path)


@pytest.mark.data
def test_the_mammals_closure_has_one_root_and_1170_synsets():
    folder = Path(os.environ["MANIFED_DATA"])
    names, pairs = mammals.wordnet_mammals(folder)
    assert len(names) == 1170
    assert pairs.shape == (6448, 2)
    above = np.bincount(pairs[:, 0], minlength=len(names))
    assert [names[i] for i in np.flatnonzero(above == 0)] == ["mammal.n.01"]
    with pytest.raises(ValueError, match="'no-such-animal' for 0"):
        mammals.WordnetMammals(query="no-such-animal").load(folder, 0)


# -- photographs ----------------------------------------------------------------------------------
def test_descriptors_are_the_covariances_of_the_nine_features():
    image = np.random.default_rng(0).integers(0, 256, (40, 52, 3)).astype(np.uint8)
    options = {"patch": 16, "stride": 12, "ridge": 0.0}
    found = photos.descriptors(image, **options)
    features = photos.pixel_features(image)
    assert found.shape == (3 * 4, 9, 9)
    patch = features[12:28, 24:40].reshape(-1, 9)
    assert np.allclose(found[1 * 4 + 2], np.cov(patch.T), rtol=1e-10, atol=1e-12)
    with pytest.raises(ValueError, match="at least 28 x 28, got 20 x 30"):
        photos.descriptors(np.zeros((20, 30, 3)))


def test_pathmnist_is_a_descriptor_an_image(tmp_path):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (6, 28, 28, 3)).astype(np.uint8)
    labels = np.array([[0], [1], [1], [8], [0], [1]], np.uint8)
    arrays = {"train_images": images[:4], "train_labels": labels[:4], "test_images": images[4:],
              "test_labels": labels[4:]}  # fmt: skip
    path = tmp_path / "pathmnist" / "pathmnist.npz"
    with pytest.raises(ValueError, match="at least 1 item"):
        photos.PathMnist(splits=())
    with pytest.raises(DataMissing, match="PathMNIST"):
        photos.PathMnist().load(tmp_path, 0)
    path.parent.mkdir()
    np.savez(path, **arrays)
    both = photos.PathMnist(features="eleven", splits=("train", "test"), tissue=1)
    found = both.load(tmp_path, 0)
    expected = [photos.descriptors(images[i], features="eleven")[0] for i in (1, 2, 5)]
    assert np.array_equal(found.examples["z"].numpy(), expected)
    assert found.labels.tolist() == [1, 1, 1]
    np.savez(path, **arrays | {"train_labels": labels[:3]})
    with pytest.raises(DataDamaged, match="a label for each"):
        photos.PathMnist().load(tmp_path, 0)
