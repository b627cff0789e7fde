"""Five principal directions of three csv files, each behind the door of its site's own process.

Every site is a process of its own (`manifed site`): it alone opens its file, clips, adds noise of
the operating system, and writes what it answered into its own ledger before it answers. The server
sees noised means alone. Beside them is what the largest site finds by itself, at the same price.
The score is the variance of public rows along the five directions, over the most that five have.
"none" reads the files without a door, since a site answers nothing without noise.

python -m examples.site_doors [--seeds 3] [--rounds 30] [--out DIR]
"""

import csv
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
from flwr.app import Context, RecordDict
from sklearn.datasets import load_digits
from torch import Tensor

from examples.common import Scores, arguments, told
from manifed.experiment.load import load
from manifed.experiment.schema import Experiment
from manifed.flower.apps import server_app_of
from manifed.flower.client import client_app_of
from manifed.flower.grids import InlineGrid
from manifed.runs.folder import RunFolder

EPSILONS = (1.0, 4.0, None)
DELTA, DIRECTIONS, SIZES = 1e-4, 5, (897, 400, 200)
PIXELS = [f"p{i}" for i in range(64)]


def rows() -> Tensor:
    """1797 images of 64 numbers from 0 to 16."""
    return torch.tensor(load_digits(return_X_y=True)[0])


def write(folder: Path) -> Tensor:
    """Three files of private rows; returns 300 public ones, as a config reads them."""
    every, start = rows(), 300
    for i, size in enumerate(SIZES):
        with (folder / f"site-{i}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(PIXELS)
            writer.writerows(every[start : start + size].int().tolist())
        (folder / f"site-{i}.csv").chmod(0o600)
        start += size
    return every[:300] / 64


def experiment(
    folder: Path, epsilon: float | None, seed: int, rounds: int, sites: int
) -> tuple[Experiment, Path]:
    """The config that server and sites agree on, and its file."""
    private = f"""
[privacy]
kind = "example-level"
l2_norm_clip = 1.0
noise = {{ kind = "target", epsilon = {epsilon}, delta = {DELTA}, adversary = "server" }}
noise_source = "os"
"""
    text = f"""
problem = {{ kind = "kpca", num_components = {DIRECTIONS}, on = "grassmann", scaling = "mean" }}
training = {{ kind = "rsgd", step_size = 2.0, minibatch = {{ kind = "full" }} }}
output = {{ directory = "{folder / "run"}", quiet = true }}
evaluation = {{ is_enabled = false }}
[federation]
num_clients = {sites}
num_rounds = {rounds}
seed = {seed}
num_examples = {list(SIZES[:sites])}
[data]
kind = "file"
examples = "rows"
columns = {PIXELS}
range = [0, 16]
rescale_to = [0, 0.25]
row_norm = 1.0
outside = "clip"
""".replace("'", '"')
    path = folder / "experiment.toml"
    path.write_text(text + (private if epsilon is not None else ""), encoding="utf-8")
    return load(path), path


@contextmanager
def doors(folder: Path, config: Path, epsilon: float, sites: int) -> Generator[list[Path]]:
    """The sockets of the sites' processes, which end with the block."""
    homes = [folder / f"door-{i}" for i in range(sites)]
    with ExitStack() as started:
        processes: list[subprocess.Popen[str]] = []
        for number, home in enumerate(homes):
            home.mkdir(mode=0o700)
            command = [
                *(sys.executable, "-m", "manifed", "site", "--config", str(config)),
                *("--data", str(folder.parent / f"site-{number}.csv")),
                *("--ledger", str(home / "ledger"), "--socket", str(home / "site.sock")),
                *("--partition", str(number)),
                *("--max-epsilon", repr(epsilon), "--delta", str(DELTA)),
            ]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            started.callback(process.communicate)
            started.callback(process.terminate)
            processes.append(process)
        for number, process in enumerate(processes):
            assert process.stdout is not None
            if not process.stdout.readline().startswith("ready"):
                raise RuntimeError(f"site {number} did not start")
        yield [home / "site.sock" for home in homes]


def directions(
    files: Path, epsilon: float | None, seed: int, rounds: int, sites: int, *, is_shut: bool
) -> Tensor:
    """The frame (64, 5) that some sites release together; ``is_shut``: from behind their doors."""
    with tempfile.TemporaryDirectory(dir=files) as name, ExitStack() as stack:
        folder = Path(name)
        config, path = experiment(folder, epsilon, seed, rounds, sites)
        nodes = [{"data-path": str(files / f"site-{i}.csv")} for i in range(sites)]
        if is_shut and epsilon is not None:
            sockets = stack.enter_context(doors(folder, path, epsilon, sites))
            nodes = [{"site-socket": str(socket)} for socket in sockets]
        grid = InlineGrid(client_app_of(lambda _: config), sites, {}, lambda i: {**nodes[i]})
        server_app_of(lambda _: config)(grid, Context(1, 1, {}, RecordDict(), {}))
        return RunFolder.open(folder / "run").load_tensors("model")["x"]


def captured(frame: Tensor, test: Tensor) -> float:
    """The variance of rows (n, 64) along a frame, over that along the best."""
    moment = test.T @ test
    best = torch.linalg.eigvalsh(moment)[-DIRECTIONS:].sum()
    return float((frame * (moment @ frame)).sum() / best)


def scores(seeds: int, rounds: int, epsilons: Sequence[float | None] = EPSILONS) -> Scores:
    """The share of the best five directions' variance."""
    with tempfile.TemporaryDirectory() as name:
        files = Path(name)
        test = write(files)
        return {
            which: {
                "none" if epsilon is None else f"{epsilon:g}": [
                    captured(
                        directions(files, epsilon, seed, rounds, sites, is_shut=sites > 1), test
                    )
                    for seed in range(seeds)
                ]
                for epsilon in epsilons
            }
            for which, sites in (("three sites", 3), ("largest site alone", 1))
        }


def main(argv: Sequence[str] | None = None) -> int:
    """Run, draw and tell."""
    given = arguments(argv, __doc__)
    found = scores(given.seeds, given.rounds)
    return told("site-doors", found, "Five directions behind doors", "variance captured", argv)


if __name__ == "__main__":
    sys.exit(main())
