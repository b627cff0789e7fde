"""Calls of one shape, in which what an example gives does not depend on the others.

How a processor adds up the numbers of an example depends on how many examples are computed in
one call, and on its place among them: the last ones of a batch go through other instructions. So
an example that comes or goes changes the last bit of others, and where a gradient or a loss jumps,
that bit moves as much as an example can, of several of them at once. No clip bounds that.

Examples that a problem does not keep apart itself (`Problem.keeps_rows_apart`) are therefore
computed client by client in blocks whose sizes are powers of two. Missing ones are copies that
count for nothing, and one that fails is replaced in its own place. Which sizes may be used is tried
out on made-up examples at a made-up point: each must give the same bits at every place of a block
as in a block of copies of itself. So must every number on the way, because a sign or a largest
entry may hide for most examples what it shows for a few. Where they differ, or where a problem
looks at all rows, each example is computed alone.

Guarantee: what an example gives is a function of that example, bit for bit, whatever the others
are, how many they are, in which order they stand, and whether one of them fails.
"""

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import product
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from manifed.manifolds.linalg import standard_normal
from manifed.problems.base import Examples, Problem
from manifed.problems.linear import FEWEST

LARGEST = 1 << 10
"""Examples of the largest block."""
NUMBERS_AT_ONCE = 1 << 24
"""Numbers that a block holds at most: 128 MiB in float64."""
_TRIED = 4
"""Made-up examples whose bits are compared."""
_PLACES = 64
"""Places of a block that are compared; of smaller blocks all."""

Points = tuple[Tensor, ...]
Compute = Callable[[Points, Examples], Callable[[int], Tensor]]
"""From the points and the examples of a block to what the one at a place gives."""

_found: "WeakKeyDictionary[Problem, dict[Hashable, bool]]" = WeakKeyDictionary()
"""Whether a size keeps examples apart, by problem, and by what is computed, shapes and threads."""


@dataclass(frozen=True)
class Blocks:
    """The blocks in which one computation over examples of one client is done."""

    problem: Problem
    compute: Compute
    name: Hashable
    """What else the computation depends on, beside the problem and the examples' shapes."""
    points: Points
    """At which it is done."""
    like: Examples
    """Examples of the shapes that are computed."""
    most: int
    """Examples of the largest block that fits."""

    @staticmethod
    def of(
        problem: Problem, compute: Compute, name: Hashable, points: Points, like: Examples
    ) -> "Blocks":
        """Those of a computation at ``points``."""
        x = points[0]
        problem.point_shape(like)  # a module says only then what an example holds
        held = max(1.0, problem.points_per_example * x.numel())
        fits = max(1, min(LARGEST, int(NUMBERS_AT_ONCE / held)))
        name = (name, tuple(x.shape), x.dtype)
        return Blocks(problem, compute, name, points, like, 1 << (fits.bit_length() - 1))

    def cut(self, rows: Tensor) -> Iterator[tuple[Tensor, int]]:
        """The positions ``rows`` (b,) in shares, each with the size of the block that takes it."""
        done, smallest = 0, self._smallest
        while done < len(rows):
            size = smallest
            while 2 * size <= min(len(rows) - done, self.most) and self._keeps_apart(2 * size):
                size *= 2
            yield rows[done : done + size], size
            done += size

    @property
    def _smallest(self) -> int:
        least = min(FEWEST, self.most)
        if self.problem.looks_at_all_rows or not self._keeps_apart(least):
            return 1
        return least

    def _keeps_apart(self, size: int) -> bool:
        """Whether an example gives the same bits at each place of a block of that size.

        And the same as in the smallest block, so that sizes may be mixed.
        """
        if size == 1:
            return True
        shapes = tuple(
            (key, tuple(t.shape[t.dim() - self.like.feature_ndim[key] :]), t.dtype)
            for key, t in self.like.tensors.items()
        )
        known = _found.setdefault(self.problem, {})
        key = (self.name, shapes, size, torch.get_num_threads())
        if key not in known:
            known[key] = self._try(size)
        return known[key]

    def _try(self, size: int) -> bool:
        generator = torch.Generator().manual_seed(0)
        made = self.problem.made_up(self.like, _TRIED, generator)
        points = tuple(self._moved(x, generator) for x in self.points)
        least = min(FEWEST, self.most)
        try:
            alone: list[Tensor] = []
            for i in range(_TRIED):
                copies = torch.full((least,), i)
                alone.append(self.compute(points, made.take(copies))(0))
            of = self.compute(points, made.take(torch.arange(size) % _TRIED))
            step = max(1, size // _PLACES)
            places = {*range(0, size, step), *range(min(FEWEST, size))}
            places |= set(range(max(0, size - 8), size))
            if not all(torch.equal(of(p), alone[p % _TRIED]) for p in places):
                return False  # NaN equals nothing
            ways = [self._on_the_way(points, made, n) for n in {least, size}]
            return ways[0] is not None and all(way == ways[0] for way in ways)
        except (torch.linalg.LinAlgError, ArithmeticError):  # pyright: ignore[reportPrivateImportUsage]
            return False

    def _moved(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """A point near ``x``, which itself may make many numbers zero."""
        manifold = self.problem.manifold
        drawn = standard_normal(manifold.coords_shape(tuple(x.shape)), generator)
        return manifold.retr(x, 0.1 * manifold.from_coords(x, drawn.to(x.dtype)))

    def _on_the_way(self, points: Points, made: Examples, size: int) -> list[bytes] | None:
        """The numbers of two examples in blocks of copies; None: they depend on the place."""
        ways: list[_Way] = []
        for i in range(2):
            with _Way(size) as way:
                self.compute(points, made.take(torch.full((size,), i)))
            ways.append(way)
        first, second = ways
        if len(first.whole) != len(second.whole):
            return None
        found: list[bytes] = []
        for pair, wholes in zip(
            zip(first.shares, second.shares, strict=True),
            zip(first.whole, second.whole, strict=True),
            strict=True,
        ):
            if wholes[0] == wholes[1]:  # of no example
                continue
            if pair[0] is None or pair[1] is None:
                return None
            found += [pair[0], pair[1]]
        return found


class _Way(TorchDispatchMode):
    """Looks at the result of every operation on a block of copies of one example."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.shares: list[bytes | None] = []
        """What each copy has of a result; None where they have not the same."""
        self.whole: list[bytes] = []
        """A digest of each result."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        aliases = [one.alias_info for one in func._schema.returns]
        if "empty" in func._schema.name or any(one and not one.is_write for one in aliases):
            return result  # no number was computed
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.numel():
                self._look(leaf.detach())
        return result

    def _look(self, result: Tensor) -> None:
        axes = [axis for axis, count in enumerate(result.shape) if count % self.size == 0]
        if not axes:  # of all copies together, or of none
            return
        self.whole.append(_digest(result))
        self.shares.append(None)
        for axis, is_inner in product(axes, (False, True)):
            shape = (-1, self.size) if is_inner else (self.size, -1)
            parts = result.unflatten(axis, shape)
            one = parts.narrow(axis + is_inner, 0, 1)
            if torch.equal(one.expand_as(parts), parts):
                self.shares[-1] = _digest(one)
                return


def _digest(tensor: Tensor) -> bytes:
    return blake2b(tensor.contiguous().numpy().tobytes(), digest_size=16).digest()


def padded(rows: Tensor, size: int) -> Tensor:
    """The positions ``rows`` with copies of the last one, ``size`` in all."""
    return torch.cat([rows, rows[-1:].expand(size - len(rows))])
