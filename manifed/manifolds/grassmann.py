r"""The Grassmann manifold of k-dimensional subspaces of R^n, as orthonormal n x k matrices.

Edelman, Arias, Smith: The Geometry of Algorithms with Orthogonality Constraints (1998);
Bendokat, Zimmermann, Absil: A Grassmann Manifold Handbook (2020).
A point is any orthonormal basis x of the subspace, a tangent vector the horizontal lift
x^T u = 0 at that basis, the metric tr(u^T v), dim = k(n - k). With G = u^T u = V t^2 V^T every
formula is a k x k matrix function of G: no thin SVD of n x k, no division by a small sine.
Compare points by their projectors or ``dist``, never entry by entry.
"""

import torch
from torch import Tensor, linalg

from manifed.manifolds.base import Frames
from manifed.manifolds.linalg import (
    Shape,
    above_zero,
    expm,
    identity_like,
    length,
    quotient,
    spectral,
)


class Grassmann(Frames):
    """The manifold of k-dimensional subspaces of R^n; points (..., n, k), orthonormal columns."""

    name = "Grassmann"

    def dim(self, shape: Shape) -> int:
        """k(n - k) for points of shape ``(n, k)``."""
        return shape[-1] * (shape[-2] - shape[-1])

    def proju(self, x: Tensor, u: Tensor) -> Tensor:
        """The horizontal part u - x x^T u."""
        return u - x @ (x.mT @ u)

    to_coords = Frames.flattened

    def _normal_part(self, x: Tensor, u: Tensor) -> Tensor:
        return linalg.matrix_norm(x.mT @ u)

    def _distance(self, x: Tensor, y: Tensor) -> Tensor:
        """The norm of the principal angles atan2(s, c), accurate at 0 and pi/2."""
        return linalg.matrix_norm(_principal(x, y)[0], keepdim=True)

    def expmap(self, x: Tensor, u: Tensor) -> Tensor:
        """The basis x cos(sqrt G) + u sinc(sqrt G), one Newton-Schulz step to rounding."""
        cosine, sinc = _cosine_and_sinc(u.mT @ u)
        y = u @ sinc + x @ cosine
        gram = y.mT @ y
        return y @ (1.5 * identity_like(gram) - 0.5 * gram)

    def logmap(self, x: Tensor, y: Tensor) -> Tensor:
        """The horizontal vector at x of the shortest geodesic to span y, |u| <= pi/2 sqrt(k)."""
        return _principal(x, y)[1]

    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """Parallel transport along the geodesic, as the horizontal lift at the basis y."""
        angles, u, right, left = _principal(x, y)
        t = angles.squeeze(-2)
        along = u.mT @ v
        fall = spectral(right, quotient(torch.sin, t)) @ along
        back = spectral(right, 0.5 * quotient(torch.sin, t / 2).square()) @ along
        return (v - x @ fall - u @ back) @ (right @ left.mT)

    def retr(self, x: Tensor, u: Tensor) -> Tensor:
        """(x + u) R^-1 with R^T R = I + u^T u (Cholesky-QR, unconditionally safe)."""
        gram = u.mT @ u
        factor = linalg.cholesky_ex(identity_like(gram) + gram)[0]
        return linalg.solve_triangular(factor, (u + x).mT, upper=False).mT

    def invretr(self, x: Tensor, y: Tensor) -> Tensor:
        """The horizontal vector y (x^T y)^-1 - x with span(x + u) = span y."""
        return linalg.solve(x.mT @ y, y, left=False) - x


def _cosine_and_sinc(gram: Tensor) -> tuple[Tensor, Tensor]:
    """cos(sqrt G) and sinc(sqrt G).

    Where a gradient is asked for: the first block column of exp([[0, -G], [I, 0]]), which is
    differentiable at repeated eigenvalues (G = 0 is one).
    """
    if gram.requires_grad:
        k = gram.shape[-1]
        zero = torch.zeros_like(gram)
        eye = identity_like(gram).expand_as(gram)
        block = torch.cat([torch.cat([zero, -gram], -1), torch.cat([eye, zero], -1)], -2)
        column = expm(block)[..., :k]
        return column[..., :k, :], column[..., k:, :]
    w, v = linalg.eigh(gram)
    t = w.clamp_min(0.0).sqrt()
    return spectral(v, torch.cos(t)), spectral(v, quotient(torch.sin, t))


def _principal(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(angles, logarithm, V, U): angles (..., 1, k), and u = H (V angles / sines) V^T at x.

    y^T x = U c V^T, Q = U V^T, H = (I - x x^T) y Q: y Q is the basis of span y nearest to x.
    """
    left, c, right_t = linalg.svd(y.mT @ x)
    c = c.unsqueeze(-2)
    right = right_t.mT
    height = y @ left - x @ (right * c)
    sines = length(height, -2)
    angles = torch.atan2(sines, c)
    return angles, height @ (angles / above_zero(sines) * right).mT, right, left
