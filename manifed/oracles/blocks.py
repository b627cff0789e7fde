"""Calls of one shape, in which what an example gives does not depend on the others.

How a processor adds up the numbers of an example depends on how many examples are computed in
one call, and on its place among them: the last ones of a batch go through other instructions. So
an example that comes or goes changes the last bit of others, and where a gradient or a loss jumps,
that bit moves as much as an example can, of several of them at once. No clip bounds that.

Examples that a problem does not keep apart itself (`Problem.keeps_rows_apart`) are therefore
computed client by client in blocks whose sizes are multiples of `FEWEST`. Missing ones are copies
that count for nothing, and one that fails is replaced in its own place. Which sizes may be used is
tried out on made-up examples: each must give the same bits at every place of a block as in a block
of copies of itself. Where they differ, or where a problem looks at all rows, each example is
computed alone.

Guarantee: what an example gives is a function of that example, bit for bit, whatever the others
are, how many they are, in which order they stand, and whether one of them fails.
"""

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

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

Compute = Callable[[Examples], Callable[[int], Tensor]]
"""From the examples of a block to what the one at a place gives."""

_found: "WeakKeyDictionary[Problem, dict[Hashable, bool]]" = WeakKeyDictionary()
"""Whether a size keeps examples apart, by problem, and by what is computed, shapes and threads."""


@dataclass(frozen=True)
class Blocks:
    """The blocks in which one computation over examples of one client is done."""

    problem: Problem
    compute: Compute
    name: Hashable
    """What else the computation depends on, beside the problem and the examples' shapes."""
    like: Examples
    """Examples of the shapes that are computed."""
    most: int
    """Examples of the largest block that fits."""

    @staticmethod
    def of(
        problem: Problem, compute: Compute, name: Hashable, x: Tensor, like: Examples
    ) -> "Blocks":
        """Those of a computation at a point ``x``."""
        problem.point_shape(like)  # a module says only then what an example holds
        held = max(1.0, problem.points_per_example * x.numel())
        fits = max(1, min(LARGEST, int(NUMBERS_AT_ONCE / held)))
        name = (name, tuple(x.shape), x.dtype)
        return Blocks(problem, compute, name, like, fits - fits % FEWEST or fits)

    def cut(self, rows: Tensor) -> Iterator[tuple[Tensor, int]]:
        """The positions ``rows`` (b,) in shares, each with the size of the block that takes it."""
        done, smallest = 0, self._smallest
        while done < len(rows):
            left = len(rows) - done
            size = min(self.most, left - left % -smallest)
            if not self._keeps_apart(size):
                size = smallest
            yield rows[done : done + size], size
            done += size

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
        try:
            alone: list[Tensor] = []
            for i in range(_TRIED):
                of = self.compute(made.take(torch.full((least,), i)))
                alone.append(of(0))
                if size == least and not all(torch.equal(of(p), alone[i]) for p in range(least)):
                    return False
            of = self.compute(made.take(torch.arange(size) % _TRIED))
            step = max(1, size // _PLACES)
            places = {*range(0, size, step), *range(min(FEWEST, size)), *range(size - 8, size)}
            return all(torch.equal(of(p), alone[p % _TRIED]) for p in places)  # NaN equals nothing
        except (torch.linalg.LinAlgError, ArithmeticError):  # pyright: ignore[reportPrivateImportUsage]
            return False


def padded(rows: Tensor, size: int) -> Tensor:
    """The positions ``rows`` with copies of the last one, ``size`` in all."""
    return torch.cat([rows, rows[-1:].expand(size - len(rows))])
