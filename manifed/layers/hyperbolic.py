"""Embeddings in hyperbolic space, a decoder by distances, and a classifier by hyperplanes.

Nickel, Kiela: Poincaré Embeddings for Learning Hierarchical Representations (NeurIPS 2017), and
Learning Continuous Hierarchies in the Lorentz Model of Hyperbolic Geometry (ICML 2018);
Ganea, Bécigneul, Hofmann: Hyperbolic Neural Networks (NeurIPS 2018), for the classifier.
Curvature is -1.
"""

import math

import torch
from torch import Tensor, nn

from manifed.layers.orthogonal import on_manifold
from manifed.manifolds.base import Manifold
from manifed.manifolds.hyperbolic import Lorentz, PoincareBall, conformal_gap
from manifed.manifolds.linalg import above_zero, quotient


class _Embedding(nn.Module):
    """Indices (...) to ``points`` (num, *), a table of points of a manifold."""

    def __init__(self, points: Tensor, manifold: Manifold) -> None:
        super().__init__()
        self.points = on_manifold(points, manifold)

    def forward(self, index: Tensor) -> Tensor:
        """The points at whole numbers (...), shape (..., *point).

        Raises:
            IndexError: there is no such row.
        """
        return nn.functional.embedding(index.long(), self.points)


class PoincareEmbedding(_Embedding):
    """A table of points of the Poincaré ball, (num_embeddings, dim)."""

    def __init__(self, num_embeddings: int, dim: int, *, radius: float = 1e-3) -> None:
        """Starts uniform in a cube of half side ``radius``, 1e-3 in section 3 of the paper."""
        super().__init__(_in_cube(num_embeddings, dim, radius), PoincareBall())


class LorentzEmbedding(_Embedding):
    """A table of points of the hyperboloid, (num_embeddings, dim + 1), time first."""

    def __init__(self, num_embeddings: int, dim: int, *, radius: float = 1e-3) -> None:
        """Starts with space parts uniform in a cube of half side ``radius``."""
        space = _in_cube(num_embeddings, dim, radius)
        time = (1 + space.square().sum(-1, keepdim=True)).sqrt()
        super().__init__(torch.cat((time, space), -1), Lorentz())


def _in_cube(count: int, dim: int, radius: float) -> Tensor:
    """Uniform points of a cube in the ball, (count, dim)."""
    if not 0 < radius < 1 / math.sqrt(dim):
        raise ValueError(
            f"radius: expected 0 < radius < {1 / math.sqrt(dim):.3g}, so that the cube lies in the "
            f"ball, got {radius}"
        )
    return torch.empty(count, dim).uniform_(-radius, radius)


class DistanceDecoder(nn.Module):
    """Scores of m candidates by their distance from the first point: -dist(p_0, p_1), ....

    With cross-entropy and label 0, where p_1 is the neighbour and the others are negative samples,
    this is the loss (5) of Nickel and Kiela (2017).
    """

    def __init__(self, manifold: Manifold) -> None:
        """``manifold`` of points of one dimension, such as those of the embeddings."""
        super().__init__()
        self.manifold = manifold

    def forward(self, points: Tensor) -> Tensor:
        """(..., 1 + m, d) to (..., m)."""
        return -self.manifold.dist(points[..., :1, :], points[..., 1:, :])


class HyperbolicClassifier(nn.Module):
    """Multinomial logistic regression on the Poincaré ball: scores by hyperplanes ``points`` p_k.

    score_k = 2 |a_k| asinh( 2 <(-p_k) + x, a_k> / ((1 - |(-p_k) + x|^2) |a_k|) ), (25) with the
    normal of the hyperplane transported from the origin, where it is a_k.
    """

    def __init__(self, dim: int, classes: int, *, lift: bool = True) -> None:
        """``lift``: features are vectors, brought to the ball by its exponential map at 0."""
        super().__init__()
        self.lift = lift
        self.points = on_manifold(torch.zeros(classes, dim), PoincareBall())
        bound = 1 / math.sqrt(dim)
        self.normals = nn.Parameter(torch.empty(classes, dim).uniform_(-bound, bound))

    def forward(self, feature: Tensor) -> Tensor:
        """(..., dim) to (..., classes)."""
        x = (_lifted(feature) if self.lift else feature).unsqueeze(-2)
        p, a = self.points, self.normals
        # (-p) + x = (om(p) (x - p) - |x - p|^2 p) / D and 1 - |(-p) + x|^2 = om(p) om(x) / D, so
        # that the D of Möbius addition, which vanishes where p and x meet at the boundary, cancels.
        apart = x - p
        moved = conformal_gap(p) * apart - apart.square().sum(-1, keepdim=True) * p
        length = above_zero(torch.linalg.vector_norm(a, dim=-1))
        gaps = (conformal_gap(p) * conformal_gap(x)).squeeze(-1)
        return 2 * length * torch.asinh(2 * (moved * a).sum(-1) / (gaps * length))  # (25)


def _lifted(u: Tensor) -> Tensor:
    """The exponential map at the origin, tanh|u| u / |u|, with gradients wherever u lies."""
    length = torch.linalg.vector_norm(u, dim=-1, keepdim=True)
    return PoincareBall().projx(quotient(torch.tanh, length) * u)
