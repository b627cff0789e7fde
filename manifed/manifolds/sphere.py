"""The unit sphere S^{n-1} in R^n.

Every angle is an atan2 of two norms, so distances and logarithms keep full relative accuracy
from 1e-9 to pi - 1e-6 (an arccos of an inner product loses half of the digits at both ends).
Antipodal points have no unique geodesic: there ``logmap`` is 0 and ``transp`` is not finite.
"""

import torch
from torch import Tensor, linalg

from manifed.manifolds.base import Submanifold
from manifed.manifolds.linalg import TINY, Shape


class Sphere(Submanifold):
    """The sphere of unit vectors of R^n; dimension n - 1, injectivity radius pi."""

    name = "Sphere"
    looks_at_all_pairs = False
    carries_rows_apart = True

    def dim(self, shape: Shape) -> int:
        """The number of entries less one."""
        return shape[-1] - 1

    def from_coords(self, x: Tensor, c: Tensor) -> Tensor:
        """The orthogonal projection of n ambient normals."""
        return c - (x * c).sum(-1, keepdim=True) * x

    to_coords = Submanifold.flattened

    def projx(self, x: Tensor) -> Tensor:
        """The point x / |x|, the nearest one; NaN for x = 0, where it is not unique."""
        return x / linalg.vector_norm(x, dim=-1, keepdim=True)

    def proju(self, x: Tensor, u: Tensor) -> Tensor:
        """The orthogonal projection u - <x, u> x."""
        return torch.addcmul(u, (x * u).sum(-1, keepdim=True), x, value=-1.0)

    tangent_part = proju

    def norm(self, x: Tensor, u: Tensor, *, keepdim: bool = False) -> Tensor:
        """Euclidean norm, shape (...,)."""
        return linalg.vector_norm(u, dim=-1, keepdim=keepdim)

    def retr(self, x: Tensor, u: Tensor) -> Tensor:
        """The point (x + u) / |x + u|, of second order."""
        return self.projx(x + u)

    def invretr(self, x: Tensor, y: Tensor) -> Tensor:
        """The vector y / <x, y> - x, for <x, y> > 0."""
        return y / (x * y).sum(-1, keepdim=True) - x

    def expmap(self, x: Tensor, u: Tensor) -> Tensor:
        """The point cos|u| x + sin|u| u / |u|, renormalised."""
        t = linalg.vector_norm(u, dim=-1, keepdim=True).clamp_min(TINY[u.dtype])
        return self.projx(t.cos() * x + (t.sin() / t) * u)

    def logmap(self, x: Tensor, y: Tensor) -> Tensor:
        """The shortest tangent vector u with expmap(x, u) = y, |u| <= pi."""
        w = y - x
        v = w - (x * w).sum(-1, keepdim=True) * x
        s = linalg.vector_norm(v, dim=-1, keepdim=True).clamp_min(TINY[v.dtype])
        return v * (torch.atan2(s, (x * y).sum(-1, keepdim=True)) / s)

    def _distance(self, x: Tensor, y: Tensor) -> Tensor:
        """The angle 2 atan2(|x - y|, |x + y|)."""
        return 2 * torch.atan2(*(self.norm(x, w, keepdim=True) for w in (x - y, x + y)))

    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """Parallel transport v - <y, v> / (1 + <x, y>) (x + y)."""
        along = (y * v).sum(-1, keepdim=True) / (1 + (x * y).sum(-1, keepdim=True))
        return v - along * (x + y)

    def of_zeros(self, zeros: Tensor) -> Tensor:
        """The first unit vector."""
        zeros[..., 0] = 1
        return zeros

    def _off_manifold(self, x: Tensor) -> Tensor:
        return (linalg.vector_norm(x, dim=-1) - 1).abs()

    def _normal_part(self, x: Tensor, u: Tensor) -> Tensor:
        return ((x * u).sum(-1) / linalg.vector_norm(x, dim=-1)).abs()
