"""Flat space: vectors, matrices or tensors of any order with the Frobenius metric."""

import math

import numpy as np
import torch
from torch import Tensor

from manifed.errors import short
from manifed.manifolds.base import Submanifold


class Euclidean(Submanifold):
    """Flat space of vectors, matrices or tensors, whose maps are linear.

    Args:
        ndim: trailing dimensions of one point: 1 for vectors, 2 for matrices, and so on.
    """

    name = "Euclidean"
    looks_at_all_pairs = False
    carries_rows_apart = True
    reach = math.inf
    is_whole_space = True

    def __init__(self, ndim: int = 1) -> None:
        super().__init__()
        if not isinstance(ndim, int) or not 1 <= ndim <= 64:
            raise ValueError(
                f"ndim: expected an integer from 1 to 64, got {short(ndim)}; a number is a vector "
                "of one entry"
            )
        self.ndim = ndim

    def settings(self) -> tuple[object, ...]:
        """What distinguishes two manifolds of this class: ``ndim``."""
        return (self.ndim,)

    def dim(self, shape: tuple[int, ...]) -> int:
        """The number of entries."""
        return torch.Size(shape).numel()

    def projx(self, x: Tensor) -> Tensor:
        """The point itself."""
        return x

    def proju(self, x: Tensor, u: Tensor) -> Tensor:
        """The vector itself."""
        # numpy's: torch.broadcast_shapes imports sympy, which takes as long as torch itself.
        return u if u.shape == x.shape else u.expand(np.broadcast_shapes(x.shape, u.shape))

    to_coords = Submanifold.flattened

    def norm(self, x: Tensor, u: Tensor, *, keepdim: bool = False) -> Tensor:
        """Frobenius norm, shape (...,)."""
        return torch.linalg.vector_norm(u, dim=self.point_dims(), keepdim=keepdim)

    def expmap(self, x: Tensor, u: Tensor) -> Tensor:
        """The point x + u."""
        return x + u

    def logmap(self, x: Tensor, y: Tensor) -> Tensor:
        """The vector y - x."""
        return y - x

    def _distance(self, x: Tensor, y: Tensor) -> Tensor:
        """Frobenius norm of the difference."""
        return self.norm(x, x - y, keepdim=True)

    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """The vector itself (parallel)."""
        return v.expand(np.broadcast_shapes(x.shape, y.shape, v.shape))

    def of_zeros(self, zeros: Tensor) -> Tensor:
        """Zero."""
        return zeros

    def membership_defect(self, x: Tensor) -> Tensor:
        """Zero, or infinite where x is not finite, shape (...,)."""
        products = (0.0 * x).sum(self.point_dims())  # 0 times infinity is NaN
        return products.abs().nan_to_num_(nan=torch.inf)

    def tangency_defect(self, x: Tensor, u: Tensor) -> Tensor:
        """Zero, or infinite where x or u is not finite, shape (...,)."""
        return self.membership_defect(x) + self.membership_defect(u)
