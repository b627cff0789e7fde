"""What two threads gain over one for a round of logistic regression, and what two processes do.

    python -m benchmarks.threads [--turns 15] [--out benchmarks/results] [--json]

Clients of 20 rows, full batches, the compiled kernel. Wall time of a round with one thread over
that with two, medians of interleaved turns; and, as what the machine has to give, twice the time
of a round in one process over that in two which run it beside each other.
"""

import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from statistics import median

import numpy as np
import torch

from benchmarks.common.page import Page
from benchmarks.common.stopwatch import circumstances, prepare, table
from manifed.algorithms.rsgd import RSGD
from manifed.federation.stack import StackTransport
from manifed.oracles.minibatch import Full
from manifed.problems.linear import Logistic
from manifed.runs.fit import Round, federate
from manifed.setting import ExampleLevel

SHAPES = ((40_000, 10, 20), (5_000, 200, 20), (600, 2000, 5))
"""Clients, dimension and local steps."""
PRIVATE = ExampleLevel(epsilon=2.0, delta=1e-7, l2_norm_clip=1.0, noise_source="seed")


def rounds(shape: tuple[int, int, int], *, is_private: bool, threads: int) -> Iterator[Round]:
    """Rounds of a made-up federation, without an end."""
    clients, d, steps = shape
    generator = np.random.default_rng(0)
    feature = generator.standard_normal((clients, 20, d)) / d**0.5
    label = np.sign(generator.standard_normal((clients, 20)))
    training = RSGD(step_size=0.1, local_steps=steps, minibatch=Full(), maps="retraction")
    return federate(
        Logistic(), {"feature": feature, "label": label}, training, rounds=10_000,
        privacy=PRIVATE if is_private else None, start=torch.zeros(d, dtype=torch.float64),
        transport=partial(StackTransport, at_once=None, memory_budget_mb=2048, threads=threads),
    )  # fmt: skip


def seconds(going: Iterator[Round]) -> float:
    """The wall time of the next round."""
    begun = time.perf_counter()
    next(going)
    return time.perf_counter() - begun


_own = dict[str, Iterator[Round]]()
"""Of a process beside another."""


def _begin(shape: tuple[int, int, int], is_private: bool) -> None:
    prepare("")
    _own["rounds"] = rounds(shape, is_private=is_private, threads=1)
    next(_own["rounds"])


def _own_seconds(_: int) -> float:
    return seconds(_own["rounds"])


def raced(shape: tuple[int, int, int], turns: int, *, is_private: bool) -> list[float]:
    """How much quicker two threads are than one, and two processes than one."""
    runs = {n: rounds(shape, is_private=is_private, threads=n) for n in (1, 2)}
    taken: dict[object, list[float]] = {1: [], 2: [], "alone": [], "beside": []}
    with ProcessPoolExecutor(
        2, mp_context=get_context("spawn"), initializer=_begin, initargs=(shape, is_private)
    ) as pool:
        list(pool.map(_own_seconds, range(4)))
        for turn in range(turns + 2):
            found = {n: seconds(going) for n, going in runs.items()}
            alone = pool.submit(_own_seconds, 0).result()
            beside = max(pool.map(_own_seconds, range(2)))
            for key, value in {**found, "alone": alone, "beside": beside}.items():
                taken[key] += [value] * (turn > 1)
    one, two, alone, beside = (median(each) for each in taken.values())
    return [one / two, 2 * alone / beside]


def main() -> None:
    """Print the table; with --json the numbers as the last line."""
    page = Page(__doc__, "threads.md", turns=15)
    given = page.parser.parse_args()
    prepare("")
    page.say(f"# Two threads\n\n{circumstances()}")
    page.explain()
    found = {
        f"d = {shape[1]}, {shape[0]} clients, {shape[2]} steps{', private' * is_private}": raced(
            shape, given.turns, is_private=is_private
        )
        for shape in SHAPES
        for is_private in (False, True)
    }
    rows = [[name, *(f"{gain:.2f}" for gain in gains)] for name, gains in found.items()]
    page.say("\n" + table(["a round of", "two threads", "two processes"], rows))
    page.save(given, found)


if __name__ == "__main__":
    main()
