"""The Stiefel manifold St(n, k) of orthonormal n x k matrices, with two metrics.

Edelman, Arias and Smith (SIMAX 1998). A tangent vector u = x A + x_perp B has the squared norm
beta |A|^2 + |B|^2: beta = 1 is the Euclidean metric, beta = 1/2 the canonical one (Hüper, Markina
and Silva Leite's family). n = k is the orthogonal group.

Retraction: polar, Absil and Malick (SIOPT 2012); its inverse: Kaneko, Fiori and Tanaka (2013).
Transport: the rotation of the inverse Cayley transform, Siegel (2021). Logarithms: Zimmermann and
Hüper (SIMAX 2022, arXiv 2103.12046), p-shooting in the reduced problem, batched over matrices of
2k x 2k.

Symbols: A = x^T u, G = u^T u, M = x^T y, beta metric weight of the skew part. In the logarithms:
target = blocks of y in the frame (x, Q), A and B those of the logarithm.
"""

import math
from typing import Literal

import torch
from torch import Tensor, linalg

from manifed.errors import short
from manifed.manifolds.base import Frames
from manifed.manifolds.linalg import (
    RSQRT,
    Shape,
    above_zero,
    expm,
    identity_like,
    logm_rotation,
    polar,
    skew,
    sym,
    sym_function,
)

Metric = Literal["euclidean", "canonical"]

_TOLERANCE = 4e-15
_RESIDUAL = 1e-10
"""Largest distance of the end of a logarithm's geodesic from its target."""
_MAX_ITERATIONS = 300


# -- logarithms --------------------------------------------------------------------------------
def _tangent_of_logarithm(x: Tensor, y: Tensor, beta: float) -> Tensor:
    """The tangent vector u at ``x`` with expmap(x, u) = y to `_RESIDUAL`, shape (..., n, k).

    The iterations run in float64, from the nearest orthonormal points where these are in a shorter
    type.

    Raises:
        ArithmeticError: no logarithm found (y is too far from x), with the residual.
    """
    if x.dtype != torch.float64:
        start, end = (polar(one.double()) for one in (x, y))
        return _tangent_of_logarithm(start, end, beta).to(x.dtype)
    x, y = torch.broadcast_tensors(x, y)
    n, k = x.shape[-2:]
    across = min(k, n - k)
    m = x.mT @ y
    q = linalg.qr(torch.cat((x, y - x @ m), -1))[0][..., k : k + across]
    target = torch.cat((m, q.mT @ y), -2)
    if across == 0:
        if bool((linalg.det(m) < 0).any()):  # in the other component of O(n)
            raise ArithmeticError("No Stiefel logarithm: Expected det(x^T y) = 1, got -1 (n = k)")
        a = logm_rotation(m)
        b = target[..., k:, :]
    else:
        a, b = _shoot(target, beta)
    miss = linalg.matrix_norm(_reduced_geodesic(a, b, beta, 1)[0] - target)
    residual = max(miss.flatten().tolist(), default=0.0)
    if not residual <= _RESIDUAL:
        raise ArithmeticError(
            f"Stiefel logarithm did not converge: residual = {residual:.3g} > {_RESIDUAL:.3g}; "
            "y is too far from x (injectivity radius: about 0.89 pi); use invretr instead"
        )
    return x @ a + q @ b


def _reduced_geodesic(a: Tensor, b: Tensor, beta: float, steps: int) -> list[Tensor]:
    """Points t = 1 / steps, ..., 1 of the geodesic [I; 0] -> [A; B], each (..., k + p, k)."""
    corner = torch.zeros_like(b @ b.mT)
    rows = (torch.cat((2 * beta * a, -b.mT), -1), torch.cat((b, corner), -1))
    step = expm(torch.cat(rows, -2) / steps)
    points = [step[..., : a.shape[-1]]]
    for _ in range(steps - 1):
        points.append(step @ points[-1])
    if beta == 0.5:
        return points
    twist = expm((1 - 2 * beta) * a / steps)
    turns = [twist]
    for _ in range(steps - 1):
        turns.append(turns[-1] @ twist)
    return [point @ turn for point, turn in zip(points, turns, strict=True)]


def _shoot(target: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """A and B by p-shooting: the miss is carried back along the geodesic by projections."""
    k = target.shape[-1]
    previous = math.inf
    a = skew(target[..., :k, :])
    b = target[..., k:, :]
    best = (a, b)
    for _ in range(_MAX_ITERATIONS):
        points = _reduced_geodesic(a, b, beta, 3)
        miss = points[-1] - target
        size = linalg.matrix_norm(miss, keepdim=True)
        worst = float(size.max())
        if previous <= worst <= _RESIDUAL:
            break
        if worst < previous:
            best = (a, b)
            previous = worst
        if worst <= _TOLERANCE:
            break
        for point in reversed(points):
            miss = miss - point @ sym(point.mT @ miss)
            length = linalg.matrix_norm(miss, keepdim=True).clamp_min(1e-300)
            miss = miss * (size / length)
        a = a - skew(miss[..., :k, :])
        b = b - miss[..., k:, :]
    return best


# -- the manifold ------------------------------------------------------------------------------
class Stiefel(Frames):
    """The Stiefel manifold of orthonormal k-frames of R^n; dimension n k - k (k + 1) / 2.

    ``transp`` is the rotation of the inverse Cayley transform: isometric, not parallel.

    Args:
        metric: "euclidean" (of the ambient matrices) or "canonical".
    """

    name = "Stiefel"
    is_transp_parallel = False

    def __init__(self, metric: Metric = "euclidean") -> None:
        super().__init__()
        betas = {"euclidean": 1.0, "canonical": 0.5}
        if not isinstance(metric, str) or metric not in betas:
            raise ValueError(f"metric: expected one of {sorted(betas)}, got {short(metric)}")
        self.metric: Metric = metric
        self._beta = betas[metric]
        self.reach = 1.0 if metric == "euclidean" else None

    def settings(self) -> tuple[object, ...]:
        """The metric."""
        return (self.metric,)

    def dim(self, shape: Shape) -> int:
        """Dimension n k - k (k + 1) / 2 of points (n, k)."""
        n, k = shape[-2:]
        return n * k - k * (k + 1) // 2

    def from_coords(self, x: Tensor, c: Tensor) -> Tensor:
        """The projection of n k ambient coordinates, its skew part over sqrt(beta)."""
        if self._beta == 1:
            return self.proju(x, c)
        along = x.mT @ c
        return c - x @ (along - math.sqrt(2.0) * skew(along))

    def to_coords(self, x: Tensor, u: Tensor) -> Tensor:
        """The vector u with x A times sqrt(beta)."""
        if self._beta == 1:
            return u
        return u - (1 - math.sqrt(0.5)) * (x @ (x.mT @ u))

    def proju(self, x: Tensor, u: Tensor) -> Tensor:
        """The vector u - x sym(x^T u), the orthogonal projection in both metrics."""
        return u - x @ sym(x.mT @ u)

    def egrad2rgrad(self, x: Tensor, u: Tensor) -> Tensor:
        """The vector g - x sym(x^T g) (Euclidean), g - x g^T x (canonical)."""
        if self._beta == 1:
            return self.proju(x, u)
        return u - x @ (x.mT @ u).mT

    def inner(
        self, x: Tensor, u: Tensor, v: Tensor | None = None, *, keepdim: bool = False
    ) -> Tensor:
        """tr(u^T v) - (1 - beta) tr((x^T u)^T x^T v), shape (...,)."""
        product = super().inner(x, u, v, keepdim=keepdim)
        if self._beta == 1:
            return product
        along = None if v is None else x.mT @ v
        return product - 0.5 * super().inner(x, x.mT @ u, along, keepdim=keepdim)

    def norm(self, x: Tensor, u: Tensor, *, keepdim: bool = False) -> Tensor:
        """The metric norm, shape (...,)."""
        if self._beta == 1:
            return linalg.matrix_norm(u, keepdim=keepdim)
        return super().norm(x, u, keepdim=keepdim)

    def retr(self, x: Tensor, u: Tensor) -> Tensor:
        """(x + u)(I + u^T u)^{-1/2}, of second order for the Euclidean metric."""
        y = u + x
        return y @ sym_function(y.mT @ y, RSQRT)

    def invretr(self, x: Tensor, y: Tensor) -> Tensor:
        """Y S - x with symmetric S from M S + S M^T = 2 I, of k^2 unknowns, for y near x."""
        m = x.mT @ y
        eye = identity_like(m)
        system = torch.kron(m, eye) + torch.kron(eye, m)
        s = linalg.solve(system, 2 * eye.flatten()).reshape(m.shape)
        return y @ s - x

    def expmap(self, x: Tensor, u: Tensor) -> Tensor:
        """The geodesic [x K] exp([[2 beta A, -K^T K], [I, 0]]) [I; 0] exp((1 - 2 beta) A).

        K = u - x A, balanced by s = |u|; no QR, so any rank of K and any n >= k is exact.
        """
        a = x.mT @ u
        g = u.mT @ u
        k = a.shape[-1]
        s = above_zero(linalg.matrix_norm(u, keepdim=True))
        a = skew(a)
        top = torch.cat((2 * self._beta * a, -(g + a @ a) / s), -1)
        bottom = s * torch.eye(k, 2 * k, dtype=u.dtype, device=u.device)
        block = torch.cat((top, bottom), -2)
        turned = expm(block)[..., :k]
        if self._beta == 1:
            turned = turned @ expm(-a)
        along = turned[..., :k, :]
        across = turned[..., k:, :] / s
        return u @ across + x @ (along - a @ across)

    def logmap(self, x: Tensor, y: Tensor) -> Tensor:
        """The tangent vector u with expmap(x, u) = y, by iteration.

        Raises:
            ArithmeticError: y is too far from x, with the residual.
        """
        if torch.is_grad_enabled() and (x.requires_grad or y.requires_grad):
            raise NotImplementedError(
                "Stiefel.logmap is not differentiable: use torch.no_grad(), or differentiate dist"
            )
        return _tangent_of_logarithm(x, y, self._beta)

    def _distance(self, x: Tensor, y: Tensor) -> Tensor:
        """The norm of the logarithm; differentiable away from x = y."""
        is_tracked = torch.is_grad_enabled() and (x.requires_grad or y.requires_grad)
        with torch.no_grad():
            forward = _tangent_of_logarithm(x, y, self._beta)
            length = self.norm(x, forward, keepdim=True)
            if not is_tracked:
                return length
            scale = torch.where(length > 0, -1 / length, 0.0)
            at_x = self._lower(x, forward) * scale
            at_y = self._lower(y, _tangent_of_logarithm(y, x, self._beta)) * scale
        change = at_x * (x - x.detach()) + at_y * (y - y.detach())
        return length + change.sum((-2, -1), keepdim=True)

    def _lower(self, x: Tensor, u: Tensor) -> Tensor:
        """The Euclidean gradient whose Riemannian gradient is ``u``."""
        return u - (1 - self._beta) * (x @ (x.mT @ u))

    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """O v for the rotation O x = y of the inverse Cayley transform; isometric.

        O = (I - Z (I + M^T)^{-1} Z^T)(I - 2 x x^T) with Z = x + y, M = x^T y.
        """
        along = x.mT @ v
        m = y.mT @ x
        c = linalg.solve(identity_like(m) + m, along + y.mT @ v)
        return v - x @ c + y @ (2 * along - c)

    def of_normals(self, z: Tensor) -> Tensor:
        """A Haar-distributed point (QR with a positive diagonal)."""
        q, r = linalg.qr(z)
        sign = torch.where(r.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(z)
        return (q * sign.unsqueeze(-2)).contiguous()

    def of_zeros(self, zeros: Tensor) -> Tensor:
        """The first k columns of the identity."""
        zeros.diagonal(dim1=-2, dim2=-1).fill_(1.0)
        return zeros

    def _normal_part(self, x: Tensor, u: Tensor) -> Tensor:
        return linalg.matrix_norm(sym(x.mT @ u))
