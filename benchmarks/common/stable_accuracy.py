"""What the stable formulas buy: errors against geoopt's near, far and at growing radius."""

import math

import geoopt
import torch
from torch import Tensor

from benchmarks.common.geometry_cases import unit
from benchmarks.common.stopwatch import table
from manifed.manifolds import Lorentz, PoincareBall, Sphere

COUNT, DIM = 200, 5
RADII = (1.0, 5.0, 10.0, 15.0, 25.0)


def _directions(seed: int) -> Tensor:
    z = torch.randn(COUNT, DIM, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return z / z.norm(dim=-1, keepdim=True)


def _place(model: str, radius: float, seed: int) -> Tensor:
    """Points at a distance from the origin, without either library."""
    direction = _directions(seed)
    if model == "lorentz":
        time = torch.full((COUNT, 1), math.cosh(radius), dtype=torch.float64)
        return torch.cat([time, math.sinh(radius) * direction], -1)
    return math.tanh(radius / 2) * direction


def _largest(errors: Tensor) -> str:
    return f"{float(errors.abs().nan_to_num(nan=math.inf).max()):.1e}"


def _errors(model: str, library: str, radius: float) -> list[str]:
    """Isometry of transport, distance between two far points, and a distance of 1e-6."""
    ours = Lorentz() if model == "lorentz" else PoincareBall()
    theirs = geoopt.Lorentz(k=unit()) if model == "lorentz" else geoopt.PoincareBall(c=unit())
    judged = ours if library == "ours" else theirs
    x, y = _place(model, radius, 1), _place(model, radius, 2)
    v = ours.from_coords(x, _directions(3))  # metric norm 1
    moved = ours.norm(y, judged.transp(x, y, v)) - 1
    cosine = (_directions(1) * _directions(2)).sum(-1)
    # sinh(d/2) = sinh(r) sin(angle/2)
    truth = 2 * torch.asinh(math.sinh(radius) * ((1 - cosine) / 2).sqrt())
    far = judged.dist(x, y) / truth - 1
    near = judged.dist(x, ours.expmap(x, 1e-6 * v)) / 1e-6 - 1
    return [_largest(moved), _largest(far), _largest(near)]


def sphere_rows() -> list[list[str]]:
    """Distances close to 0 and to pi on the sphere, ours beside geoopt's."""
    x = _directions(1)
    u = Sphere().proju(x, _directions(2))
    u = u / u.norm(dim=-1, keepdim=True)
    rows: list[list[str]] = []
    for label, angle in (("1e-9", 1e-9), ("1e-6", 1e-6), ("pi - 1e-6", math.pi - 1e-6)):
        y = math.cos(angle) * x + math.sin(angle) * u
        errors = [_largest(m.dist(x, y) / angle - 1) for m in (Sphere(), geoopt.Sphere())]
        rows.append([label, *errors])
    return rows


def accuracy_tables() -> str:
    """One table for hyperbolic space (rows by model and radius) and one for the sphere."""
    rows = [
        [
            model,
            f"{radius:g}",
            *[
                cell
                for pair in zip(
                    _errors(model, "ours", radius), _errors(model, "geoopt", radius), strict=True
                )
                for cell in pair
            ],
        ]
        for model in ("lorentz", "poincare")
        for radius in RADII
    ]
    header = ["model", "radius"]
    for what in ("transport norm", "far distance", "distance 1e-6"):
        header += [f"{what}, ours", f"{what}, geoopt"]
    sphere = table(["distance on the sphere", "error, ours", "error, geoopt"], sphere_rows())
    return table(header, rows) + "\n\n" + sphere
