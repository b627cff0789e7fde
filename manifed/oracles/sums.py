"""Sums of clipped vectors, one for each example, which depends on that example alone.

Guarantees, with a clip: what one example adds is tangent at the point, and exactly zero or of
metric norm at most clip (1 + 1e-9), whatever the example holds. It has the same bits whatever the
other examples are (`blocks.py`). One whose vector fails or is not finite adds zero, in its own
place, and changes nobody else's.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor

from manifed.errors import ConfigError
from manifed.manifolds.base import Manifold, clip_factors, clipped
from manifed.oracles.blocks import Points, in_blocks
from manifed.oracles.fused import RESPONSES, fused_steps, is_fused
from manifed.oracles.minibatch import Query, say_that_nothing_counts
from manifed.problems.examples import Examples
from manifed.problems.problem import Problem
from manifed.problems.rows import SHARED_AMONG_THREADS, dots

if TYPE_CHECKING:
    from manifed.problems.linear import LinearModel


class Vectors(NamedTuple):
    """Interface of the vectors of some examples, in whatever form they are summed."""

    sum: Callable[[Tensor], Tensor]
    """sum_j weights_j v_j at the first point, (..., *point), of weights (..., n)."""
    are_finite: Callable[[], Tensor]
    """Whether each is, (..., n)."""


_HELD = 12.0
"""Forms, and temporaries of the same size, in which a vector of another shape is held."""
_Rule = Callable[[Problem, Query, Points, Examples], Vectors]
"""What each example adds to an answer, at the points that are asked about."""


# -- what an example adds ------------------------------------------------------------------------
def gradient_sum(problem: Problem, query: Query, points: Points, examples: Examples) -> Vectors:
    """Returns the sum of v_j = clip(grad f_j(x)), by the problem's products or in L1 on R^d."""
    (x,), clip = points, query.clip
    if clip is not None and query.mechanism.l1_norm_clip is not None:
        # rounding shortens a computed sum of d absolute values by less than d ulps of itself
        vectors = problem.rgrads(x, examples)
        sizes = dots(vectors.abs(), torch.ones_like(vectors[(0,) * (vectors.dim() - 1)]))
        norms = sizes * (1 + vectors.shape[-1] * torch.finfo(vectors.dtype).eps)
        cut = clipped(vectors, norms, clip)
        return Vectors(
            lambda w: (w.unsqueeze(-1) * cut).sum(-2).reshape(x.shape),
            lambda: torch.isfinite(norms),
        )
    if type(problem) in RESPONSES and is_fused(problem, query, x, examples):

        def fused(weights: Tensor) -> Tensor:
            return fused_steps(problem, query, x, examples, weights.unsqueeze(-2))[1]

        return Vectors(fused, lambda: torch.isfinite(problem.gradients(x, examples).norms))
    each = problem.gradients(x, examples)

    def total(weights: Tensor) -> Tensor:
        if query.lipschitz is not None:
            curvatures = cast("LinearModel", problem).curvatures(examples)  # the config's checks
            weights = torch.where(curvatures <= query.lipschitz, weights, 0.0)
        if clip is None:
            return each.sum(weights)
        norms = each.norms
        found = each.sum(weights * clip_factors(norms, clip))
        if norms.shape != weights.shape or found.shape != x.shape:  # broadcast, no clip bounds it
            raise ConfigError(
                f"{type(problem).__name__}: its gradients: expected norms {tuple(weights.shape)} "
                f"and a sum {tuple(x.shape)}, got {tuple(norms.shape)} and {tuple(found.shape)}"
            )
        return problem.manifold.tangent_part(x, found)

    return Vectors(total, lambda: torch.isfinite(each.norms))


def correction_sum(problem: Problem, query: Query, points: Points, examples: Examples) -> Vectors:
    """Returns the sum of clipped v_j = grad f_j(x) - transp grad f_j(anchor).

    Each is clipped as one vector, or its two parts are.
    """
    (x, anchor), manifold, clip = points, problem.manifold, query.clip
    axis = -1 - manifold.ndim
    here = x.unsqueeze(axis)
    there = anchor.unsqueeze(axis)
    now = problem.rgrads(x, examples)
    then = problem.rgrads(anchor, examples)
    if query.form == "difference":
        change = clip_each(manifold, here, now - manifold.transp(there, here, then), clip)
    else:  # what is transported is clipped again where it is added
        moved = manifold.transp(there, here, clip_each(manifold, there, then, clip))
        now = clip_each(manifold, here, now, clip)
        change = now - clip_each(manifold, here, moved, clip)

    def total(weights: Tensor) -> Tensor:
        found = (manifold.expand_scalar(weights) * change).sum(axis)
        return found if clip is None else manifold.tangent_part(x, found.reshape(x.shape))

    return Vectors(total, lambda: torch.isfinite(change).flatten(-manifold.ndim).all(-1))


def share_below(problem: Problem, query: Query, points: Points, examples: Examples) -> Vectors:
    """Returns the sum (..., 1) of 1/2 for each gradient that a clip leaves as it is, else -1/2.

    One that is not finite counts as clipped.
    """
    (x,), clip = points, query.clip
    norms = problem.gradients(x, examples).norms
    halves = torch.where(norms <= (math.inf if clip is None else clip), 0.5, -0.5).to(torch.float64)
    return Vectors(
        lambda weights: (weights * halves).sum(-1, keepdim=True), lambda: torch.isfinite(norms)
    )


def clip_each(manifold: Manifold, x: Tensor, vectors: Tensor, clip: float | None) -> Tensor:
    """Scales vectors at x to metric norm at most ``clip``; vectors not finite become zero."""
    if clip is None:
        return vectors
    return clipped(vectors, manifold.norm_bound(x, vectors), clip)


# -- the sum of those that have one --------------------------------------------------------------
def sum_of_good(
    rule: _Rule,
    problem: Problem,
    query: Query,
    points: Points,
    examples: Examples,
    weights: Tensor,
    size: int | None = None,
) -> Tensor:
    """Sums over the examples that have a finite vector, shape ``(..., *point)`` of points[0].

    A ``size`` is that of a rule whose vectors have another shape: (..., size). It holds each
    vector in several forms, so its examples are computed in blocks.

    Computed and returned in float64, whatever the type of the points: a shorter type rounds what is
    released, never what noise is added to.

    Raises:
        ValueError: the point is not on the CPU.
        torch.linalg.LinAlgError: the metric at a point itself cannot be evaluated.
    """
    if not points[0].is_cpu:
        raise ValueError(
            f"device: expected 'cpu' for clipped sums, got {points[0].device.type!r}, where it is "
            "not tested that a record's result does not depend on other records"
        )
    points = tuple(p.to(torch.float64) for p in points)
    if {t.dtype for t in examples.tensors.values()} != {torch.float64}:
        examples = examples.to(torch.float64)
    weights = weights.to(torch.float64)
    is_carried = len(points) > 1 and points[0].shape[-1] > SHARED_AMONG_THREADS
    is_apart = len(points) == 1 or (problem.manifold.carries_rows_apart and not is_carried)
    is_small = size is None or query.form == "below"
    if is_small and is_apart and keeps_rows_apart(problem):
        return _together(rule, problem, query, points, examples, weights)
    if weights.dim() == 1:
        return _in_blocks(rule, problem, query, points, examples, weights, size)
    each: list[Tensor] = []
    for i, row in enumerate(weights):
        own = tuple(p[i] for p in points)
        each.append(_in_blocks(rule, problem, query, own, examples.of_client(i), row, size))
    return torch.stack(each)


def keeps_rows_apart(problem: Problem) -> bool:
    """Whether a problem's class or object itself declares that rows do not affect each other."""
    of_class = vars(type(problem)).get("keeps_rows_apart", False)
    return bool(vars(problem).get("keeps_rows_apart", of_class))


def _together(
    rule: _Rule, problem: Problem, query: Query, points: Points, examples: Examples, weights: Tensor
) -> Tensor:
    """All examples of all clients at once, of a problem that keeps them apart."""
    vectors = rule(problem, query, points, examples)
    total = vectors.sum(weights)
    if math.isfinite(total.sum()):  # a sum that overflows is looked at once more
        return total
    bad = ~vectors.are_finite()
    weights = weights.masked_fill(bad, 0.0)
    if not bool(weights.any()):
        say_that_nothing_counts(type(problem).__name__)
        return torch.zeros_like(total)
    ndim = examples.feature_ndim
    blanked = {  # zeros in place of the bad ones
        key: tensor.masked_fill(bad.reshape(*bad.shape, *[1] * ndim[key]), 0)
        for key, tensor in examples.tensors.items()
    }
    examples = Examples(blanked, ndim, examples.counts)
    total = rule(problem, query, points, examples).sum(weights)
    return torch.where(torch.isfinite(total), total, 0.0)


def _in_blocks(
    rule: _Rule,
    problem: Problem,
    query: Query,
    points: Points,
    examples: Examples,
    weights: Tensor,
    size: int | None,
) -> Tensor:
    """One client's, in blocks."""
    points = tuple(point.clone() for point in points)  # no place in a stack, but one of its own
    x = points[0]
    total = torch.zeros_like(x) if size is None else x.new_zeros(size)
    held = 0.0 if size is None else _HELD * size / x.numel()
    manifold = problem.manifold
    for point in () if manifold.is_whole_space else points:
        if not bool(torch.isfinite(manifold.norm(point, torch.zeros_like(point))).all()):
            return total

    def compute(points: Points, block: Examples) -> Callable[[int], Tensor]:
        vectors = rule(problem, query, points, block)
        vectors.are_finite()  # measures what a clip that does not bind leaves out of sight
        return lambda place: vectors.sum((torch.arange(len(block)) == place).to(x.dtype))

    def attempt(block: Tensor, counts: Tensor) -> Tensor | None:
        """The sum over a block, or None where a kernel fails or the result is not finite."""
        each = torch.where(counts, weights[block], 0.0)
        try:
            found = rule(problem, query, points, examples.take(block)).sum(each)
        # torch exports the error from C, out of the sight of pyright
        except (torch.linalg.LinAlgError, ArithmeticError):  # pyright: ignore[reportPrivateImportUsage]
            return None
        is_finite = math.isfinite(found.sum()) or bool(torch.isfinite(found).all())
        return found if is_finite else None

    counted = weights.nonzero().squeeze(-1)
    alive = False
    name = (rule, query.form, query.clip is None, query.mechanism.l1_norm_clip is None)
    for *_, found in in_blocks(problem, compute, name, points, examples, counted, attempt, held):
        total = total + found
        alive = True
    if len(counted) and not alive:
        say_that_nothing_counts(type(problem).__name__)
    return total
