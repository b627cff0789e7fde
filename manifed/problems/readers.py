"""Readers of real data: bundled with scikit-learn, or in the folder that MANIFED_DATA names.

Each returns numpy arrays and touches nothing else. Heavy imports stay inside the functions.
"""

import gzip
import hashlib
import importlib.util
import io
import math
import re
import zlib
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


class DataDamaged(ValueError):
    """A data file that does not hold what it must; the message says which file and line.

    It never quotes a record: an error may be read by others than the owner of the data.
    """

    def __init__(self, path: Path, what: str, line: int | None = None) -> None:
        where = str(path) if line is None else f"{path}, line {line}"
        super().__init__(f"{where}: {what}; restore the file from where it came")


MOST_BYTES = 1 << 30
"""Of one data file, unpacked: twenty times the largest that is read here."""


def content(path: Path, most: int = MOST_BYTES) -> bytes:
    """The bytes of a file, unpacked if it ends in ``.gz``.

    Raises:
        DataDamaged: when it can't be read or unpacked, or holds more than ``most`` bytes; nothing
            beyond them is unpacked.
    """
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rb") as file:
            found: bytes = file.read(most + 1)
    except (OSError, EOFError, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise DataDamaged(path, f"expected a readable file, got {reason!r}") from None
    if len(found) > most:
        raise DataDamaged(path, f"expected at most {most} bytes unpacked, got more")
    return found


def lines(path: Path) -> list[str]:
    """The lines of a text file; errors as `content`, and for what is no UTF-8, with its line."""
    raw = content(path)
    try:
        return raw.decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise DataDamaged(path, "expected UTF-8", line) from None


DOWNLOADED = frozenset({"mnist", "a9a", "wordnet-mammals", "wordnet-embedding"})
"""Kinds of data that no library ships: they are looked for in the data folder."""


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


def _shipped(name: str, data: str) -> Path:
    """A file that scikit-learn ships."""
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise DataMissing(data, f"datasets/data/{name} of an installed scikit-learn")
    return Path(package.origin).parent / "datasets" / "data" / name


def digits() -> tuple[Array, Labels]:
    """scikit-learn's 1797 digits: pixels / 16, shape (1797, 64), and labels.

    Read from the file it ships: importing scikit-learn would cost as much as a whole quick run.
    """
    path = _shipped("digits.csv.gz", "digits")
    with gzip.open(path, "rt", encoding="ascii") as lines:
        table = np.loadtxt(lines, delimiter=",")
    return table[:, :-1] / 16.0, table[:, -1].astype(np.int64)


BREAST_CANCER_RANGES = (
    (6.981, 28.11), (9.71, 39.28), (43.79, 188.5), (143.5, 2501.0), (0.053, 0.163), (0.019, 0.345),
    (0.0, 0.427), (0.0, 0.201), (0.106, 0.304), (0.05, 0.097), (0.112, 2.873), (0.36, 4.885),
    (0.757, 21.98), (6.802, 542.2), (0.002, 0.031), (0.002, 0.135), (0.0, 0.396), (0.0, 0.053),
    (0.008, 0.079), (0.001, 0.03), (7.93, 36.04), (12.02, 49.54), (50.41, 251.2), (185.2, 4254.0),
    (0.071, 0.223), (0.027, 1.058), (0.0, 1.252), (0.0, 0.291), (0.156, 0.664), (0.055, 0.208),
)  # fmt: skip
"""Least and greatest value of each feature, as the data set's documentation prints them."""


def breast_cancer() -> tuple[Array, Labels]:
    """scikit-learn's Breast Cancer Wisconsin: 569 rows of 30 features, benign 1, malignant -1."""
    path = _shipped("breast_cancer.csv", "breast-cancer")
    table = np.loadtxt(path, delimiter=",", skiprows=1)
    return table[:, :-1], (2 * table[:, -1] - 1).astype(np.int64)


def mnist(data_dir: Path | None) -> tuple[Array, Labels, str]:
    """Pixels / 255, shape (n, 784), labels, and the split read.

    The training set where the folder ``mnist`` has it, the test set of 10 000 otherwise; idx files,
    gzipped or not.

    Raises:
        DataMissing: for a missing file, labels beside images that are there included.
        DataDamaged: for a file that is no idx file, or labels that are not one digit an image.
    """
    try:
        return *_mnist("train", data_dir), "train"
    except DataMissing:
        if _has_images("train", data_dir):
            raise
    return *_mnist("t10k", data_dir), "test"


def _has_images(prefix: str, data_dir: Path | None) -> bool:
    stem = f"mnist/{prefix}-images-idx3-ubyte"
    return data_dir is not None and any((data_dir / (stem + end)).is_file() for end in ("", ".gz"))


def _mnist(prefix: str, data_dir: Path | None) -> tuple[Array, Labels]:
    images, labels = f"mnist/{prefix}-images-idx3-ubyte", f"mnist/{prefix}-labels-idx1-ubyte"
    image_file = find("mnist", data_dir, images, images + ".gz")
    label_file = find("mnist", data_dir, labels, labels + ".gz")
    pixels, digit = read_idx(image_file), read_idx(label_file)
    if pixels.ndim != 3 or pixels.size == 0:
        raise DataDamaged(image_file, f"expected images (n, rows, columns), got {pixels.shape}")
    if digit.shape != (len(pixels),):
        raise DataDamaged(label_file, f"expected {len(pixels)} labels, got {digit.shape}")
    if digit.max() > 9:
        raise DataDamaged(label_file, f"expected digits from 0 to 9, got {digit.max()}")
    return pixels.reshape(len(pixels), -1).astype(np.float64) / 255.0, digit.astype(np.int64)


def read_idx(path: Path) -> NDArray[np.uint8]:
    """The unsigned bytes of an idx file (LeCun's format), gzipped if it ends in ``.gz``.

    Raises:
        DataDamaged: when the header or the number of bytes after it is not as it must be.
    """
    raw = content(path)
    if len(raw) < 4 or raw[:3] != b"\x00\x00\x08":
        raise DataDamaged(path, f"Expected an idx file of unsigned bytes, it starts {raw[:4]!r}")
    ndim = raw[3]
    if not 1 <= ndim <= 4 or len(raw) < 4 + 4 * ndim:
        raise DataDamaged(
            path, f"expected 1 to 4 sizes in the header, got {ndim} in {len(raw)} bytes"
        )
    shape = [int.from_bytes(raw[4 + 4 * i : 8 + 4 * i], "big") for i in range(ndim)]
    body, wanted = np.frombuffer(raw, np.uint8, offset=4 + 4 * ndim), math.prod(shape)
    if len(body) != wanted:
        raise DataDamaged(path, f"Expected {wanted} bytes after the header, got {len(body)}")
    return body.reshape(shape)


def a9a(data_dir: Path | None, *, split: str = "train") -> tuple[Array, Labels]:
    """LIBSVM's a9a: 123 binary features and labels -1 or 1; 32 561 train or 16 281 test rows.

    Raises:
        DataDamaged: with the first line that is none of these.
    """
    from sklearn.datasets import load_svmlight_file

    path = find("a9a", data_dir, "a9a/a9a" if split == "train" else "a9a/a9a.t")
    rows = lines(path)
    if not rows:
        raise DataDamaged(path, "expected rows, got none")
    for number, row in enumerate(rows, start=1):
        if _LIBSVM.fullmatch(row) is None:
            raise DataDamaged(path, "expected '±1 index:value ...'", number)
    try:
        features, labels = load_svmlight_file(str(path), n_features=123)
    except (ValueError, OverflowError) as error:
        raise DataDamaged(path, "expected indices up to 123 in rising order") from error
    return np.asarray(features.todense(), dtype=np.float64), labels.astype(np.int64)


_LIBSVM = re.compile(r"[+-]?1( [1-9][0-9]{0,2}:[0-9]{1,9}(\.[0-9]{1,9})?)* *")


def wordnet_mammals(data_dir: Path | None) -> tuple[list[str], NDArray[np.int64]]:
    """The mammals' names in first-seen order and the closure's (descendant, ancestor) pairs.

    The pairs of a node with itself, which the file also lists, are left out.

    Raises:
        DataDamaged: with the first line that has not two names.
    """
    path = find("wordnet-mammals", data_dir, "wordnet_mammals/wordnet_mammals.tsv")
    index: dict[str, int] = {}
    pairs: list[tuple[int, int]] = []
    for number, line in enumerate(lines(path), start=1):
        child, ancestor, *_ = [*line.split("\t"), "", ""]
        if not child or not ancestor:
            raise DataDamaged(path, "expected child<tab>parent", number)
        i, j = index.setdefault(child, len(index)), index.setdefault(ancestor, len(index))
        if i != j:
            pairs.append((i, j))
    if not pairs:
        raise DataDamaged(path, "expected pairs of names, got none")
    return list(index), np.array(pairs, dtype=np.int64)


def wordnet_embedding(data_dir: Path | None) -> tuple[list[str], Array, Array]:
    """The mammals' names, features (n, r) and points of the Poincaré disk (n, 2), as published.

    Raises:
        DataDamaged: no archive of numpy, or not one finite row of each for every name.
    """
    path = find("wordnet-embedding", data_dir, "wordnet_hsp/wordnet_hsp.npz")
    try:
        with np.load(io.BytesIO(content(path)), allow_pickle=False) as archive:
            if sum(one.file_size for one in archive.zip.infolist()) > MOST_BYTES:
                raise DataDamaged(path, f"expected at most {MOST_BYTES} bytes unpacked, got more")
            names, features, points = (archive[k] for k in ("names", "features", "poincare"))
    except DataDamaged:
        raise
    except Exception as error:  # a broken zip, deflate stream or header: numpy raises of any kind
        raise DataDamaged(path, "expected arrays names, features and poincare") from error
    kinds = (names.dtype.kind, features.dtype.kind, points.dtype.kind)
    shapes = (names.ndim, features.shape[:-1], points.shape)
    if kinds != ("U", "f", "f") or shapes != (1, names.shape, (*names.shape, 2)):
        raise DataDamaged(path, "expected a row of features and a point of the disk for each name")
    if not np.isfinite(features).all() or not (np.square(points).sum(-1) < 1).all():
        raise DataDamaged(path, "expected finite features, and points inside the unit disk")
    return [str(name) for name in names], features, points
