"""Computes examples in blocks of one shape, so that each result depends on its example alone.

How a processor adds up the numbers of an example depends on how many examples are computed in
one call, and on its place among them: the last ones of a batch go through other instructions. So
an example that comes or goes changes the last bit of others, and where a gradient or a loss jumps,
that bit moves as much as an example can, of several of them at once. No clip bounds that.

Examples that a problem does not keep apart itself (`Problem.keeps_rows_apart`) are therefore
computed client by client in blocks of certain sizes. Missing ones are copies that count
for nothing, and one that fails is replaced in its own place. Which sizes may be used is tried out
on made-up examples at a made-up point: each must give the same bits at every place of a block as in
a block of copies of itself. So must every number on the way, because a sign or a largest entry
hides for most examples what it shows for a few. Where they differ, or where a problem looks at all
rows, each example is computed alone.

Guarantee: what an example gives is a function of that example, bit for bit, whatever the others
are, how many they are, in which order they stand, and whether one of them fails.
"""

from collections.abc import Callable, Hashable, Iterator
from hashlib import blake2b
from itertools import product
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from manifed.manifolds.linalg import standard_normal
from manifed.problems.examples import Examples
from manifed.problems.problem import Problem
from manifed.problems.rows import FEWEST

_TRIED = 4
"""Made-up examples whose bits are compared."""

Points = tuple[Tensor, ...]
_Compute = Callable[[Points, Examples], Callable[[int], Tensor]]
"""From the points and the examples of a block to what the one at a place gives."""

_found: "WeakKeyDictionary[Problem, dict[Hashable, bool]]" = WeakKeyDictionary()
"""Whether a size keeps examples apart, by problem, and by what is computed, shapes and threads."""


def in_blocks(
    problem: Problem,
    compute: _Compute,
    name: Hashable,
    points: Points,
    examples: Examples,
    rows: Tensor,
    attempt: Callable[[Tensor, Tensor], Tensor | None],
    held: float = 0.0,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Applies ``attempt`` to the positions ``rows`` (b,) of one client's examples, by block.

    ``attempt(block, counts)`` computes the positions ``block`` (n,) of which some count, bool (n,),
    or gives None where an example fails. Yields the positions of a block, which of them counted,
    and what was made; of a block of which nothing is left there is none. ``name`` is what
    ``compute`` depends on beside the problem, the points' and the examples' shapes. ``held`` is
    how many sizes of a point it holds at once for each example, if more than the problem says.
    """
    problem.point_shape(examples)  # a module says only then what an example holds
    x = points[0]
    numbers = max(1.0, max(held, problem.points_per_example) * x.numel())
    most = max(1, int(2**24 / numbers))  # 128 MiB in float64
    least = min(FEWEST, most)
    known = _found.setdefault(problem, {})
    dtypes = [t.dtype for t in examples.tensors.values()]
    shapes = (x.shape, x.dtype, *examples.shapes.items(), *dtypes)

    def keeps_apart(size: int) -> bool:
        key = (name, *shapes, size, torch.get_num_threads())
        if size > 1 and key not in known:
            known[key] = _are_alike(problem, compute, points, examples, least, size)
        return size == 1 or known[key]

    smallest = 1 if problem.looks_at_all_rows or not keeps_apart(least) else least
    while len(rows):  # a size that the rest fills to three quarters
        # few sizes, because each is tried out before it is used
        sizes = (FEWEST * k for k in (1, 2, 3, 4, 6, 8, 9, 12, 16, 18, 24, 32))
        fit = [size for size in sizes if size <= most and 0.75 * size <= len(rows)]
        whole = [size for size in fit if size >= len(rows)]
        size = smallest if smallest == 1 else min(whole, default=max(fit, default=least))
        if not keeps_apart(size):
            size = smallest
        own = rows[:size]
        rows = rows[size:]
        block = torch.cat([own, own[-1:].expand(size - len(own))])
        counts = torch.arange(size) < len(own)
        found = attempt(block, counts)
        if found is None and size > 1:  # each in a block of copies, in its own place
            first = torch.arange(size) == 0
            good = [row for row in own if attempt(row.expand(size), first) is not None]
            if good:
                counts &= torch.isin(block, torch.stack(good))
                block = torch.where(counts, block, good[0])
                found = attempt(block, counts)
        if found is not None:
            yield own, counts[: len(own)], found


def _are_alike(
    problem: Problem, compute: _Compute, points: Points, like: Examples, least: int, size: int
) -> bool:
    """Whether an example gives the same bits at each place of a block of that size.

    And the same as in the smallest block, so that sizes may be mixed.
    """
    generator = torch.Generator().manual_seed(0)
    manifold = problem.manifold
    made = problem.made_up(like, _TRIED, generator)
    for key in like.tensors.keys() - made.tensors.keys():  # that an oracle put beside them
        made = made.beside(key, torch.zeros(_TRIED, dtype=torch.float64))

    def moved(x: Tensor) -> Tensor:  # to a point near it, where many numbers may be zero
        drawn = standard_normal(manifold.coords_shape(tuple(x.shape)), generator)
        return manifold.retr(x, 0.1 * manifold.from_coords(x, drawn.to(x.dtype)))

    near = tuple(moved(x) for x in points)
    try:
        ways = [_on_the_way(compute, near, made, n) for n in (least, size)]
        if ways[0] is None or ways[0] != ways[1]:
            return False
        alone = [compute(near, made.take(torch.full((least,), i)))(0) for i in range(_TRIED)]
        of = compute(near, made.take(torch.arange(size) % _TRIED))
        places = {*range(0, size, max(1, size // 64)), *range(max(0, size - 8), size)}
        return all(torch.equal(of(p), alone[p % _TRIED]) for p in places)  # NaN equals nothing
    except (torch.linalg.LinAlgError, ArithmeticError):  # pyright: ignore[reportPrivateImportUsage]
        return False


def _on_the_way(compute: _Compute, points: Points, made: Examples, size: int) -> list[bytes] | None:
    """The numbers of two examples in blocks of copies; None: they depend on the place."""
    ways: list[list[tuple[bytes, bool]]] = []
    for i in range(2):
        with _Way(size) as way:
            compute(points, made.take(torch.full((size,), i)))
        ways.append(way.seen)
    if len(ways[0]) != len(ways[1]):
        return None
    both = [(a, b) for a, b in zip(*ways, strict=True) if a[0] != b[0]]  # of some example
    if not all(is_share for (_, is_share), _ in both):
        return None
    return [digest for pair in both for digest, _ in pair]


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
        shown = result
        is_share = False
        for axis, is_inner in product(axes, (False, True)):
            parts = result.unflatten(axis, (-1, self.size) if is_inner else (self.size, -1))
            one = parts.narrow(axis + is_inner, 0, 1)
            if torch.equal(one.expand_as(parts), parts):
                shown = one
                is_share = True
                break
        if axes:  # else it is of all copies together, or of none
            digest = blake2b(shown.contiguous().numpy().tobytes(), digest_size=16).digest()
            self.seen.append((digest, is_share))
