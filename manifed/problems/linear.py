"""The two products of every linear model: rows times a point, and weighted sums of rows.

Both meet examples of shape ``(..., n, d)`` and cost one pass over them: no ``(n, d)`` temporary.
"""

import torch
from torch import Tensor

from manifed.problems.base import SQUARED_NORM, Examples

ROUNDING_SHARE = 2.0**-12
"""Least norm, relative to its summands, that a gradient counts as where a sum in product form may
cancel: eps / ROUNDING_SHARE = 1e-12 bounds the rounding of a clipped contribution."""
SHORTEST = 1e-145
"""A shorter row counts as this long where its norm is bounded from above."""


def row_products(rows: Tensor, x: Tensor) -> Tensor:
    """<rows_j, x> for every row, shape ``(..., n)``; rows ``(..., n, d)``, x ``(..., d)``."""
    if rows.dim() == 2:
        return torch.matmul(x, rows.mT)
    if rows.dim() == 3 and x.dim() == 2 and rows.shape[0] == x.shape[0]:
        # a point from the left: the other way round torch takes up to four times as long
        return torch.bmm(x.unsqueeze(-2), rows.mT).squeeze(-2)
    return torch.matmul(rows, x.unsqueeze(-1)).squeeze(-1)


def row_combination(coefficients: Tensor, rows: Tensor) -> Tensor:
    """sum_j coefficients_j rows_j, shape ``(..., d)``; coefficients ``(..., n)``."""
    left = coefficients.unsqueeze(-2)
    if left.dim() == rows.dim() == 3 and left.shape[0] == rows.shape[0]:
        return torch.bmm(left, rows).squeeze(-2)
    return torch.matmul(left, rows).squeeze(-2)


def outer_combination(left: Tensor, rows: Tensor) -> Tensor:
    """sum_j rows_j left_j^T, shape ``(..., d, k)``; left ``(..., n, k)``, rows ``(..., n, d)``.

    Written as (left^T rows)^T, which reads the rows in storage order.
    """
    return torch.matmul(left.mT, rows).mT


def steps_at_once(
    hessian: Tensor, constant: Tensor, step_size: float, steps: int
) -> tuple[Tensor, Tensor]:
    """T (..., d, d) and v (..., d) with x_steps - x = T x + v for x <- x - step_size (H x - c)."""
    d = constant.shape[-1]
    one = torch.zeros(*constant.shape[:-1], d + 1, d + 1, dtype=constant.dtype).to(constant.device)
    one[..., :d, :d] = -step_size * hessian
    one[..., :d, d] = step_size * constant
    one.diagonal(dim1=-2, dim2=-1).add_(1.0)  # a step, with x extended by a one
    all_steps = torch.linalg.matrix_power(one, steps)
    all_steps.diagonal(dim1=-2, dim2=-1).sub_(1.0)
    return all_steps[..., :d, :d].contiguous(), all_steps[..., :d, d].contiguous()


def squared_norms(examples: Examples, key: str) -> Tensor:
    """|rows_j|^2, shape ``(..., n)``: the tensor ``squared_norm`` if ``prepare`` stored it.

    At least 1e-290, also for shorter rows, so that no norm vanishes because its square does;
    infinite for rows longer than 1e154, whose norm a clip takes for no number.
    """
    if SQUARED_NORM in examples.tensors:
        return examples[SQUARED_NORM]
    return row_lengths(examples[key]).square()


def row_lengths(rows: Tensor) -> Tensor:
    """max(|rows_j|, 1e-145), shape ``(..., n)``; infinite where the square overflows."""
    return torch.linalg.vector_norm(rows, dim=-1).clamp_min(SHORTEST)


def with_squared_norms(examples: Examples, key: str) -> Examples:
    """The same examples with |rows_j|^2 stored once, so that clipping reads the rows less often.

    A column of that name which came with the data is replaced: a clip believes it.
    """
    tensors = {**examples.tensors, SQUARED_NORM: row_lengths(examples[key]).square()}
    return Examples(tensors, {**examples.feature_ndim, SQUARED_NORM: 0})
