"""What all metrics on the symmetric positive definite matrices share: the set itself.

Points are full symmetric m x m matrices, tangent vectors are symmetric m x m matrices,
dim = m(m+1)/2. A metric is a subclass; none inherits another's geometry.
"""

from typing import Any

import torch
from geoopt.utils import size2shape
from torch import Tensor

from manifed.manifolds.base import Manifold, verdict
from manifed.manifolds.defects import largest_entry
from manifed.manifolds.linalg import expm, identity_like, standard_normal, sym

SMALLEST_EIGENVALUE = 1e-12
EPS = torch.finfo(torch.float64).eps


class SPDSet(Manifold):
    """Symmetric positive definite matrices without a metric; points ``(..., m, m)``."""

    ndim = 2
    reversible = False

    def dim(self, shape: tuple[int, ...]) -> int:
        """m(m+1)/2 for points of shape ``(m, m)``."""
        return shape[-1] * (shape[-1] + 1) // 2

    def projx(self, x: Tensor) -> Tensor:
        """The nearest symmetric matrix with eigenvalues >= 1e-12 (clamped, not mirrored)."""
        w, v = torch.linalg.eigh(sym(x))
        return sym((v * w.clamp_min(SMALLEST_EIGENVALUE).unsqueeze(-2)) @ v.mT)

    def proju(self, x: Tensor, u: Tensor) -> Tensor:
        """The symmetric part of u."""
        return sym(u).expand(torch.broadcast_shapes(x.shape, u.shape))

    def norm_slack(self, x: Tensor) -> Tensor:
        """4 m eps tr(x) tr(x^-1), at least the condition number of x times 4 m eps."""
        factor, inverse = factor_norms(x)
        return 4 * x.shape[-1] * EPS * (factor * inverse).square()

    def _check_shape(self, shape: tuple[int, ...], name: str) -> tuple[bool, str | None]:
        if len(shape) < 2 or shape[-1] != shape[-2]:
            return False, f"Expected {name} of shape (..., m, m), got {tuple(shape)}"
        return True, None

    def _off_manifold(self, x: Tensor) -> Tensor:
        """The relative asymmetry; infinite where there is no Cholesky factor."""
        largest = largest_entry(x, 2)
        unit = x / self.expand_scalar(torch.where(largest > 0, largest, 1.0))
        asymmetry = torch.linalg.vector_norm(unit - unit.mT, dim=(-2, -1)) / 2
        is_definite = torch.linalg.cholesky_ex(unit).info == 0
        return torch.where(
            is_definite, asymmetry / torch.linalg.vector_norm(unit, dim=(-2, -1)), torch.inf
        )

    def _normal_part(self, x: Tensor, u: Tensor) -> Tensor:
        """The skew part."""
        normal = torch.linalg.vector_norm(u - u.mT, dim=(-2, -1)) / 2
        return normal.expand(torch.broadcast_shapes(x.shape, u.shape)[:-2])

    def _check_point_on_manifold(
        self, x: Tensor, *, atol: float = 1e-5, rtol: float = 1e-5
    ) -> tuple[bool, str | None]:
        asymmetry = float((x - x.mT).abs().max())
        if asymmetry > atol + rtol * float(x.abs().max()):
            return False, f"Expected |x - x^T| <= {atol}, got {asymmetry}; call projx"
        is_definite = not bool(torch.linalg.cholesky_ex(x).info.any())
        return verdict(is_definite, "Expected a positive definite x, its Cholesky factor fails")

    def _check_vector_on_tangent(
        self, x: Tensor, u: Tensor, *, atol: float = 1e-5, rtol: float = 1e-5
    ) -> tuple[bool, str | None]:
        asymmetry = float((u - u.mT).abs().max())
        bound = atol + rtol * float(u.abs().max())
        return verdict(asymmetry <= bound, f"Expected |u - u^T| <= {bound}, got {asymmetry}")

    def random(
        self,
        *size: Any,
        dtype: torch.dtype = torch.float64,
        device: Any = None,
        generator: torch.Generator | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """The exponential of half the symmetric part of standard normals, shape ``(..., m, m)``."""
        z = standard_normal(size2shape(*size), generator, dtype, device)
        root = expm(sym(z) / 4)
        return root @ root.mT

    def origin(
        self,
        *size: Any,
        dtype: torch.dtype = torch.float64,
        device: Any = None,
        seed: int | None = 42,
    ) -> Tensor:
        """The identity matrix, repeated to shape ``size``."""
        point = torch.zeros(size2shape(*size), dtype=dtype, device=device)
        return point + identity_like(point)


def factor_norms(x: Tensor) -> tuple[Tensor, Tensor]:
    """|L|_F and |L^-1|_F of x = L L^T, shape ``(...)`` each."""
    factor = torch.linalg.cholesky(x)
    inverse = torch.linalg.solve_triangular(factor, identity_like(x).expand_as(factor), upper=False)
    norm = torch.linalg.matrix_norm
    return norm(factor), norm(inverse)
