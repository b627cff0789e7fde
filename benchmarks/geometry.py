"""Every operation that geoopt or pymanopt shares with us, side by side, batch 1, 32 and 1000.

    python benchmarks/geometry.py [--json] [--only NAME]

CPU time on one thread, float64, rivals interleaved in one process. Only operations that mean the
same are compared: geoopt's projections that it calls transport, its Cayley map that it calls the
canonical exponential and its wrong canonical projection are left out. pymanopt runs its product
manifold of k = batch points. Formulas that keep digits where geoopt's lose them
may cost more than 1.25 times geoopt's: all hyperbolic ones and the distance on the sphere. They
have a summary line of their own, and the second table says what they buy.
"""

import argparse
import json
import warnings
from collections.abc import Mapping

from benchmarks.common.geometry_cases import PLACES, Inputs, Place, rivals
from benchmarks.common.stable_accuracy import accuracy_tables
from benchmarks.common.stopwatch import prepare, race, table

HEADER = ["place", "operation", "batch", "ours us/item", "geoopt/ours", "pymanopt/ours"]
Timings = Mapping[tuple[str, str, int], Mapping[str, float]]


def measure(place: Place, batch: int) -> dict[tuple[str, str, int], dict[str, float]]:
    """CPU seconds of every operation of a place, by rival."""
    inputs = Inputs.draw(place, batch)
    return {
        (place.name, operation, batch): race(
            rivals(place, operation, inputs), rounds=20, slice_=0.01
        )
        for operation in place.operations
    }


def row(key: tuple[str, str, int], seconds: Mapping[str, float]) -> list[str]:
    """One line of the table."""
    name, operation, batch = key
    ours = seconds["ours"]
    ratios = [f"{seconds[r] / ours:.2f}" if r in seconds else "" for r in ("geoopt", "pymanopt")]
    return [name, operation, str(batch), f"{ours / batch * 1e6:.3g}", *ratios]


def summary(timings: Timings) -> dict[str, float]:
    """The ratios that the targets speak of."""
    stable = {(place.name, op) for place in PLACES for op in place.stable_operations}
    slowdown = {
        key: seconds["ours"] / seconds["geoopt"]
        for key, seconds in timings.items()
        if "geoopt" in seconds
    }
    result = {f"{n}_{op}_batch{b}_ours_over_geoopt": s for (n, op, b), s in slowdown.items()}

    def worst(name: str, batch: int, *, is_stable: bool) -> None:
        values = [
            s
            for (n, op, b), s in slowdown.items()
            if b == batch and ((n, op) in stable) == is_stable
        ]
        if values:
            result[name] = max(values)

    worst("worst_ours_over_geoopt_batch32", 32, is_stable=False)
    worst("worst_ours_over_geoopt_batch1000", 1000, is_stable=False)
    worst("worst_stable_formula_over_geoopt_batch32", 32, is_stable=True)
    for short, operation in (("dist", "dist"), ("exp", "expmap"), ("transp", "transp")):
        values = [
            1 / s
            for (n, op, b), s in slowdown.items()
            if n.startswith("spd") and op == operation and b == 32
        ]
        if values:
            result[f"spd_{short}_geoopt_over_ours"] = min(values)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--only", default="", help="only places whose name contains this")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    print(prepare("Geometry, ours beside geoopt and pymanopt"))
    timings: dict[tuple[str, str, int], dict[str, float]] = {}
    for place in PLACES:
        if arguments.only in place.name:
            for batch in place.batches:
                timings |= measure(place, batch)
    print(table(HEADER, [row(key, seconds) for key, seconds in timings.items()]))
    print("\nWhat the stable formulas buy: largest relative error of 200 draws.\n")
    print(accuracy_tables())
    result = summary(timings)
    summaries = {k: v for k, v in result.items() if k.startswith(("worst", "spd_dist_g"))}
    summaries |= {k: v for k, v in result.items() if k.endswith("geoopt_over_ours")}
    print("\n" + table(["summary", "ratio"], [[k, f"{v:.2f}"] for k, v in summaries.items()]))
    if arguments.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
