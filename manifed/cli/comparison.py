"""One seed on all three engines: the trajectories must agree."""

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
    """Largest entrywise difference between the final models, and seconds per engine.

    The cost of every round enters as well, so trajectories and not only ends are compared.
    """
    models, costs, seconds = [], [], dict[str, float]()
    evaluation = load(find(config), list(overrides)).evaluation
    is_evaluated = evaluation.kind == "oracle" and evaluation.is_enabled
    oracle = ("evaluation.is_simulated_oracle=true",) if is_evaluated else ()
    with tempfile.TemporaryDirectory(prefix="manifed-engines-") as root:
        for engine in engines:
            began = time.perf_counter()
            sets = (*overrides, *oracle, "output.plots=false", "evaluation.every=1")
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
