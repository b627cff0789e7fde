"""Records that are persons: the rows of one person count, are clipped and are drawn as one.

A person j has rows j1, j2, ...; at most m of them count, spread evenly over hers in their order:
f_j(x) = (1/k) sum_i f(x; row_i) over those k <= m. What a person adds to any answer is then one
vector, which depends on her rows alone. Clips, batches, hold-outs, noise and prices are those of
records, so neighbouring data sets differ in all rows of one person.

Guarantee: which of a person's rows count is a function of how many she has at that client.
"""

# pyright: reportIncompatibleVariableOverride=false
# (what any problem has as an attribute, this class takes from the problem of the rows)

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from manifed.errors import ConfigError, check_kind, short
from manifed.fields import Values
from manifed.manifolds.base import Manifold
from manifed.manifolds.euclidean import Euclidean
from manifed.manifolds.linalg import Shape
from manifed.problems.examples import (
    PERSON,
    SHARE,
    Examples,
    grouped,
    mean_of_rows,
    rows_of,
    without_persons,
)
from manifed.problems.problem import Gradients, Optimum, Problem, Shards, Vectors, client_weights
from manifed.problems.rows import RowVectors


@dataclass(frozen=True)
class Persons(Problem):
    """The problem whose records are persons, from the problem of their rows.

    Examples are those of ``problem`` with a column "person" beside them, which says whose each row
    is. At most ``rows`` of a person count, in the mean over hers; every person counts alike.
    """

    problem: Problem
    rows: int

    def __post_init__(self) -> None:
        check_kind("problem", self.problem, Problem, "a problem of rows (manifed.problems)")
        if type(self.rows) is not int or self.rows < 1:
            raise ConfigError(f"rows: expected a whole number >= 1, got {short(self.rows)}")
        is_apart = vars(type(self.problem)).get("keeps_rows_apart", False)
        is_apart = is_apart and isinstance(self.manifold, Euclidean)
        object.__setattr__(self, "keeps_rows_apart", is_apart)
        for name in ("needs_keys", "looks_at_all_rows", "has_optimum"):
            object.__setattr__(self, name, getattr(self.problem, name))

    @property
    def of_rows(self) -> Problem:
        """The problem of the rows."""
        return self.problem

    @property
    def manifold(self) -> Manifold:
        """Where x lives."""
        return self.problem.manifold

    @property
    def points_per_example(self) -> float:
        """What one gradient sum holds at once for each person, in sizes of a point."""
        return self.rows * max(2.0, self.problem.points_per_example)

    @property
    def allows_threads(self) -> bool:
        """Whether several threads may compute with it at once."""
        return self.problem.allows_threads

    @property
    def sufficient_statistic(self) -> Problem | None:
        """The mean of a person's statistics: as far apart as those are, since they are convex."""
        statistic = self.problem.sufficient_statistic
        return statistic and Persons(statistic, self.rows)

    def made_up(self, like: Examples, count: int, generator: torch.Generator) -> Examples:
        """Makes up persons of as many rows as count, and uniform numbers that a person has."""
        own = [key for key, depth in like.feature_ndim.items() if not depth and key != PERSON]
        rest = {key: tensor for key, tensor in like.tensors.items() if key not in own}
        rows = rows_of(Examples(rest, like.feature_ndim))
        made = self.problem.made_up(rows, count * self.rows, generator)
        made = grouped(made, torch.arange(count).repeat_interleave(self.rows), self.rows)
        for key in own:
            made = made.beside(key, torch.rand(count, generator=generator, dtype=torch.float64))
        return made

    def widened(self, examples: Examples) -> Examples:
        """Returns a record of each person, of rows with a column "person"."""
        if SHARE in examples.tensors:
            return examples.to(torch.float64)
        if PERSON not in examples.tensors:
            raise ConfigError(
                f"{PERSON}: expected this column beside the examples of Persons, got "
                f"{sorted(examples.tensors)}"
            )
        rows = self.problem.widened(without_persons(examples))
        return grouped(rows, examples[PERSON], self.rows)

    def check_records(self, examples: Examples) -> None:
        """Refuses persons with a row that is no record of the problem, and rows of nobody."""
        if SHARE not in examples.tensors:
            raise ConfigError(
                "Expected records of persons, got rows; give Persons(...).widened(examples)"
            )
        self.problem.check_records(rows_of(examples))

    def point_shape(self, examples: Examples) -> Shape:
        """Returns the shape of one point."""
        return self.problem.point_shape(rows_of(examples))

    def losses(self, x: Tensor, examples: Examples) -> Tensor:
        """Mean loss of each person's rows, shape ``(..., n)``."""
        return self._mean(partial(self.problem.losses, x), examples)

    def rgrads(self, x: Tensor, examples: Examples) -> Tensor:
        """Mean gradient of each person's rows, tangent at x, shape ``(..., n, *point)``."""
        return self._mean(partial(self.problem.rgrads, x), examples, self.manifold.ndim)

    def gradients(self, x: Tensor, examples: Examples) -> Gradients:
        """Returns the gradients of `rgrads` in the form that is summed and clipped."""
        found = self.rgrads(x, examples)
        return RowVectors(found) if self.keeps_rows_apart else Vectors(self.manifold, x, found)

    def correct(self, x: Tensor, examples: Examples) -> Tensor | None:
        """Share of each person's rows that is predicted right, shape ``(..., n)``."""
        right = self.problem.correct(x, rows_of(examples))
        return None if right is None else self._mean(lambda _: right, examples)

    def predict(self, x: Tensor, features: Tensor) -> Tensor:
        """What a model predicts of each row of ``features``."""
        return self.problem.predict(x, features)

    def optimum(self, shards: Shards, weights: Tensor | None = None) -> Optimum:
        """Returns that of the rows, each with its share of its person's weight."""
        if self.problem.takes_whole_persons:
            return self.problem.optimum(shards, weights)
        parts, each = list[Examples](), list[float]()
        for shard, p in zip(shards, client_weights(shards, weights).tolist(), strict=True):
            rows, share = rows_of(shard), shard[SHARE].flatten()
            for value in share[share > 0].unique():
                alike = rows.take((share == value).nonzero()[:, 0])
                parts.append(alike)
                each.append(p / len(shard) * float(value) * len(alike))
        x = self.problem.optimum(parts, torch.tensor(each, dtype=torch.float64)).x
        return self.optimum_at(x, shards, weights)

    def metrics(self, x: Tensor, optimum: Optimum, meta: Values) -> dict[str, float]:
        """Returns measures that only the problem of the rows has."""
        return self.problem.metrics(x, optimum, meta)

    def _mean(self, ask: Callable[[Examples], Tensor], examples: Examples, ndim: int = 0) -> Tensor:
        """The mean over each person's rows of what they give, entries of ``ndim`` dimensions."""
        if self.problem.takes_whole_persons:
            return ask(examples)
        each = ask(rows_of(examples))
        shape = tuple(examples[SHARE].shape[-2:])
        return mean_of_rows(each.unflatten(each.dim() - 1 - ndim, shape), examples, ndim)
