"""A linear layer whose weight has orthonormal rows or columns: an isometry, or its adjoint.

Huang, Liu, Lang, Yu, Wang, Li: Orthogonal Weight Normalization: Solution to Optimization over
Multiple Dependent Stiefel Manifolds in Deep Neural Networks (AAAI 2018). There the weight is
re-parametrised; here it is a point of St(n, p), moved along the manifold.
"""

from geoopt import ManifoldParameter
from torch import Tensor, empty, nn, zeros

from manifed.manifolds.base import Manifold
from manifed.manifolds.stiefel import Metric, Stiefel


def frame(rows: int, columns: int, metric: Metric = "euclidean") -> nn.Parameter:
    """A Haar-distributed point of St(rows, columns), from torch's own generator.

    Raises:
        ValueError: more columns than rows.
    """
    if not 1 <= columns <= rows:
        raise ValueError(
            f"Expected a frame of at least as many rows as columns, got {rows} x {columns}"
        )
    return on_manifold(nn.init.orthogonal_(empty(rows, columns)), Stiefel(metric))


def on_manifold(point: Tensor, manifold: Manifold) -> nn.Parameter:
    """A parameter that lives on a manifold of this library, as one of geoopt's."""
    made: nn.Parameter = ManifoldParameter(
        point,
        manifold=manifold,  # pyright: ignore[reportCallIssue]
    )
    return made


class OrthogonalLinear(nn.Module):
    """x -> x W^T + b with W (out, in); the longer side's vectors are orthonormal.

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
        self.in_features, self.out_features = in_features, out_features
        sides = max(in_features, out_features), min(in_features, out_features)
        self.frame = frame(*sides, metric)
        self.bias = nn.Parameter(zeros(out_features)) if bias else None

    def forward(self, feature: Tensor) -> Tensor:
        """(..., in) to (..., out)."""
        weight = self.frame.mT if self.in_features >= self.out_features else self.frame
        return nn.functional.linear(feature, weight, self.bias)
