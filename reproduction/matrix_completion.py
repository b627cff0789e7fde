r"""Low-rank matrix completion over a subspace: f_j(X) = 1/2 |P_j (X v_j(X) - a_j)|^2.

Zhang, Hu, So, Johansson (projected FL), (13): client i holds columns a_j of A, seen on the rows of
Omega_i, and v_j(X) is the least-squares coefficient of the column (of least norm where it is not
unique). One column is one example; the paper's f_i *sums* over columns, which ``sum_scaling`` does.

By the envelope theorem grad f_j = r_j v_j^T with r_j the residual on the seen rows, and the normal
equations X^T r_j = 0 make it tangent (even horizontal) as it stands. f_j depends on the span alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from manifed.fields import PositiveCount
from manifed.problems.data import NUM_EXAMPLES, ExampleKind
from manifed.problems.examples import Examples
from manifed.problems.pca import OnFrames, principal_angle
from manifed.problems.problem import Optimum, require
from manifed.problems.rows import row_lengths, sum_scaling


class MatrixCompletion(OnFrames):
    """Low-rank matrix completion on Stiefel or Grassmann (projected FL section 5.2).

    Examples ``column`` (..., n, d), zero where unseen, and ``mask`` (..., n, d) of 0 and 1.
    """

    points_per_example = 0.0
    needs: ClassVar[ExampleKind] = "columns"
    kind: Literal["reproduction.matrix_completion:MatrixCompletion"] = (
        "reproduction.matrix_completion:MatrixCompletion"
    )
    rank: PositiveCount = 2
    """Columns of the frame."""

    def prepare(self, shard: Examples, meta: Mapping[str, Any]) -> Examples:
        """Columns, scaled."""
        if self.scaling == "mean":
            return shard
        return sum_scaling(shard, meta.get(NUM_EXAMPLES), "column")

    def mixes_records(self) -> None:
        """None: a scaled column is computed from that column alone."""

    def point_shape(self, examples: Examples) -> tuple[int, ...]:
        """(d, rank)."""
        return (examples["column"].shape[-1], self.rank)

    def made_up(self, like: Examples, count: int, generator: torch.Generator) -> Examples:
        """Normal columns, half of them seen."""
        made = super().made_up(like, count, generator).tensors
        mask = (made["mask"] > 0).to(made["mask"].dtype)
        return Examples({"column": mask * made["column"], "mask": mask}, like.feature_ndim)

    def check_records(self, examples: Examples) -> None:
        """Masks of 0 and 1, and columns that are zero where unseen."""
        super().check_records(examples)
        mask = examples["mask"]
        column = examples["column"]
        wrong = ((mask != 0) & (mask != 1)).sum(-1)
        require(wrong, wrong == 0, "0 entries of the mask besides 0 and 1")
        unseen = ((mask == 0) & (column != 0)).sum(-1)
        require(unseen, unseen == 0, "0 entries where the mask is 0")

    def coefficients(self, x: Tensor, examples: Examples) -> Tensor:
        """v_j(X), shape ``(..., n, k)``: batched k x k normal equations, pseudo-inverted."""
        k = self.rank
        products = (x.unsqueeze(-1) * x.unsqueeze(-2)).reshape(*x.shape[:-1], k * k)
        gram = torch.matmul(examples["mask"], products)
        gram = gram.reshape(*gram.shape[:-1], k, k)
        right = torch.matmul(examples["column"], x).unsqueeze(-1)
        factor, failed = torch.linalg.cholesky_ex(gram)
        is_singular = (failed != 0) | (_smallest_pivot(factor) < 1e-6)
        if not bool(is_singular.any()):
            return torch.cholesky_solve(right, factor).squeeze(-1)
        choice = is_singular[..., None, None]
        safe = torch.where(choice, torch.eye(k, dtype=gram.dtype, device=gram.device), factor)
        least = torch.matmul(torch.linalg.pinv(gram, hermitian=True, rtol=1e-12), right)
        return torch.where(choice, least, torch.cholesky_solve(right, safe)).squeeze(-1)

    def losses(self, x: Tensor, examples: Examples) -> Tensor:
        """1/2 |P_j (X v_j - a_j)|^2, shape ``(..., n)``."""  # (13)
        _, residual = self._fit(x, examples)
        return 0.5 * residual.square().sum(-1)

    def rgrads(self, x: Tensor, examples: Examples) -> Tensor:
        """r_j v_j^T, shape ``(..., n, d, k)``."""
        v, residual = self._fit(x, examples)
        return residual.unsqueeze(-1) * v.unsqueeze(-2)

    def gradients(self, x: Tensor, examples: Examples) -> "Residuals":
        """Gradients of `rgrads`, from one set of coefficients."""
        return Residuals(*self._fit(x, examples))

    def reference_start(self, examples: Examples, weights: Tensor) -> Tensor:
        """Leading left singular vectors of the zero-filled matrix; f is not convex."""
        columns = examples["column"] * weights.sqrt().unsqueeze(-1)
        return torch.linalg.svd(columns.mT, full_matrices=False).U[:, : self.rank].contiguous()

    def metrics(self, x: Tensor, optimum: Optimum, meta: Mapping[str, Any]) -> dict[str, float]:
        """Angle to the reference subspace and, where the data set knows it, to the true one."""
        found = {"principal_angle": float(principal_angle(x, optimum.x))}
        if "true_basis" in meta:
            found["angle_to_truth"] = float(principal_angle(x, meta["true_basis"]))
        return found

    def _fit(self, x: Tensor, examples: Examples) -> tuple[Tensor, Tensor]:
        """v_j (..., n, k) and the residual on the seen rows (..., n, d)."""
        v = self.coefficients(x, examples)
        return v, examples["mask"] * torch.matmul(v, x.mT) - examples["column"]


@dataclass(frozen=True)
class Residuals:
    """r_j v_j^T for coefficients v_j (..., n, k) and residuals r_j (..., n, d)."""

    v: Tensor
    residual: Tensor

    @property
    def norms(self) -> Tensor:
        """|r_j| |v_j|, shape ``(..., n)``."""
        return row_lengths(self.residual) * row_lengths(self.v)

    def sum(self, weights: Tensor) -> Tensor:
        """sum_j weights_j r_j v_j^T, shape ``(..., d, k)``."""
        return torch.matmul((weights.unsqueeze(-1) * self.v).mT, self.residual).mT


def _smallest_pivot(factor: Tensor) -> Tensor:
    """min/max of the Cholesky diagonal: below 1e-6 the equations are singular to rounding."""
    diagonal = factor.diagonal(dim1=-2, dim2=-1)
    return diagonal.amin(-1) / diagonal.amax(-1).clamp_min(1e-300)
