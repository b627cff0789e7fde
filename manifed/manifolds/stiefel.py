"""The Stiefel manifold St(n, k) of orthonormal n x k matrices, with two metrics.

Edelman, Arias and Smith (SIMAX 1998). A tangent vector u = x A + x_perp B has the squared norm
beta |A|^2 + |B|^2: beta = 1 is the Euclidean metric, beta = 1/2 the canonical one (Hüper, Markina
and Silva Leite's family). n = k is the orthogonal group.

Symbols: A = x^T u, G = u^T u, M = x^T y, beta metric weight of the skew part.
"""

import math
from typing import Any, Literal

import torch
from geoopt.utils import size2shape
from torch import Tensor

from manifed.manifolds.base import Manifold, safe_sqrt, verdict
from manifed.manifolds.defects import gram_defect
from manifed.manifolds.linalg import (
    expm,
    identity_like,
    minus_product,
    positive_qr,
    skew,
    standard_normal,
    sym,
)
from manifed.manifolds.polar_factor import polar
from manifed.manifolds.stiefel_log import tangent_of_logarithm
from manifed.manifolds.stiefel_retractions import CAYLEY, POLAR, QR

Metric = Literal["euclidean", "canonical"]
RetractionName = Literal["polar", "qr", "cayley"]

_BETA = {"euclidean": 1.0, "canonical": 0.5}
_RETRACTIONS = {"polar": POLAR, "qr": QR, "cayley": CAYLEY}


class Stiefel(Manifold):
    """Orthonormal k-frames of R^n; dimension n k - k (k + 1) / 2.

    ``transp`` is the rotation of the inverse Cayley transform: isometric, not parallel.

    Args:
        metric: "euclidean" (of the ambient matrices) or "canonical".
        retraction: "polar", "qr" or "cayley".
    """

    name = "Stiefel"
    ndim = 2
    reversible = False
    is_transp_parallel = False

    def __init__(self, metric: Metric = "euclidean", retraction: RetractionName = "polar") -> None:
        super().__init__()
        if metric not in _BETA:
            raise ValueError(f"Expected a metric of {sorted(_BETA)}, got {metric!r}")
        if retraction not in _RETRACTIONS:
            raise ValueError(f"Expected a retraction of {sorted(_RETRACTIONS)}, got {retraction!r}")
        self.metric: Metric = metric
        self.retraction: RetractionName = retraction
        self._beta = _BETA[metric]
        self._turn = 0.5 / math.sqrt(self._beta)  # S + (1 - beta^{-1/2}) K as one lerp
        self._retraction = _RETRACTIONS[retraction]

    def settings(self) -> tuple[object, ...]:
        """The metric and the retraction."""
        return (self.metric, self.retraction)

    def dim(self, shape: tuple[int, ...]) -> int:
        """Dimension n k - k (k + 1) / 2 of points (n, k)."""
        n, k = shape[-2:]
        return n * k - k * (k + 1) // 2

    def from_coords(self, x: Tensor, c: Tensor) -> Tensor:
        """The projection of n k ambient coordinates, its skew part over sqrt(beta)."""
        if self._beta == 1:
            return self.proju(x, c)
        xtc = x.mT @ c
        return minus_product(c, x, xtc.lerp(xtc.mT, self._turn))

    def projx(self, x: Tensor) -> Tensor:
        """The polar factor, the nearest orthonormal matrix."""
        return polar(x)

    def proju(self, x: Tensor, u: Tensor) -> Tensor:
        """The vector u - x sym(x^T u), the orthogonal projection in both metrics."""
        xtu = x.mT @ u
        return minus_product(u, x, xtu + xtu.mT, 0.5)

    def egrad2rgrad(self, x: Tensor, u: Tensor) -> Tensor:
        """The vector g - x sym(x^T g) (Euclidean), g - x g^T x (canonical)."""
        if self._beta == 1:
            return self.proju(x, u)
        return minus_product(u, x, u.mT @ x)

    def inner(
        self, x: Tensor, u: Tensor, v: Tensor | None = None, *, keepdim: bool = False
    ) -> Tensor:
        """tr(u^T v) - (1 - beta) tr((x^T u)^T x^T v), shape (...,)."""
        other = u if v is None else v
        product = (u * other).sum((-2, -1), keepdim=keepdim)
        if self._beta == 1:
            return product
        xtu = x.mT @ u
        xtv = xtu if v is None else x.mT @ other
        return product - 0.5 * (xtu * xtv).sum((-2, -1), keepdim=keepdim)

    def norm(self, x: Tensor, u: Tensor, *, keepdim: bool = False) -> Tensor:
        """The metric norm, shape (...,)."""
        if self._beta == 1:
            return torch.linalg.vector_norm(u, dim=(-2, -1), keepdim=keepdim)
        return safe_sqrt(self.inner(x, u, keepdim=keepdim))

    def retr(self, x: Tensor, u: Tensor) -> Tensor:
        """The chosen retraction; orthonormal to rounding times 1 + |u|^2."""
        return self._retraction.forward(x, u)

    def invretr(self, x: Tensor, y: Tensor) -> Tensor:
        """The inverse of the chosen retraction, for y near x (x^T y + y^T x positive)."""
        return self._retraction.inverse(x, y)

    def expmap(self, x: Tensor, u: Tensor) -> Tensor:
        """The geodesic [x K] exp([[2 beta A, -K^T K], [I, 0]]) [I; 0] exp((1 - 2 beta) A).

        K = u - x A, balanced by s = |u|; no QR, so any rank of K and any n >= k is exact.
        """
        a, g = x.mT @ u, u.mT @ u
        k, eye = a.shape[-1], identity_like(a)
        s = torch.linalg.vector_norm(u, dim=(-2, -1), keepdim=True).clamp_min(1e-150)
        a = skew(a)
        top = torch.cat((2 * self._beta * a, -(g + a @ a) / s), -1)
        bottom = torch.cat((s * eye, torch.zeros_like(a)), -1)
        turned = expm(torch.cat((top, bottom), -2))[..., :k]
        if self._beta == 1:
            turned = turned @ expm(-a)
        across = turned[..., k:, :] / s
        return x @ (turned[..., :k, :] - a @ across) + u @ across

    def logmap(self, x: Tensor, y: Tensor) -> Tensor:
        """The tangent vector u with expmap(x, u) = y, by iteration (see stiefel_log).

        Raises:
            ArithmeticError: y is too far from x, with the residual.
        """
        if torch.is_grad_enabled() and (x.requires_grad or y.requires_grad):
            raise NotImplementedError(
                "Stiefel.logmap is not differentiable: use torch.no_grad(), or differentiate dist"
            )
        return tangent_of_logarithm(x, y, self._beta)

    def dist(self, x: Tensor, y: Tensor, *, keepdim: bool = False) -> Tensor:
        """The norm of the logarithm, shape (...,); differentiable away from x = y."""
        with torch.no_grad():
            forward = tangent_of_logarithm(x, y, self._beta)
            length = self.norm(x, forward, keepdim=True)
            result = length if keepdim else length[..., 0, 0]
        if not (torch.is_grad_enabled() and (x.requires_grad or y.requires_grad)):
            return result
        with torch.no_grad():
            scale = torch.where(length > 0, -1 / length, 0.0)
            at_x = self._lower(x, forward) * scale
            at_y = self._lower(y, tangent_of_logarithm(y, x, self._beta)) * scale
        change = (at_x * (x - x.detach()) + at_y * (y - y.detach())).sum((-2, -1), keepdim=keepdim)
        return result + change

    def _lower(self, x: Tensor, u: Tensor) -> Tensor:
        """The Euclidean gradient whose Riemannian gradient is ``u``."""
        return u - (1 - self._beta) * (x @ (x.mT @ u))

    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """O v for the rotation O x = y of the inverse Cayley transform; isometric.

        O = (I - Z (I + M^T)^{-1} Z^T)(I - 2 x x^T) with Z = x + y, M = x^T y.
        """
        along = x.mT @ v
        m = y.mT @ x
        c = torch.linalg.solve(identity_like(m) + m, along + y.mT @ v)
        return minus_product(v, x, c) + y @ (2 * along - c)

    def random(
        self,
        *size: Any,
        dtype: torch.dtype = torch.float64,
        device: Any = None,
        generator: torch.Generator | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Haar-distributed points (QR with a positive diagonal)."""
        shape = self._valid(size2shape(*size))
        return positive_qr(standard_normal(shape, generator, dtype, device))[0].contiguous()

    def origin(
        self,
        *size: Any,
        dtype: torch.dtype = torch.float64,
        device: Any = None,
        seed: int | None = None,
    ) -> Tensor:
        """The first k columns of the identity."""
        shape = self._valid(size2shape(*size))
        return torch.eye(*shape[-2:], dtype=dtype, device=device).expand(shape).clone()

    def _valid(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        ok, reason = self._check_shape(shape, "x")
        if not ok:
            raise ValueError(reason)
        return shape

    def _check_shape(self, shape: tuple[int, ...], name: str) -> tuple[bool, str | None]:
        is_ok = len(shape) >= 2 and shape[-2] >= shape[-1]
        return verdict(is_ok, f"Expected {name} of shape (..., n, k), n >= k, got {tuple(shape)}")

    def _off_manifold(self, x: Tensor) -> Tensor:
        return gram_defect(x)

    def _normal_part(self, x: Tensor, u: Tensor) -> Tensor:
        return torch.linalg.vector_norm(sym(x.mT @ u), dim=(-2, -1))

    def _check_point_on_manifold(
        self, x: Tensor, *, atol: float = 1e-5, rtol: float = 1e-5
    ) -> tuple[bool, str | None]:
        gap = float((x.mT @ x - identity_like(x)).abs().max())
        return verdict(gap <= atol + rtol, f"max|x^T x - I| = {gap:.3g} > {atol + rtol:.3g}")

    def _check_vector_on_tangent(
        self, x: Tensor, u: Tensor, *, atol: float = 1e-5, rtol: float = 1e-5
    ) -> tuple[bool, str | None]:
        gap = sym(x.mT @ u).abs().amax((-2, -1))
        bound = atol + rtol * torch.linalg.vector_norm(u, dim=(-2, -1))
        worst = float(gap.max())
        return verdict(bool((gap <= bound).all()), f"max|sym(x^T u)| = {worst:.3g}, expected 0")
