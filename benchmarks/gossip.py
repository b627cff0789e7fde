"""Decentralised rounds on the stacked engine beside a plain numpy loop of the same task.

    python benchmarks/gossip.py [--nodes 64] [--rounds 1000] [--repeats 15]

DECOR's least squares (d = 10) on a ring: gossip without privacy, and DECOR (a clipped gradient, own
noise and a mask on every edge). Neither writes a ledger. The numpy loop draws with numpy's
generator; the engine draws every number at its own address, so that engines and retries agree, and
checks what comes down and goes up. CPU time of a round, one thread, medians of interleaved runs.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common.page import Page
from benchmarks.common.stopwatch import prepare, table
from manifed.experiment.assembly import client_side, initial_point, plan_of
from manifed.experiment.load import parse
from manifed.federation.rounds import free, run_rounds
from manifed.federation.stacked import StackedTransport
from manifed.graphs.specs import Ring
from reproduction import decor_reference as reference

DIMENSION, STEP, OWN, MASK, CLIP = 10, 1e-3, 3.0, 20.0, 1.0
PRIVATE = {
    "kind": "correlated",
    "l2_norm_clip": CLIP,
    "noise_stddev": OWN,
    "mask_stddev": MASK,
    "delta": 1e-3,
}
CASES: dict[str, tuple[dict[str, Any], tuple[float, float, float | None]]] = {
    "gossip": ({"kind": "none"}, (0.0, 0.0, None)),
    "decor": (PRIVATE, (OWN, MASK, CLIP)),
}


def engine(kind: str, nodes: int, rounds: int) -> Callable[[], object]:
    """All rounds on the stacked engine; what is made before round 1 is not timed."""
    config = parse(
        {
            "name": "gossip-speed",
            "problem": {"kind": "least-squares", "scaling": "sum"},
            "data": {"kind": "scaled-identities", "num_clients": nodes, "dimension": DIMENSION},
            "federation": {
                "num_clients": nodes,
                "num_rounds": rounds,
                "partition": {"kind": "natural"},
            },
            "training": {"kind": kind, "graph": {"kind": "ring"}, "step_size": STEP},
            "privacy": CASES[kind][0],
        }
    )
    plan, side = plan_of(config), client_side(config)
    start = plan.server_update.initial(initial_point(config))

    def run() -> None:
        transport = StackedTransport(side, device="cpu", memory_budget_mb=64)
        for _ in run_rounds(plan, start, transport, free, num_rounds=rounds):
            pass

    return run


def numpy_loop(kind: str, nodes: int, rounds: int) -> Callable[[], object]:
    """The same task by `reproduction.decor_reference`."""
    task = reference.LeastSquares.draw(1, nodes, DIMENSION)
    own, mask, clip = CASES[kind][1]
    setting = reference.Setting(Ring().build(nodes), own, mask, STEP, rounds, clip)
    return lambda: reference.run(setting, task.gradients, task.start, 0)


def milliseconds(work: Callable[[], object], rounds: int) -> float:
    """CPU time of a round."""
    began = time.process_time()
    work()
    return (time.process_time() - began) / rounds * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path, help="folder whose gossip.md to write")
    given = parser.parse_args()
    page = Page()
    heading = prepare("Gossip beside a numpy loop")
    page.say(heading.replace("smallest of interleaved rounds", "medians of interleaved runs"))
    rows: list[list[str]] = []
    for kind in CASES:
        rivals = [make(kind, given.nodes, given.rounds) for make in (engine, numpy_loop)]
        times = [[milliseconds(one, given.rounds) for one in rivals] for _ in range(given.repeats)]
        ours, loop = (median(column) for column in zip(*times, strict=True))
        ratio = median(a / b for a, b in times)
        size = f"{given.nodes} x {given.rounds}"
        rows.append([kind, size, f"{ours:.3f}", f"{loop:.3f}", f"{ratio:.1f}"])
    page.say(table(["task", "nodes x rounds", "stacked, ms", "numpy loop, ms", "ratio"], rows))
    page.save(given.out, "gossip.md")


if __name__ == "__main__":
    main()
