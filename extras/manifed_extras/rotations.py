r"""The rotation group SO(n) with the metric of R^(n x n).

Absil, Mahony, Sepulchre: Optimization Algorithms on Matrix Manifolds (2008); Moakher: Means and
Averaging in the Group of Rotations (2002). Tangent vectors at x are x A with A skew, the metric
is <u, v> = tr(u^T v), dim = n(n-1)/2. The metric is bi-invariant: geodesics are x exp(tA), the
logarithm is x log(x^T y) and parallel transport is v -> x e^(A/2) (x^T v) e^(A/2). The
logarithm is unique while every rotation angle of x^T y is below pi.
"""

import torch
from torch import Tensor

from manifed.manifolds.base import Submanifold, gram_defect
from manifed.manifolds.linalg import (
    above_zero,
    expm,
    identity_like,
    logm_rotation,
    polar,
    skew,
    sym,
)


class SpecialOrthogonal(Submanifold):
    """Rotations of R^n; points have shape ``(..., n, n)``."""

    name = "SpecialOrthogonal"
    ndim = 2
    form = "(..., n, n)"
    looks_at_all_pairs = False

    def dim(self, shape: tuple[int, ...]) -> int:
        """n(n-1)/2 for points of shape ``(n, n)``."""
        return shape[-1] * (shape[-1] - 1) // 2

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether matrices are square."""
        return shape[-1] == shape[-2]

    def projx(self, x: Tensor) -> Tensor:
        """The nearest rotation: U diag(1, .., 1, det(U V^T)) V^T of the SVD of x."""
        if bool((torch.linalg.det(x) > 0).all()):
            return polar(x)
        left, _, right_t = torch.linalg.svd(x)
        last = torch.sign(torch.linalg.det(left @ right_t))
        flip = torch.cat([torch.ones_like(x[..., 0, :-1]), last.unsqueeze(-1)], -1)
        return (left * flip.unsqueeze(-2)) @ right_t

    def proju(self, x: Tensor, u: Tensor) -> Tensor:
        """The projection x skew(x^T u)."""
        return x @ skew(x.mT @ u)

    def from_coords(self, x: Tensor, c: Tensor) -> Tensor:
        """The vector x skew(c) from n x n normals c."""
        return x @ skew(c)

    def to_coords(self, x: Tensor, u: Tensor) -> Tensor:
        """The skew matrix x^T u."""
        return x.mT @ u

    def _off_manifold(self, x: Tensor) -> Tensor:
        """A reflection is as far as a point can be that is orthogonal: 1."""
        return torch.where(torch.linalg.det(x) > 0, gram_defect(x), gram_defect(x).clamp_min(1.0))

    def _normal_part(self, x: Tensor, u: Tensor) -> Tensor:
        return torch.linalg.vector_norm(sym(x.mT @ u), dim=(-2, -1))

    def dist(self, x: Tensor, y: Tensor, *, keepdim: bool = False) -> Tensor:
        """|log(x^T y)|_F, shape ``(...)``: sqrt(2) times the norm of the rotation angles."""
        with torch.no_grad():
            turn = logm_rotation(x.mT @ y)
            size = torch.linalg.vector_norm(turn, dim=(-2, -1), keepdim=True)
        result = size if keepdim else size[..., 0, 0]
        if not _needs_gradient(x, y):
            return result
        unit = turn / above_zero(size)
        change = y.detach() @ unit * (y - y.detach()) - x.detach() @ unit * (x - x.detach())
        return result + change.sum((-2, -1), keepdim=keepdim)

    def expmap(self, x: Tensor, u: Tensor) -> Tensor:
        """The rotation x exp(x^T u)."""
        return x @ expm(skew(x.mT @ u))

    def logmap(self, x: Tensor, y: Tensor) -> Tensor:
        """The vector x log(x^T y), for rotation angles below pi; differentiate ``dist`` instead."""
        if _needs_gradient(x, y):
            raise NotImplementedError("SpecialOrthogonal.logmap: differentiate dist instead")
        return x @ logm_rotation(x.mT @ y)

    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """Parallel transport x e^(A/2) (x^T v) e^(A/2), A = log(x^T y).

        e^(A/2) is the polar factor of I + x^T y.
        """
        turn = x.mT @ y
        half = polar(identity_like(turn) + turn)
        return x @ half @ (x.mT @ v) @ half

    def retr(self, x: Tensor, u: Tensor) -> Tensor:
        """The Cayley map x (I - A/2)^-1 (I + A/2), A = x^T u (second order)."""
        half = skew(x.mT @ u) / 2
        eye = identity_like(half)
        return x @ torch.linalg.solve(eye - half, eye + half)

    def invretr(self, x: Tensor, y: Tensor) -> Tensor:
        """The vector 2 x (R + I)^-1 (R - I), R = x^T y without the eigenvalue -1."""
        turn = x.mT @ y
        eye = identity_like(turn)
        return x @ skew(2 * torch.linalg.solve(turn + eye, turn - eye))

    def of_zeros(self, zeros: Tensor) -> Tensor:
        """The identity."""
        return zeros + identity_like(zeros)


def _needs_gradient(x: Tensor, y: Tensor) -> bool:
    return torch.is_grad_enabled() and (x.requires_grad or y.requires_grad)
