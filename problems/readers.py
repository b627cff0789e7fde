"""Readers of real data: bundled with scikit-learn, or in the folder that MANIFED_DATA names.

Each returns numpy arrays and touches nothing else. Heavy imports stay inside the functions.
"""

import gzip
import hashlib
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Labels = NDArray[np.int64]


class DataMissing(FileNotFoundError):
    """A data file that is not where it was looked for; the message says where and what to do."""

    def __init__(self, name: str, looked_for: str) -> None:
        super().__init__(
            f"Data set {name!r}: no file {looked_for}; give --data-dir or set MANIFED_DATA to a "
            "folder that has it"
        )


def find(name: str, data_dir: Path | None, *candidates: str) -> Path:
    """The first of ``candidates`` (paths below ``data_dir``) that exists."""
    if data_dir is None:
        raise DataMissing(name, f"{candidates[0]} (no data folder was named)")
    for candidate in candidates:
        if (data_dir / candidate).is_file():
            return data_dir / candidate
    raise DataMissing(name, f"{data_dir / candidates[0]}")


def checksum(*arrays: NDArray[Any]) -> str:
    """SHA-256 over shapes, types and bytes of the arrays, as 64 hexadecimal digits."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def digits() -> tuple[Array, Labels]:
    """scikit-learn's 1797 digits: pixels / 16, shape (1797, 64), and labels.

    Read from the file it ships: importing scikit-learn would cost as much as a whole quick run.
    """
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise DataMissing("digits", "datasets/data/digits.csv.gz of an installed scikit-learn")
    path = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    with gzip.open(path, "rt", encoding="ascii") as lines:
        table = np.loadtxt(lines, delimiter=",")
    return table[:, :-1] / 16.0, table[:, -1].astype(np.int64)


def mnist(data_dir: Path | None) -> tuple[Array, Labels, str]:
    """Pixels / 255, shape (n, 784), labels, and the split read.

    The training set where the folder ``mnist`` has it, the test set of 10 000 otherwise; idx files,
    gzipped or not.
    """
    folder = "mnist/"
    splits = {"train": "train", "test": "t10k"}
    for split, prefix in splits.items():
        images, labels = (
            f"{folder}{prefix}-images-idx3-ubyte",
            f"{folder}{prefix}-labels-idx1-ubyte",
        )
        try:
            pixels = read_idx(find("mnist", data_dir, images, images + ".gz"))
            digit = read_idx(find("mnist", data_dir, labels, labels + ".gz"))
        except DataMissing:
            if split == "test":
                raise
            continue
        flat = pixels.reshape(len(pixels), -1).astype(np.float64) / 255.0
        return flat, digit.astype(np.int64), split
    raise AssertionError("unreachable")


def read_idx(path: Path) -> NDArray[np.uint8]:
    """The unsigned bytes of an idx file (LeCun's format), gzipped if it ends in ``.gz``."""
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    if len(raw) < 4 or raw[:3] != b"\x00\x00\x08":
        raise ValueError(f"Expected an idx file of unsigned bytes, got {path} starting {raw[:4]!r}")
    ndim = raw[3]
    shape = np.frombuffer(raw, ">u4", count=ndim, offset=4).astype(int)
    body = np.frombuffer(raw, np.uint8, offset=4 + 4 * ndim)
    if len(body) != int(np.prod(shape)):
        raise ValueError(
            f"Expected {int(np.prod(shape))} bytes after {path}'s header, got {len(body)}"
        )
    return body.reshape(shape)


def a9a(data_dir: Path | None, *, split: str = "train") -> tuple[Array, Labels]:
    """LIBSVM's a9a: 123 binary features and labels -1 or 1; 32 561 train or 16 281 test rows."""
    from sklearn.datasets import load_svmlight_file

    path = find("a9a", data_dir, "a9a/a9a" if split == "train" else "a9a/a9a.t")
    features, labels = load_svmlight_file(str(path), n_features=123)
    return np.asarray(features.todense(), dtype=np.float64), labels.astype(np.int64)


def wordnet_mammals(data_dir: Path | None) -> tuple[list[str], NDArray[np.int64]]:
    """The mammals' names in first-seen order and the closure's (descendant, ancestor) pairs.

    The pairs of a node with itself, which the file also lists, are left out.
    """
    path = find("wordnet-mammals", data_dir, "wordnet_mammals/wordnet_mammals.tsv")
    index: dict[str, int] = {}
    pairs: list[tuple[int, int]] = []
    for line in path.read_text().splitlines():
        child, ancestor = line.split("\t")[:2]
        i, j = index.setdefault(child, len(index)), index.setdefault(ancestor, len(index))
        if i != j:
            pairs.append((i, j))
    return list(index), np.array(pairs, dtype=np.int64)
