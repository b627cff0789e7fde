"""Many clients with one float32 row each in a memory map: what a round of all takes, and holds.

    python -m benchmarks.streams [--clients 1000000] [--width 1000] [--budget 2048] [--rounds 10]

One step of least squares at every client, without privacy, in stacks of this process. The file is
made in --folder (default: the temporary one) and removed. Memory is what this process has written
to, after each round; pages of the file are the system's, which drops them when it needs room.
"""

import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch

from benchmarks.common.page import Page
from benchmarks.common.stopwatch import circumstances
from manifed.algorithms.rsgd import RSGD
from manifed.algorithms.tangent_mean import TangentMean
from manifed.errors import ConfigError
from manifed.federation.stack import StackTransport
from manifed.oracles.minibatch import Full
from manifed.problems.linear import LeastSquares
from manifed.runs.fit import federate


def write(path: Path, clients: int, width: int) -> None:
    """Writes rows of length about one, one a client."""
    shape = (clients, 1, width)
    rows = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=shape)
    generator = np.random.default_rng(0)
    for part in np.array_split(rows, max(1, clients // 10_000)):
        part[:] = generator.standard_normal(part.shape, dtype=np.float32) / width**0.5


def written_to() -> float:
    """MiB of memory of this process that are no file's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon"))


def main() -> None:
    """Prints seconds of each round and the memory after it."""
    page = Page(__doc__, "streams.md", clients=1_000_000, width=1000, budget=2048, rounds=10)
    page.parser.add_argument("--folder", type=Path)
    given = page.parser.parse_args()
    page.say(f"# A million clients in a memory map\n\n{circumstances()}")
    training = RSGD(step_size=0.1, local_steps=1, minibatch=Full(), maps="retraction")
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        path = Path(folder) / "rows.npy"
        write(path, given.clients, given.width)
        shards = {
            "feature": np.load(path, mmap_mode="r"),
            "target": np.zeros((given.clients, 1), np.float32),
        }
        way = partial(StackTransport, at_once=None, memory_budget_mb=given.budget)
        seconds, held = [], []
        try:
            running = federate(
                LeastSquares(), shards, (training, TangentMean()), rounds=given.rounds,
                start=torch.zeros(given.width, dtype=torch.float64), transport=way,
            )  # fmt: skip
            for _ in range(given.rounds):
                begun = time.perf_counter()
                next(running)
                seconds.append(time.perf_counter() - begun)
                held.append(written_to())
        except ConfigError as error:
            page.say(str(error))
    rates = [given.clients / s for s in seconds] or [0.0]
    page.say(
        f"rounds: {', '.join(f'{s:.2f}' for s in seconds)} s; {median(rates):,.0f} clients a second"
    )
    page.say(f"memory after a round: {', '.join(f'{m:.0f}' for m in held)} MiB")
    page.save(given, {"seconds": seconds, "MiB": held})


if __name__ == "__main__":
    main()
