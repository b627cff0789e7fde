"""Every operation that a peer shares with us, and the Fréchet mean of 100 SPD matrices.

    pip install -e ".[peers]" && python benchmarks/peers.py [--json] [--only NAME] [--out DIR]

Peers are geoopt, pymanopt, geomstats and pyRiemann; one that is not installed is named and left
out. CPU time on one thread, float64, rivals interleaved in one process, smallest of the rounds.
A peer of numpy races twice: on arrays of its own, and handed the same torch tensors as ours, where
it reads their memory and its result is taken over without a copy.

A loss is an operation that takes more than 1.2 times the fastest peer's time, also in three times
as many rounds more for all rivals, and a mean that takes more than pyRiemann's. Its row says what
the time buys: the largest relative error of ours and of that peer against 50 digits (mpmath), at
the inputs of the race, at points 1e-6 apart and, in hyperbolic space, at distance 8 from them, and
the digits between them. A loss that buys no digit says 0. Where a step ends, the row has the
largest distance of both ends from the manifold too (1: not a point), also after a step of 40 units.
``reason`` is ``digits`` or ``defect`` where one of both is at least one digit; else ``tensors``
where only a peer on arrays of its own is ahead, and no peer that is handed tensors.

A peer that answers a stack with one number for all its points has another question, and does not
race.
"""

import argparse
import importlib
import importlib.metadata
import json
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import mpmath as mp
import numpy as np
import torch
from torch import Tensor

from benchmarks.common.geometry_cases import PLACES, PYMANOPT_NAMES, Inputs, Place, rivals
from benchmarks.common.geometry_truths import REFERENCES, polar_retr
from benchmarks.common.stopwatch import cpu_seconds, prepare, race, table
from manifed.manifolds import SPD, Lorentz, PoincareBall
from manifed.problems.base import Examples
from manifed.problems.spd_mean import SPDMean
from manifed.problems.synthetic import lognormal_spd

PEERS = ("geoopt", "pymanopt", "geomstats", "pyriemann")
MOST, MOST_OF_A_MEAN = 1.2, 1.0
BATCHES = (1, 32)
MATRICES, TOLERANCE, NEAR, FAR, LONG = 100, 1e-8, 1e-6, 8.0, 40.0
ON_ARRAYS = " on arrays"
"""After the name of a peer of numpy that is not handed tensors."""
Work = Callable[[], object]


@dataclass(frozen=True)
class Loss:
    """One row where a peer is faster than the bound allows."""

    place: str
    operation: str
    batch: int
    peer: str
    ratio: float
    """Our time over the peer's."""
    our_error: float | None = None
    their_error: float | None = None
    digits: float = 0.0
    """Decimal digits of ours beyond the peer's, where they are more; of 50-digit references."""
    our_defect: float | None = None
    their_defect: float | None = None
    """Distance of the end of a step from the manifold; 1: not a point."""
    defect_digits: float = 0.0
    ratio_on_tensors: float | None = None
    """Where a peer on its own arrays is fastest: our time over the fastest of those on tensors."""
    reason: str | None = None
    """Which of the measurements above explains the row: ``digits``, ``defect`` or ``tensors``."""


def found_peers() -> dict[str, str]:
    """Installed peers and their versions."""
    versions: dict[str, str] = {}
    for name in PEERS:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def contestants(
    place: Place, operation: str, inputs: Inputs, peers: Mapping[str, str]
) -> dict[str, Work]:
    """Ours and every peer's implementation of one operation, bound to the same inputs."""
    tensors = inputs.arguments(operation)
    of_numpy = numpy_methods(place, operation, inputs, peers)
    entered = {
        name: work
        for name, work in rivals(place, operation, inputs).items()
        if name == "ours" or (name in peers and name not in of_numpy)
    }
    for name, method in of_numpy.items():
        entered[name] = handed(method, tensors)
        entered[name + ON_ARRAYS] = on_arrays(method, tensors)
    count = np.asarray(entered["ours"]()).size
    return {name: work for name, work in entered.items() if np.asarray(work()).size == count}


def handed(method: Callable[..., Any], tensors: tuple[Tensor, ...]) -> Work:
    """The method on the tensors' memory, its result as a tensor."""
    return lambda: torch.as_tensor(method(*[t.numpy() for t in tensors]))


def on_arrays(method: Callable[..., Any], tensors: tuple[Tensor, ...]) -> Work:
    """The method on arrays of its own."""
    arrays = [np.ascontiguousarray(t.numpy()) for t in tensors]
    return lambda: method(*arrays)


def numpy_methods(
    place: Place, operation: str, inputs: Inputs, peers: Mapping[str, str]
) -> dict[str, Callable[..., Any]]:
    """The methods of the peers that compute with arrays, in our order of arguments."""
    found: dict[str, Callable[..., Any]] = {}
    if place.pymanopt is not None and "pymanopt" in peers and operation in PYMANOPT_NAMES:
        count = inputs.x.shape[0] if inputs.x.dim() > place.ours.ndim else 1
        found["pymanopt"] = getattr(place.pymanopt(count), PYMANOPT_NAMES[operation])
    if place.name.startswith("spd") and operation in ("expmap", "logmap", "dist"):
        if "geomstats" in peers:
            found["geomstats"] = _geomstats_spd(operation, inputs.x.shape[-1])
        if "pyriemann" in peers and operation == "dist":
            distance = importlib.import_module("pyriemann.geometry.distance")
            found["pyriemann"] = distance.distance_riemann
    return found


def _geomstats_spd(operation: str, size: int) -> Callable[..., Any]:
    geometry = importlib.import_module("geomstats.geometry.spd_matrices")
    metric = geometry.SPDAffineMetric(geometry.SPDMatrices(size, equip=False))
    if operation == "dist":
        return metric.dist
    method = metric.exp if operation == "expmap" else metric.log
    return lambda x, other: method(other, x)


# -- what the time buys -------------------------------------------------------------------------
def judged_at(place: Place) -> list[Inputs]:
    """The inputs of the race; points 1e-6 apart; in hyperbolic space also one far out."""
    ours, generic = place.ours, Inputs.draw(place, 1)
    near = replace(generic, y=ours.expmap(generic.x, generic.u * (2 * NEAR)))
    if not isinstance(ours, Lorentz | PoincareBall):
        return [generic, near]
    x = ours.expmap(generic.x, generic.u * (2 * FAR))
    generator = torch.Generator().manual_seed(2)
    size = (2, *ours.coords_shape(place.shape))
    u, v = ours.from_coords(x, torch.randn(size, generator=generator, dtype=torch.float64))
    return [generic, near, Inputs(x, ours.expmap(x, u / ours.norm(x, u)), u, v, generic.g)]


def errors(
    place: Place, operation: str, peer: str, peers: Mapping[str, str]
) -> tuple[float, float] | None:
    """The largest relative errors of ours and of a peer, against 50 digits; None: no reference."""
    kind = type(place.ours).__name__
    reference = REFERENCES.get((kind, operation))
    if place.name.startswith("stiefel_polar"):
        reference = polar_retr
    if reference is None or place.name.startswith("stiefel_cayley"):
        return None
    worst = {"ours": 0.0, peer: 0.0}
    with mp.workdps(50):
        for inputs in judged_at(place):
            arguments = [t.numpy() for t in inputs.arguments(operation)]
            truth = reference(*arguments)
            runs = contestants(place, operation, inputs, peers)
            for name in ("ours", peer):
                found = np.asarray(runs[name]()).reshape(truth.shape)
                if (kind, operation) == ("Grassmann", "retr"):  # of any frame of the span
                    found = found @ np.linalg.inv(arguments[0].T @ found)
                gap = np.abs(found - truth).max()
                worst[name] = max(worst[name], float(gap / np.abs(truth).max()))
    return worst["ours"], worst[peer]


def loss_of(
    place: Place, operation: str, batch: int, seconds: Mapping[str, float], peers: Mapping[str, str]
) -> Loss | None:
    """The row of an operation that is slower than it may be, with the digits that it buys."""
    others = {name: value for name, value in seconds.items() if name != "ours"}
    if not others or seconds["ours"] <= MOST * min(others.values()):
        return None
    name = min(others, key=lambda name: others[name])
    peer = name.removesuffix(ON_ARRAYS)
    lost = Loss(place.name, operation, batch, name, round(seconds["ours"] / others[name], 2))
    if name != peer:
        on_tensors = min(value for name, value in others.items() if name in peers)
        lost = replace(lost, ratio_on_tensors=round(seconds["ours"] / on_tensors, 2))
    if (found := errors(place, operation, peer, peers)) is not None:
        lost = replace(
            lost, our_error=found[0], their_error=found[1], digits=digits_between(*found)
        )
    if operation in ("retr", "expmap"):
        ends = defects(place, operation, peer, peers)
        lost = replace(
            lost, our_defect=ends[0], their_defect=ends[1], defect_digits=digits_between(*ends)
        )
    return replace(lost, reason=reason_of(lost))


def reason_of(lost: Loss) -> str | None:
    """What the time buys, as far as the row's own numbers say so."""
    if lost.digits >= 1:
        return "digits"
    if lost.defect_digits >= 1:
        return "defect"
    on_tensors = lost.ratio_on_tensors
    return "tensors" if on_tensors is not None and on_tensors <= MOST else None


def digits_between(ours: float, theirs: float) -> float:
    """Decimal digits of ours beyond theirs, from rounding on."""
    least = float(np.finfo(float).eps)
    return round(max(0.0, math.log10(max(theirs, least) / max(ours, least))), 1)


def defects(
    place: Place, operation: str, peer: str, peers: Mapping[str, str]
) -> tuple[float, float]:
    """The largest distances from the manifold of the ends of our and of a peer's steps."""
    worst = {"ours": 0.0, peer: 0.0}
    judged = judged_at(place)
    length = place.ours.norm(judged[0].x, judged[0].u, keepdim=True)
    for inputs in [*judged, replace(judged[0], u=judged[0].u * (LONG / length))]:
        runs = contestants(place, operation, inputs, peers)
        for name, end in worst.items():
            found = torch.as_tensor(np.asarray(runs[name]()))
            defect = float(place.ours.membership_defect(found))
            worst[name] = max(end, min(defect, 1.0))
    return worst["ours"], worst[peer]


# -- the mean -----------------------------------------------------------------------------------
def means(size: int) -> tuple[dict[str, float], dict[str, float]]:
    """CPU seconds of a mean of 100 matrices, and its distance from one to rounding, by rival.

    Both stop where the whitened mean logarithm is at most 1e-8 long.
    """
    theirs = importlib.import_module("pyriemann.geometry.mean").mean_riemann
    z = torch.tensor(lognormal_spd(MATRICES, size, np.random.default_rng(size), condition=20.0))
    shards, problem, array = [Examples({"z": z}, {"z": 2})], SPDMean(), z.numpy()
    exact = problem.optimum(shards, tolerance=1e-14)
    tolerance = 2 * TOLERANCE / (1 + exact.value)
    runs: dict[str, Callable[[], Any]] = {
        "ours": lambda: problem.optimum(shards, tolerance=tolerance).x,
        "pyriemann": lambda: torch.as_tensor(theirs(array, tol=TOLERANCE)),
    }
    away = {name: float(SPD().dist(exact.x, run())) for name, run in runs.items()}
    best = dict.fromkeys(runs, math.inf)
    for _ in range(12):  # single calls, as long as a slice of `race`
        best = {name: min(best[name], cpu_seconds(run, 1)) for name, run in runs.items()}
    return best, away


def mean_rows(losses: list[Loss]) -> list[list[str]]:
    """The rows of the means; slower ones are added to ``losses``."""
    rows: list[list[str]] = []
    for size in (10, 15, 60):
        seconds, away = means(size)
        ratio = seconds["ours"] / seconds["pyriemann"]
        rows.append(
            [f"{size} x {size}", f"{seconds['ours'] * 1e3:.3g}", f"{1 / ratio:.2f}"]
            + [f"{away[name]:.0e}" for name in ("ours", "pyriemann")]
        )
        if ratio > MOST_OF_A_MEAN:
            found = away["ours"], away["pyriemann"]
            lost = Loss(f"spd_{size}", "mean", MATRICES, "pyriemann", round(ratio, 2), *found)
            lost = replace(lost, digits=digits_between(*found))
            losses.append(replace(lost, reason=reason_of(lost)))
    return rows


def page(only: str) -> tuple[str, list[Loss]]:
    """The page and the losses in it."""
    peers, losses, rows = found_peers(), [], []
    heading = prepare("Geometry, ours beside its peers")
    for place in PLACES:
        if only not in place.name:
            continue
        for batch in (b for b in BATCHES if b in place.batches):
            inputs = Inputs.draw(place, batch)
            for operation in place.operations:
                entered = contestants(place, operation, inputs, peers)
                if len(entered) == 1:
                    continue
                seconds = race(entered, rounds=16, slice_=0.004)
                if seconds["ours"] > MOST * min(seconds.values()):  # more rounds for everybody
                    again = race(entered, rounds=48, slice_=0.004)
                    seconds = {name: min(value, again[name]) for name, value in seconds.items()}
                least = {
                    p: min(seconds[p], seconds.get(p + ON_ARRAYS, math.inf))
                    for p in peers
                    if p in seconds
                }
                ratios = [f"{least[p] / seconds['ours']:.2f}" if p in least else "" for p in peers]
                rows.append(
                    [
                        place.name,
                        operation,
                        str(batch),
                        f"{seconds['ours'] / batch * 1000000.0:.3g}",
                        *ratios,
                    ]
                )
                lost = loss_of(place, operation, batch, seconds, peers)
                if lost is not None:
                    losses.append(lost)
    text = heading + "\n" + ", ".join(f"{name} {version}" for name, version in peers.items())
    if missing := [name for name in PEERS if name not in peers]:
        text += "; not installed: " + ", ".join(missing)
    header = ["place", "operation", "batch", "ours us/item", *(f"{p}/ours" for p in peers)]
    text += ".\n\n" + table(header, rows) + "\n"
    if "pyriemann" in peers and only in "mean":
        text += "\nThe Fréchet mean of 100 SPD matrices, to the same tolerance 1e-8.\n\n"
        header = ["size", "ours ms", "pyriemann/ours", "our error", "pyriemann's error"]
        text += table(header, mean_rows(losses)) + "\n"
    text += f"\nWhere an operation takes more than {MOST} times the fastest peer's time, or a mean"
    text += " more than pyRiemann's, and what it buys.\n\n"
    text += table(HEADER, [_row(lost) for lost in losses]) + "\n"
    return text, losses


HEADER = [
    *("place", "operation", "batch", "fastest", "ours over it", "our error", "its", "digits"),
    *("our defect", "its", "ours over the fastest on tensors", "reason"),
]


def _row(lost: Loss) -> list[str]:
    def small(value: float | None) -> str:
        return "" if value is None else f"{value:.0e}"

    return [
        lost.place,
        lost.operation,
        str(lost.batch),
        lost.peer,
        f"{lost.ratio:.2f}",
        small(lost.our_error),
        small(lost.their_error),
        "not measured" if lost.our_error is None else f"{lost.digits:.1f}",
        small(lost.our_defect),
        small(lost.their_defect),
        "" if lost.ratio_on_tensors is None else f"{lost.ratio_on_tensors:.2f}",
        lost.reason or "none",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the losses as JSON last")
    parser.add_argument("--only", default="", help="only places whose name contains this, or mean")
    parser.add_argument("--out", type=Path, help="folder in which to write peers.md")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    text, losses = page(arguments.only)
    print(text)
    if arguments.out is not None:
        (arguments.out / "peers.md").write_text(text)
    if arguments.json:
        print(json.dumps({"losses": [asdict(lost) for lost in losses]}))


if __name__ == "__main__":
    main()
