"""The configuration of problems: frozen models, discriminated on ``kind``."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from manifed.manifolds.base import Manifold
from manifed.manifolds.hyperbolic import Lorentz
from manifed.manifolds.poincare import PoincareBall
from manifed.manifolds.spd import SPD
from manifed.manifolds.spd_flat import SPDLogCholesky, SPDLogEuclidean
from manifed.manifolds.sphere import Sphere
from manifed.problems import least_squares, matrix_completion, pca
from manifed.problems.base import Examples
from manifed.problems.class_means import ClassMeans
from manifed.problems.dataset import ExampleKind, Frozen
from manifed.problems.finite_sum import FiniteSum
from manifed.problems.frechet_mean import FrechetMean
from manifed.problems.geometric_median import GeometricMedian
from manifed.problems.hyperbolic_prediction import (
    HyperbolicPrediction,
    KernelWidth,
    Ridge,
    kernel_weights,
)
from manifed.problems.linear import with_squared_norms
from manifed.problems.logistic import Logistic
from manifed.problems.mlp import MLP, Activation
from manifed.problems.records import LARGEST_ENTRY, check_entries
from manifed.problems.spd_mean import SPDMean
from manifed.problems.starts import OriginStart, RandomStart, Start

Scaling = Literal["mean", "sum"]
NUM_EXAMPLES = "num_examples"
"""In the ``meta`` of data that every site has at home: N_i, a public constant."""

_MANIFOLDS: Mapping[str, Manifold] = {
    "spd": SPD(),
    "spd-log-euclidean": SPDLogEuclidean(),
    "spd-log-cholesky": SPDLogCholesky(),
    "sphere": Sphere(),
    "lorentz": Lorentz(),
    "poincare": PoincareBall(),
}
_CURVATURE = {"sphere": 1.0, "lorentz": -1.0, "poincare": -1.0}


class ProblemSource(Frozen):
    """What every problem's configuration can do."""

    start: Start = RandomStart()
    """x^(0), which is broadcast as it is: from the config and the seed, never from examples."""
    largest_entry: float = Field(default=LARGEST_ENTRY, gt=0, le=LARGEST_ENTRY)
    """Public bound on every |entry| of a prepared record; others are refused at loading."""

    @abstractmethod
    def build(self) -> FiniteSum:
        """The problem, without data."""
        raise NotImplementedError

    def prepare(self, shard: Examples, meta: Mapping[str, Any]) -> Examples:
        """A client's own examples as the problem wants them, computed from that shard alone.

        ``meta``: of the data set; of a site's own file N_i, whatever the file holds.
        """
        del meta
        return shard

    def check_records(self, shard: Examples) -> None:
        """Refuse a prepared shard that holds a record which nothing may be computed from.

        Raises:
            InvalidRecord: naming the record, for the log of its owner.
        """
        check_entries(shard, self.largest_entry)
        self.build().check_records(shard)

    def mixes_records(self) -> str | None:
        """Which part of ``prepare`` lets a record change another of its client; None: no part."""
        return None

    @property
    @abstractmethod
    def needs(self) -> ExampleKind:
        """The kind of examples that the problem reads."""
        raise NotImplementedError

    @property
    def reads(self) -> tuple[ExampleKind, ...]:
        """All kinds of examples that ``prepare`` takes."""
        return (self.needs,)

    def first_point(
        self, problem: FiniteSum, shape: tuple[int, ...], generator: torch.Generator
    ) -> Tensor:
        """x^(0), of ``shape``, from the config and the seed.

        Raises:
            ValueError: the start is no point of the problem.
        """
        return self.start.point(problem.manifold, shape, generator)


class PrincipalEigenvectorSpec(ProblemSource):
    """The leading eigenvector on the sphere (PriRFed section 6.1)."""

    kind: Literal["principal-eigenvector"] = "principal-eigenvector"
    needs: ClassVar[ExampleKind] = "rows"

    def build(self) -> FiniteSum:
        """The problem on the sphere."""
        return pca.PrincipalEigenvector()

    def prepare(self, shard: Examples, meta: Mapping[str, Any]) -> Examples:
        """Rows with their squared norms."""
        del meta
        return with_squared_norms(shard, "z")


class OnFrames(ProblemSource):
    """A problem over orthonormal frames, or over the subspaces that they span."""

    on: Literal["stiefel", "grassmann"] = "stiefel"
    """Frames with orthonormal columns, or the subspaces that they span."""
    scaling: Scaling = "sum"
    """"sum": f_i as in the paper, KPCA's -1/2 tr(X^T A_i^T A_i X); "mean": that over p."""


class KPCASpec(OnFrames):
    """k principal components on Stiefel or Grassmann (projected FL section 5.1)."""

    kind: Literal["kpca"] = "kpca"
    needs: ClassVar[ExampleKind] = "rows"
    num_components: int = Field(default=2, ge=1)
    """Columns of the frame, k."""

    def build(self) -> FiniteSum:
        """The problem on the manifold ``on``."""
        return pca.KPCA(self.num_components, self.on)

    def prepare(self, shard: Examples, meta: Mapping[str, Any]) -> Examples:
        """Rows, scaled, with their squared norms."""
        if self.scaling == "sum":
            shard = pca.sum_scaling(shard, meta.get(NUM_EXAMPLES))
        return with_squared_norms(shard, "z")


class OnPoints(ProblemSource):
    """A problem whose examples are points: SPD in three metrics, sphere, hyperbolic space."""

    manifold: Literal[
        "spd", "spd-log-euclidean", "spd-log-cholesky", "sphere", "lorentz", "poincare"
    ] = "spd"
    """Where the points lie, and which metric measures between them."""

    _NEEDS: ClassVar[dict[str, ExampleKind]] = {
        "sphere": "sphere-points", "lorentz": "hyperbolic-pairs", "poincare": "hyperbolic-pairs",
    }  # fmt: skip

    def prepare(self, shard: Examples, meta: Mapping[str, Any]) -> Examples:
        """The points alone, as ``z``."""
        del meta
        if self.needs != "hyperbolic-pairs":
            return shard
        z = shard["target"]
        if self.manifold == "poincare":
            z = z[..., 1:] / (1 + z[..., :1])
        return Examples({"z": z}, {"z": 1})

    @property
    def needs(self) -> ExampleKind:
        """Points of ``manifold``."""
        return self._NEEDS.get(self.manifold, "spd-matrices")


class FrechetMeanSpec(OnPoints):
    """The Fréchet mean (PriRFed section 6.2)."""

    kind: Literal["frechet-mean"] = "frechet-mean"

    def build(self) -> FiniteSum:
        """The problem on ``manifold``."""
        if self.manifold == "spd":
            return SPDMean()
        return FrechetMean(_MANIFOLDS[self.manifold], _CURVATURE.get(self.manifold, 0.0))


class GeometricMedianSpec(OnPoints):
    """The geometric median, whose gradients have norm 1 whatever the data are."""

    kind: Literal["geometric-median"] = "geometric-median"

    def build(self) -> FiniteSum:
        """The problem on ``manifold``."""
        return GeometricMedian(_MANIFOLDS[self.manifold])


class NearestMeanSpec(ProblemSource):
    """Classification of covariance matrices by the nearest Fréchet mean (or geometric median)."""

    kind: Literal["nearest-mean"] = "nearest-mean"
    needs: ClassVar[ExampleKind] = "labelled-spd-matrices"
    start: Start = OriginStart()
    manifold: Literal["spd", "spd-log-euclidean", "spd-log-cholesky"] = "spd"
    """Which metric measures between covariance matrices."""
    num_classes: int = Field(ge=2, le=1000)
    """Classes of the labels, which are 0, 1, ... ."""
    center: Literal["mean", "median"] = "mean"
    """Fréchet mean, or geometric median, of each class."""

    def build(self) -> FiniteSum:
        """The problem on the product of one ``manifold`` a class."""
        base, is_median = _MANIFOLDS[self.manifold], self.center == "median"
        return ClassMeans(base, self.num_classes, is_median=is_median)


class HyperbolicPredictionSpec(ProblemSource):
    """Structured prediction on the hyperbolic plane (PriRFed section 6.3)."""

    kind: Literal["hyperbolic-prediction"] = "hyperbolic-prediction"
    needs: ClassVar[ExampleKind] = "hyperbolic-pairs"
    start: Start = OriginStart()
    bandwidth: float = Field(default=0.3, gt=0)
    """v, the width of the kernel over features."""
    ridge: float = Field(default=1e-5, gt=0)
    """gamma, added to the diagonal of the kernel matrix."""
    kernel_width: KernelWidth = "printed"
    """"printed": exp(-|w-w'|^2 / (2 v)^2); "rbf": exp(-|w-w'|^2 / (2 v^2))."""
    ridge_rule: Ridge = "printed"
    """"printed": K + gamma I; "times-examples": K + N_i gamma I."""
    radius: float = Field(default=4.0, gt=0)
    """The paper's M, used by the constants L_f and L_g only."""
    are_features_public: bool = False
    """Declares the features public: the weights of an agent depend on all of its features, so what
    privacy protects is the targets alone (label privacy)."""

    def mixes_records(self) -> str | None:
        """A feature moves the kernel weights of every example of its agent."""
        if self.are_features_public:
            return None
        return (
            "problem.are_features_public: the kernel weights depend on all features of an agent; "
            "expected true with privacy (a declaration that features are public and targets alone "
            "protected), got false"
        )

    def build(self) -> FiniteSum:
        """The problem on the hyperboloid."""
        return HyperbolicPrediction(self.radius)

    def prepare(self, shard: Examples, meta: Mapping[str, Any]) -> Examples:
        """Targets and the agent's own kernel weights alpha_i(w) for the query feature."""
        weight = kernel_weights(
            shard["feature"],
            meta["query_feature"],
            bandwidth=self.bandwidth,
            ridge=self.ridge,
            kernel_width=self.kernel_width,
            ridge_rule=self.ridge_rule,
        )
        return Examples({"target": shard["target"], "weight": weight}, {"target": 1, "weight": 0})


class LeastSquaresSpec(ProblemSource):
    """Least squares on R^d."""

    kind: Literal["least-squares"] = "least-squares"
    needs: ClassVar[ExampleKind] = "regression"
    ridge: float = Field(default=0.0, ge=0)
    """Weight of |x|^2 / 2 in the loss."""
    scaling: Scaling = "mean"
    """"mean": the loss is a mean over a client's rows; "sum": their sum."""

    def build(self) -> FiniteSum:
        """The problem on R^d."""
        return least_squares.LeastSquares(self.ridge)

    def prepare(self, shard: Examples, meta: Mapping[str, Any]) -> Examples:
        """Rows and targets, scaled, with the rows' squared norms."""
        if self.scaling == "sum":
            shard = least_squares.sum_scaling(shard, meta.get(NUM_EXAMPLES))
        return with_squared_norms(shard, "feature")


class LogisticSpec(ProblemSource):
    """Logistic regression on R^d."""

    kind: Literal["logistic"] = "logistic"
    needs: ClassVar[ExampleKind] = "classification"
    start: Start = OriginStart()
    penalty: float = Field(default=0.0, ge=0)
    """Weight of |x|^2 / 2 in the loss."""

    def build(self) -> FiniteSum:
        """The problem on R^d."""
        return Logistic(self.penalty)

    def prepare(self, shard: Examples, meta: Mapping[str, Any]) -> Examples:
        """Rows and labels with the rows' squared norms."""
        del meta
        return with_squared_norms(shard, "feature")


class MLPSpec(ProblemSource):
    """Classification by a network with one hidden layer, packed in one vector of R^d."""

    kind: Literal["mlp"] = "mlp"
    needs: ClassVar[ExampleKind] = "labelled-rows"
    hidden: int = Field(default=32, ge=1, le=10_000)
    """Units of the hidden layer."""
    num_classes: int = Field(ge=2, le=1000)
    """Classes of the labels, which are 0, 1, ... ."""
    activation: Activation = "relu"
    """Of the hidden layer."""

    @model_validator(mode="before")
    @classmethod
    def _starts_at_random_layers(cls, table: Any) -> Any:
        """``start`` is that of its own sizes unless it is given: at the origin nothing moves."""
        if not isinstance(table, dict) or "start" in table:
            return table
        sizes = {"hidden": table.get("hidden", 32), "num_classes": table.get("num_classes", 2)}
        return {**table, "start": {"kind": "layers", **sizes}}

    def build(self) -> FiniteSum:
        """The problem on R^d."""
        return MLP(self.hidden, self.num_classes, self.activation)


class MatrixCompletionSpec(OnFrames):
    """Low-rank matrix completion on Stiefel or Grassmann (projected FL section 5.2)."""

    kind: Literal["matrix-completion"] = "matrix-completion"
    needs: ClassVar[ExampleKind] = "columns"
    rank: int = Field(default=2, ge=1)
    """Columns of the frame."""

    def build(self) -> FiniteSum:
        """The problem on the manifold ``on``."""
        return matrix_completion.MatrixCompletion(self.rank, self.on)

    def prepare(self, shard: Examples, meta: Mapping[str, Any]) -> Examples:
        """Columns, scaled."""
        if self.scaling == "mean":
            return shard
        return matrix_completion.sum_scaling(shard, meta.get(NUM_EXAMPLES))
