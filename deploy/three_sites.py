"""The made-up data of the examples: python deploy/three_sites.py FOLDER writes a file a site.

north.csv, middle.csv and south.csv have five measurements a patient; north-covariances.csv and the
others have the covariance matrix of three channels in each of many short recordings, and a state.
All come from one fixed seed, so the files are the same everywhere; each is for its owner (0600).
"""

import argparse
import csv
import io
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from manifed.durable import make_folder, write_atomically

SEED = 20260801
PATIENTS = {"north": 120, "middle": 80, "south": 200}
RECORDINGS = {"north": 60, "middle": 40, "south": 80}
MEASURED = {"age": 50, "bmi": 26, "glucose": 95, "pressure": 125, "pulse": 72}
SPREAD = np.array([9.0, 2.5, 8.0, 10.0, 6.0])
DIRECTION = np.array([0.4, 0.3, 0.5, 0.65, -0.28])
STATES = ("rest", "move")
AXES, TIMES = "xyz", 40


def tables() -> dict[str, bytes]:
    """File name to content, the same on every call."""
    made: dict[str, bytes] = {}
    for number, (site, count) in enumerate(PATIENTS.items()):
        draws = np.random.default_rng([SEED, number])
        common = draws.normal(size=(count, 1)) * (DIRECTION * 2.5)
        own = draws.normal(size=(count, len(DIRECTION))) * 0.5
        rows = np.array(list(MEASURED.values())) + (common + own) * SPREAD
        made[f"{site}.csv"] = _csv(MEASURED, [[f"{cell:.1f}" for cell in row] for row in rows])
    columns = [a + b for a in AXES for b in AXES]
    mixing = np.eye(len(AXES)), np.eye(len(AXES)) * 1.5 + np.eye(len(AXES), k=1)
    for number, (site, count) in enumerate(RECORDINGS.items()):
        draws = np.random.default_rng([SEED, 100 + number])
        lines: list[list[str]] = []
        for i in range(count):
            signal = mixing[i % 2] @ draws.normal(size=(len(AXES), TIMES))
            covariance = np.round(signal @ signal.T / TIMES, 4)
            lines.append([f"{cell:.4f}" for cell in covariance.ravel()] + [STATES[i % 2]])
        made[f"{site}-covariances.csv"] = _csv([*columns, "state"], lines)
    return made


def _csv(header: Iterable[str], lines: list[list[str]]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([list(header), *lines])
    return text.getvalue().encode("ascii")


def main() -> int:
    """Write the files; 2 when the folder refuses."""
    parser = argparse.ArgumentParser(description="Write the made-up data of the examples.")
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    try:
        make_folder(folder)
        for name, content in tables().items():
            write_atomically(folder / name, content)
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
