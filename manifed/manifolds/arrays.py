"""One formula over tensors, over arrays of numpy on the same memory, or over Python's numbers.

A call of torch takes about twice as long as one of numpy and ten times as long as one of Python's
`math`; with a few numbers that is all the time there is. So a formula is written with the functions
below: where nothing is differentiated or mapped it is given arrays, and what one point has one
of (a length, a distance) is then a number of Python. Stacks keep such things as (..., 1).
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manifed.manifolds.linalg import TINY, are_plain

FEW, SHORT = 1 << 15, 10_000
"""Entries up to which numpy is faster (beyond, torch's vectorised functions are), and those of one
vector up to which a product of its BLAS takes one thread, so that the last bits stay."""


def on_arrays(formula: Callable[..., Any], *tensors: Tensor, most: int = FEW) -> Tensor:
    """``formula(*tensors)``, over their memory as arrays where they are few and `are_plain`.

    What Python's numbers refuse (a quotient by 0, an overflow) is left to torch.
    """
    if not (are_few(tensors, most) and are_plain(*tensors)):
        return formula(*tensors)
    try:
        arrays = [t.numpy() for t in tensors]
        if len({a.ndim for a in arrays}) > 1:  # one point beside stacks has no numbers of its own
            arrays = [np.atleast_2d(a) for a in arrays]
        with np.errstate(all="ignore"):
            return torch.from_numpy(formula(*arrays))
    except (ArithmeticError, ValueError):
        return formula(*tensors)


def measured(formula: Callable[..., Any], *tensors: Tensor, keepdim: bool) -> Tensor:
    """`on_arrays` of a formula with one number a point, shape (...,), or (..., 1)."""

    def of_shape(*arrays: Any) -> Any:
        value = formula(*arrays)
        if type(value) is float:
            return np.array([value] if keepdim else value, dtype=arrays[0].dtype)
        if keepdim:
            return value
        return value.squeeze(-1) if isinstance(value, Tensor) else value[..., 0]

    return on_arrays(of_shape, *tensors)


def are_few(tensors: tuple[Tensor, ...], most: int) -> bool:
    """Whether no tensor has too many entries for numpy, and none is a number."""
    return all(t.numel() <= most and t.dim() > 0 and max(t.shape) <= SHORT for t in tensors)


def of(value: Any) -> Any:
    """Where the functions of a number, of an array, or of a tensor are."""
    if type(value) is float:
        return math
    return torch if isinstance(value, Tensor) else np


def at_least(value: Any, bound: float) -> Any:
    """The larger of both, NaN for NaN."""
    if type(value) is float:
        return max(value, bound)
    return value.clamp_min(bound) if isinstance(value, Tensor) else np.maximum(value, bound)


def tiny(x: Any) -> float:
    """The entry of `TINY` for the type of ``x``."""
    return TINY[torch.float64] if x.itemsize == 8 else TINY[torch.float32]


def dot(u: Any, v: Any) -> Any:
    """U . v over the last dimension, shape (..., 1); of two arrays of one point a number."""
    if isinstance(u, Tensor):
        return (u * v).sum(-1, keepdim=True)
    return float(u.dot(v)) if u.ndim == v.ndim == 1 else np.vecdot(u, v)[..., None]


def length(u: Any) -> Any:
    """|u| over the last dimension, in the shape of `dot`."""
    if isinstance(u, Tensor):
        return torch.linalg.vector_norm(u, dim=-1, keepdim=True)
    return math.sqrt(u.dot(u)) if u.ndim == 1 else np.sqrt(np.vecdot(u, u))[..., None]


def plus(x: Any, scale: Any, u: Any, *, minus: bool = False) -> Any:
    """The sum x + scale u, or the difference."""
    if isinstance(x, Tensor):
        return torch.addcmul(x, scale, u, value=-1.0 if minus else 1.0)
    return x - scale * u if minus else x + scale * u
