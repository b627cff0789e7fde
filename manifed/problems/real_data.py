"""Configuration of the real data sets (readers: manifed/problems/readers.py)."""

from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from manifed.problems import covariance_descriptors, readers
from manifed.problems.dataset import Dataset, DataSource, ExampleKind, build, generator

Array = NDArray[np.float64]


class _Images(DataSource):
    """Rows of pixels, optionally a subset, shifted, or scaled to unit norm (in that order)."""

    has_labels: bool | None = None
    """Examples are images with the digit that they show; null: images alone."""
    num_examples: int | None = Field(default=None, ge=1)
    """A uniform subset of this size; null keeps all."""
    digit: int | None = Field(default=None, ge=0, le=9)
    """Only images of this digit; null keeps all ten."""
    is_centred: bool = False
    """Subtract the mean of all rows, of every client: refused with privacy."""
    centre: float | tuple[float, ...] | None = None
    """Subtract this public point, or this number from every pixel."""
    is_unit_norm: bool = True
    """Scale every row to length 1."""

    @property
    def provides(self) -> ExampleKind:
        """Rows, with their digits if asked for."""
        return "labelled-rows" if self.has_labels else "rows"

    @model_validator(mode="after")
    def _one_centre(self) -> "_Images":
        if self.is_centred and self.centre is not None:
            raise ValueError("is_centred: expected false beside a given centre, got true")
        return self

    def mixes_records(self) -> str | None:
        """The mean of all rows moves with each of them."""
        if not self.is_centred:
            return None
        return (
            "data.is_centred: one record moves the mean and so every client's rows, expected false "
            "with privacy, got true; give a public data.centre instead"
        )

    def _dataset(self, pixels: Array, labels: NDArray[np.int64], seed: int, **meta: Any) -> Dataset:
        if self.digit is not None:
            pixels, labels = pixels[labels == self.digit], labels[labels == self.digit]
        chosen = subset(len(pixels), self.num_examples, generator(seed, "data"))
        rows, labels = pixels[chosen], labels[chosen]
        if self.is_centred:
            rows = rows - rows.mean(0)
        arrays = {"z": self.shifted_and_scaled(rows)}
        if self.has_labels:
            arrays["label"] = labels.astype(np.float64)
        return build(arrays, labels=labels, meta=meta)

    def shifted_and_scaled(self, rows: Array) -> Array:
        """The rows less the public centre, of unit norm if asked for: each by itself, (n, d).

        Raises:
            ValueError: The centre has another length than a row.
        """
        if self.centre is not None:
            centre = np.asarray(self.centre)
            if centre.ndim and len(centre) != rows.shape[1]:
                raise ValueError(
                    f"data.centre: expected one number or {rows.shape[1]}, got {len(centre)}"
                )
            rows = rows - centre
        if self.is_unit_norm:
            norms = np.linalg.norm(rows, axis=1, keepdims=True)
            rows = rows / np.where(norms > 0, norms, 1.0)
        return rows


class Digits(_Images):
    """scikit-learn's 1797 digits of 8 x 8 pixels, divided by 16."""

    kind: Literal["digits"] = "digits"

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """Rows ``z`` (n, 64) and the digits as labels."""
        del data_dir
        return self._dataset(*readers.digits(), seed)


class Mnist(_Images):
    """MNIST, 28 x 28 pixels divided by 255: the training set if present, else the test set."""

    kind: Literal["mnist"] = "mnist"

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """Rows ``z`` (n, 784), the digits as labels, and which split was read in ``meta``."""
        pixels, labels, split = readers.mnist(data_dir)
        return self._dataset(pixels, labels, seed, split=split)


class SamplePhotos(DataSource):
    """Covariance descriptors of patches of scikit-learn's two photographs."""

    kind: Literal["sample-photos"] = "sample-photos"
    provides: ClassVar[ExampleKind] = "spd-matrices"
    features: covariance_descriptors.Features = "nine"
    """Features of a pixel: nine, or eleven with second derivatives."""
    photo: Literal[0, 1] | None = None
    """Only china.jpg (0) or flower.jpg (1); null takes both."""
    patch: int = Field(default=28, ge=4)
    """Side of a square patch, of which a covariance matrix is an example."""
    stride: int = Field(default=8, ge=1)
    """From one patch to the next."""
    ridge: float = Field(default=1e-6, ge=0)
    """Times trace / k, added to the diagonal of each matrix."""
    is_standardised: bool = False
    """Divide features by their deviation over the whole photograph: refused with privacy."""
    num_examples: int | None = Field(default=None, ge=1)
    """A uniform subset of this size; None keeps all."""

    def mixes_records(self) -> str | None:
        """The deviation over a photograph is that of all its patches."""
        if not self.is_standardised:
            return None
        return (
            "data.is_standardised: one record moves the deviation and so every client's "
            "descriptors, expected false with privacy, got true"
        )

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """Matrices ``z`` (n, k, k), k the number of features, labelled by the photograph."""
        del data_dir
        z, photo = covariance_descriptors.sample_photos(
            features=self.features,
            patch=self.patch,
            stride=self.stride,
            ridge=self.ridge,
            is_standardised=self.is_standardised,
        )
        if self.photo is not None:
            z, photo = z[photo == self.photo], photo[photo == self.photo]
        chosen = subset(len(z), self.num_examples, generator(seed, "data"))
        return build({"z": z[chosen]}, feature_ndim={"z": 2}, labels=photo[chosen])


class A9a(DataSource):
    """LIBSVM's a9a (UCI Adult): 123 binary features, a constant column if ``has_intercept``."""

    kind: Literal["a9a"] = "a9a"
    provides: ClassVar[ExampleKind] = "classification"
    split: Literal["train", "test"] = "train"
    """Which of the two published files."""
    has_intercept: bool = True
    """Add a constant column of ones."""

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """``feature`` (n, 123 or 124) and ``label`` -1 or 1."""
        del seed
        features, labels = readers.a9a(data_dir, split=self.split)
        if self.has_intercept:
            features = np.concatenate([features, np.ones((len(features), 1))], axis=1)
        return build({"feature": features, "label": labels.astype(np.float64)}, labels=labels)


class BreastCancer(DataSource):
    """Breast Cancer Wisconsin (UCI): 569 rows of 30 features, a constant column with an intercept.

    Features are mapped linearly to [-1, 1] from the ranges that the data set's documentation
    prints, which are public: no record moves what becomes of another.
    """

    kind: Literal["breast-cancer"] = "breast-cancer"
    provides: ClassVar[ExampleKind] = "classification"
    has_intercept: bool = True
    """Add a constant column of ones."""

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """``feature`` (569, 30 or 31), ``label`` 1 for benign and -1 for malignant."""
        del data_dir, seed
        features, labels = readers.breast_cancer()
        low, high = np.array(readers.BREAST_CANCER_RANGES).T
        features = np.clip((features - low) / (high - low), 0.0, 1.0) * 2 - 1
        if self.has_intercept:
            features = np.concatenate([features, np.ones((len(features), 1))], axis=1)
        return build({"feature": features, "label": labels.astype(np.float64)}, labels=labels)


def subset(available: int, wanted: int | None, rng: np.random.Generator) -> NDArray[np.int64]:
    """Indices of a uniform subset of ``wanted`` out of ``available``, increasing; all for None."""
    if wanted is None:
        return np.arange(available, dtype=np.int64)
    if wanted > available:
        raise ValueError(f"Expected num_examples <= {available}, got {wanted}")
    return np.sort(rng.choice(available, size=wanted, replace=False)).astype(np.int64)
