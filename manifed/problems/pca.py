r"""Problems of principal components: one on the sphere, k of them on Stiefel or Grassmann.

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

# pyright: reportIncompatibleVariableOverride=false
# (what any problem has as an attribute, the class of a frozen one fixes or computes)

import math
from collections.abc import Mapping
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, linalg

from manifed.errors import ConfigError, short
from manifed.fields import PositiveCount, Values
from manifed.manifolds.base import Manifold
from manifed.manifolds.grassmann import Grassmann
from manifed.manifolds.linalg import Shape
from manifed.manifolds.sphere import Sphere
from manifed.manifolds.stiefel import Stiefel
from manifed.problems.data import NUM_EXAMPLES, ExampleKind
from manifed.problems.examples import Examples
from manifed.problems.problem import FrozenProblem, Optimum, Problem, Shards, client_weights
from manifed.problems.rows import (
    ROUNDING_SHARE,
    SHORTEST,
    dots,
    row_maps,
    row_products,
    squared_norms,
    sum_scaling,
)
from manifed.problems.statistics import SecondMoments

_EPS = torch.finfo(torch.float64).eps


def _second_moment(shards: Shards, weights: Tensor | None = None) -> Tensor:
    """sum_i p_i (1/N_i) Z_i^T Z_i, shape (d, d)."""
    share = client_weights(shards, weights)
    moments = [s["z"].mT @ s["z"] * (p / len(s)) for p, s in zip(share, shards, strict=True)]
    return torch.stack(moments).sum(0)


def principal_angle(x: Tensor, y: Tensor) -> Tensor:
    """Returns the largest principal angle between column spans of x and y (..., d, k), (...).

    By its sine where that is accurate and by its cosine elsewhere.
    """
    overlap = x.mT @ y
    cosine = linalg.svdvals(overlap)[..., -1].clamp(0, 1)
    sine = linalg.svdvals(y - x @ overlap)[..., 0].clamp(0, 1)
    return torch.atan2(sine, cosine)


class _Components(FrozenProblem):
    """Leading directions of rows ``z`` (..., n, d)."""

    points_per_example = 0.0
    needs: ClassVar[ExampleKind] = "rows"

    @property
    def sufficient_statistic(self) -> Problem:
        """The second moment of the rows."""
        return SecondMoments()

    def predict(self, x: Tensor, features: Tensor) -> Tensor:
        """Coordinates of each row in the components, shape ``(n, k)``."""
        return row_maps(features, x.reshape(len(x), -1).mT.contiguous())

    def metrics(self, x: Tensor, optimum: Optimum, meta: Values) -> dict[str, float]:
        """The largest principal angle to the optimum, up to signs."""
        frames = (point.reshape(len(x), -1) for point in (x, optimum.x))
        return {"principal_angle": float(principal_angle(*frames))}


class OnFrames(FrozenProblem):
    """Base of problems over orthonormal frames, or over the subspaces that they span."""

    on: Literal["stiefel", "grassmann"] = "stiefel"
    """Orthonormal frames, or the subspaces that they span."""
    scaling: Literal["mean", "sum"] = "sum"
    """"sum": -1/2 tr(X^T A_i^T A_i X), as in the paper. "mean": that over the number of rows."""

    @property
    def manifold(self) -> Manifold:
        """The manifold that the key ``on`` names."""
        return _FRAMES[self.on]


_FRAMES: Mapping[str, Manifold] = {"stiefel": Stiefel(), "grassmann": Grassmann()}


class PrincipalEigenvector(_Components):
    """Leading eigenvector on the sphere (PriRFed, section 6.1).

    f_j(x) = -(z_j^T x)^2 on the sphere of R^d; examples ``z`` of shape (..., n, d).
    """

    keeps_rows_apart = True
    manifold: ClassVar[Manifold] = Sphere()
    kind: Literal["principal-eigenvector"] = "principal-eigenvector"

    def point_shape(self, examples: Examples) -> Shape:
        """(d,)."""
        return (examples["z"].shape[-1],)

    def losses(self, x: Tensor, examples: Examples) -> Tensor:
        """-(z_j^T x)^2, shape ``(..., n)``."""  # (6.1)
        return -row_products(examples["z"], x).square()

    def rgrads(self, x: Tensor, examples: Examples) -> Tensor:
        """-2 (z_j^T x) (z_j - (z_j^T x) x), shape ``(..., n, d)``."""
        z = examples["z"]
        s = row_products(z, x).unsqueeze(-1)
        return -2 * s * (z - s * x.unsqueeze(-2))

    def gradients(self, x: Tensor, examples: Examples) -> "_AlongX":
        """Gradients of `rgrads`: one product with the rows gives them, another their sum."""
        z = examples.tensors["z"]
        return _AlongX(x, z, row_products(z, x))

    def optimum(self, shards: Shards, weights: Tensor | None = None) -> Optimum:
        """The leading eigenvector of the pooled second moment, by eigh, largest entry positive."""
        _, vectors = linalg.eigh(_second_moment(shards, weights))
        x = vectors[:, -1]
        return self.optimum_at(x * torch.sign(x[x.abs().argmax()]), shards, weights)


class _AlongX(NamedTuple):
    """-2 s_j (z_j - s_j x) for rows z_j and s_j = x^T z_j, shape (..., n)."""

    x: Tensor
    z: Tensor
    s: Tensor

    @property
    def norms(self) -> Tensor:
        """2 |s_j| times the bound of |z_j - s_j x|, shape ``(..., n)``."""
        drift = (linalg.vecdot(self.x, self.x) - 1).abs().unsqueeze(-1)
        slack = drift + 4 * self.x.shape[-1] * _EPS
        return 2 * self.s.abs() * _residual(squared_norms(self.z), self.s.square(), slack)

    def sum(self, weights: Tensor) -> Tensor:
        """-2 (sum_j c_j z_j - (sum_j c_j s_j) x) with c_j = weights_j s_j, shape ``(..., d)``."""
        c = weights * self.s
        rows = (c.unsqueeze(-2) @ self.z).squeeze(-2)
        return -2 * (rows - (c * self.s).sum(-1, keepdim=True) * self.x)


class KPCA(OnFrames, _Components):
    """Principal components on Stiefel or Grassmann (projected FL, section 5.1).

    f_j(X) = -1/2 |X^T z_j|^2 on St(d, k) or Gr(d, k); examples ``z`` of shape (..., n, d).
    """

    keeps_rows_apart = True
    kind: Literal["kpca"] = "kpca"
    num_components: PositiveCount = 2
    """Number k of columns."""

    def prepare(self, shard: Examples, meta: Values) -> Examples:
        """Returns the rows, scaled."""
        if self.scaling == "sum":
            shard = sum_scaling(shard, meta.get(NUM_EXAMPLES), "z")
        return shard

    def point_shape(self, examples: Examples) -> Shape:
        """(d, k).

        Raises:
            ConfigError: k > d.
        """
        d = examples["z"].shape[-1]
        if self.num_components > d:
            raise ConfigError(
                f"num_components: expected at most {d}, the length of an example, got "
                f"{short(self.num_components)}"
            )
        return (d, self.num_components)

    def losses(self, x: Tensor, examples: Examples) -> Tensor:
        """-1/2 |X^T z_j|^2, shape ``(..., n)``."""
        s = _coordinates(x, examples)
        return -0.5 * dots(s, s)

    def rgrads(self, x: Tensor, examples: Examples) -> Tensor:
        """-(z_j - X s_j) s_j^T with s_j = X^T z_j, shape ``(..., n, d, k)``."""
        s = _coordinates(x, examples)
        residual = examples["z"] - row_maps(s, x)
        return -residual.unsqueeze(-1) * s.unsqueeze(-2)

    def gradients(self, x: Tensor, examples: Examples) -> "_AlongFrame":
        """Gradients of `rgrads`: one product with the rows gives them, another their sum."""
        return _AlongFrame(x, examples["z"], _coordinates(x, examples))

    def optimum(self, shards: Shards, weights: Tensor | None = None) -> Optimum:
        """An orthonormal basis of the leading eigenspace of the pooled second moment, by eigh."""
        _, vectors = linalg.eigh(_second_moment(shards, weights))
        x = vectors[:, -self.num_components :].flip(-1).contiguous()
        return self.optimum_at(x, shards, weights)


class _AlongFrame(NamedTuple):
    """-(z_j - X s_j) s_j^T for rows z_j and s_j = X^T z_j, shape (..., n, k)."""

    x: Tensor
    z: Tensor
    s: Tensor

    @property
    def norms(self) -> Tensor:
        """|s_j| times the bound of |z_j - X s_j|, shape ``(..., n)``."""
        x, (d, k) = self.x, self.x.shape[-2:]
        gram = row_maps(x.mT, x.mT)
        gram.diagonal(dim1=-2, dim2=-1).sub_(1.0)
        drift = linalg.vector_norm(gram, dim=(-2, -1)).unsqueeze(-1)
        projected = dots(self.s, self.s).clamp_min(SHORTEST**2)
        slack = drift + 4 * d * math.sqrt(k) * _EPS
        return projected.sqrt() * _residual(squared_norms(self.z), projected, slack)

    def sum(self, weights: Tensor) -> Tensor:
        """X sum_j s_j c_j^T - sum_j z_j c_j^T with c_j = weights_j s_j, shape ``(..., d, k)``."""
        c = weights.unsqueeze(-1) * self.s
        along = row_maps(self.x, torch.matmul(self.s.mT, c).mT)
        return along.sub_(torch.matmul(c.mT, self.z).mT)


def _coordinates(x: Tensor, examples: Examples) -> Tensor:
    """X^T z_j of every row, shape ``(..., n, k)``."""
    return row_maps(examples["z"], x.mT.contiguous())


def _residual(squared: Tensor, projected: Tensor, slack: Tensor) -> Tensor:
    """The root of max(|z|^2 (1 + slack) - |s|^2, (eta |z|)^2), shape ``(..., n)``."""
    return torch.maximum(squared * (1 + slack) - projected, squared * ROUNDING_SHARE**2).sqrt()
