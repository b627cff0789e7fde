"""One case per manifold: adding a manifold to the conformance suite is adding a line to CASES."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from manifed.manifolds import (
    SPD,
    Euclidean,
    Grassmann,
    Lorentz,
    Manifold,
    PoincareBall,
    Power,
    Product,
    Scaled,
    SPDLogEuclidean,
    Sphere,
    Stiefel,
)
from manifed.manifolds.linalg import sym
from manifed_extras.fixed_rank import FixedRank
from manifed_extras.log_cholesky import SPDLogCholesky
from manifed_extras.rotations import SpecialOrthogonal
from reproduction.bures_wasserstein import SPDBuresWasserstein
from tests.tensors import float64, generator, normals


def results(m, x, y, u, g):
    """What the methods say of points x and y, a tangent vector u and an ambient g, by name."""
    found = {
        "proju": m.proju(x, g), "tangent_part": m.tangent_part(x, u), "projx": m.projx(x),
        "egrad2rgrad": m.egrad2rgrad(x, g), "inner": m.inner(x, u, u), "norm": m.norm(x, u),
        "retr": m.retr(x, u), "invretr": m.invretr(x, y), "transp": m.transp(x, y, u),
        "to_coords": m.to_coords(x, u),
    }  # fmt: skip
    if m.has_logmap:
        found |= {"expmap": m.expmap(x, u), "logmap": m.logmap(x, y), "dist": m.dist(x, y)}
    return found


def entrywise_gap(x, y):
    """Largest difference of entries: the gap between points that have one representative."""
    return (x - y).abs().max()


def projector_gap(x, y):
    """Gap between points that are subspaces, whatever their bases."""
    return (x @ x.mT - y @ y.mT).abs().max()


def frame_normal(x, z):
    """x S with S symmetric."""
    s = z[..., : x.shape[-1], :]
    return x @ (s + s.mT)


def along_the_ray(x, z):
    """A multiple of x."""
    return x * z[..., :1]


def vertical(x, z):
    """x S with any S: a turn of the basis, not of the subspace."""
    return x @ z[..., : x.shape[-1], :]


def skew_part(x, z):
    """A skew matrix of the size of x."""
    return (z - z.mT) * x.abs().amax((-2, -1), keepdim=True)


def wrong_time(x, z):
    """A time component alone."""
    return torch.cat([x[..., :1], torch.zeros_like(x[..., 1:])], -1)


def in_the_factors(x, z):
    """Up = U S on packed matrices of rank 2 with 6 rows."""
    return torch.cat([vertical(x[..., :6, :], z), torch.zeros_like(x[..., 6:, :])], -2)


def skew_in_the_second_factor(x, z):
    """Nothing in the first ten entries, a skew 3 x 3 matrix in the other nine."""
    skew = skew_part(x[..., 10:].unflatten(-1, (3, 3)), z[..., 10:].unflatten(-1, (3, 3)))
    return torch.cat([torch.zeros_like(x[..., :10]), skew.flatten(-2)], -1)


def spd_of_condition(seed, *digits):
    """Matrices whose conditions have these powers of ten: 3, 8 and 12 unless others are given."""
    basis = torch.linalg.qr(normals(seed, 4, 4))[0]
    powers = torch.linspace(-1, 0, 4, dtype=torch.float64)
    return sym(torch.stack([(basis * 10 ** (d * powers)) @ basis.mT for d in digits or (3, 8, 12)]))


def spd_of_condition_and_size(seed):
    """The same, and at 1e-9 and 1e9 of their sizes, which are as any other to the metric."""
    points = spd_of_condition(seed)
    return torch.cat([points, 1e-9 * points, 1e9 * points])


def spd_of_condition_1e8(seed):
    """Up to 1e8 only: log-Cholesky steps move L off its diagonal by as much, however small L_nn."""
    return spd_of_condition(seed)[:2]


def lorentz_of_radius(seed):
    """Points at distance 5, 12, 18 and 25 from the origin."""
    radius = float64([[5.0], [12], [18], [25]])
    space = radius.sinh() * Sphere().projx(normals(seed, 4, 4))
    return Lorentz().projx(torch.cat([radius, space], -1))


def poincare_of_radius(seed):
    """Points at 1 - |x| of 1e-2, 1e-5, 1e-9 and 1e-13."""
    gap = float64([[1e-2], [1e-5], [1e-9], [1e-13]])
    return (1 - gap) * Sphere().projx(normals(seed, 4, 5))


def fixed_rank_of_condition(seed):
    """Packed points whose two singular values are as 1 to 1e12, at sizes 1e-6, 1 and 1e6."""
    m = FixedRank(6, 5, 2)
    left, right, _ = m.unpack(m.projx(normals(seed, 3, 13, 2)))
    core = float64([[1.0, 0.0], [0.0, 1e-12]])
    return m.pack(left, right, torch.stack([1e-6 * core, core, 1e6 * core]))


@dataclass(frozen=True)
class ManifoldCase:
    """What the suite needs to know about a manifold beyond its interface.

    Flags that the manifold itself carries (has_logmap, is_transp_isometric, ...) are read there.
    """

    name: str
    manifold: Manifold
    shape: tuple[int, ...]
    radius: float = 1.0
    """Tangent norm up to which expmap has an inverse and tolerances hold."""
    retraction_radius: float = 0.5
    """Tangent norm up to which invretr inverts retr."""
    is_stored_in_ambient: bool = True
    """Whether stored points and tangents live in one ambient space: retr(x, u) = x + u + O(u^2)."""
    is_inner_ambient: bool = False
    """Whether inner extends to ambient vectors, where proju is then its orthogonal projection."""
    tolerance: float = 1.0
    """Factor on every tolerance of the suite (1 unless the formulas are known to be worse)."""
    hard_points: Callable[[int], Tensor] | None = None
    """seed -> points (n, *shape) at every radius and conditioning that the docs promise."""
    normal: Callable[[Tensor, Tensor], Tensor] | None = None
    """(x, ambient normals) -> a vector normal at x; None where every vector is tangent."""
    gap: Callable[[Tensor, Tensor], Tensor] = entrywise_gap

    def points(self, seed, *lead):
        """Random points of shape (*lead, *shape)."""
        return self.manifold.random(*lead, *self.shape, generator=generator(seed))

    def tangents(self, x, seed, *lead, scale=1.0):
        """Tangent vectors at x of metric norm ``scale``, shape (*lead, *shape), or that of x."""
        lead = lead or x.shape[: -len(self.shape)]
        u = self.manifold.from_coords(
            x, normals(seed, *lead, *self.manifold.coords_shape(self.shape))
        )
        return u * (scale / self.manifold.norm(x, u, keepdim=True))

    def ambient(self, seed, *lead):
        """Standard normals of shape (*lead, *shape)."""
        return normals(seed, *lead, *self.shape)

    def close(self, actual, expected, tolerance):
        """Assert an entrywise absolute gap of at most ``tolerance``, and the factor on it."""
        gap = float(entrywise_gap(actual, expected))
        most = tolerance * self.tolerance
        assert gap <= most, f"gap {gap:.3g} > {most:.3g}"


CASES = [
    ManifoldCase("euclidean-vector", Euclidean(), (5,), radius=10.0, is_inner_ambient=True),
    ManifoldCase("euclidean-tensor", Euclidean(ndim=3), (2, 3, 2), radius=10.0),
    ManifoldCase(
        "stiefel-euclidean",
        Stiefel(),
        (7, 3),
        radius=1.5,
        is_inner_ambient=True,
        normal=frame_normal,
    ),
    ManifoldCase("stiefel-narrow", Stiefel(), (4, 3), normal=frame_normal),
    ManifoldCase(
        "stiefel-canonical",
        Stiefel("canonical"),
        (7, 3),
        radius=1.5,
        is_inner_ambient=True,
        normal=frame_normal,
    ),
    ManifoldCase(
        "stiefel-canonical-small", Stiefel("canonical"), (6, 2), radius=1.5, normal=frame_normal
    ),
    ManifoldCase("orthogonal-group", Stiefel(), (3, 3), radius=1.5, normal=frame_normal),
    ManifoldCase(
        "sphere",
        Sphere(),
        (6,),
        radius=3.0,
        retraction_radius=1.0,
        is_inner_ambient=True,
        normal=along_the_ray,
    ),
    ManifoldCase(
        "spd",
        SPD(),
        (4, 4),
        radius=3.0,
        retraction_radius=0.9,
        is_inner_ambient=True,
        hard_points=spd_of_condition_and_size,
        normal=skew_part,
    ),
    ManifoldCase(
        "lorentz",
        Lorentz(),
        (5,),
        radius=3.0,
        retraction_radius=3.0,
        tolerance=10.0,
        hard_points=lorentz_of_radius,
        normal=wrong_time,
    ),
    ManifoldCase("grassmann", Grassmann(), (7, 3), radius=1.4, gap=projector_gap, normal=vertical),
    ManifoldCase(
        "spd-log-euclidean",
        SPDLogEuclidean(),
        (4, 4),
        radius=2.0,
        tolerance=10.0,
        hard_points=spd_of_condition,
        normal=skew_part,
    ),
    ManifoldCase(
        "spd-log-cholesky",
        SPDLogCholesky(),
        (4, 4),
        radius=2.0,
        tolerance=10.0,
        hard_points=spd_of_condition_1e8,
        normal=skew_part,
    ),
    ManifoldCase(
        "spd-bures-wasserstein",
        SPDBuresWasserstein(),
        (4, 4),
        radius=0.3,
        retraction_radius=0.3,
        hard_points=spd_of_condition,
        normal=skew_part,
    ),
    ManifoldCase(
        "poincare-ball",
        PoincareBall(),
        (5,),
        radius=2.0,
        retraction_radius=2.0,
        hard_points=poincare_of_radius,
    ),
    ManifoldCase(
        "rotations",
        SpecialOrthogonal(),
        (4, 4),
        radius=2.0,
        retraction_radius=1.0,
        normal=frame_normal,
    ),
    ManifoldCase(
        "fixed-rank",
        FixedRank(6, 5, 2),
        (13, 2),
        radius=0.2,
        retraction_radius=0.2,
        is_stored_in_ambient=False,
        hard_points=fixed_rank_of_condition,
        normal=in_the_factors,
    ),
    ManifoldCase(
        "product",
        Product({"basis": (Grassmann(), (5, 2)), "cov": (SPDLogCholesky(), (3, 3))}),
        (19,),
        normal=skew_in_the_second_factor,
    ),
    ManifoldCase(
        "power",
        Power(SPD()),
        (2, 3, 3),
        tolerance=2.0,  # the roundings of two matrices
        radius=3.0,
        retraction_radius=0.9,
        is_inner_ambient=True,
        normal=skew_part,
    ),
    ManifoldCase(
        "scaled",
        Scaled(Sphere(), 3.0),
        (6,),
        radius=9.0,
        retraction_radius=3.0,
        is_inner_ambient=True,
        normal=along_the_ray,
    ),
]
