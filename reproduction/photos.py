"""Region covariance descriptors: SPD matrices from patches of colour photographs.

Tuzel, Porikli, Meer: Region Covariance: A Fast Descriptor for Detection and Classification (2006).
Features of a pixel, ``nine``: x, y, R, G, B, |I_x|, |I_y|, |I_xx|, |I_yy|, with I the mean of the
channels. ``eleven``, of Utpala et al. (TMLR 2023), Appendix C.1, adds the length and the angle of
(|I_x|, |I_y|), with their filters and I the luminance. Both papers use PathMNIST, which is read
where it is (https://medmnist.com, pathmnist.npz); patches of scikit-learn's two photographs stand
in for it.
"""

from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, NonNegativeFloat

from manifed.fields import PositiveCount
from manifed.problems.data import Dataset, DataSource, ExampleKind, build, generator
from manifed.problems.real import DataDamaged, find, subset
from reproduction.mammals import arrays_of

Array = NDArray[np.float64]
Features = Literal["nine", "eleven"]

SOBEL = np.array([[1, 0, -1], [2, 0, -2], [1, 0, -1]]) / 4
"""The printed filter has the row [6, 0, -12] last, and the same one for both directions."""
SECOND = np.outer([1, 4, 6, 4, 1], [1, 0, -2, 0, 1]) / 32


def pixel_features(image: NDArray[Any]) -> Array:
    """The nine features of every pixel of an (h, w, 3) image, shape (h, w, 9), colours / 255."""
    colours = np.asarray(image, dtype=np.float64) / 255.0
    height, width = colours.shape[:2]
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    grey = np.pad(colours.mean(-1), 1, mode="edge")
    middle = grey[1:-1, 1:-1]
    up = grey[:-2, 1:-1]
    down = grey[2:, 1:-1]
    left = grey[1:-1, :-2]
    right = grey[1:-1, 2:]
    derivatives = [right - left, down - up, left - 2 * middle + right, up - 2 * middle + down]
    planes = [x, y, *np.moveaxis(colours, -1, 0), *(np.abs(plane) for plane in derivatives)]
    return np.stack(planes, axis=-1)


def eleven_features(image: NDArray[Any]) -> Array:
    """The eleven features of every pixel of an (h, w, 3) image, shape (h, w, 11)."""
    colours = np.asarray(image, dtype=np.float64) / 255.0
    y, x = np.mgrid[0 : colours.shape[0], 0 : colours.shape[1]].astype(np.float64)
    grey = colours @ np.array([0.299, 0.587, 0.114])
    from scipy import ndimage

    convolve = ndimage.convolve
    changes = [np.abs(convolve(grey, k)) for k in (SOBEL, SOBEL.T, SECOND, SECOND.T)]
    length = np.hypot(*changes[:2])
    angle = np.arctan2(changes[0], changes[1] + 1e-12)
    planes = [x, y, *np.moveaxis(colours, -1, 0), *changes, length, angle]
    return np.stack(planes, axis=-1)


def descriptors(
    image: NDArray[Any],
    *,
    features: Features = "nine",
    patch: int = 28,
    stride: int = 8,
    ridge: float = 1e-6,
    is_standardised: bool = False,
) -> Array:
    """Covariances of the k features in every patch plus ridge * (trace / k) * I, shape (n, k, k).

    ``is_standardised`` divides features by their standard deviation over the image first; the
    affine-invariant metric only notices through the ridge.
    """
    planes = pixel_features(image) if features == "nine" else eleven_features(image)
    if is_standardised:
        planes = planes / planes.reshape(-1, planes.shape[-1]).std(0)
    height, width, count = planes.shape
    if min(height, width) < patch:
        raise ValueError(f"Expected an image of at least {patch} x {patch}, got {height} x {width}")
    rows = []
    for top in range(0, height - patch + 1, stride):
        band = planes[top : top + patch]
        windows = np.lib.stride_tricks.sliding_window_view(band, patch, axis=1)[:, ::stride]
        pixels = np.moveaxis(windows, 1, 0).transpose(0, 1, 3, 2).reshape(-1, patch * patch, count)
        centred = pixels - pixels.mean(1, keepdims=True)
        rows.append(np.swapaxes(centred, 1, 2) @ centred / (patch * patch - 1))
    found = np.concatenate(rows)
    scale = np.trace(found, axis1=1, axis2=2)[:, None, None] / count
    return found + ridge * scale * np.eye(count)


def sample_photos(**options: Any) -> tuple[Array, NDArray[np.int64]]:
    """Descriptors of scikit-learn's china.jpg and flower.jpg, and which photo (0, 1) each is of."""
    from sklearn.datasets import load_sample_images

    bunch = load_sample_images()
    each = [descriptors(image, **options) for image in bunch.images]
    photo = np.concatenate([np.full(len(part), i, dtype=np.int64) for i, part in enumerate(each)])
    return np.concatenate(each), photo


class SamplePhotos(DataSource):
    """Covariance descriptors of patches of scikit-learn's two photographs."""

    kind: Literal["reproduction.photos:SamplePhotos"] = "reproduction.photos:SamplePhotos"
    provides: ClassVar[ExampleKind] = "spd-matrices"
    features: Features = "nine"
    """Features of a pixel: nine, or eleven with second derivatives."""
    photo: Literal[0, 1] | None = None
    """Only china.jpg (0) or flower.jpg (1); null takes both."""
    patch: int = Field(default=28, ge=4)
    """Side of a square patch, of which a covariance matrix is an example."""
    stride: PositiveCount = 8
    """From one patch to the next."""
    ridge: NonNegativeFloat = 1e-6
    """Times trace / k, added to the diagonal of each matrix."""
    is_standardised: bool = False
    """Divide features by their deviation over the whole photograph: refused with privacy."""
    num_examples: PositiveCount | None = None
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
        z, photo = sample_photos(
            features=self.features,
            patch=self.patch,
            stride=self.stride,
            ridge=self.ridge,
            is_standardised=self.is_standardised,
        )
        if self.photo is not None:
            z = z[photo == self.photo]
            photo = photo[photo == self.photo]
        chosen = subset(len(z), self.num_examples, generator(seed, "data"))
        return build({"z": z[chosen]}, labels=photo[chosen])


class PathMnist(DataSource):
    """A covariance descriptor of each image of PathMNIST, 28 x 28 pixels in colour.

    `--set 'data={kind="reproduction.photos:PathMnist"}'` puts it in the place of the photographs.
    """

    kind: Literal["reproduction.photos:PathMnist"] = "reproduction.photos:PathMnist"
    provides: ClassVar[ExampleKind] = "spd-matrices"
    features: Features = "nine"
    """Features of a pixel: nine, or eleven with second derivatives."""
    splits: tuple[Literal["train", "val", "test"], ...] = Field(default=("train",), min_length=1)
    """Of MedMNIST, read one after another."""
    tissue: int | None = Field(default=None, ge=0, le=8)
    """Only images of this class, as 0 (ADI) or 1 (BACK); null takes all nine."""
    ridge: NonNegativeFloat = 1e-6
    """Times trace / k, added to the diagonal of each matrix."""
    num_examples: PositiveCount | None = None
    """A uniform subset of this size; None keeps all."""

    def mixes_records(self) -> str | None:
        """None: a matrix is of its own image."""
        return None

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """Matrices ``z`` (n, k, k), k the number of features, labelled by the tissue.

        Raises:
            DataMissing: there is no pathmnist/pathmnist.npz.
            DataDamaged: it is not MedMNIST's archive of images and labels.
        """
        path = find("PathMNIST", data_dir, "pathmnist/pathmnist.npz")
        names = [f"{split}_{what}" for split in self.splits for what in ("images", "labels")]
        found = arrays_of(path, *names)
        images, labels = (np.concatenate(found[at::2]) for at in (0, 1))
        if images.shape[1:] != (28, 28, 3) or labels.size != len(images):
            raise DataDamaged(path, "expected images (n, 28, 28, 3) and a label for each")
        tissue = labels.reshape(-1).astype(np.int64)
        if self.tissue is not None:
            images, tissue = images[tissue == self.tissue], tissue[tissue == self.tissue]
        chosen = subset(len(images), self.num_examples, generator(seed, "data"))
        rows = [
            descriptors(image, features=self.features, ridge=self.ridge) for image in images[chosen]
        ]
        return build({"z": np.concatenate(rows)}, labels=tissue[chosen])
