r"""The Grassmann manifold of k-dimensional subspaces of R^n, as orthonormal n x k matrices.

Edelman, Arias, Smith: The Geometry of Algorithms with Orthogonality Constraints (1998);
Bendokat, Zimmermann, Absil: A Grassmann Manifold Handbook (2020).
A point is any orthonormal basis x of the subspace, a tangent vector the horizontal lift
x^T u = 0 at that basis, the metric tr(u^T v), dim = k(n - k). With G = u^T u = V t^2 V^T every
formula is a k x k matrix function of G: no thin SVD of n x k, no division by a small sine.
Compare points by their projectors or ``dist``, never entry by entry.
"""

from typing import Any

import torch
from geoopt.utils import size2shape
from torch import Tensor

from manifed.manifolds.arrays import at_least, length, of, on_arrays, tiny
from manifed.manifolds.base import FrobeniusManifold, verdict
from manifed.manifolds.defects import gram_defect
from manifed.manifolds.linalg import (
    above_zero,
    by_small,
    expm,
    identity_like,
    is_light,
    minus_along,
    minus_product,
    polar,
    quotient,
    standard_normal,
)


class Grassmann(FrobeniusManifold):
    """k-dimensional subspaces of R^n; points have shape ``(..., n, k)``, orthonormal columns."""

    name = "Grassmann"
    reach = 1.0

    def dim(self, shape: tuple[int, ...]) -> int:
        """k(n - k) for points of shape ``(n, k)``."""
        return shape[-1] * (shape[-2] - shape[-1])

    # -- sets and projections ----------------------------------------------------------------
    def projx(self, x: Tensor) -> Tensor:
        """The polar factor of x, the nearest orthonormal basis of its column space."""
        return polar(x)

    def proju(self, x: Tensor, u: Tensor) -> Tensor:
        """The horizontal part u - x x^T u."""
        return minus_along(u, x, lambda xtu: xtu)

    def _check_shape(self, shape: tuple[int, ...], name: str) -> tuple[bool, str | None]:
        is_tall = len(shape) >= 2 and shape[-2] >= shape[-1]
        return verdict(is_tall, f"Expected {name} of shape (..., n, k), n >= k, got {shape}")

    def _off_manifold(self, x: Tensor) -> Tensor:
        return gram_defect(x)

    def _normal_part(self, x: Tensor, u: Tensor) -> Tensor:
        return torch.linalg.vector_norm(x.mT @ u, dim=(-2, -1))

    def _check_point_on_manifold(
        self, x: Tensor, *, atol: float = 1e-5, rtol: float = 1e-5
    ) -> tuple[bool, str | None]:
        error = float((x.mT @ x - torch.eye(x.shape[-1]).to(x)).abs().max())
        return verdict(error <= atol + rtol, f"Expected x^T x = I within {atol}, got {error}")

    def _check_vector_on_tangent(
        self, x: Tensor, u: Tensor, *, atol: float = 1e-5, rtol: float = 1e-5
    ) -> tuple[bool, str | None]:
        error, bound = float((x.mT @ u).abs().max()), atol + rtol * float(u.abs().max())
        return verdict(error <= bound, f"Expected |x^T u| <= {bound}, got {error}; call proju")

    # -- metric ------------------------------------------------------------------------------
    def dist(self, x: Tensor, y: Tensor, *, keepdim: bool = False) -> Tensor:
        """The norm of the principal angles atan2(s, c), accurate at 0 and pi/2."""
        return torch.linalg.vector_norm(_angles(x, y), dim=(-2, -1), keepdim=keepdim)

    # -- geodesics ---------------------------------------------------------------------------
    def expmap(self, x: Tensor, u: Tensor) -> Tensor:
        """The basis x cos(sqrt G) + u sinc(sqrt G), one Newton-Schulz step to rounding."""
        cosine, sinc = _cosine_and_sinc(u.mT @ u)
        y = minus_product(by_small(u, sinc), x, cosine, -1.0)
        gram = y.mT @ y
        return by_small(y, 1.5 * identity_like(gram) - 0.5 * gram)

    def logmap(self, x: Tensor, y: Tensor) -> Tensor:
        """The horizontal vector at x of the shortest geodesic to span y, |u| <= pi/2 sqrt(k)."""
        return on_arrays(_logarithm, x, y) if is_light(x) else _logarithm(x, y)

    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """Parallel transport along the geodesic, as the horizontal lift at the basis y."""
        angles, sines, height, right, left = _principal(x, y)
        u = height @ (angles / above_zero(sines) * right).mT
        t, along = angles.squeeze(-2), u.mT @ v
        fall = _function(right, quotient(torch.sin, t)) @ along
        back = _function(right, 0.5 * quotient(torch.sin, t / 2).square()) @ along
        return by_small(minus_product(minus_product(v, x, fall), u, back), right @ left.mT)

    def retr(self, x: Tensor, u: Tensor) -> Tensor:
        """(x + u) R^-1 with R^T R = I + u^T u (Cholesky-QR, unconditionally safe)."""
        gram = u.mT @ u
        factor = torch.linalg.cholesky_ex(identity_like(gram) + gram)[0]
        return torch.linalg.solve_triangular(factor, (u + x).mT, upper=False).mT

    def invretr(self, x: Tensor, y: Tensor) -> Tensor:
        """The horizontal vector y (x^T y)^-1 - x with span(x + u) = span y."""
        return torch.linalg.solve(x.mT @ y, y, left=False) - x

    # -- privacy -----------------------------------------------------------------------------
    def from_coords(self, x: Tensor, c: Tensor) -> Tensor:
        """The horizontal part of n x k normals c."""
        return self.proju(x, c)

    def random(
        self,
        *size: Any,
        dtype: torch.dtype = torch.float64,
        device: Any = None,
        generator: torch.Generator | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Uniform subspaces (Haar), shape ``(..., n, k)``."""
        return self.projx(standard_normal(size2shape(*size), generator, dtype, device))


def _cosine_and_sinc(gram: Tensor) -> tuple[Tensor, Tensor]:
    """cos(sqrt G) and sinc(sqrt G).

    Where a gradient is asked for: the first block column of exp([[0, -G], [I, 0]]), which is
    differentiable at repeated eigenvalues (G = 0 is one).
    """
    if gram.requires_grad:
        k, zero = gram.shape[-1], torch.zeros_like(gram)
        eye = identity_like(gram).expand_as(gram)
        block = torch.cat([torch.cat([zero, -gram], -1), torch.cat([eye, zero], -1)], -2)
        column = expm(block)[..., :k]
        return column[..., :k, :], column[..., k:, :]
    w, v = torch.linalg.eigh(gram)
    t = w.clamp_min(0.0).sqrt()
    return _function(v, torch.cos(t)), _function(v, quotient(torch.sin, t))


def _function(v: Tensor, values: Tensor) -> Tensor:
    """V diag(values) V^T."""
    return (v * values.unsqueeze(-2)) @ v.mT


def _angles(x: Tensor, y: Tensor) -> Tensor:
    """The principal angles alone, shape (..., 1, k), without the vectors.

    Cosines are singular values of y^T x, sines the roots of the eigenvalues of H^T H with
    H = (I - x x^T) y: an eigenvalue is wrong by eps times the largest, and so is their sum, so the
    norm of all angles keeps its digits though a small angle beside large ones does not.
    """
    if x.requires_grad or y.requires_grad:
        return _principal(x, y)[0]
    overlap = x.mT @ y
    cosines = torch.linalg.svdvals(overlap)
    height = minus_product(y, x, overlap)
    squares = torch.linalg.eigvalsh(height.mT @ height)  # ascending, as cosines descend
    return torch.atan2(squares.clamp_min(0.0).sqrt(), cosines).unsqueeze(-2)


def _principal(x: Any, y: Any) -> tuple[Any, Any, Any, Any, Any]:
    """(angles, sines, H V, V, U): angles and sines (..., 1, k), H V = (I - x x^T) y Q V.

    y^T x = U c V^T, Q = U V^T: y Q is the basis of span y nearest to x.
    """
    left, c, right_t = of(x).linalg.svd(y.mT @ x)
    c, right = c[..., None, :], right_t.mT
    height = minus_product(by_small(y, left), x, right * c)
    sines = length(height.mT).mT
    return of(c).atan2(sines, c), sines, height, right, left


def _logarithm(x: Any, y: Any) -> Any:
    angles, sines, height, right, _ = _principal(x, y)
    return by_small(height, (angles / at_least(sines, tiny(sines)) * right).mT)
