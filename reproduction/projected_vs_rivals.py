"""Projected federated learning against RFedAvg, RFedProx and RFedSVRG: uploads, bytes, seconds.

Zhang, Hu, So, Johansson (2024), Figure 6: synthetic kPCA, (d, k, n) = (20, 5, 30), tau = 5, full
gradients: at the paper's equal step size, at the best step size of each, and (for the two that do
not drift) at the best pair of step size and server step size of each.

    python reproduction/projected_vs_rivals.py [--only equal step pair] [--seeds 0 1 2]
                                             [--maps exact] [--json]

A row says what it takes until |grad f| <= 1e-2 and 1e-4: rounds; uploads, the paper's quantity:
matrices one client sends; kB, all clients' messages of both ways as Flower serialises them (header
and NumPy's included); s, CPU seconds on one thread, evaluation aside. With ``--json`` the last line
is one JSON object.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch

from benchmarks.common.stopwatch import circumstances, table
from reproduction.race import Result, run

TARGETS = (1e-2, 1e-4)
PAPER_STEP_SIZE = 4e-3
GRID = (0.0625, 0.125, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0)
"""Multiples of the paper's step size that every algorithm may choose from."""
TOTALS, LOCALS = (4.0, 5.0, 6.0, 7.0, 8.0), (0.25, 0.5, 1.0, 2.0)
"""Multiples for step_size * server_step_size and for step_size in the search over both."""
PENALTY_WEIGHT = 1.0
"""Of RFedProx; the paper states none."""
PATIENCE = 150
"""A tuning run ends after so many rounds without a gradient norm 1 % below all before."""
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


def search(table: dict[str, Any]) -> Result:
    """A run that ends as soon as its outcome is known."""
    return run(table, TARGETS, stops=True, patience=PATIENCE)


def tuned(maps: str, seed: int, rounds: int) -> dict[str, Result]:
    """Each algorithm at the step of the grid that reaches 1e-2 with the fewest uploads.

    An algorithm that never reaches it gets the step with the smallest final gradient norm.
    """
    best: dict[str, Result] = {}
    for name in ALGORITHMS:
        tried = [search(experiment(name, maps, c * PAPER_STEP_SIZE, seed, rounds)) for c in GRID]
        best[name] = min(tried, key=lambda r: (r.uploads(TARGETS[0]), r.final))
    return best


def tuned_both(maps: str, seed: int, rounds: int) -> dict[str, Result]:
    """The two algorithms without drift, each at its best pair of step sizes.

    A pair whose server step leaves the tube is out.
    """
    best: dict[str, Result] = {}
    for name in ("projected", "rfedsvrg"):
        tried: list[Result] = []
        for total in TOTALS:
            for local in LOCALS:
                made = experiment(name, maps, local * PAPER_STEP_SIZE, seed, rounds)
                steps = {"server_step_size": total / local}
                if name == "projected":
                    made["training"] |= steps
                made["strategy"] = made["strategy"] | steps
                tried.append(search(made))
        best[name] = min(tried, key=lambda r: (r.uploads(TARGETS[0]), r.final))
    return best


HEADER = ["algorithm", "eta", "eta_g", "final", "ms/round"] + [
    f"{column} to {target:g}" for target in TARGETS for column in ("rounds", "uploads", "kB", "s")
]


def report(results: dict[str, Result]) -> str:
    """One table."""
    return table(HEADER, [row(name, result) for name, result in results.items()])


def row(name: str, result: Result) -> list[str]:
    """What one algorithm needed."""
    steps = [f"{result.step_size:.3g}", f"{result.server_step_size:.3g}"]
    shown = [name, *steps, f"{result.final:.2e}", f"{1e3 * result.seconds_per_round:.2f}"]
    for target in TARGETS:
        end = result.reached.get(target)
        if end is None:
            shown += ["never", "", "", ""]
        else:
            kilobytes = f"{end.wire_bytes / 1e3:.0f}"
            shown += [str(end.rounds), str(end.uploads), kilobytes, f"{end.seconds:.2f}"]
    return shown


def as_json(results: dict[str, Result]) -> dict[str, Any]:
    """The numbers of a table; None stands for never."""
    return {name: _numbers(result) for name, result in results.items()}


def _numbers(result: Result) -> dict[str, float | None]:
    found: dict[str, float | None] = {
        "step_size": result.step_size,
        "server_step_size": result.server_step_size,
        "final_gradient_norm": result.final if math.isfinite(result.final) else None,
        "seconds_per_round": result.seconds_per_round,
    }
    for target in TARGETS:
        end = result.reached.get(target)
        short = f"{target:.0e}".replace("e-0", "e-")
        found[f"rounds_{short}"] = end.rounds if end else None
        found[f"uploads_{short}"] = end.uploads if end else None
        found[f"wire_bytes_{short}"] = end.wire_bytes if end else None
        found[f"tensor_bytes_{short}"] = end.bytes_both_ways if end else None
        found[f"seconds_{short}"] = end.seconds if end else None
    return found


def _ratio(results: dict[str, Result], target: float) -> float:
    """Uploads of projected over those of RFedSVRG."""
    return results["projected"].uploads(target) / results["rfedsvrg"].uploads(target)


SEARCHES: dict[str, tuple[str, str, Callable[[str, int, int], dict[str, Result]]]] = {
    "equal": ("", f"equal step size {PAPER_STEP_SIZE:g}", equal),
    "step": ("tuned", "best step size of each", tuned),
    "pair": ("tuned_both", "best pair of step size and server step size of each", tuned_both),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables; with ``--json`` one line of JSON last."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=list(SEARCHES), nargs="+", default=list(SEARCHES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--maps", choices=["exact", "retraction"], default="retraction")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(argv)
    torch.set_num_threads(1)
    print(circumstances())
    numbers: dict[str, Any] = {}
    for name in given.only:
        prefix, title, raced = SEARCHES[name]
        found = {seed: raced(given.maps, seed, given.rounds) for seed in given.seeds}
        for seed, results in found.items():
            print(f"\n## {title.capitalize()}, seed {seed}, maps: {given.maps}\n")
            print(report(results), flush=True)
        for short, target in (("1e-2", 1e-2), ("1e-4", 1e-4)):
            key = f"{prefix}_uploads_ratio_to_rfedsvrg_{short}".lstrip("_")
            ratio = median(_ratio(r, target) for r in found.values())
            numbers[key] = ratio if math.isfinite(ratio) else None
            print(f"\nUploads to {short}, projected over rfedsvrg (median): {ratio:.3f}")
        if name == "equal":
            first = found[given.seeds[0]]
            numbers |= {f"{a}_final_gradient_norm": first[a].final for a in ALGORITHMS}
        numbers[prefix or name] = {str(seed): as_json(r) for seed, r in found.items()}
    if given.json:
        print(json.dumps(numbers))
    return 0


if __name__ == "__main__":
    sys.exit(main())
