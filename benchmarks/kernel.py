"""What the compiled kernel takes for the local steps of logistic regression, and what it replaces.

    python -m benchmarks.kernel [--turns 7] [--chunks] [--out benchmarks/results] [--json]

Clients of 20 rows, full batches, one thread. Processor time of all clients' steps, medians of
interleaved turns: "kernel" with numba and "torch" without it, both in the chunks of
`federation.stack`; "loop", the whole steps written plainly in numpy, client by client, whose shard
stays in the cache; "stack", the same by torch's batched products over all clients; both with
normals of their own library; and "floor", of the loop the two products that a step needs alone,
with, where there is noise, the draws of this library's normals.
--chunks: the times of chunks of other sizes over those of the chunks of `federation.stack`.
"""

import os
import statistics
import sys
from collections.abc import Callable
from functools import partial
from time import process_time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.common import stopwatch
from benchmarks.common.page import Page
from manifed.oracles import fused
from manifed.oracles.minibatch import Ask, Query
from manifed.oracles.noisy_oracle import Draws, Oracle
from manifed.privacy.mechanism import ExampleMechanism, Noise
from manifed.privacy.random_numbers import NoiseSource, Stream
from manifed.problems.examples import Examples
from manifed.problems.linear import Logistic

SHAPES = ((1000, 10, 20), (1000, 50, 20), (1000, 200, 1), (1000, 200, 20), (300, 2000, 1),
          (300, 2000, 5))  # fmt: skip
"""Clients, dimension and local steps."""
ROWS = 20
CLIP = 1.0
MULTIPLIER = 2.0
SIZES = (0.25, 1, 2, 4, 8, 16, 32, 64)
CACHE = 8 * 2**20
"""Bytes of a chunk, as `federation.stack` cuts them."""


class Case:
    """Clients with made-up rows, and what each way does with them."""

    def __init__(self, clients: int, d: int, steps: int, *, is_private: bool) -> None:
        generator = torch.Generator().manual_seed(0)
        rows = torch.randn(clients, ROWS, d, generator=generator, dtype=torch.float64) / d**0.5
        labels = torch.randn(clients, ROWS, generator=generator, dtype=torch.float64).sign()
        self.examples = Examples({"feature": rows, "label": labels}, {"feature": 1, "label": 0})
        mechanism = ExampleMechanism(
            l2_norm_clip=CLIP if is_private else None,
            noise=Noise(multiplier=MULTIPLIER if is_private else 0.0),
        )
        self.query = Query.of(mechanism, Ask(), ROWS)
        self.source = NoiseSource.from_os()
        self.stddev = MULTIPLIER * CLIP / ROWS
        self.d, self.steps, self.is_private = d, steps, is_private
        self.cut(CACHE)

    def cut(self, most: float) -> None:
        """Makes chunks of at most so many bytes."""
        clients = len(self.examples["feature"])
        at_once = max(1, min(clients, int(most) // (ROWS * self.d * 8)))
        self.chunks = torch.arange(clients).split(at_once)

    def in_chunks(self, mib: float) -> None:
        """All steps, in chunks of another size."""
        self.cut(mib * 2**20)
        self.descend()

    def draws(self, chunk: Tensor) -> Draws:
        """The randomness of some clients."""
        return Draws(self.source, tuple(chunk.tolist()), 1)

    def descend(self) -> None:
        """The steps of all clients, by the kernel or by torch."""
        for chunk in self.chunks:
            own = self.examples.of_clients(slice(int(chunk[0]), int(chunk[-1]) + 1))
            oracle = Oracle(Logistic(), own, [(self.query,)] * len(chunk), self.draws(chunk))
            x = torch.zeros(len(chunk), self.d, dtype=torch.float64)
            if oracle.descent(x, self.steps, 0.5) is None:
                for _ in range(self.steps):
                    x = x - 0.5 * oracle.gradient(x)

    def loop(self) -> None:
        """Steps as one would write them for one client after the other."""
        generator = np.random.default_rng(0)
        examples = zip(
            self.examples["feature"].numpy(), self.examples["label"].numpy(), strict=True
        )
        for rows, labels in examples:
            lengths = np.sqrt((rows * rows).sum(1)) if self.is_private else None
            x = np.zeros(self.d)
            for _ in range(self.steps):
                slopes = -labels / (1 + np.exp(labels * (rows @ x)))
                if lengths is not None:
                    slopes *= np.minimum(1, CLIP / (abs(slopes) * lengths))
                mean = slopes @ rows / ROWS
                if self.is_private:
                    mean += self.stddev * generator.standard_normal(self.d)
                x -= 0.5 * mean

    def stack(self) -> None:
        """The same for all clients at once."""
        generator = torch.Generator().manual_seed(0)
        rows, labels = self.examples["feature"], self.examples["label"]
        lengths = rows.norm(dim=2) if self.is_private else None
        x = torch.zeros(len(rows), self.d, dtype=torch.float64)
        for _ in range(self.steps):
            slopes = -labels * torch.sigmoid(-labels * torch.bmm(rows, x[..., None])[..., 0])
            if lengths is not None:
                slopes *= (CLIP / (slopes.abs() * lengths)).clamp(max=1)
            mean = torch.bmm(slopes[:, None], rows)[:, 0] / ROWS
            if self.is_private:
                noise = torch.randn(mean.shape, generator=generator, dtype=torch.float64)
                mean += self.stddev * noise
            x -= 0.5 * mean

    def floor(self) -> None:
        """Two products a step, client by client, and the normals."""
        rows = self.examples["feature"].numpy()
        for chunk in self.chunks:
            if self.is_private:
                for step in range(self.steps):
                    self.draws(chunk).normals((self.d,), Stream.GRADIENT_NOISE, step)
            for i in chunk.tolist():
                own = rows[i]
                x = own[0]
                for _ in range(self.steps):
                    (own @ x) @ own


def compute_by(name: str) -> None:
    """Has the answers of linear models computed by torch, or by the kernel for any other name."""
    os.environ[fused.VARIABLE] = "torch" if name == "torch" else "numba"
    fused.kernel.cache_clear()
    fused.kernel()


def race(
    ways: dict[str, Callable[[], None]], turns: int, computed_by: str | None = None
) -> dict[str, float]:
    """Median milliseconds of interleaved turns after a first one.

    All ways are computed by the one that is named, or each by the one of its own name.
    """
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(turns + 1):
        for name, run in ways.items():
            compute_by(computed_by or name)
            begin = process_time()
            run()
            if turn:
                spent[name].append(1e3 * (process_time() - begin))
    return {name: statistics.median(each) for name, each in spent.items()}


def chunk_table(turns: int) -> str:
    """Times over those of chunks of 8 MiB, by the size of a chunk."""
    rows = []
    for clients, d, steps in ((4000, 10, 20), (2000, 50, 20), (1000, 200, 20), (300, 2000, 5)):
        case = Case(clients, d, steps, is_private=True)
        for name in ("numba", "torch"):
            ms = race({str(mib): partial(case.in_chunks, mib) for mib in SIZES}, turns, name)
            rows.append([str(d), name, *(f"{one / ms['8']:.2f}" for one in ms.values())])
    return stopwatch.table(["d", "way", *(f"{mib} MiB" for mib in SIZES)], rows)


def main() -> int:
    """Races all shapes, or all sizes of chunks."""
    page = Page(__doc__, "kernel.md", turns=7)
    page.parser.add_argument("--chunks", action="store_true", help="sizes of chunks instead")
    given = page.parser.parse_args()
    page.say(stopwatch.prepare("The compiled kernel"))
    page.explain()
    if given.chunks:
        print(chunk_table(given.turns))
        return 0
    rows, found = [], list[dict[str, Any]]()
    for clients, d, steps in SHAPES:
        for is_private in (False, True):
            case = Case(clients, d, steps, is_private=is_private)
            ways = {"kernel": case.descend, "torch": case.descend, "loop": case.loop,
                    "stack": case.stack, "floor": case.floor}  # fmt: skip
            ms = race(ways, given.turns)
            found.append(
                {"clients": clients, "d": d, "steps": steps, "is_private": is_private, **ms}
            )
            ratios = [f"{ms['kernel'] / ms[name]:.2f}" for name in list(ways)[1:]]
            rows.append([str(clients), str(d), str(steps), "yes" if is_private else "no",
                         *(f"{one:.1f}" for one in ms.values()), *ratios])  # fmt: skip
    page.say("\nMilliseconds of processor time:\n")
    over = [f"kernel / {name}" for name in list(ways)[1:]]
    page.say(stopwatch.table(["clients", "d", "steps", "private", *ways, *over], rows))
    page.save(given, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
