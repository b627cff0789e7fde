"""Where a stored tensor may lie: what is measured, and the three bounds that are used everywhere.

A defect is relative and dimensionless; honest rounding gives about 1e-15 whatever the radius or the
conditioning, and a tensor that is not finite gives infinity, never NaN:

* ``manifold.membership_defect(x)``: how far x is from being a stored point;
* ``manifold.tangency_defect(x, u)``: the part of u that is normal at x, in the ambient Euclidean
  norm, over |x| + |u|. The summand |x| is what rounding knows of a vector that is a difference of
  points or a sum that cancelled; without it every converged run would fail.

What the bounds leave open: a normal part of at most ``TOLERANCE`` (|x| + |u|), and a point at
``TOLERANCE`` from the manifold, where lengths of vectors are wrong by that fraction.
"""

import torch
from torch import Tensor

_TYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)

TOLERANCE = {t: max(1e-6, 1e3 * torch.finfo(t).eps) for t in _TYPES}
"""The largest defect of a point or a vector that is taken for rounding: 1e-6 in float64, where
rounding stays below 1e-9, or 1000 units of a shorter type."""

DRIFT = {t: max(1e-10, 100 * torch.finfo(t).eps) for t in _TYPES}
"""How far a model may be off its manifold after a server update, well inside `TOLERANCE`.

1e-10 in float64, where 2000 exponential maps without a projection leave less than 1e-13; 100 units
of a shorter type.
"""

LARGEST = {t: min(1e100, torch.finfo(t).max ** (1 / 3)) for t in _TYPES}
"""The largest Euclidean norm of a point or a vector that is taken: 1e100 in float64, so that
products of three are finite, or the cube root of a shorter range."""


def is_short(a: Tensor) -> bool:
    """Whether the Euclidean norm of all entries is at most `LARGEST`.

    False where an entry is not finite, and where the squares overflow though the norm does not.
    """
    flat = a if a.dim() == 1 else a.reshape(-1)
    return flat.dot(flat).item() <= LARGEST[a.dtype] ** 2


def largest_entry(a: Tensor, ndim: int) -> Tensor:
    """Largest |a_ij| over the last ``ndim`` dimensions, shape (...,); NaN where an entry is."""
    flat = a.flatten(-ndim)
    return torch.maximum(flat.amax(-1), -flat.amin(-1))


def frobenius(a: Tensor, ndim: int) -> Tensor:
    """The Euclidean norm over the last ``ndim`` dimensions, shape (...,), without overflow."""
    largest = largest_entry(a, ndim)
    unit = torch.where(largest > 0, largest, 1.0)
    parts = a / unit.reshape(*unit.shape, *[1] * ndim)
    return unit * torch.linalg.vector_norm(parts, dim=tuple(range(-ndim, 0)))


def gram_defect(x: Tensor) -> Tensor:
    """|x^T x - I| / (2 sqrt k) of n x k matrices, shape (...,): their relative distance, nearly."""
    k = x.shape[-1]
    gap = x.mT @ x - torch.eye(k, dtype=x.dtype, device=x.device)
    return torch.linalg.vector_norm(gap, dim=(-2, -1)) / (2 * k**0.5)
