"""The places of ``peers.py``: one manifold at one shape, in three libraries."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import geoopt
import pymanopt.manifolds as pymanopt
import torch
from torch import Tensor

from manifed.manifolds import (
    SPD,
    Grassmann,
    Lorentz,
    Manifold,
    PoincareBall,
    Sphere,
    Stiefel,
)

PYMANOPT_NAMES = {
    "proju": "projection",
    "retr": "retraction",
    "expmap": "exp",
    "logmap": "log",
    "dist": "dist",
    "inner": "inner_product",
}
ILL_CONDITIONED = "projx_1e8"
"""The projection of frames of condition number 1e8."""


def unit() -> Tensor:
    """A curvature of its own for every geoopt manifold: PoincareBall writes into its argument."""
    return torch.tensor(1.0, dtype=torch.float64)


@dataclass(frozen=True)
class Place:
    """One manifold at one shape; ``pymanopt`` maps a number of points to their manifold."""

    name: str
    ours: Manifold
    shape: tuple[int, ...]
    operations: tuple[str, ...]
    geoopt: Any = None
    pymanopt: Callable[[int], Any] | None = None


@dataclass(frozen=True)
class Inputs:
    """Points x, y, tangents u, v at x and an ambient g, with and without a batch."""

    x: Tensor
    y: Tensor
    u: Tensor
    v: Tensor
    g: Tensor

    @staticmethod
    def draw(place: Place, batch: int) -> "Inputs":
        """``batch`` independent points at distances of about half a unit."""
        generator = torch.Generator().manual_seed(1)
        m = place.ours
        lead = (batch,) if batch > 1 else ()
        x = m.random(*lead, *place.shape, generator=generator)
        size = (2, *lead, *m.coords_shape(place.shape))
        u, v = m.from_coords(x, torch.randn(size, generator=generator, dtype=torch.float64))
        u = u * (0.5 / m.norm(x, u, keepdim=True))
        g = torch.randn(x.shape, generator=generator, dtype=torch.float64)
        return Inputs(x, m.expmap(x, u), u, v, g)

    def arguments(self, operation: str) -> tuple[Tensor, ...]:
        """What an operation is called with."""
        if operation == ILL_CONDITIONED:
            return (self.x * torch.logspace(0, -8, self.x.shape[-1], dtype=torch.float64),)
        return {
            "projx": (self.x + 0.01 * self.g,),
            "proju": (self.x, self.g),
            "egrad2rgrad": (self.x, self.g),
            "retr": (self.x, self.u),
            "expmap": (self.x, self.u),
            "logmap": (self.x, self.y),
            "dist": (self.x, self.y),
            "transp": (self.x, self.y, self.v),
            "inner": (self.x, self.u, self.v),
        }[operation]


def _spd(m: int) -> Place:
    return Place(
        f"spd_{m}",
        SPD(),
        (m, m),
        ("inner", "egrad2rgrad", "retr", "expmap", "logmap", "dist", "transp"),
        geoopt.SymmetricPositiveDefinite(),
        lambda k: pymanopt.SymmetricPositiveDefinite(m, k=k),
    )


def _stiefel(n: int, k: int) -> list[Place]:
    operations = ("projx", ILL_CONDITIONED, "proju", "egrad2rgrad", "inner", "expmap")
    return [
        Place(
            f"stiefel_{n}x{k}",
            Stiefel(),
            (n, k),
            operations,
            geoopt.EuclideanStiefel(),
            lambda count: pymanopt.Stiefel(n, k, k=count),
        ),
        Place(
            f"stiefel_polar_{n}x{k}",
            Stiefel(),
            (n, k),
            ("retr",),
            None,
            lambda count: pymanopt.Stiefel(n, k, k=count, retraction="polar"),
        ),
        Place(
            f"grassmann_{n}x{k}",
            Grassmann(),
            (n, k),
            ("proju", "retr", "expmap", "logmap", "dist"),
            None,
            lambda count: pymanopt.Grassmann(n, k, k=count),
        ),
    ]


def _hyperbolic(d: int) -> list[Place]:
    operations = ("inner", "egrad2rgrad", "expmap", "logmap", "dist", "transp")
    return [
        Place(
            f"lorentz_{d}",
            Lorentz(),
            (d + 1,),
            ("proju", *operations),
            geoopt.Lorentz(k=unit()),
        ),
        Place(
            f"poincare_{d}",
            PoincareBall(),
            (d,),
            tuple(op for op in operations if op != "inner"),
            geoopt.PoincareBall(c=unit()),
            lambda k: pymanopt.PoincareBall(d, k=k),
        ),
    ]


PLACES = [
    *_stiefel(784, 5),
    *_stiefel(100, 5),
    *[_spd(m) for m in (10, 20, 50, 100)],
    *_hyperbolic(5),
    *_hyperbolic(50),
    Place(
        "sphere_784",
        Sphere(),
        (784,),
        ("projx", "proju", "egrad2rgrad", "inner", "retr", "expmap", "logmap", "dist"),
        geoopt.Sphere(),
    ),
]

LARGE = [
    *[(place, 1) for place in _stiefel(500, 50)[:2]],
    *[(place, 10_000) for place in _hyperbolic(2)],
    (Place("sphere_100000", Sphere(), (100_000,), PLACES[-1].operations, PLACES[-1].geoopt,
           lambda k: pymanopt.Sphere(100_000)), 1),
]  # fmt: skip
"""Places beyond those of every day, each with its batch."""
