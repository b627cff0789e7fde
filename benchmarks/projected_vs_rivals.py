"""Projected federated learning against RFedAvg, RFedProx and RFedSVRG: uploads, bytes, seconds.

Zhang, Hu, So, Johansson (2024), Figure 6: synthetic kPCA, (d, k, n) = (20, 5, 30), tau = 5, full
gradients: at the paper's equal step size, at the best step size of each, and (for the two that do
not drift) at the best pair of step size and server step size of each.

    python benchmarks/projected_vs_rivals.py [--seeds 0 1 2] [--maps exact] [--scale] [--json]

With ``--json`` the last line is one JSON object. Seconds are CPU seconds on one thread. ``--scale``
times 100 clients with 100 rows of 784, k = 5, ten local steps and 100 rounds on two threads (wall
clock), stacked cohorts and messages.
"""

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from benchmarks.federation_race import Result, run

TARGETS = (1e-2, 1e-4)
PAPER_STEP_SIZE = 4e-3
GRID = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0)
"""Multiples of the paper's step size that every algorithm may choose from."""
TOTALS, LOCALS = (4.0, 5.0, 6.0, 7.0, 8.0), (0.25, 0.5, 1.0, 2.0)
"""Multiples for step_size * server_step_size and for step_size in the search over both."""
PENALTY_WEIGHT = 1.0
ALGORITHMS = ("projected", "rfedavg", "rfedprox", "rfedsvrg")


def halves(name: str, maps: str) -> dict[str, Any]:
    """Training and strategy of an algorithm, step size aside."""
    common = {"local_steps": 5, "minibatch": {"kind": "full"}}
    mean = {"kind": "tangent-mean", "weights": "uniform", "maps": maps}
    match name:
        case "projected":
            training, strategy = {"kind": "projected", **common}, {"kind": "projection-mean"}
        case "rfedavg":
            training, strategy = {"kind": "rsgd", "maps": maps, **common}, mean
        case "rfedprox":
            penalty = {"penalty_weight": PENALTY_WEIGHT, "maps": maps}
            training, strategy = {"kind": "rfedprox", **penalty, **common}, mean
        case _:
            training = {"kind": "federated-svrg", "maps": maps, **common}
            strategy = {"kind": "variance-reduced", "maps": maps}
    return {"training": training, "strategy": strategy}


def experiment(name: str, maps: str, step_size: float, seed: int, rounds: int) -> dict[str, Any]:
    """The table of one run."""
    parts = halves(name, maps)
    federation = {"num_clients": 30, "num_rounds": rounds, "seed": seed}
    return {
        "name": name,
        "problem": {"kind": "kpca", "num_components": 5},
        "data": {"kind": "synthetic-pca"},
        "federation": {**federation, "partition": {"kind": "natural"}},
        "training": {**parts["training"], "step_size": step_size},
        "strategy": parts["strategy"],
    }


def equal(maps: str, seed: int, rounds: int) -> dict[str, Result]:
    """All algorithms at the paper's step size."""
    return {
        name: run(experiment(name, maps, PAPER_STEP_SIZE, seed, rounds), TARGETS)
        for name in ALGORITHMS
    }


def tuned(maps: str, seed: int, rounds: int) -> dict[str, Result]:
    """Each algorithm at the step of the grid that reaches 1e-2 with the fewest uploads.

    An algorithm that never reaches it gets the step with the smallest final gradient norm.
    """
    best: dict[str, Result] = {}
    for name in ALGORITHMS:
        tried = [
            run(experiment(name, maps, c * PAPER_STEP_SIZE, seed, rounds), TARGETS, stops=True)
            for c in GRID
        ]
        best[name] = min(tried, key=lambda r: (r.uploads(TARGETS[0]), r.final))
    return best


def tuned_both(maps: str, seed: int, rounds: int) -> dict[str, Result]:
    """The two algorithms without drift, each at its best pair of step sizes.

    The tube is not checked: large server steps leave it for a few early rounds.
    """
    best: dict[str, Result] = {}
    for name in ("projected", "rfedsvrg"):
        tried: list[Result] = []
        for total in TOTALS:
            for local in LOCALS:
                table = experiment(name, maps, local * PAPER_STEP_SIZE, seed, rounds)
                steps = {"server_step_size": total / local}
                if name == "projected":
                    table["training"] |= steps
                    steps["tube_radius"] = 1e9
                table["strategy"] = table["strategy"] | steps
                tried.append(run(table, TARGETS, stops=True))
        best[name] = min(tried, key=lambda r: (r.uploads(TARGETS[0]), r.final))
    return best


def report(title: str, results: dict[str, Result]) -> None:
    """One table."""
    print(f"\n{title}")
    print(f"{'':10} {'step':>8} {'server':>6} {'final |grad|':>13} {'ms/round':>9}", end="")
    for target in TARGETS:
        print(f" | {'rounds':>6} {'uploads':>7} {'kB':>8} {'s':>7} to {target:g}", end="")
    print()
    for name, result in results.items():
        print(f"{name:10} {result.step_size:8.4g} {result.server_step_size:6.3g}", end="")
        print(f" {result.final:13.3e}", end="")
        print(f" {1e3 * result.seconds_per_round:9.2f}", end="")
        for target in TARGETS:
            end = result.reached.get(target)
            shown = (
                f"{end.rounds:6d} {end.uploads:7d} {end.bytes_both_ways / 1e3:8.0f} "
                f"{end.seconds:7.3f}"
                if end
                else f"{'never':>6} {'-':>7} {'-':>8} {'-':>7}"
            )
            print(f" | {shown}   {'':5}", end="")
        print()


def as_json(results: dict[str, Result]) -> dict[str, Any]:
    """The numbers of a table; None stands for never."""
    return {
        name: {
            "step_size": result.step_size,
            "server_step_size": result.server_step_size,
            "final_gradient_norm": _finite(result.final),
            "seconds_per_round": result.seconds_per_round,
            "uploads_1e-2": _finite(result.uploads(1e-2)),
            "uploads_1e-4": _finite(result.uploads(1e-4)),
            "seconds_1e-2": result.reached[1e-2].seconds if 1e-2 in result.reached else None,
            "bytes_1e-2": result.reached[1e-2].bytes_both_ways if 1e-2 in result.reached else None,
        }
        for name, result in results.items()
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


# -- scale ------------------------------------------------------------------------------------
SCALE = """
name = "scale"
problem = { kind = "kpca", num_components = 5, scaling = "mean" }
data = { kind = "synthetic-pca", num_clients = 100, rows = 100, dimension = 784 }
federation = { num_clients = 100, num_rounds = 100, partition = { kind = "natural" } }
training = { kind = "projected", step_size = 0.01, local_steps = 10 }
strategy = { kind = "projection-mean" }
evaluation = { is_enabled = false }
output = { plots = false, checkpoint_every = 100 }
"""


def scale(execution: str) -> float:
    """Wall seconds of the whole run, data and run folder included."""
    from app.launch import Request, launch

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scale.toml"
        path.write_text(SCALE)
        sets = (f"engine.execution={execution}",)
        began = time.perf_counter()
        launch(Request(str(path), sets, out=Path(folder) / "run", plain=True))
        return time.perf_counter() - began


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables; with ``--json`` one line of JSON last."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--rounds", type=int, default=500, help="at equal step size")
    parser.add_argument("--tuning-rounds", type=int, default=350)
    parser.add_argument("--maps", choices=["exact", "retraction"], default="retraction")
    parser.add_argument("--scale", action="store_true")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(argv)
    torch.set_num_threads(1)
    same = {seed: equal(given.maps, seed, given.rounds) for seed in given.seeds}
    own = {seed: tuned(given.maps, seed, given.tuning_rounds) for seed in given.seeds}
    both = {seed: tuned_both(given.maps, seed, given.tuning_rounds) for seed in given.seeds}
    for seed in given.seeds:
        report(f"equal step size {PAPER_STEP_SIZE:g}, seed {seed}, maps {given.maps}", same[seed])
        report(f"best step size of each, seed {seed}, maps {given.maps}", own[seed])
        report(f"best pair of step sizes of each, seed {seed}, maps {given.maps}", both[seed])
    first = same[given.seeds[0]]
    numbers: dict[str, Any] = {
        "uploads_ratio_to_rfedsvrg_1e-2": median(_ratio(r, 1e-2) for r in same.values()),
        "uploads_ratio_to_rfedsvrg_1e-4": median(_ratio(r, 1e-4) for r in same.values()),
        "tuned_uploads_ratio_to_rfedsvrg_1e-2": median(_ratio(r, 1e-2) for r in own.values()),
        "tuned_both_uploads_ratio_to_rfedsvrg_1e-2": median(_ratio(r, 1e-2) for r in both.values()),
        "rfedavg_final_gradient_norm": first["rfedavg"].final,
        "rfedprox_final_gradient_norm": first["rfedprox"].final,
        "rfedsvrg_final_gradient_norm": first["rfedsvrg"].final,
        "projected_final_gradient_norm": first["projected"].final,
        "equal": {str(seed): as_json(results) for seed, results in same.items()},
        "tuned": {str(seed): as_json(results) for seed, results in own.items()},
        "tuned_both": {str(seed): as_json(results) for seed, results in both.items()},
    }
    if given.scale:
        torch.set_num_threads(2)
        numbers["scale_seconds"] = {kind: scale(kind) for kind in ("cohort", "messages")}
        print("\n100 clients x 100 x 784 x 5, 10 steps, 100 rounds:", numbers["scale_seconds"])
    if given.json:
        print(json.dumps(numbers))
    return 0


def _ratio(results: dict[str, Result], target: float) -> float:
    """Uploads of projected over those of RFedSVRG."""
    return results["projected"].uploads(target) / results["rfedsvrg"].uploads(target)


if __name__ == "__main__":
    sys.exit(main())
