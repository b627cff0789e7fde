"""The two products of every linear model: rows times a point, and weighted sums of rows.

Both meet examples of shape ``(..., n, d)`` and cost one pass over them: no ``(n, d)`` temporary.
"""

import torch
from torch import Tensor

from problems.base import Examples


def row_products(rows: Tensor, x: Tensor) -> Tensor:
    """<rows_j, x> for every row, shape ``(..., n)``; rows ``(..., n, d)``, x ``(..., d)``."""
    if rows.dim() == 2:
        return torch.matmul(x, rows.mT)
    return torch.matmul(rows, x.unsqueeze(-1)).squeeze(-1)


def row_combination(coefficients: Tensor, rows: Tensor) -> Tensor:
    """sum_j coefficients_j rows_j, shape ``(..., d)``; coefficients ``(..., n)``."""
    if rows.dim() == 2:
        return torch.matmul(coefficients, rows)
    return torch.matmul(coefficients.unsqueeze(-2), rows).squeeze(-2)


def outer_combination(left: Tensor, rows: Tensor) -> Tensor:
    """sum_j rows_j left_j^T, shape ``(..., d, k)``; left ``(..., n, k)``, rows ``(..., n, d)``.

    Written as (left^T rows)^T, which reads the rows in storage order.
    """
    return torch.matmul(left.mT, rows).mT


def squared_norms(examples: Examples, key: str) -> Tensor:
    """|rows_j|^2, shape ``(..., n)``: the tensor ``squared_norm`` if ``prepare`` stored it."""
    if "squared_norm" in examples.tensors:
        return examples["squared_norm"]
    return torch.linalg.vector_norm(examples[key], dim=-1).square()


def with_squared_norms(examples: Examples, key: str) -> Examples:
    """The same examples with |rows_j|^2 stored once, so that clipping reads the rows less often."""
    tensors = {**examples.tensors, "squared_norm": squared_norms(examples, key)}
    return Examples(tensors, {**examples.feature_ndim, "squared_norm": 0})
