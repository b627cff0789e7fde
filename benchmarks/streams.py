"""Many clients with one float32 row each in a memory map: what a round of all takes, and holds.

    python -m benchmarks.streams [--clients 100000] [--width 1000] [--budget 3072] [--rounds 3]

One step of least squares at every client, without privacy, in stacks of this process. The file is
made in --folder (default: the temporary one) and removed.
"""

import resource
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch

from benchmarks.common.page import Page
from benchmarks.common.stopwatch import circumstances
from manifed.algorithms.rsgd import RSGD
from manifed.algorithms.tangent_mean import TangentMean
from manifed.errors import ConfigError
from manifed.federation.stack import StackTransport
from manifed.oracles.minibatch import Full
from manifed.problems.examples import Examples
from manifed.problems.linear import LeastSquares
from manifed.runs.fit import federate


def written(path: Path, clients: int, width: int) -> np.ndarray:
    """A memory map of rows of length about one."""
    shape = (clients, width)
    rows = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=shape)
    generator = np.random.default_rng(0)
    for part in np.array_split(rows, max(1, clients // 10_000)):
        part[:] = generator.standard_normal(part.shape, dtype=np.float32) / width**0.5
    return rows


def main() -> None:
    """Prints seconds of each round and the peak of the resident set."""
    page = Page(__doc__, "streams.md", clients=100_000, width=1000, budget=3072, rounds=3)
    page.parser.add_argument("--folder", type=Path)
    given = page.parser.parse_args()
    page.say(circumstances())
    training = RSGD(step_size=0.1, local_steps=1, minibatch=Full(), maps="retraction")
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        rows = torch.from_numpy(written(Path(folder) / "rows.npy", given.clients, given.width))
        targets = torch.zeros(given.clients, dtype=torch.float32)
        shards = [
            Examples({"feature": rows[i : i + 1], "target": targets[i : i + 1]})
            for i in range(given.clients)
        ]
        way = partial(StackTransport, at_once=None, memory_budget_mb=given.budget)
        seconds = []
        try:
            running = federate(
                LeastSquares(), shards, (training, TangentMean()), rounds=given.rounds,
                start=torch.zeros(given.width, dtype=torch.float32), transport=way,
            )  # fmt: skip
            for _ in range(given.rounds):
                begun = time.perf_counter()
                next(running)
                seconds.append(time.perf_counter() - begun)
        except ConfigError as error:
            page.say(str(error))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    page.say(f"rounds: {', '.join(f'{s:.2f}' for s in seconds)} s; peak {peak:.0f} MiB")
    page.save(given, {"seconds": seconds, "peak MiB": peak})


if __name__ == "__main__":
    main()
