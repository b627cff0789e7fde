"""What a problem is: a manifold, a loss per example and its Riemannian gradient.

A problem is a frozen object without data; examples are handed in. Everything broadcasts over
leading dimensions: x of shape ``(..., *point)`` meets examples of shape ``(..., n, *feature)``,
so the same code serves one client and a stacked cohort.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from manifed.manifolds.base import Manifold
from manifed.manifolds.linalg import standard_normal

SQUARED_NORM = "squared_norm"
"""The tensor of |row_j|^2 that a problem may store beside its rows."""
KEY = "dropout_key"
"""The tensor of uniforms, one an example and step, that an oracle adds for `Problem.needs_keys`."""


class Records(Protocol):
    """Records that are computed when they are read, of one client or of a stacked cohort."""

    @property
    def size(self) -> int:
        """How many a client has."""
        ...

    def take(self, positions: Tensor) -> "Examples":
        """Those at ``positions`` >= 0, (b,) of a client or (C, b) of a cohort."""
        ...

    def judged(self) -> "Examples":
        """A few of a client that no position reaches: what a simulation judges models by."""
        ...

    def to(self, where: str | torch.device | torch.dtype) -> "Records":
        """As `Examples.to`."""
        ...

    def of_clients(self, rows: slice | Tensor) -> "Records":
        """Of some clients of a stacked cohort."""
        ...

    def stacked_with(self, others: "Sequence[Records]") -> "Records":
        """Of a cohort: all of ``others``, this one among them."""
        ...


@dataclass(frozen=True)
class Examples:
    """n examples as named tensors, each of shape ``(..., n, *feature)``.

    ``feature_ndim`` says how many trailing dimensions of each tensor belong to one example. Tensors
    do not change in place: a clip believes the norms that are stored beside the rows
    (`linear.with_squared_norms`), and an oracle what it found out about full batches. Without
    stored norms a clip measures the rows that it sums.
    """

    tensors: Mapping[str, Tensor]
    feature_ndim: Mapping[str, int]
    counts: Tensor | None = None
    """Of a stacked cohort: how many are each client's own, (C,); the rest is padding. None: all."""
    stream: Records | None = None
    """Where records come from that nobody keeps: ``tensors`` then show the shape of one, and only
    `take` gives any."""
    size: int = field(init=False)
    """n."""

    def __post_init__(self) -> None:
        if self.stream is not None:
            object.__setattr__(self, "size", self.stream.size)
            return
        sizes = {k: t.shape[-1 - self.feature_ndim[k]] for k, t in self.tensors.items()}
        if len(set(sizes.values())) != 1:
            raise ValueError(f"Expected one number of examples in every tensor, got {sizes}")
        object.__setattr__(self, "size", next(iter(sizes.values())))

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, key: str) -> Tensor:
        return self.tensors[key]

    def take(self, indices: Tensor) -> "Examples":
        """The examples at ``indices`` (..., b); leading dimensions match the tensors' own."""
        if self.stream is not None:
            return self.stream.take(indices)
        return Examples(
            {k: _gather(t, indices, self.feature_ndim[k]) for k, t in self.tensors.items()},
            self.feature_ndim,
        )

    @staticmethod
    def of_columns(tensors: Mapping[str, Tensor]) -> "Examples":
        """Somebody's own columns, each of shape (n, *feature).

        Raises:
            ValueError: one has the name of the norms that a clip believes.
        """
        if SQUARED_NORM in tensors:
            raise ValueError(
                f"Expected columns without {SQUARED_NORM!r}, which the library computes itself and "
                "a clip believes; rename it"
            )
        return Examples(tensors, {name: tensor.dim() - 1 for name, tensor in tensors.items()})

    def beside(self, name: str, column: Tensor) -> "Examples":
        """The same with one more number an example, ``column`` (..., n)."""
        tensors = {**self.tensors, name: column}
        return Examples(tensors, {**self.feature_ndim, name: 0}, self.counts)

    def to(self, where: str | torch.device | torch.dtype) -> "Examples":
        """The same examples on a device, or with their real numbers in another type.

        Stored norms stay behind: those of rows that were rounded are no upper bounds.
        """
        if isinstance(where, torch.dtype):
            wide = self.tensors.items()
            if any(t.is_floating_point() and t.dtype != where for _, t in wide):
                wide = [(k, t) for k, t in wide if k != SQUARED_NORM]
            cast = {k: t.to(where) if t.is_floating_point() else t for k, t in wide}
            return Examples(
                cast, {k: self.feature_ndim[k] for k in cast}, self.counts, self._stream_to(where)
            )
        moved = {key: tensor.to(where) for key, tensor in self.tensors.items()}
        counts = None if self.counts is None else self.counts.to(where)
        return Examples(moved, self.feature_ndim, counts, self._stream_to(where))

    def _stream_to(self, where: str | torch.device | torch.dtype) -> Records | None:
        return None if self.stream is None else self.stream.to(where)

    @property
    def judged(self) -> "Examples":
        """What a simulation judges models by: all, or a sample of a stream that it never uses."""
        return self if self.stream is None else self.stream.judged()

    def of_clients(self, rows: slice | Tensor) -> "Examples":
        """The examples of some clients of a stacked cohort."""
        picked = {key: tensor[rows] for key, tensor in self.tensors.items()}
        counts = None if self.counts is None else self.counts[rows]
        stream = None if self.stream is None else self.stream.of_clients(rows)
        return Examples(picked, self.feature_ndim, counts, stream)

    def of_client(self, i: int) -> "Examples":
        """The examples of one client of a stacked cohort, without what pads them."""
        count = self.size if self.counts is None else int(self.counts[i])
        own = {k: t[i].narrow(0, 0, count) for k, t in self.tensors.items()}
        return Examples(own, self.feature_ndim)

    @staticmethod
    def stack(shards: "Sequence[Examples]") -> "Examples":
        """A cohort's shards (C, n_max, *feature), short ones padded by repeating example 0.

        Padding must be given weight zero by whoever draws minibatches (oracles/minibatch.py). That
        of an empty shard repeats example 0 of the longest.
        """
        longest = max(shards, key=len)
        padded = {
            key: torch.stack([_pad(s if len(s) else longest, s, key, len(longest)) for s in shards])
            for key in longest.tensors
        }
        counts = torch.tensor([len(shard) for shard in shards])
        streams = [shard.stream for shard in shards if shard.stream is not None]
        stream = None if longest.stream is None else longest.stream.stacked_with(streams)
        return Examples(padded, longest.feature_ndim, counts, stream)

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


def _pad(padding: Examples, shard: Examples, key: str, size: int) -> Tensor:
    tensor, missing = shard[key], size - len(shard)
    axis = tensor.dim() - 1 - shard.feature_ndim[key]
    if missing == 0:
        return tensor
    repeated = (
        padding[key]
        .narrow(axis, 0, 1)
        .expand(*tensor.shape[:axis], missing, *tensor.shape[axis + 1 :])
    )
    return torch.cat([tensor, repeated], dim=axis)


class Gradients(Protocol):
    """grad f_j(x) of every example at one point, in whatever form the problem keeps them.

    Guarantees: what a weight min(1, C / norms_j) leaves of example j in a ``sum`` has a metric norm
    of at most C (1 + 1e-9), whatever the example holds; or the sum is not finite.
    """

    @property
    def norms(self) -> Tensor:
        """What a clip divides by: upper bounds of the norms of what is summed, ``(..., n)``.

        Where parts of a vector are clipped by themselves ``(parts, ..., n)``, and so are the
        weights of a sum. The norm of the whole is the bound's where each of these is.
        """
        ...

    def sum(self, weights: Tensor) -> Tensor:
        """sum_j weights_j grad f_j(x), shape ``(..., *point)``; weights have shape (..., n)."""
        ...


class Problem(Protocol):
    """The mathematics of one finite-sum problem min_x sum_j w_j f_j(x) over a manifold."""

    @property
    def points_per_example(self) -> float:
        """What one gradient sum holds at once for each example, in sizes of a point."""
        ...

    @property
    def needs_keys(self) -> bool:
        """Whether gradients are random: each example then comes with a number (`KEY`)."""
        ...

    @property
    def keeps_rows_apart(self) -> bool:
        """Whether what an example gives has the same bits whatever is computed with it.

        That is, in ``gradients``, ``losses`` and ``correct``, of any number of examples and of any
        stack of clients. Otherwise an oracle computes the examples of a client in blocks.
        """
        ...

    @property
    def looks_at_all_rows(self) -> bool:
        """Whether how an example is computed may depend on the values of others.

        An iteration that ends when the last of a stack has converged is such a thing. Each example
        is then computed alone.
        """
        ...

    def made_up(self, like: Examples, count: int, generator: torch.Generator) -> Examples:
        """So many examples of that shape that are nobody's, to try how blocks are computed."""
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

    def gradients(self, x: Tensor, examples: Examples) -> Gradients:
        """The same gradients in the form that is summed and clipped."""
        ...

    @property
    def sufficient_statistic(self) -> "Problem | None":
        """Vectors of the examples whose sum fixes the minimiser; None: none is known.

        As a linear problem: f_j(x) = <s_j, x> on R^m: its gradient is s_j at any x.
        """
        ...

    def is_priced_as(self, kind: "type[Problem]") -> bool:
        """Whether two clipped statistics are as far apart as those of ``kind`` at most."""
        ...


@runtime_checkable
class Quadratic(Protocol):
    """A problem on R^d whose gradient is affine in x: K full-gradient steps are one affine map."""

    def normal_equations(self, examples: Examples, weights: Tensor) -> tuple[Tensor, Tensor] | None:
        """H (..., d, d) and c (..., d) with sum_j weights_j grad f_j(x) = H x - c at every x.

        None: of a problem that only inherits from a quadratic one.
        """
        ...


@dataclass(frozen=True)
class Vectors:
    """Gradients as the tangent vectors that they are, ``vectors`` (..., n, *point) at x."""

    manifold: Manifold
    x: Tensor
    vectors: Tensor

    @property
    def norms(self) -> Tensor:
        """Their metric norms."""
        return self.manifold.norm_bound(self.x.unsqueeze(-1 - self.manifold.ndim), self.vectors)

    def sum(self, weights: Tensor) -> Tensor:
        """The sum of these very vectors."""
        axis = -1 - self.manifold.ndim
        return (self.manifold.expand_scalar(weights) * self.vectors).sum(axis)


class ProblemBase:
    """What follows from ``rgrads``; ``gradients`` is overridden where a closed form is shorter."""

    points_per_example: float = 5.0
    """A gradient of each example with its temporaries; 0 where two products give the sum."""
    needs_keys: bool = False
    """Whether gradients are random, by a number that comes with each example."""
    keeps_rows_apart: bool = False
    """Whether what an example gives has the same bits whatever is computed with it."""
    looks_at_all_rows: bool = False
    """Whether how an example is computed may depend on the values of others."""
    manifold: Manifold
    """Where x lives."""

    @property
    def sufficient_statistic(self) -> Problem | None:
        """None, unless a problem says what it is a function of."""
        return None

    def is_priced_as(self, kind: type[Problem]) -> bool:
        """Of that class; a problem that holds another one asks it."""
        return isinstance(self, kind)

    def made_up(self, like: Examples, count: int, generator: torch.Generator) -> Examples:
        """Normal entries, and zeros where numbers are whole; problems of points make up points."""
        made: dict[str, Tensor] = {}
        for key, tensor in like.tensors.items():
            ndim = like.feature_ndim[key]
            shape = (count, *tensor.shape[tensor.dim() - ndim :])
            drawn = torch.zeros(shape, dtype=torch.float64)
            if tensor.is_floating_point():
                drawn = standard_normal(shape, generator)
            made[key] = drawn.to(tensor.dtype)
        return Examples(made, like.feature_ndim)

    def rgrads(self, x: Tensor, examples: Examples) -> Tensor:
        """Per-example Riemannian gradients, shape ``(..., n, *point)``."""
        raise NotImplementedError

    def gradients(self, x: Tensor, examples: Examples) -> Gradients:
        """The gradients with their norms and sums."""
        return Vectors(self.manifold, x, self.rgrads(x, examples))

    def rgrad_norms(self, x: Tensor, examples: Examples) -> Tensor:
        """Upper bounds of the metric norms of the per-example gradients, shape ``(..., n)``."""
        return self.gradients(x, examples).norms

    def rgrad_sum(self, x: Tensor, examples: Examples, weights: Tensor) -> Tensor:
        """sum_j weights_j grad f_j(x), shape ``(..., *point)``."""
        return self.gradients(x, examples).sum(weights)
