"""One case per manifold: adding a manifold to the conformance suite is adding a line to CASES."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from manifolds.base import Manifold
from manifolds.euclidean import Euclidean
from manifolds.sphere import Sphere


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
    ManifoldCase("euclidean-vector", Euclidean(), (5,), radius=10.0, retraction_radius=10.0),
    ManifoldCase("euclidean-matrix", Euclidean(ndim=2), (4, 3), radius=10.0),
    ManifoldCase("sphere", Sphere(), (6,), radius=3.0, retraction_radius=1.0),
]
