r"""Symmetric matrices as vectors: coordinates in an orthonormal basis of Sym(d).

The basis is e_i e_i^T and (e_i e_j^T + e_j e_i^T) / sqrt(2), i < j, orthonormal for the Frobenius
product: a diagonal entry is its own coordinate, an entry above it is multiplied by sqrt(2). The map
is an isometry onto R^{d(d+1)/2}, so that i.i.d. normals in these coordinates are the isotropic
Gaussian on Sym(d): variance sigma^2 on the diagonal and sigma^2 / 2 beside it.
"""

import math

import torch
from torch import Tensor

ROOT_TWO = math.sqrt(2.0)


def packed_size(order: int) -> int:
    """The dimension d(d+1)/2 of Sym(d)."""
    return order * (order + 1) // 2


def order_of(size: int) -> int:
    """The d of d(d+1)/2 coordinates.

    Raises:
        ValueError: for a number of coordinates that no Sym(d) has.
    """
    order = (math.isqrt(8 * size + 1) - 1) // 2
    if packed_size(order) != size:
        raise ValueError(f"Expected d(d+1)/2 coordinates of a symmetric matrix, got {size}")
    return order


def packed(s: Tensor) -> Tensor:
    """The coordinates of symmetric matrices (..., d, d), shape (..., d(d+1)/2).

    Reads the upper triangle, row by row.
    """
    order = s.shape[-1]
    rows, columns = torch.triu_indices(order, order, device=s.device)
    found = s[..., rows, columns]
    return torch.where(rows == columns, found, ROOT_TWO * found)


def unpacked(c: Tensor) -> Tensor:
    """The symmetric matrices of coordinates (..., d(d+1)/2), shape (..., d, d)."""
    order = order_of(c.shape[-1])
    rows, columns = torch.triu_indices(order, order, device=c.device)
    entries = torch.where(rows == columns, c, c / ROOT_TWO)
    s = c.new_zeros(*c.shape[:-1], order, order)
    s[..., rows, columns] = entries
    s[..., columns, rows] = entries
    return s
