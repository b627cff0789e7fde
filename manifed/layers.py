"""Torch layers with parameters on manifolds, each with its paper, and dropout by address.

`OrthogonalLinear`: a linear layer whose weight has orthonormal rows or columns: an isometry, or
its adjoint.

Huang, Liu, Lang, Yu, Wang, Li: Orthogonal Weight Normalization: Solution to Optimization over
Multiple Dependent Stiefel Manifolds in Deep Neural Networks (AAAI 2018). There the weight is
reparametrised; here it is a point of St(n, p), moved along the manifold.

`StiefelAdapter`: a low-rank change of a linear layer that is trained in its place, with an
orthonormal factor.

Hu, Shen, Wallis, Allen-Zhu, Li, Wang, Wang, Chen: LoRA: Low-Rank Adaptation of Large Language
Models (ICLR 2022): W + B A, one factor zero at the start. Here the left one is a frame U on St(out,
rank), as the outer factors are in StelLA: Subspace Learning in Low-rank Adaptation using Stiefel
Manifold (NeurIPS 2025): U spans what is changed, A says how. A is zero at the start, so that the
layer begins as the one it adapts; it has rank * (in + out) numbers instead of in * out, and noise
has as many directions to go.

`BiMap`, `ReEig`, `LogEig`: networks on covariance matrices by bilinear maps, rectified and
logarithmic eigenvalues.

Huang, Van Gool: A Riemannian Network for SPD Matrix Learning (AAAI 2017): BiMap (1), ReEig (2),
LogEig (5). The gradients of the two spectral layers are Daleckii's and Krein's, with closed divided
differences: the ones of (13)-(20) there divide by differences of eigenvalues, and are NaN where two
are equal, as they are after ReEig.

`PoincareEmbedding`, `LorentzEmbedding`, `DistanceDecoder`, `HyperbolicClassifier`: embeddings in
hyperbolic space, a decoder by distances, and a classifier by hyperplanes.

Nickel, Kiela: Poincaré Embeddings for Learning Hierarchical Representations (NeurIPS 2017), and
Learning Continuous Hierarchies in the Lorentz Model of Hyperbolic Geometry (ICML 2018); Ganea,
Bécigneul, Hofmann: Hyperbolic Neural Networks (NeurIPS 2018), for the classifier. Curvature is -1.

`KeyedDropout`: dropout whose draws depend on an address: the client, the round, the step, the
example's place.

Srivastava, Hinton, Krizhevsky, Sutskever, Salakhutdinov: Dropout: A Simple Way to Prevent Neural
Networks from Overfitting (2014). torch's own draws from one generator a process, so that a run
repeats neither on another engine nor in another order. Here each example comes with a number, from
the run's addressed stream, and every entry's fate is a hash of it (Steele, Lea, Flood: Fast
Splittable Pseudorandom Number Generators, 2014: the mixer of SplitMix64).

What is dropped protects nobody, and nothing is charged less for it: the hash need not be secret.
"""

import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from itertools import count

import torch
from geoopt import ManifoldParameter
from torch import Tensor, nn
from torch.nn.functional import embedding, linear

from manifed.manifolds.base import Manifold
from manifed.manifolds.hyperbolic import Lorentz, PoincareBall, conformal_gap
from manifed.manifolds.linalg import (
    LOG,
    ScalarFunction,
    above_zero,
    length,
    packed,
    quotient,
    sym,
    sym_function,
)
from manifed.manifolds.stiefel import Metric, Stiefel

__all__ = [
    "BiMap",
    "DistanceDecoder",
    "HyperbolicClassifier",
    "KeyedDropout",
    "LogEig",
    "LorentzEmbedding",
    "OrthogonalLinear",
    "PoincareEmbedding",
    "ReEig",
    "StiefelAdapter",
    "adapt",
]


def __dir__() -> list[str]:
    return __all__


# -- orthonormal frames --------------------------------------------------------------------------
def _frame(rows: int, columns: int, metric: Metric = "euclidean") -> nn.Parameter:
    """A Haar-distributed point of St(rows, columns), from torch's own generator.

    Raises:
        ValueError: more columns than rows.
    """
    if not 1 <= columns <= rows:
        raise ValueError(
            f"Expected a frame of at least as many rows as columns, got {rows} x {columns}"
        )
    return _on_manifold(nn.init.orthogonal_(torch.empty(rows, columns)), Stiefel(metric))


def _on_manifold(point: Tensor, manifold: Manifold) -> nn.Parameter:
    """A parameter that lives on a manifold of this library, as one of geoopt's."""
    return ManifoldParameter(point, manifold=manifold)  # pyright: ignore


class OrthogonalLinear(nn.Module):
    """Linear layer x W^T + b whose W (out, in) has orthonormal vectors along its longer side.

    ``frame`` is W^T (in, out) where in >= out, else W (out, in): always of orthonormal columns.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        metric: Metric = "euclidean",
    ) -> None:
        """``metric`` of the frame: "euclidean" or "canonical"."""
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        narrow, wide = sorted((in_features, out_features))
        self.frame = _frame(wide, narrow, metric)
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None

    def forward(self, feature: Tensor) -> Tensor:
        """(..., in) to (..., out)."""
        weight = self.frame.mT if self.in_features >= self.out_features else self.frame
        return linear(feature, weight, self.bias)


# -- adapters ------------------------------------------------------------------------------------
class StiefelAdapter(nn.Module):
    """Adapter base(x) + x A^T U^T with U^T U = I around a frozen linear layer."""

    def __init__(self, linear: nn.Linear, rank: int) -> None:
        """``linear`` becomes ``base`` and takes no gradients any more.

        Raises:
            ValueError: a rank above one of its sides.
        """
        super().__init__()
        most = min(linear.in_features, linear.out_features)
        if not 1 <= rank <= most:
            raise ValueError(f"rank: expected 1 to {most}, the shorter side, got {rank}")
        self.base = linear.requires_grad_(requires_grad=False)
        self.frame = _frame(linear.out_features, rank)
        self.coefficients = nn.Parameter(torch.zeros(rank, linear.in_features))

    def forward(self, feature: Tensor) -> Tensor:
        """(..., in) to (..., out)."""
        change = linear(feature, self.coefficients)
        return self.base(feature) + linear(change, self.frame)


def adapt(model: nn.Module, rank: int, *, names: Sequence[str] | None = None) -> nn.Module:
    """Returns a copy of the model with frozen parameters and adapters around linear layers.

    Args:
        model: what was trained before, on data that may be known.
        rank: of every adapter.
        names: of the linear layers, as `named_modules` has them; None: all of them.

    Raises:
        ValueError: a name that is no linear layer of the model, or nothing to adapt.
    """
    copy = deepcopy(model).requires_grad_(requires_grad=False)
    layers = {name: layer for name, layer in copy.named_modules() if isinstance(layer, nn.Linear)}
    if unknown := sorted(set(names or ()) - set(layers)):
        raise ValueError(f"names: expected linear layers among {sorted(layers)}, got {unknown}")
    chosen = {name: layers[name] for name in (layers if names is None else names)}
    if not chosen:
        raise ValueError("model: expected at least one linear layer to adapt, got none")
    if "" in chosen:  # the model itself
        return StiefelAdapter(chosen[""], rank)
    for name, layer in chosen.items():
        copy.set_submodule(name, StiefelAdapter(layer, rank))
    return copy


# -- covariance matrices -------------------------------------------------------------------------
class BiMap(nn.Module):
    """X -> W^T X W for a frame W of St(in, out): (..., in, in) to (..., out, out).

    ``frame`` is W, the transpose of the W_k of (1).
    """

    def __init__(self, in_size: int, out_size: int) -> None:
        """Matrices become smaller, or stay: out_size <= in_size."""
        super().__init__()
        self.frame = _frame(in_size, out_size)

    def forward(self, matrix: Tensor) -> Tensor:
        """Symmetric matrices to symmetric matrices, positive definite ones to such."""
        return sym(self.frame.mT @ matrix @ self.frame)  # (1)


class ReEig(nn.Module):
    """Raises eigenvalues below a threshold to it: V max(threshold, w) V^T."""

    def __init__(self, threshold: float = 1e-4) -> None:
        """The epsilon of (2)."""
        super().__init__()
        if not threshold > 0:
            raise ValueError(f"Expected threshold > 0, got {threshold}")
        self.threshold = threshold

    def forward(self, matrix: Tensor) -> Tensor:
        """(..., d, d), symmetric."""
        least = self.threshold

        def difference(a: Tensor, b: Tensor) -> Tensor:
            is_apart = a != b
            rise = (a.clamp_min(least) - b.clamp_min(least)) / torch.where(is_apart, a - b, 1.0)
            return torch.where(is_apart, rise, (a > least).to(a))

        return sym_function(matrix, ScalarFunction(lambda w: w.clamp_min(least), difference))  # (2)


class LogEig(nn.Module):
    """Layer of the matrix logarithm, which maps covariance matrices to vectors."""

    def forward(self, matrix: Tensor) -> Tensor:
        """(..., d, d), positive definite, to (..., d(d+1)/2)."""
        return packed(sym_function(matrix, LOG))  # (5)


# -- hyperbolic space ----------------------------------------------------------------------------
class _Embedding(nn.Module):
    """Indices (...) to ``points`` (num, *), a table of points of a manifold."""

    def __init__(self, points: Tensor, manifold: Manifold) -> None:
        super().__init__()
        self.points = _on_manifold(points, manifold)

    def forward(self, index: Tensor) -> Tensor:
        """The points at whole numbers (...), shape (..., *point).

        Raises:
            IndexError: there is no such row.
        """
        return embedding(index.long(), self.points)


class PoincareEmbedding(_Embedding):
    """Embedding of indices as points of the Poincaré ball, (num_embeddings, dim)."""

    def __init__(self, num_embeddings: int, dim: int, *, radius: float = 1e-3) -> None:
        """Starts uniform in a cube of half side ``radius``, 1e-3 in section 3 of the paper."""
        super().__init__(_in_cube(num_embeddings, dim, radius), PoincareBall())


class LorentzEmbedding(_Embedding):
    """Embedding of indices as points of the hyperboloid, (num_embeddings, dim + 1), time first."""

    def __init__(self, num_embeddings: int, dim: int, *, radius: float = 1e-3) -> None:
        """Starts with space parts uniform in a cube of half side ``radius``."""
        space = _in_cube(num_embeddings, dim, radius)
        points = torch.cat((space[:, :1], space), -1)
        super().__init__(Lorentz().projx(points), Lorentz())


def _in_cube(count: int, dim: int, radius: float) -> Tensor:
    """Uniform points of a cube in the ball, (count, dim)."""
    if not 0 < radius < 1 / math.sqrt(dim):
        raise ValueError(
            f"radius: expected 0 < radius < {1 / math.sqrt(dim):.3g}, so that the cube lies in the "
            f"ball, got {radius}"
        )
    return torch.empty(count, dim).uniform_(-radius, radius)


class DistanceDecoder(nn.Module):
    """Layer that scores m candidates by their negative distance from the first point.

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
    """Multinomial logistic regression on the Poincaré ball, by hyperplanes through ``points`` p_k.

    score_k = 2 |a_k| asinh( 2 <(-p_k) + x, a_k> / ((1 - |(-p_k) + x|^2) |a_k|) ), (25) with the
    normal of the hyperplane transported from the origin, where it is a_k.
    """

    def __init__(self, dim: int, classes: int, *, lift: bool = True) -> None:
        """``lift``: features are vectors, brought to the ball by its exponential map at 0."""
        super().__init__()
        self.lift = lift
        self.points = _on_manifold(torch.zeros(classes, dim), PoincareBall())
        bound = 1 / math.sqrt(dim)
        self.normals = nn.Parameter(torch.empty(classes, dim).uniform_(-bound, bound))

    def forward(self, feature: Tensor) -> Tensor:
        """(..., dim) to (..., classes)."""
        if self.lift:  # tanh|u| u / |u|, with gradients wherever u lies
            feature = PoincareBall().projx(quotient(torch.tanh, length(feature)) * feature)
        x = feature.unsqueeze(-2)
        p = self.points
        a = self.normals
        # (-p) + x = (om(p) (x - p) - |x - p|^2 p) / D and 1 - |(-p) + x|^2 = om(p) om(x) / D, so
        # that the D of Möbius addition, which vanishes where p and x meet at the boundary, cancels.
        apart = x - p
        moved = conformal_gap(p) * apart - apart.square().sum(-1, keepdim=True) * p
        size = above_zero(torch.linalg.vector_norm(a, dim=-1))
        gaps = (conformal_gap(p) * conformal_gap(x)).squeeze(-1)
        return 2 * size * torch.asinh(2 * (moved * a).sum(-1) / (gaps * size))  # (25)


# -- dropout -------------------------------------------------------------------------------------
class KeyedDropout(nn.Module):
    """Dropout by key: entries are zero with probability p, else divided by 1 - p.

    Without a key all entries stay, as where a model is judged or used outside this library.
    """

    def __init__(self, p: float = 0.5) -> None:
        """0 <= p < 1."""
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"p: expected 0 <= p < 1, got {p}")
        self.p = p
        self._key: Tensor | None = None
        self._calls = count()

    def forward(self, feature: Tensor) -> Tensor:
        """Any shape, of one example."""
        if self._key is None:
            return feature
        entries = torch.arange(feature.numel(), device=feature.device).reshape(feature.shape)
        bits = _mixed(_mixed(self._key + (next(self._calls) << 32)) + entries)
        uniforms = _shifted(bits, 11).double() / 2**53
        return torch.where(uniforms < self.p, 0.0, feature / (1 - self.p))


@contextmanager
def keyed(layers: Sequence[KeyedDropout], key: Tensor | None) -> Generator[None]:
    """Lets the layers of a model drop by ``key``, a uniform of one example; None: no dropout."""
    if key is None or not layers:
        yield
        return
    number = (key * 2**53).long()
    try:
        for place, layer in enumerate(layers):
            layer._key, layer._calls = _mixed(number + (place << 54)), count()
        yield
    finally:
        for layer in layers:
            layer._key = None


def _shifted(z: Tensor, by: int) -> Tensor:
    """The unsigned shift of 64 bits to the right."""
    return (z >> by) & ((1 << (64 - by)) - 1)


def _mixed(z: Tensor) -> Tensor:
    """SplitMix64's finaliser, of whole numbers modulo 2^64."""
    z = z - 0x61C8864680B583EB  # 0x9E3779B97F4A7C15 as a signed word, and so on
    z = (z ^ _shifted(z, 30)) * -0x40A7B892E31B1A47  # 0xBF58476D1CE4E5B9
    z = (z ^ _shifted(z, 27)) * -0x6B2FB644ECCEEE15  # 0x94D049BB133111EB
    return z ^ _shifted(z, 31)
