"""The oblique manifold: n x k matrices whose columns have unit length.

A product of k unit spheres S^(n-1) stored as columns, metric tr(u^T v), dim = k(n-1). All
formulas are the sphere's, column by column (Absil and Gallivan 2006; Absil, Mahony, Sepulchre
2008); distances by atan2 keep their digits at 0 and near the antipode.
"""

from typing import Any

import torch
from geoopt.utils import size2shape
from torch import Tensor

from manifed.manifolds.arrays import length, of, on_arrays
from manifed.manifolds.base import FrobeniusManifold, verdict
from manifed.manifolds.linalg import above_zero, are_plain, standard_normal


class Oblique(FrobeniusManifold):
    """Matrices with unit columns; points have shape ``(..., n, k)``."""

    name = "Oblique"
    looks_at_all_pairs = False
    reach = 1.0

    def dim(self, shape: tuple[int, ...]) -> int:
        """k(n-1) for points of shape ``(n, k)``."""
        return shape[-1] * (shape[-2] - 1)

    # -- sets and projections ----------------------------------------------------------------
    def projx(self, x: Tensor) -> Tensor:
        """The columns of x, normalised; a zero column becomes the first unit vector."""
        lengths = _lengths(x)
        if x.dim() == 2 and are_plain(x) and float(lengths.amin()) > 0:
            return x / lengths
        unit = x / above_zero(lengths)
        unit[..., :1, :].add_(lengths == 0)
        return unit

    def proju(self, x: Tensor, u: Tensor) -> Tensor:
        """Columns of u minus their components along the columns of x."""
        return torch.addcmul(u, x, _dots(x, u), value=-1.0)

    def _off_manifold(self, x: Tensor) -> Tensor:
        return (_lengths(x) - 1).abs().amax((-2, -1))

    def _normal_part(self, x: Tensor, u: Tensor) -> Tensor:
        return torch.linalg.vector_norm(_dots(x, u), dim=(-2, -1))

    def _check_point_on_manifold(
        self, x: Tensor, *, atol: float = 1e-5, rtol: float = 1e-5
    ) -> tuple[bool, str | None]:
        error = float((_lengths(x) - 1).abs().max())
        return verdict(error <= atol, f"Expected unit columns within {atol}, got error {error}")

    def _check_vector_on_tangent(
        self, x: Tensor, u: Tensor, *, atol: float = 1e-5, rtol: float = 1e-5
    ) -> tuple[bool, str | None]:
        error = float(_dots(x, u).abs().max())
        bound = atol + rtol * float(u.abs().max())
        return verdict(error <= bound, f"Expected |x_j·u_j| <= {bound}, got {error}; call proju")

    # -- metric ------------------------------------------------------------------------------
    def dist(self, x: Tensor, y: Tensor, *, keepdim: bool = False) -> Tensor:
        """The root of the sum of squared angles 2 atan2(|x_j - y_j|, |x_j + y_j|)."""
        found = on_arrays(_distance, x, y)
        return found.reshape(*found.shape, 1, 1) if keepdim else found

    # -- geodesics ---------------------------------------------------------------------------
    def expmap(self, x: Tensor, u: Tensor) -> Tensor:
        """cos|u_j| x_j + sinc|u_j| u_j per column, normalised."""
        angle = _lengths(u)
        safe = above_zero(angle)
        y = torch.addcmul(torch.cos(angle) * x, torch.sin(safe) / safe, u)
        return y / _lengths(y)  # no column is zero: u_j is orthogonal to x_j

    def logmap(self, x: Tensor, y: Tensor) -> Tensor:
        """v_j atan2(|v_j|, x_j·y_j)/|v_j| with v = P_x(y - x) per column."""
        v = self.proju(x, y - x)
        size = above_zero(_lengths(v))
        return v * torch.atan2(size, _dots(x, y)) / size

    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """Parallel transport v_j - y_j·v_j / (1 + x_j·y_j) (x_j + y_j) per column."""
        return v - _dots(y, v) / (1 + _dots(x, y)) * (x + y)

    def retr(self, x: Tensor, u: Tensor) -> Tensor:
        """The columns of x + u, normalised (second order)."""
        return self.projx(x + u)

    def invretr(self, x: Tensor, y: Tensor) -> Tensor:
        """y_j / (x_j·y_j) - x_j per column; needs x_j·y_j > 0."""
        return y / _dots(x, y) - x

    # -- privacy -----------------------------------------------------------------------------
    def from_coords(self, x: Tensor, c: Tensor) -> Tensor:
        """The projection of ambient normals c, shape ``(..., n, k)``."""
        return self.proju(x, c)

    def random(
        self,
        *size: Any,
        dtype: torch.dtype = torch.float64,
        device: Any = None,
        generator: torch.Generator | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Independent uniform columns, shape ``(..., n, k)``."""
        return self.projx(standard_normal(size2shape(*size), generator, dtype, device))


def _dots(u: Tensor, v: Tensor) -> Tensor:
    """Column by column inner products, shape ``(..., 1, k)``."""
    return (u * v).sum(-2, keepdim=True)


def _lengths(u: Any) -> Any:
    """Column lengths, shape ``(..., 1, k)``."""
    if isinstance(u, Tensor):  # transposed, torch takes 1.6 times as long
        return torch.linalg.vector_norm(u, dim=-2, keepdim=True)
    return length(u.mT).mT


def _distance(x: Any, y: Any) -> Any:
    """The length of the angles of the columns, shape ``(...)``."""
    chords, others = _lengths(x - y), _lengths(x + y)
    angles = 2 * of(chords).atan2(chords, others)
    return length(angles)[..., 0, 0]
