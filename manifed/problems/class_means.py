r"""Nearest-mean classification: a Fréchet mean for each class, in one model.

Barachant, Bonnet, Congedo, Jutten: Multiclass Brain-Computer Interface Classification by Riemannian
Geometry (IEEE TBME 2012), "minimum distance to mean" on covariance matrices. A model is a point
X = (X_1, ..., X_k) of M^k and example j, of class y_j, has

    f_j(X) = dist(X_{y_j}, z_j)^2,    grad f_j = -2 log_{X_y} z_j in block y_j, zero in all others,

so an example moves one block by at most a clip norm and a release is priced once an example, not
once a class. The predicted class of z is the nearest of X_1, ..., X_k.
"""

from typing import ClassVar, Literal, NamedTuple

import geoopt
import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from manifed.errors import short
from manifed.fields import Values
from manifed.manifolds.base import Manifold
from manifed.manifolds.of_geoopt import counterpart
from manifed.manifolds.product import Power
from manifed.problems.data import ExampleKind
from manifed.problems.examples import Examples
from manifed.problems.frechet import MANIFOLDS
from manifed.problems.problem import (
    Optimum,
    OriginStart,
    Problem,
    ProblemSource,
    Start,
    check_classes,
    check_points,
    class_numbers,
    lifted,
)


class NearestMean(ProblemSource):
    """Classification of covariance matrices by the nearest Fréchet mean."""

    kind: Literal["nearest-mean"] = "nearest-mean"
    needs: ClassVar[ExampleKind] = "labelled-spd-matrices"
    start: Start = OriginStart()
    manifold: Literal["spd", "spd-log-euclidean"] = "spd"
    """The metric on covariance matrices."""
    num_classes: int = Field(ge=2, le=1000)
    """Number of classes. Labels are 0, 1, ... ."""

    def build(self) -> "ClassMeans":
        """The problem on the product of one ``manifold`` a class."""
        return ClassMeans(MANIFOLDS[self.manifold], self.num_classes)


class ClassMeans(Problem):
    """The problem of one mean for each class.

    Examples are ``z`` (..., n, *point) with ``label`` (..., n), a class number from 0 to k - 1.
    """

    def __init__(self, base: geoopt.Manifold, num_classes: int) -> None:
        if not isinstance(num_classes, int) or not 1 <= num_classes <= 1000:
            raise ValueError(
                f"num_classes: expected an integer from 1 to 1000, got {short(num_classes)}"
            )
        self.base = counterpart(base)
        self.num_classes = num_classes
        self.manifold = Power(self.base)
        self.looks_at_all_rows = self.base.looks_at_all_pairs

    def point_shape(self, examples: Examples) -> tuple[int, ...]:
        """(k, *shape of one example)."""
        return (self.num_classes, *examples["z"].shape[-self.base.ndim :])

    def made_up(self, like: Examples, count: int, generator: torch.Generator) -> Examples:
        """Makes up random points of the base manifold, all of the first class."""
        made = super().made_up(like, count, generator).tensors
        z = self.base.random(*made["z"].shape, dtype=torch.float64, generator=generator)
        label = torch.zeros_like(made["label"])
        return Examples({"z": z.to(like["z"].dtype), "label": label}, like.feature_ndim)

    def widened(self, examples: Examples) -> Examples:
        """Points of the base manifold, in float64."""
        return super().widened(lifted(self.base, "z", examples))

    def check_records(self, examples: Examples) -> None:
        """Refuses what is no point of the base manifold, or no class number."""
        check_classes(examples, self.num_classes)
        check_points(self.base, examples["z"])

    def losses(self, x: Tensor, examples: Examples) -> Tensor:
        """dist(X_{y_j}, z_j)^2, shape ``(..., n)``."""
        return self.base.dist(self._own(x, examples), examples["z"]).square()

    def rgrads(self, x: Tensor, examples: Examples) -> Tensor:
        """The gradients, each in the block of its class, shape ``(..., n, k, *point)``."""
        found = self.gradients(x, examples)
        blocks = self.base.expand_scalar(found.blocks.to(x))
        return blocks * found.vectors.unsqueeze(-1 - self.base.ndim)

    def gradients(self, x: Tensor, examples: Examples) -> "_InBlocks":
        """The gradients as vectors, each in the block of its class.

        NaN for a label that is no class, so that such a record counts for nothing, whatever others
        are summed with it.
        """
        base = self.base
        own = self._own(x, examples)
        vectors = -2 * base.logmap(own, examples["z"])
        label = class_numbers(examples["label"], self.num_classes)
        has_class = label == examples["label"]
        if not bool(has_class.all()):
            vectors = torch.where(base.expand_scalar(has_class), vectors, torch.nan)
        label = label.unsqueeze(-1)
        blocks = label == torch.arange(self.num_classes, device=label.device)
        return _InBlocks(base, own, vectors, blocks)

    def correct(self, x: Tensor, examples: Examples) -> Tensor:
        """1 where the nearest mean is that of the example's class, else 0, shape ``(..., n)``."""
        label = class_numbers(examples["label"], self.num_classes)
        return (self.predict(x, examples["z"]) == label).to(x.dtype)

    def predict(self, x: Tensor, features: Tensor) -> Tensor:
        """The number of the nearest mean, shape ``(..., n)``."""
        ndim = self.base.ndim
        points = features.unsqueeze(-1 - ndim)
        return self.base.dist(x.unsqueeze(-2 - ndim), points).argmin(-1)

    def reference_start(self, examples: Examples, weights: Tensor) -> Tensor:
        """The Fréchet mean of each class; of all examples for a class that has none."""
        label = class_numbers(examples["label"], self.num_classes)
        means = list[Tensor]()
        for i in range(self.num_classes):
            chosen = label == i if bool((label == i).any()) else torch.ones_like(label).bool()
            means.append(self.base.frechet_mean(examples["z"][chosen], weights[chosen]))
        return torch.stack(means)

    def metrics(self, x: Tensor, optimum: Optimum, meta: Values) -> dict[str, float]:
        """Returns the distance to the optimum."""
        return {"distance_to_optimum": float(self.manifold.dist(x, optimum.x))}

    def _own(self, x: Tensor, examples: Examples) -> Tensor:
        """X_{y_j} of every example, shape ``(..., n, *point)``."""
        label = class_numbers(examples["label"], self.num_classes)
        ndim = self.base.ndim
        lead = np.broadcast_shapes(x.shape[: -1 - ndim], label.shape[:-1])
        index = label.expand(*lead, -1).reshape(*lead, -1, *[1] * ndim)
        return x.expand(*lead, *x.shape[-1 - ndim :]).take_along_dim(index, -1 - ndim)


class _InBlocks(NamedTuple):
    """Tangent ``vectors`` (..., n, *point) at points ``own``, one block of k each: ``blocks``."""

    base: Manifold
    own: Tensor
    vectors: Tensor
    blocks: Tensor
    """Which block an example moves, shape ``(..., n, k)``."""

    @property
    def norms(self) -> Tensor:
        """Upper bounds of their metric norms, shape ``(..., n)``."""
        return self.base.norm_bound(self.own, self.vectors)

    def sum(self, weights: Tensor) -> Tensor:
        """The sums of these very vectors, a product a block, shape ``(..., k, *point)``."""
        share = weights.unsqueeze(-1) * self.blocks.to(weights)
        flat = self.vectors.flatten(-self.base.ndim)
        total = torch.matmul(share.mT.expand(*flat.shape[:-2], -1, -1), flat)
        return total.unflatten(-1, self.vectors.shape[-self.base.ndim :])
