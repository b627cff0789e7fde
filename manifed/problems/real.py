"""Real data sets: digits, Breast Cancer, MNIST and a9a.

scikit-learn ships the first two; the others lie in the folder that MANIFED_DATA names.
"""

import gzip
import importlib.util
import math
import re
import zlib
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from manifed.durable import MOST_BYTES
from manifed.errors import Missing, optional
from manifed.fields import PositiveCount
from manifed.problems.data import Array, Dataset, DataSource, ExampleKind, build, generator

_Labels = NDArray[np.int64]


class DataMissing(FileNotFoundError):
    """Error: a data file is not where it was looked for; the text says where and what to do."""

    def __init__(self, name: str, looked_for: str) -> None:
        super().__init__(
            f"Data set {name!r}: no file {looked_for}; give --data-dir or set MANIFED_DATA to a "
            "folder that has it"
        )


class DataDamaged(ValueError):
    """Error: a data file does not hold what it must; the text says which file and line.

    It never quotes a record: an error may be read by others than the owner of the data.
    """

    def __init__(self, path: Path, what: str, line: int | None = None) -> None:
        where = str(path) if line is None else f"{path}, line {line}"
        super().__init__(f"{where}: {what}; restore the file from where it came")


def content(path: Path, most: int = MOST_BYTES) -> bytes:
    """Reads the bytes of a file, unpacked if it ends in ``.gz``.

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


def find(name: str, data_dir: Path | None, *candidates: str) -> Path:
    """Returns the first of ``candidates`` (paths below ``data_dir``) that exists.

    Raises:
        DataMissing: none does.
    """
    if data_dir is None:
        raise DataMissing(name, f"{candidates[0]} (no data folder was named)")
    for path in (data_dir / candidate for candidate in candidates):
        if path.is_file():
            return path
    raise DataMissing(name, f"{data_dir / candidates[0]}")


# -- pixels ---------------------------------------------------------------------------------------
class _Images(DataSource):
    """Rows of pixels, optionally a subset, less their mean, or of unit norm (in that order)."""

    has_labels: bool | None = None
    """Whether examples carry the digit as a label. None: no labels."""
    num_examples: PositiveCount | None = None
    """Size of a uniform subset. None: all."""
    digit: int | None = Field(default=None, ge=0, le=9)
    """Only images of this digit. None: all ten."""
    is_centred: bool = False
    """Subtract the mean of all rows of all clients. Refused with privacy."""
    is_unit_norm: bool = True
    """Scale every row to length 1."""

    @property
    def provides(self) -> ExampleKind:
        """Rows, with their digits if asked for."""
        return "labelled-rows" if self.has_labels else "rows"

    def mixes_records(self) -> str | None:
        """The mean of all rows moves with each of them."""
        if not self.is_centred:
            return None
        return (
            "data.is_centred: one record moves the mean and so every client's rows, expected false "
            "with privacy, got true"
        )

    def _dataset(self, pixels: Array, labels: _Labels, seed: int, **meta: Any) -> Dataset:
        if self.digit is not None:
            pixels = pixels[labels == self.digit]
            labels = labels[labels == self.digit]
        chosen = subset(len(pixels), self.num_examples, generator(seed, "data"))
        rows = pixels[chosen]
        labels = labels[chosen]
        if self.is_centred:
            rows = rows - rows.mean(0)
        if self.is_unit_norm:
            norms = np.linalg.norm(rows, axis=1, keepdims=True)
            rows = rows / np.where(norms > 0, norms, 1.0)
        arrays = {"z": rows}
        if self.has_labels:
            arrays["label"] = labels.astype(np.float64)
        return build(arrays, labels=labels, meta=meta)


class Digits(_Images):
    """scikit-learn's 1797 digits of 8 x 8 pixels, divided by 16."""

    kind: Literal["digits"] = "digits"

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """Rows ``z`` (n, 64) and the digits as labels.

        Read from the file: importing scikit-learn would cost as much as a whole quick run.
        """
        found = np.loadtxt(_shipped("data/digits.csv.gz"), delimiter=",")
        return self._dataset(found[:, :-1] / 16.0, found[:, -1].astype(np.int64), seed)


class Mnist(_Images):
    """MNIST, 28 x 28 pixels divided by 255: the training set if present, else the test set."""

    kind: Literal["mnist"] = "mnist"

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """Rows ``z`` (n, 784), the digits as labels, and which split was read in ``meta``.

        The test set of 10 000 where the folder ``mnist`` has no other; idx files, gzipped or not.

        Raises:
            DataMissing: for a missing file, labels beside images that are there included.
            DataDamaged: for a file that is no idx file, or labels that are not one digit an image.
        """
        stems = {"train": "train", "t10k": "test"}
        images = [f"mnist/{stem}-images-idx3-ubyte{end}" for stem in stems for end in ("", ".gz")]
        image_file = find("mnist", data_dir, *images)
        stem = image_file.name.partition("-")[0]
        label = f"mnist/{stem}-labels-idx1-ubyte"
        label_file = find("mnist", data_dir, label, f"{label}.gz")
        pixels = _read_idx(image_file)
        shown = _read_idx(label_file)
        if pixels.ndim != 3 or pixels.size == 0:
            raise DataDamaged(image_file, f"expected images (n, rows, columns), got {pixels.shape}")
        if shown.shape != (len(pixels),):
            raise DataDamaged(label_file, f"expected {len(pixels)} labels, got {shown.shape}")
        if shown.max() > 9:
            raise DataDamaged(label_file, f"expected digits from 0 to 9, got {shown.max()}")
        rows = pixels.reshape(len(pixels), -1) / 255.0
        return self._dataset(rows, shown.astype(np.int64), seed, split=stems[stem])


def _read_idx(path: Path) -> NDArray[np.uint8]:
    """The unsigned bytes of an idx file (LeCun's format), gzipped if it ends in ``.gz``.

    Raises:
        DataDamaged: when the header or the number of bytes after it is not as it must be.
    """
    raw = content(path)
    ndim = raw[3] if raw[:3] == b"\x00\x00\x08" and len(raw) > 3 else 0
    start = 4 + 4 * ndim
    shape = [int.from_bytes(raw[at : at + 4], "big") for at in range(4, start, 4)]
    if not 1 <= ndim <= 4 or len(raw) != start + math.prod(shape):
        what = "expected an idx file: a header, and as many unsigned bytes as it says"
        raise DataDamaged(path, what)
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)


# -- two classes ----------------------------------------------------------------------------------
class _TwoClasses(DataSource):
    """Rows of features with a label -1 or 1."""

    provides: ClassVar[ExampleKind] = "classification"
    has_intercept: bool = True
    """Add a constant column of ones."""

    def _dataset(self, features: Array, labels: _Labels) -> Dataset:
        if self.has_intercept:
            features = np.hstack([features, np.ones((len(features), 1))])
        return build({"feature": features, "label": labels.astype(np.float64)}, labels=labels)


class A9a(_TwoClasses):
    """LIBSVM's a9a (UCI Adult): 123 binary features."""

    kind: Literal["a9a"] = "a9a"

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """``feature`` (32 561, 123 or 124) and ``label`` -1 or 1.

        Raises:
            DataDamaged: for a file that holds anything else.
        """
        with optional():
            import sklearn.datasets

        read: Any = sklearn.datasets.load_svmlight_file
        path = find("a9a", data_dir, "a9a/a9a")
        what = "expected lines '±1 index:value ...', of indices from 1 to 123 in rising order"
        try:
            rows, labels = read(str(path), n_features=123, zero_based=False)
            features = rows.toarray()
        except Exception:  # of any kind: it may quote a record
            raise DataDamaged(path, what) from None
        if not (len(labels) and np.isin(labels, (-1, 1)).all() and np.isfinite(features).all()):
            raise DataDamaged(path, what)
        return self._dataset(features, labels.astype(np.int64))


class BreastCancer(_TwoClasses):
    """Breast Cancer Wisconsin (UCI): 569 rows of 30 features.

    Features are mapped linearly to [-1, 1] from the ranges that the data set's documentation
    prints, which are public: no record moves what becomes of another.
    """

    kind: Literal["breast-cancer"] = "breast-cancer"

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """``feature`` (569, 30 or 31) and ``label`` 1 for benign, -1 for malignant."""
        path = _shipped("data/breast_cancer.csv")
        table = np.loadtxt(path, delimiter=",", skiprows=1)
        low, high = _breast_cancer_ranges().T
        features = np.clip((table[:, :-1] - low) / (high - low), 0.0, 1.0) * 2 - 1
        return self._dataset(features, (2 * table[:, -1] - 1).astype(np.int64))


def _breast_cancer_ranges() -> Array:
    """Least and greatest value of each feature, (30, 2), as the data set's documentation prints.

    The documentation is a file of scikit-learn's, and no record is looked at.
    """
    text = _shipped("descr/breast_cancer.rst").read_text(encoding="utf-8")
    found = np.array(re.findall(r"([\d.]+) +([\d.]+)$", text, re.MULTILINE), dtype=np.float64)
    if found.shape != (30, 2):
        raise DataMissing("breast-cancer", "descr/breast_cancer.rst with the ranges of 30 features")
    return found


def _shipped(name: str) -> Path:
    """A file that scikit-learn ships."""
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise Missing("sklearn")
    return Path(package.origin).parent / "datasets" / name


def subset(available: int, wanted: int | None, rng: np.random.Generator) -> _Labels:
    """Returns indices of a uniform subset, ``wanted`` of ``available``, increasing; None: all."""
    if wanted is None:
        return np.arange(available, dtype=np.int64)
    if wanted > available:
        raise ValueError(f"Expected num_examples <= {available}, got {wanted}")
    return np.sort(rng.choice(available, size=wanted, replace=False)).astype(np.int64)
