"""Every operation that a peer shares with us, and the Fréchet mean of 100 SPD matrices.

    pip install -e ".[peers]" && python benchmarks/peers.py [--json] [--only NAME] [--out DIR]

Peers are geoopt, pymanopt, geomstats and pyRiemann; one that is not installed is named and left
out. CPU time on one thread, float64, rivals interleaved in one process, smallest of the rounds.
A loss is an operation that takes more than 1.2 times the fastest peer's time, and a mean that takes
more than pyRiemann's. Its row says what the time buys: the largest relative error of ours and
of that peer against 50 digits (mpmath), at the inputs of the race, at points 1e-6 apart and, in
hyperbolic space, at distance 8 from them, and the digits between them. A loss that buys no digit
says 0.
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
from numpy.typing import NDArray

from benchmarks.common.geometry_cases import PLACES, Inputs, Place, rivals
from benchmarks.common.stopwatch import prepare, race, table
from manifed.manifolds import SPD, Lorentz, PoincareBall
from manifed.problems.base import Examples
from manifed.problems.spd_mean import SPDMean
from manifed.problems.synthetic import lognormal_spd

PEERS = ("geoopt", "pymanopt", "geomstats", "pyriemann")
MOST, MOST_OF_A_MEAN = 1.2, 1.0
BATCHES = (1, 32)
MATRICES, TOLERANCE, NEAR, FAR = 100, 1e-8, 1e-6, 8.0
Array = NDArray[np.float64]
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


def found_peers() -> dict[str, str]:
    """Installed peers and their versions."""
    versions: dict[str, str] = {}
    for name in PEERS:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def contestants(place: Place, operation: str, inputs: Inputs, peers: Mapping[str, str]) -> dict:
    """Ours and every peer's implementation of one operation, bound to the same inputs."""
    entered = rivals(place, operation, inputs)
    if place.name.startswith("spd") and operation in ("expmap", "logmap", "dist"):
        arguments = [t.numpy() for t in inputs.arguments(operation)]
        if "geomstats" in peers:
            entered["geomstats"] = _geomstats_spd(operation, arguments)
        if "pyriemann" in peers and operation == "dist":
            distance = importlib.import_module("pyriemann.geometry.distance").distance_riemann
            entered["pyriemann"] = lambda: distance(*arguments)
    return {name: work for name, work in entered.items() if name == "ours" or name in peers}


def _geomstats_spd(operation: str, arguments: list[Array]) -> Work:
    geometry = importlib.import_module("geomstats.geometry.spd_matrices")
    space = geometry.SPDMatrices(arguments[0].shape[-1], equip=False)
    metric = geometry.SPDAffineMetric(space)
    x, other = arguments
    if operation == "dist":
        return lambda: metric.dist(x, other)
    method = metric.exp if operation == "expmap" else metric.log
    return lambda: method(other, x)


# -- what the time buys -------------------------------------------------------------------------
def _matrix(a: Array) -> Any:
    return mp.matrix(a.reshape(a.shape[0], -1).tolist())


def _subspace_dist(x: Array, y: Array) -> Array:
    """From the angles of the spans of the very numbers that are stored."""
    left, right = mp.qr(_matrix(x), mode="skinny")[0], mp.qr(_matrix(y), mode="skinny")[0]
    cosines = mp.svd_r(left.T * right, compute_uv=False)
    return np.array(float(mp.sqrt(sum(mp.acos(min(c, mp.mpf(1))) ** 2 for c in cosines))))


def _stiefel_proju(x: Array, u: Array) -> Array:
    a, b = _matrix(x), _matrix(u)
    along = a.T * b
    return np.array((b - a * (along + along.T) / 2).tolist(), dtype=float)


def _subspace_proju(x: Array, u: Array) -> Array:
    a, b = _matrix(x), _matrix(u)
    return np.array((b - a * (a.T * b)).tolist(), dtype=float)


def _inner(x: Array, u: Array, v: Array) -> Array:
    return np.array(float(mp.fdot(u.ravel().tolist(), v.ravel().tolist())))


def _ball_dist(x: Array, y: Array) -> Array:
    def square(a: Any) -> Any:
        return mp.fsum(mp.mpf(v) ** 2 for v in a)

    gap = square([mp.mpf(a) - mp.mpf(b) for a, b in zip(x.tolist(), y.tolist(), strict=True)])
    return np.array(float(2 * mp.asinh(mp.sqrt(gap / ((1 - square(x)) * (1 - square(y)))))))


def _vector(a: Any) -> Any:
    return mp.matrix([mp.mpf(v) for v in a])


def _dot(a: Any, b: Any) -> Any:
    return mp.fdot(a, b)


def _sphere_dist(x: Array, y: Array) -> Array:
    a, b = _vector(x), _vector(y)
    a, b = a / mp.norm(a), b / mp.norm(b)
    return np.array(float(2 * mp.asin(mp.norm(a - b) / 2)))


def _lifted(x: Array) -> Any:
    """The point of the hyperboloid above the stored space part."""
    return mp.matrix([mp.sqrt(1 + _dot(_vector(x[1:]), _vector(x[1:]))), *_vector(x[1:])])


def _minkowski(a: Any, b: Any) -> Any:
    return _dot(a, b) - 2 * a[0] * b[0]


def _lorentz_dist(x: Array, y: Array) -> Array:
    return np.array(float(mp.acosh(-_minkowski(_lifted(x), _lifted(y)))))


def _lorentz_log(x: Array, y: Array) -> Array:
    a, b = _lifted(x), _lifted(y)
    cosine = -_minkowski(a, b)
    return _floats((b - a * cosine) * (mp.acosh(cosine) / mp.sqrt(cosine**2 - 1)))


def _mobius(a: Any, b: Any) -> Any:
    along, p, q = _dot(a, b), _dot(a, a), _dot(b, b)
    return (a * (1 + 2 * along + q) + b * (1 - p)) / (1 + 2 * along + p * q)


def _ball_exp(x: Array, u: Array) -> Array:
    a, b = _vector(x), _vector(u)
    size = mp.norm(b)
    return _floats(_mobius(a, b * (mp.tanh(size / (1 - _dot(a, a))) / size)))


def _ball_log(x: Array, y: Array) -> Array:
    a, b = _vector(x), _vector(y)
    w = _mobius(-a, b)
    size = mp.norm(w)
    return _floats(w * ((1 - _dot(a, a)) * mp.atanh(size) / size))


def _floats(a: Any) -> Array:
    return np.array([float(v) for v in a])


def _lifted_tangent(x: Array, u: Array) -> Any:
    """The tangent vector at `_lifted` of the stored space part."""
    a, space = _lifted(x), _vector(u[1:])
    return mp.matrix([_dot(_vector(x[1:]), space) / a[0], *space])


def _lorentz_inner(x: Array, u: Array, v: Array) -> Array:
    return np.array(float(_minkowski(_lifted_tangent(x, u), _lifted_tangent(x, v))))


def _lorentz_proju(x: Array, u: Array) -> Array:
    a, b = _lifted(x), _vector(u)
    return _floats(b + a * _minkowski(a, b))


def _lorentz_egrad2rgrad(x: Array, g: Array) -> Array:
    return _lorentz_proju(x, np.array([-g[0], *g[1:]]))


def _lorentz_transp(x: Array, y: Array, v: Array) -> Array:
    a, b, c = _lifted(x), _lifted(y), _lifted_tangent(x, v)
    return _floats(c + (a + b) * (_minkowski(b, c) / (1 - _minkowski(a, b))))


def _ball_transp(x: Array, y: Array, v: Array) -> Array:
    """gyr[y, -x] v, scaled by the conformal factors."""
    a, b, c = _vector(x), _vector(y), _vector(v)
    turned = _mobius(-_mobius(b, -a), _mobius(b, _mobius(-a, c / (8 * mp.norm(c)))))
    return _floats(turned * (8 * mp.norm(c) * (1 - _dot(b, b)) / (1 - _dot(a, a))))


def _columns(*arrays: Array) -> Any:
    return zip(*[[_vector(column) for column in a.T] for a in arrays], strict=True)


def _oblique_retr(x: Array, u: Array) -> Array:
    return np.array([_floats((a + b) / mp.norm(a + b)) for a, b in _columns(x, u)]).T


def _oblique_exp(x: Array, u: Array) -> Array:
    ends = [
        a * mp.cos(mp.norm(b)) + b * (mp.sin(mp.norm(b)) / mp.norm(b)) for a, b in _columns(x, u)
    ]
    return np.array([_floats(end / mp.norm(end)) for end in ends]).T


def _oblique_dist(x: Array, y: Array) -> Array:
    pairs = [(a / mp.norm(a), b / mp.norm(b)) for a, b in _columns(x, y)]
    angles = [2 * mp.atan2(mp.norm(a - b), mp.norm(a + b)) for a, b in pairs]
    return np.array(float(mp.norm(mp.matrix(angles))))


def _dense(a: Any) -> Array:
    return np.array(a.tolist(), dtype=float)


def _polar_retr(x: Array, u: Array) -> Array:
    """(x + u) (gram)^{-1/2}."""
    y = _matrix(x) + _matrix(u)
    values, basis = mp.eigsy(y.T * y)
    return _dense(y * basis * mp.diag([1 / mp.sqrt(w) for w in values]) * basis.T)


def _qr_retr(x: Array, u: Array) -> Array:
    """The factor of x + u whose triangle has a positive diagonal."""
    y = _matrix(x) + _matrix(u)
    factor = mp.cholesky(y.T * y)
    return _dense(y * mp.inverse(factor.T))


def _stiefel_exp(x: Array, u: Array) -> Array:
    """Edelman, Arias, Smith (1998), (2.42) in the Euclidean metric."""
    a, b, k = _matrix(x), _matrix(u), x.shape[1]
    along, gram = a.T * b, b.T * b
    block = mp.zeros(2 * k)
    for i in range(k):
        for j in range(k):
            block[i, j] = block[k + i, k + j] = along[i, j]
            block[i, k + j], block[k + i, j] = -gram[i, j], mp.mpf(i == j)
    turned = mp.expm(block)[:, :k] * mp.expm(-along)
    return _dense(a * turned[:k, :] + b * turned[k:, :])


def _subspace_retr(x: Array, u: Array) -> Array:
    return _dense(_matrix(x) + _matrix(u))


def _subspace_log(x: Array, y: Array) -> Array:
    """U atan(S) V^T of (I - x x^T) y (x^T y)^{-1}."""
    a, b = _matrix(x), _matrix(y)
    height = b * mp.inverse(a.T * b) - a * mp.inverse(a.T * a)
    values, basis = mp.eigsy(height.T * height)
    turn = [mp.atan(mp.sqrt(w)) / mp.sqrt(w) for w in values]
    return _dense(height * basis * mp.diag(turn) * basis.T)


def _spd_inner(x: Array, u: Array, v: Array) -> Array:
    left, right = (mp.inverse(_matrix(x)) * _matrix(w) for w in (u, v))
    return np.array(float(mp.fsum(mp.fdot(left[i, :], right[:, i].T) for i in range(len(x)))))


def _spd_egrad2rgrad(x: Array, g: Array) -> Array:
    a, b = _matrix(x), _matrix(g)
    return _dense(a * ((b + b.T) / 2) * a)


def _spd_retr(x: Array, u: Array) -> Array:
    a, b = _matrix(x), _matrix(u)
    return _dense(a + b + b * mp.inverse(a) * b / 2)


def _congruence(x: Array, other: Array, function: Callable[[Any], Any]) -> Any:
    """L f(L^{-1} other L^{-T}) L^T with x = L L^T."""
    factor = mp.cholesky(_matrix(x))
    inverse = mp.inverse(factor)
    values, basis = mp.eigsy(inverse * _matrix(other) * inverse.T)
    half = factor * basis
    return half * mp.diag([function(w) for w in values]) * half.T


def _spd_exp(x: Array, u: Array) -> Array:
    return _dense(_congruence(x, u, mp.exp))


def _spd_log(x: Array, y: Array) -> Array:
    return _dense(_congruence(x, y, mp.log))


def _spd_dist(x: Array, y: Array) -> Array:
    inverse = mp.inverse(mp.cholesky(_matrix(x)))
    values = mp.eigsy(inverse * _matrix(y) * inverse.T, eigvals_only=True)
    return np.array(float(mp.norm(mp.matrix([mp.log(w) for w in values]))))


REFERENCES: dict[tuple[str, str], Callable[..., Array]] = {
    ("Grassmann", "dist"): _subspace_dist,
    ("Grassmann", "proju"): _subspace_proju,
    ("Grassmann", "retr"): _subspace_retr,
    ("Grassmann", "logmap"): _subspace_log,
    ("Stiefel", "retr"): _qr_retr,
    ("Stiefel", "expmap"): _stiefel_exp,
    ("SPD", "inner"): _spd_inner,
    ("SPD", "egrad2rgrad"): _spd_egrad2rgrad,
    ("SPD", "retr"): _spd_retr,
    ("SPD", "expmap"): _spd_exp,
    ("SPD", "logmap"): _spd_log,
    ("SPD", "dist"): _spd_dist,
    ("Oblique", "retr"): _oblique_retr,
    ("Oblique", "expmap"): _oblique_exp,
    ("Oblique", "dist"): _oblique_dist,
    ("Lorentz", "inner"): _lorentz_inner,
    ("Lorentz", "proju"): _lorentz_proju,
    ("Lorentz", "egrad2rgrad"): _lorentz_egrad2rgrad,
    ("Lorentz", "transp"): _lorentz_transp,
    ("PoincareBall", "transp"): _ball_transp,
    ("Stiefel", "proju"): _stiefel_proju,
    ("Stiefel", "inner"): _inner,
    ("Sphere", "inner"): _inner,
    ("Sphere", "dist"): _sphere_dist,
    ("Lorentz", "dist"): _lorentz_dist,
    ("Lorentz", "logmap"): _lorentz_log,
    ("PoincareBall", "expmap"): _ball_exp,
    ("PoincareBall", "logmap"): _ball_log,
    ("PoincareBall", "dist"): _ball_dist,
}


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
        reference = _polar_retr
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
    if not others:
        return None
    peer = min(others, key=lambda name: others[name])
    ratio = seconds["ours"] / others[peer]
    if ratio <= MOST:
        return None
    found = errors(place, operation, peer, peers)
    if found is None:
        return Loss(place.name, operation, batch, peer, round(ratio, 2))
    ours, theirs = (max(value, np.finfo(float).eps) for value in found)
    digits = max(0.0, math.log10(theirs / ours))
    return Loss(
        place.name, operation, batch, peer, round(ratio, 2), *found, digits=round(digits, 1)
    )


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
    return race(runs, rounds=5, slice_=0.01), away


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
            digits = max(0.0, math.log10(away["pyriemann"] / away["ours"]))
            found = away["ours"], away["pyriemann"]
            losses.append(
                Loss(f"spd_{size}", "mean", MATRICES, "pyriemann", round(ratio, 2), *found,
                     digits=round(digits, 1))
            )  # fmt: skip
    return rows


def page(only: str) -> tuple[str, list[Loss]]:
    """The page, and the losses in it."""
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
                seconds = race(entered, rounds=8, slice_=0.004)
                ratios = [
                    f"{seconds[p] / seconds['ours']:.2f}" if p in seconds else "" for p in peers
                ]
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
    text += f"\nWhere we lose by more than {MOST} times, and what it buys.\n\n"
    header = [
        "place",
        "operation",
        "batch",
        "fastest",
        "ours over it",
        "our error",
        "its",
        "digits",
    ]
    return text + table(header, [_row(lost) for lost in losses]) + "\n", losses


def _row(lost: Loss) -> list[str]:
    both = ["" if e is None else f"{e:.0e}" for e in (lost.our_error, lost.their_error)]
    digits = "not measured" if lost.our_error is None else f"{lost.digits:.1f}"
    return [
        lost.place,
        lost.operation,
        str(lost.batch),
        lost.peer,
        f"{lost.ratio:.2f}",
        *both,
        digits,
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
