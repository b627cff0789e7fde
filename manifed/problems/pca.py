r"""Principal components: the leading eigenvector on the sphere, k of them on Stiefel or Grassmann.

Huang, Huang, Jawanpuria, Mishra (PriRFed), (6.1): f_j(x) = -x^T z_j z_j^T x on the sphere.
Zhang, Hu, So, Johansson (projected FL), section 5.1: f_i(X) = -1/2 tr(X^T A_i^T A_i X), a *sum*
over the p rows of client i. Its per-example form is f_il(X) = -(p/2) |a_il^T X|^2: ``sum_scaling``
multiplies the rows of a shard by sqrt(p) once, and the mean over examples is the paper's f_i.

Both gradients are -c (z - X s) s^T with s = X^T z, and a weighted sum of them costs two products
with the rows. What a clip divides by is an upper bound of the norm in the same products,

    c |s| sqrt(max(|z|^2 - |s|^2 + a |z|^2, eta^2 |z|^2)),   a = 4 d sqrt(k) eps + |X^T X - I|,

with eta = ``linear.ROUNDING_SHARE``. The computed s is off by e, |e| <= (d eps / 2) sqrt(k) |z|,
and for any s |z - X s|^2 = |z|^2 - |s|^2 - 2 <e, s> + <s, (X^T X - I) s>: the first branch is an
upper bound for every row, also where X has drifted off the manifold. The sum forms w z s^T and
X (w s s^T) and subtracts them, so a contribution clipped to C = w |s| max(r, eta |z|) carries a
rounding of (k + 5) eps w |s| |z| <= (k + 5) eps C / eta beyond it, of 1e-11 C. A row within the
angle eta of the span of X is so clipped as if it were at that angle: a bias only where
|z|^2 > C / eta, of a gradient that is by then rounding for the most part.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from manifed.manifolds.base import Manifold
from manifed.manifolds.grassmann import Grassmann
from manifed.manifolds.sphere import Sphere
from manifed.manifolds.stiefel import Stiefel
from manifed.problems.base import Examples
from manifed.problems.finite_sum import Constant, FiniteSum, Optimum, Shards, client_weights
from manifed.problems.linear import (
    ROUNDING_SHARE,
    SHORTEST,
    outer_combination,
    row_combination,
    row_products,
    squared_norms,
)

_EPS = torch.finfo(torch.float64).eps


def second_moment(shards: Shards, weights: Tensor | None = None) -> Tensor:
    """sum_i p_i (1/N_i) Z_i^T Z_i, shape (d, d)."""
    share = client_weights(shards, weights)
    moments = [s["z"].mT @ s["z"] * (p / len(s)) for p, s in zip(share, shards, strict=True)]
    return torch.stack(moments).sum(0)


def largest_squared_norm(shards: Shards) -> float:
    """Theta = max_ij |z_ij|^2, read off the data."""
    return max(float(squared_norms(shard, "z").max()) for shard in shards)


def principal_angle(x: Tensor, y: Tensor) -> Tensor:
    """Largest principal angle between the column spans of x and y ``(..., d, k)``, shape (...).

    By its sine where that is accurate and by its cosine elsewhere.
    """
    overlap = x.mT @ y
    cosine = torch.linalg.svdvals(overlap)[..., -1].clamp(0, 1)
    sine = torch.linalg.svdvals(y - x @ overlap)[..., 0].clamp(0, 1)
    return torch.atan2(sine, cosine)


class PrincipalEigenvector(FiniteSum):
    """f_j(x) = -(z_j^T x)^2 on the sphere of R^d; examples ``z`` of shape (..., n, d)."""

    points_per_example = 0.0

    def __init__(self) -> None:
        self._manifold = Sphere()

    @property
    def manifold(self) -> Manifold:
        """The unit sphere."""
        return self._manifold

    def point_shape(self, examples: Examples) -> tuple[int, ...]:
        """(d,)."""
        return (examples["z"].shape[-1],)

    def losses(self, x: Tensor, examples: Examples) -> Tensor:
        """-(z_j^T x)^2, shape ``(..., n)``."""  # (6.1)
        return -row_products(examples["z"], x).square()

    def rgrads(self, x: Tensor, examples: Examples) -> Tensor:
        """-2 (z_j^T x) (z_j - (z_j^T x) x), shape ``(..., n, d)``."""
        s = row_products(examples["z"], x).unsqueeze(-1)
        return -2 * s * (examples["z"] - s * x.unsqueeze(-2))

    def rgrad_norms(self, x: Tensor, examples: Examples) -> Tensor:
        """2 |z_j^T x| times the bound of |z_j - (z_j^T x) x|, shape ``(..., n)``."""
        return self._norms(x, examples, row_products(examples["z"], x))

    def rgrad_sum(self, x: Tensor, examples: Examples, weights: Tensor) -> Tensor:
        """sum_j weights_j grad f_j(x) by two products with the rows, shape ``(..., d)``."""
        return self._sum(x, examples, weights, row_products(examples["z"], x))

    def rgrad_sum_by_norm(
        self, x: Tensor, examples: Examples, weigh: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """The weighted sum and the norms from one product z_j^T x."""
        s = row_products(examples["z"], x)
        norms = self._norms(x, examples, s)
        return self._sum(x, examples, weigh(norms), s), norms

    def optimum(self, shards: Shards, weights: Tensor | None = None) -> Optimum:
        """The leading eigenvector of the pooled second moment, by eigh, largest entry positive."""
        moment = second_moment(shards, weights)
        _, vectors = torch.linalg.eigh(moment)
        x = vectors[:, -1]
        x = x * torch.sign(x[x.abs().argmax()])
        value = float(self.objective(x, shards, weights))
        return Optimum(x, value, float(self.gradient_norm(x, shards, weights)))

    def metrics(self, x: Tensor, optimum: Optimum, meta: Mapping[str, Any]) -> dict[str, float]:
        """The angle to the optimum, up to sign."""
        del meta
        angle = principal_angle(x.unsqueeze(-1), optimum.x.unsqueeze(-1))
        return {"principal_angle": float(angle)}

    def lipschitz(self, shards: Shards) -> Constant:
        """theta: |grad f_j| = |z|^2 |sin 2 angle| (sharper than the paper's 2 theta)."""
        return Constant(largest_squared_norm(shards), "PriRFed section 6.1, sharpened by 2")

    def smoothness(self, shards: Shards) -> Constant:
        """2 theta."""
        return Constant(2 * largest_squared_norm(shards), "PriRFed section 6.1")

    @staticmethod
    def _norms(x: Tensor, examples: Examples, s: Tensor) -> Tensor:
        drift = (torch.linalg.vecdot(x, x) - 1).abs().unsqueeze(-1)
        slack = drift + 4 * x.shape[-1] * _EPS
        return 2 * s.abs() * _residual(squared_norms(examples, "z"), s.square(), slack)

    @staticmethod
    def _sum(x: Tensor, examples: Examples, weights: Tensor, s: Tensor) -> Tensor:
        c = weights * s
        along = (c * s).sum(-1, keepdim=True)
        return -2 * (row_combination(c, examples["z"]) - along * x)


class KPCA(FiniteSum):
    """f_j(X) = -1/2 |X^T z_j|^2 on St(d, k) or Gr(d, k); examples ``z`` of shape (..., n, d)."""

    points_per_example = 0.0

    def __init__(
        self, num_components: int, on: Literal["stiefel", "grassmann"] = "stiefel"
    ) -> None:
        self.num_components = num_components
        self._manifold: Manifold = Stiefel() if on == "stiefel" else Grassmann()

    @property
    def manifold(self) -> Manifold:
        """Stiefel with the Euclidean metric, or Grassmann."""
        return self._manifold

    def point_shape(self, examples: Examples) -> tuple[int, ...]:
        """(d, k)."""
        return (examples["z"].shape[-1], self.num_components)

    def losses(self, x: Tensor, examples: Examples) -> Tensor:
        """-1/2 |X^T z_j|^2, shape ``(..., n)``."""
        return -0.5 * torch.matmul(examples["z"], x).square().sum(-1)

    def rgrads(self, x: Tensor, examples: Examples) -> Tensor:
        """-(z_j - X s_j) s_j^T with s_j = X^T z_j, shape ``(..., n, d, k)``."""
        s = torch.matmul(examples["z"], x)
        residual = examples["z"] - torch.matmul(s, x.mT)
        return -residual.unsqueeze(-1) * s.unsqueeze(-2)

    def rgrad_norms(self, x: Tensor, examples: Examples) -> Tensor:
        """|s_j| times the bound of |z_j - X s_j|, shape ``(..., n)``."""
        return self._norms(x, examples, torch.matmul(examples["z"], x))

    def rgrad_sum(self, x: Tensor, examples: Examples, weights: Tensor) -> Tensor:
        """sum_j weights_j grad f_j(X) by two products with the rows, shape ``(..., d, k)``."""
        return self._sum(x, examples, weights, torch.matmul(examples["z"], x))

    def rgrad_sum_by_norm(
        self, x: Tensor, examples: Examples, weigh: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """The weighted sum and the norms from one product X^T z_j."""
        s = torch.matmul(examples["z"], x)
        norms = self._norms(x, examples, s)
        return self._sum(x, examples, weigh(norms), s), norms

    def optimum(self, shards: Shards, weights: Tensor | None = None) -> Optimum:
        """An orthonormal basis of the leading eigenspace of the pooled second moment, by eigh."""
        _, vectors = torch.linalg.eigh(second_moment(shards, weights))
        x = vectors[:, -self.num_components :].flip(-1).contiguous()
        value = float(self.objective(x, shards, weights))
        return Optimum(x, value, float(self.gradient_norm(x, shards, weights)))

    def metrics(self, x: Tensor, optimum: Optimum, meta: Mapping[str, Any]) -> dict[str, float]:
        """The largest principal angle to the optimal subspace."""
        del meta
        return {"principal_angle": float(principal_angle(x, optimum.x))}

    def lipschitz(self, shards: Shards) -> Constant:
        """Theta / 2: |s| sqrt(|z|^2 - |s|^2) is largest at |s|^2 = |z|^2 / 2."""
        return Constant(largest_squared_norm(shards) / 2, "norm of the closed-form gradient")

    def smoothness(self, shards: Shards) -> Constant:
        """3 theta: L = L_hat + 2 D_f with L_hat = D_f = theta (Stiefel, Euclidean metric)."""
        return Constant(3 * largest_squared_norm(shards), "projected FL, Assumption 4.1")

    @staticmethod
    def _norms(x: Tensor, examples: Examples, s: Tensor) -> Tensor:
        d, k = x.shape[-2:]
        gram = x.mT @ x
        gram.diagonal(dim1=-2, dim2=-1).sub_(1.0)
        drift = torch.linalg.vector_norm(gram, dim=(-2, -1)).unsqueeze(-1)
        projected = torch.linalg.vecdot(s, s).clamp_min(SHORTEST**2)
        slack = drift + 4 * d * math.sqrt(k) * _EPS
        return projected.sqrt() * _residual(squared_norms(examples, "z"), projected, slack)

    @staticmethod
    def _sum(x: Tensor, examples: Examples, weights: Tensor, s: Tensor) -> Tensor:
        c = weights.unsqueeze(-1) * s
        along = torch.matmul(x, torch.matmul(s.mT, c))
        return along.sub_(outer_combination(c, examples["z"]))


def sum_scaling(shard: Examples) -> Examples:
    """The shard with rows times sqrt(p): means over examples become the paper's sums."""
    scaled = {**shard.tensors, "z": shard["z"] * math.sqrt(len(shard))}
    return Examples(scaled, shard.feature_ndim)


def _residual(squared: Tensor, projected: Tensor, slack: Tensor) -> Tensor:
    """The root of max(|z|^2 (1 + slack) - |s|^2, (eta |z|)^2), shape ``(..., n)``."""
    return torch.maximum(squared * (1 + slack) - projected, squared * ROUNDING_SHARE**2).sqrt()
