"""Runs one seed of a config on several engines and compares the trajectories.

    python -m benchmarks.engines_agree CONFIG --rounds 10 [--engine inline ray] [--set A.B=VALUE]

The cost of every round is compared as well as the final model.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from manifed.cli.launch import Request, launch
from manifed.experiment.load import load
from manifed.flower.run_config import find

ENGINES = ("inline", "ray", "deployment")


def compare_engines(
    config: str, overrides: Sequence[str], engines: Sequence[str] = ENGINES
) -> dict[str, Any]:
    """Largest entrywise difference between costs and final models, and seconds per engine."""
    models = []
    costs = []
    seconds = {}
    evaluation = load(find(config), list(overrides)).evaluation
    is_evaluated = evaluation.kind == "oracle" and evaluation.is_enabled
    oracle = ("evaluation.is_simulated_oracle=true",) if is_evaluated else ()
    with tempfile.TemporaryDirectory(prefix="manifed-engines-") as root:
        for engine in engines:
            began = time.perf_counter()
            sets = (*overrides, *oracle, "evaluation.every=1")
            folder = launch(Request(config, sets, engine, Path(root) / engine, plain=True))
            seconds[engine] = time.perf_counter() - began
            models.append(folder.load_tensors("model")["x"])
            costs.append(folder.metrics().get("cost", []))
    gaps = [float((x - models[0]).abs().max()) for x in models[1:]]
    for other in costs[1:]:
        gaps += [
            abs(a - b)
            for a, b in zip(costs[0], other, strict=True)
            if a is not None and b is not None
        ]
    return {
        "engines": list(engines),
        "max_difference": max(gaps, default=0.0),
        "seconds": seconds,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--engine", nargs="+", choices=ENGINES, default=ENGINES)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--out", type=Path, help="where the JSON goes as well")
    given = parser.parse_args()
    rounds = f"federation.num_rounds={given.rounds}"
    found = compare_engines(given.config, [*given.set, rounds], given.engine)
    sys.stdout.write(json.dumps(found) + "\n")
    if given.out is not None:
        given.out.write_text(json.dumps(found) + "\n")
