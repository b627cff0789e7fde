"""What a problem is: a manifold, a loss per example and its Riemannian gradient.

A problem is a frozen object without data; examples are handed in. Everything broadcasts over
leading dimensions: x of shape ``(..., *point)`` meets examples of shape ``(..., n, *feature)``,
so the same code serves one client and a stacked cohort.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Protocol

import torch
from torch import Tensor

from manifed.manifolds.base import Manifold


@dataclass(frozen=True)
class Examples:
    """n examples as named tensors, each of shape ``(..., n, *feature)``.

    ``feature_ndim`` says how many trailing dimensions of each tensor belong to one example.
    """

    tensors: Mapping[str, Tensor]
    feature_ndim: Mapping[str, int]

    def __post_init__(self) -> None:
        sizes = {key: self._axis_size(key) for key in self.tensors}
        if len(set(sizes.values())) != 1:
            raise ValueError(f"Expected one number of examples in every tensor, got {sizes}")

    def _axis_size(self, key: str) -> int:
        return self.tensors[key].shape[-1 - self.feature_ndim[key]]

    def __len__(self) -> int:
        return self._axis_size(next(iter(self.tensors)))

    def __getitem__(self, key: str) -> Tensor:
        return self.tensors[key]

    def take(self, indices: Tensor) -> "Examples":
        """The examples at ``indices`` (..., b); leading dimensions match the tensors' own."""
        return Examples(
            {k: _gather(t, indices, self.feature_ndim[k]) for k, t in self.tensors.items()},
            self.feature_ndim,
        )

    def to(self, device: str | torch.device) -> "Examples":
        """The same examples on ``device``."""
        moved = {key: tensor.to(device) for key, tensor in self.tensors.items()}
        return Examples(moved, self.feature_ndim)

    @staticmethod
    def stack(shards: "Sequence[Examples]") -> "Examples":
        """A cohort's shards (C, n_max, *feature), short ones padded by repeating example 0.

        Padding must be given weight zero by whoever draws minibatches (oracles/minibatch.py).
        """
        longest = max(len(shard) for shard in shards)
        first = shards[0]
        return Examples(
            {
                key: torch.stack([_pad(s[key], s.feature_ndim[key], longest) for s in shards])
                for key in first.tensors
            },
            first.feature_ndim,
        )

    @staticmethod
    def concatenate(shards: "Sequence[Examples]") -> "Examples":
        """All examples of the shards in one, in order."""
        first = shards[0]
        return Examples(
            {
                key: torch.cat([s[key] for s in shards], dim=-1 - first.feature_ndim[key])
                for key in first.tensors
            },
            first.feature_ndim,
        )


def _gather(tensor: Tensor, indices: Tensor, feature_ndim: int) -> Tensor:
    """``tensor[..., indices, *feature]`` with batched leading dimensions."""
    if indices.dim() == 1:
        return tensor.index_select(-1 - feature_ndim, indices)
    lead = indices.shape[:-1]
    count = reduce(lambda a, b: a * b, lead, 1)
    feature = tensor.shape[tensor.dim() - feature_ndim :]
    rows = tensor.reshape(count * tensor.shape[len(lead)], *feature)
    offset = torch.arange(count, device=indices.device).reshape(*lead, 1) * tensor.shape[len(lead)]
    return rows[(indices + offset).reshape(-1)].reshape(*indices.shape, *feature)


def _pad(tensor: Tensor, feature_ndim: int, size: int) -> Tensor:
    axis = tensor.dim() - 1 - feature_ndim
    missing = size - tensor.shape[axis]
    if missing == 0:
        return tensor
    repeated = tensor.narrow(axis, 0, 1).expand(
        *tensor.shape[:axis], missing, *tensor.shape[axis + 1 :]
    )
    return torch.cat([tensor, repeated], dim=axis)


class Problem(Protocol):
    """The mathematics of one finite-sum problem min_x sum_j w_j f_j(x) over a manifold."""

    @property
    def points_per_example(self) -> float:
        """What one gradient sum holds at once for each example, in sizes of a point."""
        ...

    @property
    def manifold(self) -> Manifold:
        """Where x lives."""
        ...

    def point_shape(self, examples: Examples) -> tuple[int, ...]:
        """Shape of one point, from the shape of the examples."""
        ...

    def losses(self, x: Tensor, examples: Examples) -> Tensor:
        """f_j(x) for every example, shape ``(..., n)``."""
        ...

    def rgrads(self, x: Tensor, examples: Examples) -> Tensor:
        """Grad f_j(x) for every example, tangent at x, shape ``(..., n, *point)``."""
        ...

    def rgrad_norms(self, x: Tensor, examples: Examples) -> Tensor:
        """What a clip divides by: upper bounds of the norms of what is summed, shape (..., n)."""
        ...

    def rgrad_sum(self, x: Tensor, examples: Examples, weights: Tensor) -> Tensor:
        """sum_j weights_j grad f_j(x), shape ``(..., *point)``; weights have shape (..., n)."""
        ...

    def rgrad_sum_by_norm(
        self, x: Tensor, examples: Examples, weigh: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """sum_j w_j grad f_j(x) with w = weigh(norms), and the ``rgrad_norms`` (..., n).

        Guarantees: what w_j = min(1, C / norm_j) leaves of example j in the sum has a metric norm
        of at most C (1 + 1e-9), whatever the example holds; or the sum is not finite.
        """
        ...


class ProblemBase:
    """Defaults for ``rgrad_norms`` and ``rgrad_sum`` from ``rgrads``; closed forms override."""

    points_per_example: float = 5.0
    """A gradient of each example with its temporaries; 0 where two products give the sum."""

    @property
    def manifold(self) -> Manifold:
        """Where x lives."""
        raise NotImplementedError

    def rgrads(self, x: Tensor, examples: Examples) -> Tensor:
        """Per-example Riemannian gradients, shape ``(..., n, *point)``."""
        raise NotImplementedError

    def rgrad_norms(self, x: Tensor, examples: Examples) -> Tensor:
        """Upper bounds of the metric norms of the per-example gradients, shape ``(..., n)``."""
        points = x.unsqueeze(-1 - self.manifold.ndim)
        return self.manifold.norm_bound(points, self.rgrads(x, examples))

    def rgrad_sum(self, x: Tensor, examples: Examples, weights: Tensor) -> Tensor:
        """sum_j weights_j grad f_j(x), shape ``(..., *point)``."""
        gradients = self.rgrads(x, examples)
        return (self.manifold.expand_scalar(weights) * gradients).sum(-1 - self.manifold.ndim)

    def rgrad_sum_by_norm(
        self, x: Tensor, examples: Examples, weigh: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """sum_j w_j grad f_j(x) with w = weigh(norms), and the norms (..., n).

        The norms are those of the very vectors that are summed.
        """
        axis = -1 - self.manifold.ndim
        gradients = self.rgrads(x, examples)
        norms = self.manifold.norm_bound(x.unsqueeze(axis), gradients)
        return (self.manifold.expand_scalar(weigh(norms)) * gradients).sum(axis), norms
