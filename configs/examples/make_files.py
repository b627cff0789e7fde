"""Write the made-up files of the examples: python configs/examples/make_files.py [FOLDER].

Three clients, small and always the same. FOLDER is ``files`` beside this script by default.
"""

import csv
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SIZES = (60, 40, 80)
Array = NDArray[np.float64]


def table(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A csv file."""
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])


def patients(rng: np.random.Generator, size: int) -> list[list[Any]]:
    """Age, body mass index, glucose, blood pressure and whether diabetes was found."""
    age = rng.uniform(25, 85, size)
    bmi = 18 + 0.08 * age + rng.normal(0, 3, size)
    glucose = 60 + 0.4 * age + 1.2 * bmi + rng.normal(0, 10, size)
    pressure = 95 + 0.5 * age + rng.normal(0, 8, size)
    ill = glucose + rng.normal(0, 8, size) > 115
    rows = np.round(np.stack([age, bmi, glucose, pressure], axis=1), 1).tolist()
    return [[f"p{i}", *row, "yes" if ill[i] else "no"] for i, row in enumerate(rows)]


def signals(rng: np.random.Generator, size: int) -> tuple[Array, NDArray[np.str_]]:
    """Recordings of 4 channels at 64 times, (n, 4, 64); "left" and "right" differ in channel."""
    side = rng.integers(0, 2, size)
    gain = np.ones((size, 4))
    gain[np.arange(size), side] = 2.5
    common = rng.standard_normal((size, 1, 64))
    x = gain[:, :, None] * rng.standard_normal((size, 4, 64)) + 0.5 * common
    return x, np.array(["left", "right"])[side]


def embedded(rng: np.random.Generator, size: int) -> list[list[float]]:
    """Points of the Poincaré disk that follow one feature."""
    feature = rng.uniform(-1, 1, size)
    radius = 0.4 + 0.2 * feature + rng.normal(0, 0.02, size)
    angle = 0.8 + feature + rng.normal(0, 0.05, size)
    columns = [feature, radius * np.cos(angle), radius * np.sin(angle)]
    return np.round(np.stack(columns, axis=1), 4).tolist()


def ratings(rng: np.random.Generator, size: int, basis: Array) -> list[list[Any]]:
    """Rows of rank 2 with a third of the cells empty."""
    full = rng.standard_normal((size, 2)) @ basis + rng.normal(0, 0.05, (size, basis.shape[1]))
    seen = rng.uniform(size=full.shape) < 2 / 3
    seen[:, :2] = True
    return [
        [f"{v:.3f}" if s else "" for v, s in zip(row, flags, strict=True)]
        for row, flags in zip(full, seen, strict=True)
    ]


def main(folder: Path) -> None:
    """All files of all three clients."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    basis = rng.standard_normal((2, 6))
    for i, size in enumerate(SIZES):
        header = ["id", "age", "bmi", "glucose", "pressure", "diabetes"]
        table(folder / f"patients-{i}.csv", header, patients(rng, size))
        x, side = signals(rng, size)
        np.savez(folder / f"signals-{i}.npz", x=x, side=side)
        table(folder / f"points-{i}.csv", ["feature", "px", "py"], embedded(rng, size))
        items = [f"item{j}" for j in range(basis.shape[1])]
        table(folder / f"ratings-{i}.csv", items, ratings(rng, size, basis))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "files")
