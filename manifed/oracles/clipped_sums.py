"""Clipped sums over examples, whatever one of the examples holds.

A sum is tried for all examples (of all clients of a stacked cohort) at once. Only where a
factorisation fails or the result is not finite is it taken apart: into clients, then into halves of
a client's examples, down to the ones at fault, which count as zero. That costs O(log n) sums a bad
example and nothing without one.

Guarantee: an example adds a tangent vector of metric norm at most clip (1 + 1e-9) times its weight,
or exactly zero; no example makes a sum fail, and one client's examples touch no other client's sum.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from manifed.manifolds.base import Manifold
from manifed.privacy.clipping import clip_factors, clipped
from manifed.problems.base import Examples, Problem

Points = tuple[Tensor, ...]


class Summand(Protocol):
    """sum_j weights_j v_j at the first of ``points``, for vectors v_j of one example each."""

    @property
    def manifold(self) -> Manifold:
        """Where the points live."""
        ...

    def __call__(self, points: Points, examples: Examples, weights: Tensor) -> Tensor:
        """The sum, shape ``(..., *point)``; weights ``(..., n)``."""
        ...


def clip_each(manifold: Manifold, x: Tensor, vectors: Tensor, clip: float | None) -> Tensor:
    """The vectors at x scaled to metric norm at most ``clip``; zero where not finite."""
    if clip is None:
        return vectors
    return clipped(vectors, manifold.norm_bound(x, vectors), clip)


@dataclass(frozen=True)
class ClippedGradients:
    """clip(grad f_j(x))."""

    problem: Problem
    manifold: Manifold
    clip: float

    def __call__(self, points: Points, examples: Examples, weights: Tensor) -> Tensor:
        """The sum at x, in the problem's own products."""
        (x,) = points

        def weigh(norms: Tensor) -> Tensor:
            return weights * clip_factors(norms, self.clip)

        total, _ = self.problem.rgrad_sum_by_norm(x, examples, weigh)
        return self.manifold.tangent_part(x, total)


@dataclass(frozen=True)
class Corrections:
    """grad f_j(x) - transp grad f_j(anchor), clipped as one vector or each of the two."""

    problem: Problem
    clip: float | None
    is_clipped_as_one: bool

    @property
    def manifold(self) -> Manifold:
        """The problem's."""
        return self.problem.manifold

    def __call__(self, points: Points, examples: Examples, weights: Tensor) -> Tensor:
        """The sum at x; what is transported is clipped again where it is added."""
        x, anchor = points
        manifold, clip = self.manifold, self.clip
        axis = -1 - manifold.ndim
        here, there = x.unsqueeze(axis), anchor.unsqueeze(axis)
        now = self.problem.rgrads(x, examples)
        then = self.problem.rgrads(anchor, examples)
        if self.is_clipped_as_one:
            change = clip_each(manifold, here, now - manifold.transp(there, here, then), clip)
        else:
            moved = manifold.transp(there, here, clip_each(manifold, there, then, clip))
            now = clip_each(manifold, here, now, clip)
            change = now - clip_each(manifold, here, moved, clip)
        total = (manifold.expand_scalar(weights) * change).sum(axis)
        return total if clip is None else manifold.tangent_part(x, total)


def sum_of_good(summand: Summand, points: Points, examples: Examples, weights: Tensor) -> Tensor:
    """The sum over the examples that have a finite vector, shape ``(..., *point)`` of points[0].

    Computed and returned in float64, whatever the type of the points: a shorter type rounds what is
    released (`narrowed`), never what noise is added to.

    Raises:
        torch.linalg.LinAlgError: the metric at a point itself cannot be evaluated.
    """
    dtype = points[0].dtype
    if dtype != torch.float64:
        wide = tuple(p.to(torch.float64) for p in points)
        tensors = {key: tensor.to(torch.float64) for key, tensor in examples.tensors.items()}
        examples = Examples(tensors, examples.feature_ndim)
        return sum_of_good(summand, wide, examples, weights.to(torch.float64))
    total = _attempt(summand, points, examples, weights)
    if total is not None:
        return total
    if weights.dim() > 1:
        return _by_client(summand, points, examples, weights)
    manifold = summand.manifold
    for point in points:
        if not bool(torch.isfinite(manifold.norm(point, torch.zeros_like(point))).all()):
            return torch.zeros_like(points[0])
    is_finite = _finite(examples)
    if not bool(is_finite.all()):
        good = is_finite.nonzero().squeeze(-1)
        examples, weights = examples.take(good), weights[good]
        total = _attempt(summand, points, examples, weights) if len(good) else None
    return _by_halves(summand, points, examples, weights) if total is None else total


def narrowed(total: Tensor, dtype: torch.dtype) -> Tensor:
    """The float64 ``total`` in ``dtype``, not longer: in a shorter type by two units of its own."""
    if total.dtype == dtype:
        return total
    return (total * (1 - 2 * torch.finfo(dtype).eps)).to(dtype)


def _attempt(
    summand: Summand, points: Points, examples: Examples, weights: Tensor
) -> Tensor | None:
    """The sum, or None where a kernel fails or the result is not finite."""
    try:
        total = summand(points, examples, weights)
    # torch exports the error from C, out of the sight of pyright
    except (torch.linalg.LinAlgError, ArithmeticError):  # pyright: ignore[reportPrivateImportUsage]
        return None
    return total if bool(torch.isfinite(total).all()) else None


def _by_client(summand: Summand, points: Points, examples: Examples, weights: Tensor) -> Tensor:
    """The sums of a stacked cohort, by halves of it."""
    if len(weights) == 1:
        alone = _sliced(examples, lambda tensor, _: tensor[0])
        return sum_of_good(summand, tuple(p[0] for p in points), alone, weights[0]).unsqueeze(0)
    middle = len(weights) // 2
    parts: list[Tensor] = []
    for half in (slice(middle), slice(middle, None)):
        some = _sliced(examples, lambda tensor, _, half=half: tensor[half])
        parts.append(sum_of_good(summand, tuple(p[half] for p in points), some, weights[half]))
    return torch.cat(parts)


def _by_halves(summand: Summand, points: Points, examples: Examples, weights: Tensor) -> Tensor:
    """The sum of one client's examples, known to fail as a whole."""
    count = len(weights)
    total = torch.zeros_like(points[0])
    if count <= 1:
        return total
    middle = count // 2
    for start, length in ((0, middle), (middle, count - middle)):
        some = _sliced(examples, _narrow(start, length))
        each = weights.narrow(0, start, length)
        part = _attempt(summand, points, some, each)
        total = total + (_by_halves(summand, points, some, each) if part is None else part)
    return total


def _narrow(start: int, length: int) -> Callable[[Tensor, int], Tensor]:
    """Cuts the examples ``start``, ..., ``start + length - 1`` out of a client's tensor."""
    return lambda tensor, ndim: tensor.narrow(tensor.dim() - 1 - ndim, start, length)


def _sliced(examples: Examples, cut: Callable[[Tensor, int], Tensor]) -> Examples:
    feature_ndim = examples.feature_ndim
    tensors = {key: cut(tensor, feature_ndim[key]) for key, tensor in examples.tensors.items()}
    return Examples(tensors, feature_ndim)


def _finite(examples: Examples) -> Tensor:
    """Whether all numbers of an example are finite, shape (n,), for one client."""
    flags = [
        torch.isfinite(tensor).flatten(tensor.dim() - examples.feature_ndim[key]).all(-1)
        if examples.feature_ndim[key]
        else torch.isfinite(tensor)
        for key, tensor in examples.tensors.items()
    ]
    return torch.stack(flags).all(0)
