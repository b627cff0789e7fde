"""Readers return what the files hold, and say clearly what is missing."""

import gzip
import os
from pathlib import Path

import numpy as np
import pytest

from manifed.problems import covariance_descriptors, readers
from manifed.problems.readers import DataMissing


def data_dir() -> Path:
    return Path(os.environ["MANIFED_DATA"])


def idx(array: np.ndarray) -> bytes:
    header = b"\x00\x00\x08" + bytes([array.ndim])
    return header + b"".join(int(n).to_bytes(4, "big") for n in array.shape) + array.tobytes()


def write_mnist(folder: Path, prefix: str, count: int, *, gzipped: bool) -> np.ndarray:
    images = np.random.default_rng(count).integers(0, 256, (count, 28, 28)).astype(np.uint8)
    labels = np.arange(count, dtype=np.uint8)
    (folder / "mnist").mkdir(exist_ok=True)
    for name, array in (("images-idx3", images), ("labels-idx1", labels)):
        path = folder / "mnist" / f"{prefix}-{name}-ubyte"
        if gzipped:
            path.with_name(path.name + ".gz").write_bytes(gzip.compress(idx(array)))
        else:
            path.write_bytes(idx(array))
    return images


def test_digits_are_pixels_between_zero_and_one():
    pixels, labels = readers.digits()
    assert pixels.shape == (1797, 64)
    assert pixels.min() == 0.0
    assert pixels.max() == 1.0
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


@pytest.mark.parametrize("gzipped", [True, False])
def test_idx_files_are_read_plain_or_gzipped(tmp_path, gzipped):
    images = write_mnist(tmp_path, "t10k", 7, gzipped=gzipped)
    pixels, labels, split = readers.mnist(tmp_path)
    assert split == "test"
    assert np.array_equal(pixels, images.reshape(7, 784) / 255.0)
    assert labels.tolist() == list(range(7))


def test_the_training_set_is_preferred(tmp_path):
    write_mnist(tmp_path, "t10k", 3, gzipped=True)
    write_mnist(tmp_path, "train", 5, gzipped=True)
    pixels, _, split = readers.mnist(tmp_path)
    assert (split, len(pixels)) == ("train", 5)


def test_a_damaged_idx_file_is_refused(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(idx(np.zeros((2, 3), dtype=np.uint8))[:-1])
    with pytest.raises(ValueError, match=r"x: Expected 6 bytes after the header, got 5"):
        readers.read_idx(path)
    path.write_bytes(b"PK\x03\x04")
    with pytest.raises(ValueError, match="Expected an idx file"):
        readers.read_idx(path)


@pytest.mark.parametrize(
    "read", [readers.mnist, readers.a9a, readers.wordnet_mammals, readers.wordnet_embedding]
)
def test_a_missing_file_names_path_and_variable(tmp_path, read):
    with pytest.raises(DataMissing, match=f"{tmp_path}.*MANIFED_DATA"):
        read(tmp_path)
    with pytest.raises(DataMissing, match=r"no data folder was named.*MANIFED_DATA"):
        read(None)
    assert issubclass(DataMissing, FileNotFoundError)


def test_a9a_is_parsed_from_libsvm_lines(tmp_path):
    (tmp_path / "a9a").mkdir()
    (tmp_path / "a9a" / "a9a").write_text("-1 1:1 123:1 \n+1 2:1 \n")
    features, labels = readers.a9a(tmp_path)
    assert features.shape == (2, 123)
    assert np.flatnonzero(features[0]).tolist() == [0, 122]
    assert labels.tolist() == [-1, 1]


def test_wordnet_drops_the_pairs_of_a_node_with_itself(tmp_path):
    (tmp_path / "wordnet_mammals").mkdir()
    path = tmp_path / "wordnet_mammals" / "wordnet_mammals.tsv"
    path.write_text("mammal.n.01\tmammal.n.01\t1\ncat.n.01\tmammal.n.01\t1\n")
    names, pairs = readers.wordnet_mammals(tmp_path)
    assert names == ["mammal.n.01", "cat.n.01"]
    assert pairs.tolist() == [[1, 0]]


def test_checksums_see_values_shapes_and_types():
    a = np.arange(6.0)
    assert readers.checksum(a) == readers.checksum(a.copy())
    others = [a + 1e-16 + 1, a.reshape(2, 3), a.astype(np.float32)]
    assert len({readers.checksum(x) for x in [a, *others]}) == 4


def test_descriptors_are_the_covariances_of_the_nine_features():
    image = np.random.default_rng(0).integers(0, 256, (40, 52, 3)).astype(np.uint8)
    found = covariance_descriptors.descriptors(image, patch=16, stride=12, ridge=0.0)
    features = covariance_descriptors.pixel_features(image)
    assert found.shape == (3 * 4, 9, 9)
    patch = features[12:28, 24:40].reshape(-1, 9)
    assert np.allclose(found[1 * 4 + 2], np.cov(patch.T), rtol=1e-10, atol=1e-12)
    ridged = covariance_descriptors.descriptors(image, patch=16, stride=12, ridge=1e-3)
    extra = np.trace(found[0]) / 9 * 1e-3 * np.eye(9)
    assert np.allclose(ridged[0], found[0] + extra, rtol=1e-12, atol=1e-12)


def test_pixel_features_are_coordinates_colours_and_derivatives():
    y, x = np.mgrid[0:8, 0:8]
    image = np.stack([x * x, x * x, x * x], axis=-1).astype(np.float64)
    features = covariance_descriptors.pixel_features(image)
    inside = features[3, 4]
    grey = 255.0
    assert inside == pytest.approx(
        [4, 3, 16 / grey, 16 / grey, 16 / grey, (25 - 9) / grey, 0, 2 / grey, 0], abs=1e-12
    )
    assert np.array_equal(features[..., 1], y)


def test_standardising_the_features_is_a_congruence():
    image = np.random.default_rng(1).integers(0, 256, (32, 32, 3)).astype(np.uint8)
    options = {"patch": 16, "stride": 16, "ridge": 0.0}
    plain = covariance_descriptors.descriptors(image, **options)
    scaled = covariance_descriptors.descriptors(image, is_standardised=True, **options)
    scale = 1 / covariance_descriptors.pixel_features(image).reshape(-1, 9).std(0)
    assert np.allclose(scaled, plain * scale[:, None] * scale, rtol=1e-9, atol=1e-12)


def test_too_small_an_image_is_refused():
    with pytest.raises(ValueError, match="at least 28 x 28, got 20 x 30"):
        covariance_descriptors.descriptors(np.zeros((20, 30, 3)))


@pytest.mark.slow
def test_the_sample_photos_give_7700_positive_definite_descriptors():
    z, photo = covariance_descriptors.sample_photos()
    assert z.shape == (7700, 9, 9)
    assert np.bincount(photo).tolist() == [3850, 3850]
    assert np.linalg.eigvalsh(z).min() > 0


@pytest.mark.data
def test_the_mnist_folder_is_read():
    pixels, labels, split = readers.mnist(data_dir())
    assert len(pixels) == {"train": 60000, "test": 10000}[split]
    if split == "test":
        counts = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
        assert np.bincount(labels).tolist() == counts


@pytest.mark.data
def test_a9a_has_the_stated_rows_and_share_of_positives():
    features, labels = readers.a9a(data_dir())
    assert features.shape == (32561, 123)
    assert (labels == 1).mean() == pytest.approx(0.2408, abs=1e-4)
    assert features.sum(1).mean() == pytest.approx(13.87, abs=0.01)
    assert readers.a9a(data_dir(), split="test")[0].shape == (16281, 123)


@pytest.mark.data
def test_the_mammals_closure_has_one_root_and_1170_synsets():
    names, pairs = readers.wordnet_mammals(data_dir())
    assert len(names) == 1170
    assert pairs.shape == (6448, 2)
    above = np.bincount(pairs[:, 0], minlength=len(names))
    assert [names[i] for i in np.flatnonzero(above == 0)] == ["mammal.n.01"]


def test_the_digits_are_those_of_scikit_learn():
    from sklearn.datasets import load_digits

    pixels, labels = readers.digits()
    theirs = load_digits()
    assert (pixels * 16 == theirs.data).all()
    assert (labels == theirs.target).all()
    assert (pixels.dtype, labels.dtype) == (np.float64, np.int64)
