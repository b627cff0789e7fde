"""Every operation that a peer shares with us, and the Fréchet mean of 100 SPD matrices, timed.

    pip install -e ".[peers]" && python -m benchmarks.peers [--only NAME] [--large] [--out DIR]

Peers are geoopt, pymanopt, geomstats and pyRiemann; one that is not installed is left out. CPU time
on one thread, float64, rivals interleaved in one process, smallest of the rounds. A peer of numpy
races on arrays of its own, and once more on the memory of the tensors that ours gets. Only
operations that mean the same are compared: geoopt's projections that it calls transport, its Cayley
map that it calls the canonical exponential and its wrong canonical projection are left out, and so
is a peer that answers a stack with one number for all its points.
"""

import importlib
import importlib.metadata
import importlib.util
import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from benchmarks.common.geometry_cases import (
    ILL_CONDITIONED,
    LARGE,
    PLACES,
    PYMANOPT_NAMES,
    Inputs,
    Place,
)
from benchmarks.common.page import Page
from benchmarks.common.stopwatch import Work, cpu_seconds, prepare, race, table
from manifed.problems.examples import Examples
from manifed.problems.frechet import FrechetMean
from manifed.problems.synthetic import LogNormalSPD

PEERS = ("geoopt", "pymanopt", "geomstats", "pyriemann")
BATCHES = (1, 32)
MATRICES = 100
TOLERANCE = 1e-8


def contestants(place: Place, operation: str, inputs: Inputs, peers: list[str]) -> dict[str, Work]:
    """Ours and every peer's implementation of one operation, bound to the same inputs."""
    tensors = inputs.arguments(operation)
    operation = "projx" if operation == ILL_CONDITIONED else operation
    ours = getattr(place.ours, operation)
    found: dict[str, Work] = {"ours": lambda: ours(*tensors)}
    if place.geoopt is not None and "geoopt" in peers:
        theirs = getattr(place.geoopt, operation)
        clones = tuple(one.clone() for one in tensors)  # Lorentz writes into them
        found["geoopt"] = lambda: theirs(*clones)
    arrays = [np.ascontiguousarray(one.numpy()) for one in tensors]
    for name, method in numpy_methods(place, operation, inputs, peers).items():
        found[name] = lambda method=method: method(*arrays)
        found[f"{name} on tensors"] = lambda method=method: torch.as_tensor(
            method(*[one.numpy() for one in tensors])
        )
    count = np.asarray(found["ours"]()).size
    return {name: work for name, work in found.items() if np.asarray(work()).size == count}


def numpy_methods(
    place: Place, operation: str, inputs: Inputs, peers: list[str]
) -> Mapping[str, Callable[..., Any]]:
    """The methods of the peers that compute with arrays, in our order of arguments."""
    found = {}
    if place.pymanopt is not None and "pymanopt" in peers and operation in PYMANOPT_NAMES:
        count = inputs.x.shape[0] if inputs.x.dim() > place.ours.ndim else 1
        found["pymanopt"] = getattr(place.pymanopt(count), PYMANOPT_NAMES[operation])
    if place.name.startswith("spd") and operation in ("expmap", "logmap", "dist"):
        if "geomstats" in peers:
            geometry = importlib.import_module("geomstats.geometry.spd_matrices")
            metric = geometry.SPDAffineMetric(geometry.SPDMatrices(inputs.x.shape[-1], equip=False))
            found["geomstats"] = {
                "expmap": lambda x, u: metric.exp(u, x),
                "logmap": lambda x, y: metric.log(y, x),
                "dist": metric.dist,
            }[operation]
        if "pyriemann" in peers and operation == "dist":
            distance = importlib.import_module("pyriemann.geometry.distance")
            found["pyriemann"] = distance.distance_riemann
    return found


def mean_seconds(size: int) -> dict[str, float]:
    """CPU seconds of a mean of 100 matrices, by rival.

    Theirs stops where the whitened mean logarithm is at most 1e-8 long, ours at 1e-12.
    """
    theirs = importlib.import_module("pyriemann.geometry.mean").mean_riemann
    source = LogNormalSPD(num_examples=MATRICES, dimension=size, condition=20.0)
    z = source.draw(np.random.default_rng(size)).examples["z"]
    shards = [Examples({"z": z}, {"z": 2})]
    problem = FrechetMean()
    array = z.numpy()
    runs = {
        "ours": lambda: problem.optimum(shards).x,
        "pyriemann": lambda: theirs(array, tol=TOLERANCE),
    }
    best = dict.fromkeys(runs, math.inf)
    for _ in range(12):  # single calls, as long as a slice of `race`
        best = {name: min(best[name], cpu_seconds(run, 1)) for name, run in runs.items()}
    return best


def main() -> None:
    page = Page(__doc__, "peers.md", only="")
    page.parser.add_argument("--large", action="store_true", help="the large sizes instead")
    given = page.parser.parse_args()
    warnings.simplefilter("ignore")
    page.say(prepare("Geometry, ours beside its peers"))
    peers = [name for name in PEERS if importlib.util.find_spec(name) is not None]
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in peers)
    columns = [*peers, *(f"{name} on tensors" for name in peers if name != "geoopt")]
    ratios = {}
    rows = []

    def enter(place: str, operation: str, batch: int, seconds: dict[str, float]) -> None:
        mine = seconds.pop("ours")
        over = {name: mine / spent for name, spent in seconds.items()}
        key = f"{place}_{operation}_{batch}_ours_over"
        ratios.update({f"{key}_{name}": ratio for name, ratio in over.items()})
        cells = [f"{over[n]:.2f}" if n in over else "" for n in columns]
        rows.append([place, operation, str(batch), f"{mine / batch * 1e6:.3g}", *cells])

    usual = ((place, batch) for place in PLACES for batch in BATCHES)
    for place, batch in LARGE if given.large else usual:
        if given.only not in place.name:
            continue
        inputs = Inputs.draw(place, batch)
        for operation in place.operations:
            entered = contestants(place, operation, inputs, peers)
            if len(entered) > 1:
                seconds = race(entered, rounds=16, slice_=0.004)
                enter(place.name, operation, batch, seconds)
    if "pyriemann" in peers and given.only in "mean" and not given.large:
        for size in (10, 15, 60):
            enter(f"spd_{size}", "mean", MATRICES, mean_seconds(size))
    header = ["place", "operation", "batch", "ours us/item", *(f"ours / {p}" for p in columns)]
    page.say(f"\n{versions}.\n\n{table(header, rows)}")
    page.save(given, ratios)


if __name__ == "__main__":
    main()
