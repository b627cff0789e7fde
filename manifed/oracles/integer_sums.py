"""The oracle of a hidden sum: it adds up integers, which a client masks and noises itself.

Each example's clipped vector is rounded by itself, from a seed of its place in the shard, before it
is added. So an example moves the sum by the integers of one vector. A sum that is rounded as a
whole would move by the rounding of the others as well, which no clip bounds.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from manifed.manifolds.base import clipped
from manifed.oracles.blocks import Points
from manifed.oracles.minibatch import UNNOISED, Query
from manifed.oracles.noisy_oracle import Oracle
from manifed.oracles.sums import Vectors, sum_of_good
from manifed.privacy.integers import Coding
from manifed.privacy.random_numbers import Stream
from manifed.problems.examples import Examples
from manifed.problems.problem import Problem

SEED = "rounding_seed"
"""The tensor of uniforms, one an example and step, that the rounding of an example depends on."""


class IntegerOracle(Oracle):
    """An oracle whose answers are zero and whose last sum is ``total``."""

    coding: Coding
    total: Tensor
    """The integers of the last answer, in float64, (..., d): not noised, they must not leave."""

    @staticmethod
    def of(oracle: Oracle, coding: Coding) -> "IntegerOracle":
        """Returns one in the place of ``oracle``, which counts with it and must not be asked."""
        made = IntegerOracle.__new__(IntegerOracle)
        vars(made).update(vars(oracle), coding=coding)
        return made

    def answer(
        self,
        label: str,
        *points: Tensor,
        problem: Problem | None = None,
        normals: Tensor | None = None,
        masks: Tensor | None = None,
    ) -> Tensor:
        """Adds up the integers of a fresh batch in ``total``, and returns zeros of the point.

        Guarantees: what an example adds has a norm of at most ``coding.bound``, has the same bits
        whatever the other examples are, and is zero where its gradient is not finite. The clip is
        that of the coding. The answer is counted as `Oracle.answer` counts it.

        Raises:
            ValueError: for a correction, masks, normals or records of a stream.
        """
        asked = self._asked[label]
        is_plain = len(points) == 1 and asked.query.whole_clip is None
        if not is_plain or normals is not None or masks is not None or self._examples.stream:
            raise ValueError(
                f"Expected one point for a sum of integers {label!r}, no normals, no masks and "
                "records that are kept, got another answer, which is not defined in integers"
            )
        problem = problem or self.problem
        examples, chosen = self._batch(asked, problem, {SEED: Stream.ROUNDING})
        rule = IntegerSum(self.coding)
        size = self.coding.size
        self.total = sum_of_good(rule, problem, asked.query, points, examples, chosen, size)
        self.queries[label if asked.query.drawn is not None else label + UNNOISED] += 1
        return torch.zeros_like(points[0])


@dataclass(frozen=True)
class IntegerSum:
    """The rule of the sum of each example's integers."""

    coding: Coding = field(compare=False)  # blocks are tried out once for all codings

    def __call__(
        self, problem: Problem, query: Query, points: Points, examples: Examples
    ) -> Vectors:
        """Returns the sums of integers at one point; not finite where an example's gradient is."""
        (x,) = points
        manifold = problem.manifold
        at = x.unsqueeze(-1 - manifold.ndim)
        vectors = problem.rgrads(x, examples)
        norms = manifold.norm_bound(at, vectors)
        coords = manifold.to_coords(at, clipped(vectors, norms, self.coding.clip))
        flat = coords.flatten(-len(manifold.coords_of(x)))
        are_finite = torch.isfinite(norms)
        # one that is not finite shows, so that it is taken out of its block
        whole = self.coding.encode(flat, examples[SEED])
        whole = whole.masked_fill(~are_finite.unsqueeze(-1), torch.nan)

        def total(weights: Tensor) -> Tensor:
            return torch.where(weights.unsqueeze(-1) > 0, whole, 0.0).sum(-2)

        return Vectors(total, lambda: are_finite)
