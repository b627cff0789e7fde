"""Calls of one shape, in which what an example gives does not depend on the others.

How a processor adds up the numbers of an example depends on how many examples are computed in
one call, and on its place among them: the last ones of a batch go through other instructions. So
an example that comes or goes changes the last bit of others, and where a gradient or a loss jumps,
that bit moves as much as an example can, of several of them at once. No clip bounds that.

Examples that a problem does not keep apart itself (`Problem.keeps_rows_apart`) are therefore
computed client by client in blocks of certain sizes (`SIZES`). Missing ones are copies that count
for nothing, and one that fails is replaced in its own place. Which sizes may be used is tried out
on made-up examples at a made-up point: each must give the same bits at every place of a block as in
a block of copies of itself. So must every number on the way, because a sign or a largest entry
hides for most examples what it shows for a few. Where they differ, or where a problem looks at all
rows, each example is computed alone.

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

SIZES = (FEWEST, *(FEWEST * k for k in (2, 3, 4, 6, 8, 12, 16, 24, 32)))
"""Examples of a block; few sizes, because each is tried out before it is used."""
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
    """Examples that fit."""

    @staticmethod
    def of(
        problem: Problem, compute: Compute, name: Hashable, points: Points, like: Examples
    ) -> "Blocks":
        """Those of a computation at ``points``."""
        x = points[0]
        problem.point_shape(like)  # a module says only then what an example holds
        held = max(1.0, problem.points_per_example * x.numel())
        fits = max(1, int(NUMBERS_AT_ONCE / held))
        name = (name, tuple(x.shape), x.dtype)
        return Blocks(problem, compute, name, points, like, fits)

    def cut(self, rows: Tensor) -> Iterator[tuple[Tensor, int]]:
        """The positions ``rows`` (b,) in shares, each with the size of the block that takes it."""
        done, smallest = 0, self._smallest
        while done < len(rows):
            size = 1 if smallest == 1 else self._nearest(len(rows) - done)
            if not self._keeps_apart(size):
                size = smallest
            yield rows[done : done + size], size
            done += size

    def _nearest(self, left: int) -> int:
        """The largest size that ``left`` examples fill to three quarters."""
        fit = [size for size in SIZES if size <= self.most and 0.75 * size <= left]
        return max(fit, default=self._least)

    @property
    def _smallest(self) -> int:
        if self.problem.looks_at_all_rows or not self._keeps_apart(self._least):
            return 1
        return self._least

    @property
    def _least(self) -> int:
        return min(FEWEST, self.most)

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
        made, least = self.problem.made_up(self.like, _TRIED, generator), self._least
        points = tuple(self._moved(x, generator) for x in self.points)
        try:
            ways = [self._on_the_way(points, made, n) for n in (least, size)]
            if ways[0] is None or ways[0] != ways[1]:
                return False
            copies = [made.take(torch.full((least,), i)) for i in range(_TRIED)]
            alone = [self.compute(points, each)(0) for each in copies]
            of = self.compute(points, made.take(torch.arange(size) % _TRIED))
            step = max(1, size // _PLACES)
            places = {*range(0, size, step), *range(max(0, size - 8), size)}
            return all(torch.equal(of(p), alone[p % _TRIED]) for p in places)  # NaN equals nothing
        except (torch.linalg.LinAlgError, ArithmeticError):  # pyright: ignore[reportPrivateImportUsage]
            return False

    def _moved(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """A point near ``x``, where many numbers may be zero."""
        manifold = self.problem.manifold
        drawn = standard_normal(manifold.coords_shape(tuple(x.shape)), generator)
        return manifold.retr(x, 0.1 * manifold.from_coords(x, drawn.to(x.dtype)))

    def _on_the_way(self, points: Points, made: Examples, size: int) -> list[bytes] | None:
        """The numbers of two examples in blocks of copies; None: they depend on the place."""
        ways: list[list[tuple[bytes, bool]]] = []
        for i in range(2):
            with _Way(size) as way:
                self.compute(points, made.take(torch.full((size,), i)))
            ways.append(way.seen)
        if len(ways[0]) != len(ways[1]):
            return None
        found: list[bytes] = []
        for (one, is_share), (other, _) in zip(*ways, strict=True):
            if one == other:  # of no example
                continue
            if not is_share:
                return None
            found += [one, other]
        return found


class _Way(TorchDispatchMode):
    """Looks at the result of every operation on a block of copies of one example."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.seen: list[tuple[bytes, bool]] = []
        """A digest of each result: of what one copy has, where all have the same."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: skipping it would import it, which takes seconds."""
        return False

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
        for axis, is_inner in product(axes, (False, True)):
            parts = result.unflatten(axis, (-1, self.size) if is_inner else (self.size, -1))
            one = parts.narrow(axis + is_inner, 0, 1)
            if torch.equal(one.expand_as(parts), parts):
                self.seen.append((_digest(one), True))
                return
        self.seen.append((_digest(result), False))


def _digest(tensor: Tensor) -> bytes:
    return blake2b(tensor.contiguous().numpy().tobytes(), digest_size=16).digest()


def padded(rows: Tensor, size: int) -> Tensor:
    """The positions ``rows`` with copies of the last one, ``size`` in all."""
    return torch.cat([rows, rows[-1:].expand(size - len(rows))])
