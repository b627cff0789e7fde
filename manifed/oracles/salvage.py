"""The sum over all examples but those at fault, where the sum over all fails.

It is taken apart: into clients, then into halves of a client's examples, down to the ones that fail
or are not finite, which count as zero. That costs O(log n) sums a bad example.

Guarantee: no example makes a sum fail, and one client's examples touch no other client's sum.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from manifed.manifolds.base import Manifold
from manifed.problems.base import Examples

Points = tuple[Tensor, ...]

Attempt = Callable[[Points, Examples, Tensor], Tensor | None]
"""A sum over examples with weights (..., n), None where it fails or is not finite."""


def salvaged(
    attempt: Attempt, manifold: Manifold, points: Points, examples: Examples, weights: Tensor
) -> Tensor:
    """The sum, known to fail as a whole, over the examples for which it does not.

    Raises:
        torch.linalg.LinAlgError: the metric at a point itself cannot be evaluated.
    """
    if weights.dim() > 1:
        return _by_client(attempt, manifold, points, examples, weights)
    for point in points:
        if not bool(torch.isfinite(manifold.norm(point, torch.zeros_like(point))).all()):
            return torch.zeros_like(points[0])
    is_finite = _finite(examples)
    if not bool(is_finite.all()):
        good = is_finite.nonzero().squeeze(-1)
        examples, weights = examples.take(good), weights[good]
        total = attempt(points, examples, weights) if len(good) else None
        if total is not None:
            return total
    return _by_halves(attempt, points, examples, weights)


def _by_client(
    attempt: Attempt, manifold: Manifold, points: Points, examples: Examples, weights: Tensor
) -> Tensor:
    """The sums of a stacked cohort, by halves of it."""

    def of(clients: int | slice) -> Tensor:
        some = _sliced(examples, lambda tensor, _: tensor[clients])
        given = tuple(point[clients] for point in points), some, weights[clients]
        total = attempt(*given)
        return salvaged(attempt, manifold, *given) if total is None else total

    if len(weights) == 1:
        return of(0).unsqueeze(0)
    middle = len(weights) // 2
    return torch.cat([of(slice(middle)), of(slice(middle, None))])


def _by_halves(attempt: Attempt, points: Points, examples: Examples, weights: Tensor) -> Tensor:
    """The sum of one client's examples, known to fail as a whole."""
    count = len(weights)
    total = torch.zeros_like(points[0])
    if count <= 1:
        return total
    middle = count // 2
    for start, length in ((0, middle), (middle, count - middle)):
        some = _sliced(examples, _narrow(start, length))
        each = weights.narrow(0, start, length)
        part = attempt(points, some, each)
        total = total + (_by_halves(attempt, points, some, each) if part is None else part)
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
