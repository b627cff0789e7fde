"""One case per manifold: adding a manifold to the conformance suite is adding a line to CASES."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from manifolds.base import Manifold
from manifolds.euclidean import Euclidean
from manifolds.fixed_rank import FixedRank
from manifolds.grassmann import Grassmann
from manifolds.hyperbolic import Lorentz
from manifolds.oblique import Oblique
from manifolds.poincare import PoincareBall
from manifolds.product import Product
from manifolds.rotations import SpecialOrthogonal
from manifolds.spd import SPD
from manifolds.spd_bures import SPDBuresWasserstein
from manifolds.spd_flat import SPDLogCholesky, SPDLogEuclidean
from manifolds.sphere import Sphere
from manifolds.stiefel import Stiefel


def entrywise_gap(x: Tensor, y: Tensor) -> Tensor:
    """Largest difference of entries: the gap between points that have one representative."""
    return (x - y).abs().max()


def projector_gap(x: Tensor, y: Tensor) -> Tensor:
    """Gap between points that are subspaces, whatever their bases."""
    return (x @ x.mT - y @ y.mT).abs().max()


def frobenius_pairing(egrad: Tensor, u: Tensor, ndim: int) -> Tensor:
    """<egrad, u> of a Euclidean gradient and a tangent vector, shape (...,)."""
    return (egrad * u).sum(tuple(range(-ndim, 0)))


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
    has_invretr: bool = True
    has_nearest_projx: bool = True
    """Whether projx of an ambient matrix is defined (every shape-correct tensor is ambient)."""
    is_transp_identity_at_home: bool = True
    """Whether transp(x, x, v) = v."""
    is_stored_in_ambient: bool = True
    """Whether stored points and tangents live in one ambient space: retr(x, u) = x + u + O(u^2)."""
    is_inner_ambient: bool = False
    """Whether inner extends to ambient vectors, where proju is then its orthogonal projection."""
    tolerance: float = 1.0
    """Factor on every tolerance of the suite (1 unless the formulas are known to be worse)."""
    gap: Callable[[Tensor, Tensor], Tensor] = entrywise_gap
    pairing: Callable[[Tensor, Tensor, int], Tensor] = frobenius_pairing

    def points(self, seed: int, *lead: int) -> Tensor:
        """Random points of shape (*lead, *shape)."""
        generator = torch.Generator().manual_seed(seed)
        return self.manifold.random_point(*lead, *self.shape, generator=generator)

    def tangents(self, x: Tensor, seed: int, *lead: int, scale: float = 1.0) -> Tensor:
        """Tangent vectors at x of metric norm ``scale``, shape (*lead, *shape)."""
        generator = torch.Generator().manual_seed(seed)
        size = (*lead, *self.manifold.coords_shape(self.shape))
        u = self.manifold.from_coords(x, torch.randn(size, generator=generator).double())
        return u * (scale / self.manifold.norm(x, u, keepdim=True))

    def ambient(self, seed: int, *lead: int) -> Tensor:
        """Standard normals of shape (*lead, *shape)."""
        generator = torch.Generator().manual_seed(seed)
        return torch.randn((*lead, *self.shape), generator=generator, dtype=torch.float64)

    def pair(self, egrad: Tensor, u: Tensor) -> Tensor:
        """<egrad, u>, shape (...,)."""
        return self.pairing(egrad, u, self.manifold.ndim)


CASES = [
    ManifoldCase("euclidean-vector", Euclidean(), (5,), radius=10.0, is_inner_ambient=True),
    ManifoldCase("euclidean-matrix", Euclidean(ndim=2), (4, 3), radius=10.0),
    ManifoldCase("stiefel-euclidean", Stiefel(), (7, 3), radius=1.5, is_inner_ambient=True),
    ManifoldCase("stiefel-euclidean-cayley", Stiefel(retraction="cayley"), (4, 3)),
    ManifoldCase(
        "stiefel-canonical",
        Stiefel("canonical", "cayley"),
        (7, 3),
        radius=1.5,
        is_inner_ambient=True,
    ),
    ManifoldCase("stiefel-canonical-qr", Stiefel("canonical", "qr"), (6, 2), radius=1.5),
    ManifoldCase("orthogonal-group", Stiefel(), (3, 3), radius=1.5),
    ManifoldCase(
        "sphere", Sphere(), (6,), radius=3.0, retraction_radius=1.0, is_inner_ambient=True
    ),
    ManifoldCase("spd", SPD(), (4, 4), radius=3.0, retraction_radius=0.9, is_inner_ambient=True),
    ManifoldCase("lorentz", Lorentz(), (5,), radius=3.0, retraction_radius=3.0, tolerance=10.0),
]

CASES += [
    ManifoldCase("grassmann", Grassmann(), (7, 3), radius=1.4, gap=projector_gap),
    ManifoldCase("spd-log-euclidean", SPDLogEuclidean(), (4, 4), radius=2.0, tolerance=10.0),
    ManifoldCase("spd-log-cholesky", SPDLogCholesky(), (4, 4), radius=2.0, tolerance=10.0),
    ManifoldCase(
        "spd-bures-wasserstein", SPDBuresWasserstein(), (4, 4), radius=0.3, retraction_radius=0.3
    ),
    ManifoldCase("poincare-ball", PoincareBall(), (5,), radius=2.0, retraction_radius=2.0),
    ManifoldCase("rotations", SpecialOrthogonal(), (4, 4), radius=2.0, retraction_radius=1.0),
    ManifoldCase("oblique", Oblique(), (5, 3), radius=2.0, retraction_radius=1.0),
    ManifoldCase(
        "fixed-rank",
        FixedRank(6, 5, 2),
        (13, 2),
        radius=0.2,
        retraction_radius=0.2,
        is_stored_in_ambient=False,
    ),
    ManifoldCase(
        "product",
        Product({"basis": (Grassmann(), (5, 2)), "cov": (SPDLogCholesky(), (3, 3))}),
        (19,),
    ),
]
