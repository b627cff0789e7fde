"""Which answers of an oracle are computed by the compiled kernel, and how they are handed to it.

`pip install "manifed[fast]"` installs numba. Without it, or with ``MANIFED_KERNEL=torch`` in the
environment, the same answers come from `manifed.oracles.sums` and agree to 1e-12 of their size.
"""

import math
import os
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from manifed.oracles.minibatch import Query, say_that_nothing_counts
from manifed.problems.examples import Examples
from manifed.problems.linear import LeastSquares, LinearModel, Logistic
from manifed.problems.problem import Problem
from manifed.problems.rows import are_plain

VARIABLE = "MANIFED_KERNEL"
RESPONSES: Mapping[type[Problem], str] = {LeastSquares: "target", Logistic: "label"}
"""The problems of the kernel, and the tensor of each beside its rows."""
_LEAST_CLIP = 1e-140
"""Below it `clip_factors` lets nothing pass."""


def kernel_name() -> str:
    """Returns what computes the answers of linear models: "torch", or numba with its version."""
    is_off = os.environ.get(VARIABLE) == "torch" or find_spec("numba") is None
    return "torch" if is_off else f"numba {version('numba')}"


@cache
def kernel() -> Any:
    """Returns `manifed.oracles.compiled.descend`; None where answers are computed by torch."""
    return None if kernel_name() == "torch" else import_module("manifed.oracles.compiled").descend


def is_fused(problem: Problem, query: Query, x: Tensor, examples: Examples) -> bool:
    """Returns whether the kernel computes the mean gradient at x, shape ``(..., d)``.

    It does for least squares and logistic regression in float64 on the CPU, clipped in L2 or not at
    all; a class derived from them has its own slopes.
    """
    response = RESPONSES.get(type(problem))
    if response is None or query.form != "gradient" or examples.stream is not None:
        return False
    if query.lipschitz is not None or query.mechanism.l1_norm_clip is not None:
        return False
    rows = examples["feature"]
    return (
        (query.clip is None or query.clip >= _LEAST_CLIP)
        and x.dtype == torch.float64
        and rows.shape[:-2] == x.shape[:-1]
        and rows.shape[:-1] == examples[response].shape
        and are_plain(x, rows, examples[response])
        and kernel() is not None
    )


def fused_steps(
    problem: Problem,
    query: Query,
    x: Tensor,
    examples: Examples,
    weights: Tensor,
    normals: Tensor | None = None,
    stddev: Tensor | None = None,
    *,
    steps: int = 1,
    step_size: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Returns where steps from x end, and their last gradient, both (..., d).

    Args:
        problem: for which `is_fused` holds, as for the next three.
        query: what a row adds.
        x: where the steps begin, (..., d).
        examples: of all steps.
        weights: of the rows in each step, (..., steps, n), or in all of them, (..., 1, n).
        normals: of the noise of each step, (..., steps, d); None: no noise is added.
        stddev: of the noise, () or (...,).
        steps: how many.
        step_size: 0 for a gradient alone.
    """
    d = x.shape[-1]
    lead = math.prod(x.shape[:-1])

    def flat(tensor: Tensor, *shape: int) -> Any:
        return np.ascontiguousarray(tensor.detach().numpy().reshape(lead, *shape))

    n = len(examples)
    kept = weights.shape[-2]
    points = flat(x, d).copy()
    means = np.empty_like(points)
    noise = np.empty((lead, 0, d)) if normals is None else flat(normals, steps, d)
    counted = kernel()(
        flat(examples["feature"], n, d),
        flat(examples[RESPONSES[type(problem)]], n),
        flat(weights.expand(*x.shape[:-1], kept, n), kept, n),
        noise,
        np.full(lead, 0.0 if stddev is None else stddev.numpy()),
        points,
        means,
        steps,
        step_size,
        math.inf if query.clip is None else query.clip,
        cast(LinearModel, problem).ridge,
        isinstance(problem, Logistic),
    )
    if not counted and query.clip is not None and bool(weights.any()):
        say_that_nothing_counts(type(problem).__name__)
    ends, last = (torch.from_numpy(each).reshape(x.shape) for each in (points, means))
    return ends, last
