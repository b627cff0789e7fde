"""What privacy costs a round of the cohort engine: clip, noise, and the ledger's durable writes.

    python benchmarks/private_rounds.py [--clients 3 1000] [--processor] [--json]

Least squares, twenty rows a client, ten local steps of full gradients: without privacy; with a clip
and noise for every example and a ledger on disk, one line a round; the same with one line for
``BLOCK`` rounds (``federation.reserve_rounds``). In ten dimensions a run without privacy takes its
ten steps as one product, so it is there a second time with its steps taken one by one, as a private
run takes them: over the first stands what a user pays, over the second what clip, noise and ledger
cost. In thirty dimensions both take them one by one. The floor is that stepwise round with the
draw of the normals that a private one adds and nothing else, over the stepwise round alone: what
clip, checks and ledger come on top of. Rivals take turns of rounds; medians of wall times, the disk
that of --folder (default: the temporary one). --processor: the least processor times instead, which
leave out the wait for the disk and, of a block, all but a few rounds between two lines.
"""

import argparse
import contextlib
import itertools
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

from benchmarks.common.cases import CASES, STEPS
from benchmarks.common.stopwatch import race, table
from benchmarks.engines import interleaved, stepper
from manifed.experiment.load import parse
from manifed.experiment.schema import Experiment
from manifed.oracles.oracle import Draws, Oracle
from manifed.privacy.noise import NoiseSource, Stream

BLOCK, DIMENSIONS = 50, (10, 30)
PRIVACY = {
    "kind": "example-level",
    "l2_norm_clip": 1.0,
    "noise": {"kind": "multiplier", "noise_multiplier": 5.0},
    "delta": 1e-5,
}
KINDS = ("without", "one line a round", f"one line for {BLOCK} rounds")
STEPWISE = "without, step by step"
NORMALS = "the normals alone"


def config_of(kind: str, clients: int, dimension: int) -> Experiment:
    """Least squares, as benchmarks/engines.py runs it, of one of the three kinds."""
    case = CASES[f"least_squares_d{dimension}"](clients, 1_000_000)
    case["engine"] = {"execution": "cohort"}
    if kind in KINDS[1:]:
        case["privacy"] = PRIVACY
    if kind == KINDS[2]:
        case["federation"]["reserve_rounds"] = BLOCK
    return parse(case)


def step_by_step(step: Callable[[], None]) -> Callable[[], None]:
    """The rounds of ``step`` without the product that takes all local steps at once."""

    def stepped() -> None:
        with patch.object(Oracle, "descended", lambda *_: None):
            step()

    return stepped


def normals_alone(clients: int, dimension: int) -> Callable[[], None]:
    """The draw of the noise of one round after the other."""
    source, rounds, who = NoiseSource.from_seed(0), itertools.count(1), tuple(range(clients))

    def draw() -> None:
        steps = range(STEPS)
        Draws(source, who, next(rounds)).normals((dimension,), Stream.GRADIENT_NOISE, steps)

    return draw


def measure(
    clients: int, dimension: int, folder: Path | None, *, is_processor: bool
) -> dict[str, float]:
    """Seconds of a round of each kind."""
    with (
        tempfile.TemporaryDirectory(prefix="manifed-bench-", dir=folder) as root,
        contextlib.ExitStack() as held,
    ):
        rivals = {}
        for kind in (*KINDS, STEPWISE):
            own = Path(root) / kind.replace(" ", "-")
            own.mkdir()
            rivals[kind] = stepper(config_of(kind, clients, dimension), own, held)
        rivals[STEPWISE] = step_by_step(rivals[STEPWISE])
        rivals[NORMALS] = normals_alone(clients, dimension)
        return race(rivals, rounds=25) if is_processor else interleaved(rivals, most=20.0)


def main() -> None:
    """Print the table; with --json the ratios as the last line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[3, 1000])
    parser.add_argument("--folder", type=Path, help="where the ledgers are written")
    parser.add_argument("--processor", action="store_true", help="processor time, not wall time")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows, flat = [], {}
    for dimension in DIMENSIONS:
        for clients in arguments.clients:
            found = measure(clients, dimension, arguments.folder, is_processor=arguments.processor)
            bases = (KINDS[0], STEPWISE)
            ratios = [found[kind] / found[base] for base in bases for kind in KINDS[1:]]
            ratios.append(1 + found[NORMALS] / found[STEPWISE])
            of = f"d{dimension}_{clients}"
            flat |= {
                f"{of}_private_over_plain": ratios[0],
                f"{of}_blocks_over_plain": ratios[1],
                f"{of}_private_over_stepwise": ratios[2],
                f"{of}_blocks_over_stepwise": ratios[3],
                f"{of}_floor": ratios[4],
            }
            times = [f"{found[kind] * 1e3:.3g}" for kind in (*KINDS, STEPWISE, NORMALS)]
            rows.append([str(dimension), str(clients), *times, *(f"{r:.2f}" for r in ratios)])
    heads = [f"ms {kind}" for kind in (*KINDS, STEPWISE, NORMALS)]
    ends = ["x, each round", "x, blocks", "x stepwise, each round", "x stepwise, blocks", "floor"]
    print(table(["d", "clients", *heads, *ends], rows))
    if arguments.json:
        print(json.dumps(flat))


if __name__ == "__main__":
    main()
