r"""Matrices of fixed rank r, as an embedded submanifold of R^(m x n), in one packed tensor.

Vandereycken: Low-Rank Matrix Completion by Riemannian Optimization (2013); Absil and Malick:
Projection-like Retractions on Matrix Manifolds (2012). Metric: tr(v^T w) of the ambient matrices.
dim = (m + n - r) r. There is no closed-form exponential, logarithm or distance.

Storage, points and tangents alike a tensor of shape ``(..., m + n + r, r)``:

    point   [U; V; S]      x = U S V^T,  U and V orthonormal, S r x r invertible
    tangent [Up; Vp; M]    v = U M V^T + Up V^T + U Vp^T,  U^T Up = 0, V^T Vp = 0

so a point or a tangent travels as one array, tangents at one stored point add and average entry
by entry, and the metric is the Frobenius product of the packed tensors. (U, S, V) is unique up to
(U Q, Q^T S P, V P): compare points by ``dense``.
"""

import math
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

from manifed.manifolds.base import Submanifold, gram_defect
from manifed.manifolds.linalg import identity_like, polar


def _not_available(name: str, instead: str) -> Callable[..., NoReturn]:
    """A method that this manifold has no closed form for."""

    def method(*tensors: object, **options: object) -> NoReturn:
        raise NotImplementedError(f"FixedRank has no closed-form {name}; {instead}")

    return method


class FixedRank(Submanifold):
    """``rows`` x ``columns`` matrices of rank ``rank``; packed points ``(..., m + n + r, r)``."""

    name = "FixedRank"
    ndim = 2
    has_logmap = False
    is_transp_isometric = False
    is_transp_parallel = False
    reach = math.inf
    """The set is not closed: P_M is single valued up to the smallest singular value, which no
    constant bounds, so nothing is checked."""

    def __init__(self, rows: int, columns: int, rank: int) -> None:
        super().__init__()
        if not 1 <= rank <= min(rows, columns):
            raise ValueError(f"Expected 1 <= rank <= min({rows}, {columns}), got {rank}")
        self.rows = rows
        self.columns = columns
        self.rank = rank
        self.form = f"(..., *{self.point_shape})"

    @property
    def point_shape(self) -> tuple[int, int]:
        """(m + n + r, r): the shape of one packed point or tangent."""
        return self.rows + self.columns + self.rank, self.rank

    def settings(self) -> tuple[object, ...]:
        """(rows, columns, rank)."""
        return self.rows, self.columns, self.rank

    def dim(self, shape: tuple[int, ...]) -> int:
        """(m + n - r) r."""
        return (self.rows + self.columns - self.rank) * self.rank

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether the packing is that of these matrices."""
        return tuple(shape) == self.point_shape

    # -- packing -----------------------------------------------------------------------------
    def pack(self, left: Tensor, right: Tensor, core: Tensor) -> Tensor:
        """[left; right; core] of shapes (..., m, r), (..., n, r), (..., r, r)."""
        return torch.cat([left, right, core], dim=-2)

    def unpack(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The blocks (left, right, core): (U, V, S) of a point, (Up, Vp, M) of a tangent."""
        left, right, core = x.split([self.rows, self.columns, self.rank], dim=-2)
        return left, right, core

    def dense(self, x: Tensor) -> Tensor:
        """The matrix U S V^T of a point, shape ``(..., m, n)``."""
        left, right, core = self.unpack(x)
        return left @ core @ right.mT

    def embed(self, x: Tensor, u: Tensor) -> Tensor:
        """The ambient matrix of a tangent vector, shape ``(..., m, n)``."""
        left, right, _ = self.unpack(x)
        left_u, right_u, middle = self.unpack(u)
        return (left @ middle + left_u) @ right.mT + left @ right_u.mT

    def from_dense(self, y: Tensor) -> Tensor:
        """The point nearest to a matrix y (..., m, n): its truncated SVD, packed."""
        return self.pack(*truncate(y, self.rank))

    ambient = dense
    ambient_vector = embed
    nearest = from_dense
    from_ambient = from_dense

    def _tangent(self, x: Tensor, image: Tensor, coimage: Tensor) -> Tensor:
        """P_x(A), packed, of an ambient matrix A given as A V and A^T U."""
        left, right, _ = self.unpack(x)
        middle = left.mT @ image
        return self.pack(image - left @ middle, coimage - right @ (right.mT @ coimage), middle)

    # -- sets and projections ----------------------------------------------------------------
    def projx(self, x: Tensor) -> Tensor:
        """A valid packing of the same matrix U S V^T: both factors orthonormalised."""
        left, right, core = self.unpack(x)
        new_left = polar(left)
        new_right = polar(right)
        return self.pack(new_left, new_right, new_left.mT @ left @ core @ right.mT @ new_right)

    def proju(self, x: Tensor, u: Tensor) -> Tensor:
        """The packed u with U^T Up = 0 and V^T Vp = 0 enforced."""
        left, right, _ = self.unpack(x)
        left_u, right_u, middle = self.unpack(u)
        left_u = left_u - left @ (left.mT @ left_u)
        right_u = right_u - right @ (right.mT @ right_u)
        return self.pack(left_u, right_u, middle.expand(*left_u.shape[:-2], -1, -1))

    def egrad2rgrad(self, x: Tensor, u: Tensor) -> Tensor:
        """The Riemannian gradient from u, the derivatives of f(U S V^T) by (U, V, S).

        With G the ambient gradient these are G V S^T, G^T U S and U^T G V.
        """
        _, _, core = self.unpack(x)
        left_g, right_g, middle = self.unpack(u)
        image = torch.linalg.solve(core.mT, left_g, left=False)
        coimage = torch.linalg.solve(core, right_g, left=False)
        return self.proju(x, self.pack(image, coimage, middle))

    def _off_manifold(self, x: Tensor) -> Tensor:
        """The larger defect of the two factors; infinite where the core has no inverse."""
        left, right, core = self.unpack(x)
        is_invertible = torch.linalg.svdvals(core)[..., -1] > 0
        worst = torch.maximum(gram_defect(left), gram_defect(right))
        return torch.where(is_invertible, worst, torch.inf)

    def _normal_part(self, x: Tensor, u: Tensor) -> Tensor:
        left, right, _ = self.unpack(x)
        left_u, right_u, _ = self.unpack(u)
        parts = torch.cat([left.mT @ left_u, right.mT @ right_u], dim=-2)
        return torch.linalg.vector_norm(parts, dim=(-2, -1))

    expmap = _not_available("expmap", "use retr")
    logmap = _not_available("logmap", "use invretr")
    dist = _not_available("dist", "compare dense(x), dense(y)")

    # -- retractions -------------------------------------------------------------------------
    def retr(self, x: Tensor, u: Tensor) -> Tensor:
        """The best rank-r approximation of x + u (second order), bases nearest to those of x.

        One SVD of 2r x 2r; not differentiable where singular values coincide.
        """
        left, right, core = self.unpack(x)
        left_u, right_u, middle = self.unpack(u)
        q_left, r_left = torch.linalg.qr(left_u)
        q_right, r_right = torch.linalg.qr(right_u)
        middle = core + middle
        top = torch.cat([middle, r_right.mT.expand_as(middle)], -1)
        below = torch.cat([r_left.expand_as(middle), torch.zeros_like(middle)], -1)
        a, b, core_y = truncate(torch.cat([top, below], -2), self.rank)
        frame_left = torch.cat([left.expand(*middle.shape[:-2], -1, -1), q_left], -1)
        frame_right = torch.cat([right.expand(*middle.shape[:-2], -1, -1), q_right], -1)
        return self.pack(*turned_towards((frame_left @ a, frame_right @ b, core_y), left, right))

    def invretr(self, x: Tensor, y: Tensor) -> Tensor:
        """The u with ``retr(x, u) = y``, closed form; U_x^T U_y and V_x^T V_y invertible.

        u is the tangent at x for which x + u - y is normal to the manifold at y.
        """
        left, right, core = self.unpack(x)
        left_y, right_y, core_y = self.unpack(y)
        a = right.mT @ right_y
        b = left.mT @ left_y
        left_u = torch.linalg.solve(a, (left_y - left @ b) @ core_y, left=False)
        right_u = torch.linalg.solve(b, (right_y - right @ a) @ core_y.mT, left=False)
        middle = torch.linalg.solve(a, b @ core_y - right_u.mT @ right_y, left=False)
        return self.pack(left_u, right_u, middle - core)

    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """The orthogonal projection of v on T_y (not isometric), without forming m x n."""
        left, right, _ = self.unpack(x)
        left_y, right_y, _ = self.unpack(y)
        left_v, right_v, middle = self.unpack(v)
        a = right.mT @ right_y
        b = left.mT @ left_y
        image = left @ (middle @ a + right_v.mT @ right_y) + left_v @ a
        coimage = right @ (middle.mT @ b + left_v.mT @ left_y) + right_v @ b
        return self._tangent(y, image, coimage)

    projected = transp  # packed tangents have another basis at every point

    def frechet_mean(self, points: Tensor, weights: Tensor | None = None, **how: Any) -> Tensor:
        """The minimiser of sum_i w_i |y - p_i|_F^2: the mean matrix, truncated to rank r."""
        if weights is None:
            weights = points.new_ones(points.shape[0])
        share = weights / weights.sum()
        return self.from_dense(torch.tensordot(share, self.dense(points), dims=1))

    def of_normals(self, z: Tensor) -> Tensor:
        """A B^T / sqrt(r) with Gaussian factors, packed, shape ``(..., m + n + r, r)``."""
        left, right, core = self.unpack(z)
        scale = identity_like(core).expand_as(core) / self.rank**0.5
        return self.projx(self.pack(left, right, scale))


# -- truncation --------------------------------------------------------------------------------
Factors = tuple[Tensor, Tensor, Tensor]
"""(left, right, core): left (..., m, r) and right (..., n, r) orthonormal, core (..., r, r)."""


def truncate(matrix: Tensor, rank: int) -> Factors:
    """(left, right, core) with left core right^T the rank-r matrix nearest to ``matrix``."""
    u, s, vt = torch.linalg.svd(matrix, full_matrices=False)
    return u[..., :rank], vt[..., :rank, :].mT, torch.diag_embed(s[..., :rank])


def turned_towards(factors: Factors, left: Tensor, right: Tensor) -> Factors:
    """The factors of the same matrix whose bases are nearest to ``left`` and ``right``."""
    new_left, new_right, core = factors
    turn_left = polar(new_left.mT @ left)
    turn_right = polar(new_right.mT @ right)
    return new_left @ turn_left, new_right @ turn_right, turn_left.mT @ core @ turn_right
