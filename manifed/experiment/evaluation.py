"""Evaluates models in a simulation: cost, gap and gradient on all data.

They are diagnostics of a seeded simulation, never part of a release: `Setting.has_oracle` says when
they are computed, and the privacy statement says what they would do to a release.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from manifed.errors import named_by
from manifed.experiment.assembly import load_shards, prepared, split_of
from manifed.experiment.schema import Experiment
from manifed.federation.held_out import HELD_OUT
from manifed.fields import Document, Values
from manifed.manifolds.base import Manifold
from manifed.problems.data import DataSource, SiteData
from manifed.problems.examples import Examples, count, rows_of
from manifed.problems.problem import Optimum, Problem, ProblemSource
from manifed.problems.shards import dataset, shards
from manifed.setting import Setting


@dataclass(frozen=True)
class Evaluator:
    """Evaluates models against a reference optimum that is computed once, on first use."""

    problem: Problem
    shards: Sequence[Examples]
    weights: Tensor
    meta: Values

    @cached_property
    def optimum(self) -> Optimum:
        """The reference solution, computed once."""
        return self.problem.optimum(self.shards, self.weights)

    def row(self, x: Tensor) -> dict[str, float | None]:
        """Returns cost, gaps, gradient norm and the problem's own metrics of a model.

        A classifier's accuracy is the share of examples that it predicts right.

        The relative gap is (f(x) - f*) / |f*|, and f(x) - f* where f* = 0; a problem whose optimum
        nobody knows has neither.
        """
        x = x.to("cpu", torch.float64)
        problem = self.problem
        cost = float(problem.objective(x, self.shards, self.weights))
        row: dict[str, float | None] = {"cost": cost}
        if problem.has_optimum:
            gap = cost - self.optimum.value
            row |= {"cost_gap": gap, "relative_cost_gap": gap / (abs(self.optimum.value) or 1.0)}
        row["gradient_norm"] = float(problem.gradient_norm(x, self.shards, self.weights))
        each = (problem.correct(x, shard) for shard in self.shards)
        if shares := [float(right.mean()) for right in each if right is not None]:
            row["accuracy"] = float(self.weights @ torch.tensor(shares).to(self.weights))
        if problem.has_optimum:
            row |= problem.metrics(x, self.optimum, self.meta)
        return row


def node_row(models: Tensor, manifold: Manifold, oracle: Evaluator | None) -> dict[str, float]:
    """Returns the measures of all nodes' models, (n, *point), beside those of their mean.

    consensus_distance is (1/n) sum_i |x_i - mean|^2, of models that everybody sees. With the oracle
    worst_node_cost is the largest cost of a node's model, and optimum_distance is
    (1/n) sum_i d(x_i, x*)^2 to the reference solution, where one is known.
    """
    models = models.to("cpu", torch.float64)
    squares = (models - models.mean(0)).flatten(1).square()
    row = {"consensus_distance": float(squares.sum(1).mean())}
    if oracle is None:
        return row
    problem = oracle.problem
    row["worst_node_cost"] = max(
        float(problem.objective(x, oracle.shards, oracle.weights)) for x in models
    )
    if problem.has_optimum:
        reference = oracle.optimum.x.to(models).expand_as(models)
        row["optimum_distance"] = float(manifold.dist(models, reference).square().mean())
    return row


class PublicEvaluator(NamedTuple):
    """Evaluates models on a public file that the server has."""

    problem: Problem
    examples: Examples

    def row(self, x: Tensor) -> dict[str, float | None]:
        """Returns held_out_loss, and held_out_accuracy of a problem with classes."""
        x = x.to("cpu", torch.float64)
        right = self.problem.correct(x, self.examples)
        return {
            "held_out_loss": float(self.problem.losses(x, self.examples).mean()),
            "held_out_accuracy": None if right is None else float(right.mean()),
        }


class Judged(NamedTuple):
    """What evaluations have said so far, of records that no training step uses."""

    best_loss: float | None = None
    best_round: int = 0
    since: int = 0
    """Evaluations since the best."""

    def after(self, server_round: int, loss: float | None) -> "Judged":
        """With one evaluation more; what noise has drowned counts for nothing, NaN is no better."""
        if loss is None:
            return self
        if not math.isnan(loss) and (self.best_loss is None or loss < self.best_loss):
            return Judged(loss, server_round)
        return self._replace(since=self.since + 1)


_SHOWN = ("round", "uploads", "consensus_distance")
_OF_ORACLE = (
    "cost", "cost_gap", "relative_cost_gap", "gradient_norm", "principal_angle", "angle_to_truth",
    "distance_to_optimum", "distance_to_truth", "worst_node_cost", "optimum_distance",
)  # fmt: skip


def published(
    setting: Setting,
    columns: Values,
    public: Collection[str] = (),
    private: Collection[str] = (),
) -> Document:
    """Returns the columns of a run that may be shown to anybody: all of them without privacy.

    Of a private evaluation what says how many replied is left out. The ends of an interval do: the
    noise on a sum is known for each reply. So does an empty cell: nobody replied, or too few; a
    silent site fails no round, so no config rules that out.

    Args:
        setting: of the run.
        columns: an entry for each row, None or NaN where nothing was measured.
        public: further columns that were computed from public data alone.
        private: columns that are not shown, whatever they are called.
    """
    privacy = setting.privacy
    federation = setting.federation
    held = setting.evaluation
    if privacy.kind == "none":
        return dict(columns)
    shown = {*_SHOWN, *public, *(_OF_ORACLE if setting.has_oracle() else ())}
    has_coins = federation.cohort.kind != "all" or federation.replies.on_failure == "retry"
    if not has_coins or privacy.kind == "client-level":
        shown.add("epsilon")
    if held.kind == "private":
        told = {name for name in HELD_OUT if not name.endswith(("_low", "_high"))}
        due = [i for i, r in enumerate(columns.get("round", ())) if held.is_due(int(r))]
        values = [columns[name][i] for name in told & {*columns} for i in due]
        shown |= set() if any(value is None or math.isnan(value) for value in values) else told
    else:
        shown.update(HELD_OUT)
    shown.difference_update(private)
    return {name: values for name, values in columns.items() if name in shown}


def client_shares(sizes: Sequence[int], rule: str) -> Tensor:
    """Returns each client's weight in the cost: N_i / sum_l N_l, or 1/n under uniform weights."""
    weights = torch.tensor([1 if rule == "uniform" else n for n in sizes], dtype=torch.float64)
    return weights / weights.sum()


def oracle_of(config: Experiment, sizes: tuple[int, ...]) -> Evaluator:
    """Makes the evaluator on all data, whose reference solution is computed once a process."""
    weighting = config.server_update.weighting
    if not config.setting.is_at_sites:
        return _oracle(weighting, *split_of(config))
    found = load_shards(config)
    shares = client_shares(sizes, weighting)
    return Evaluator(found.problem, [one.judged for one in found.examples], shares, found.meta)


@lru_cache(maxsize=2)
def _oracle(weighting: str, problem: ProblemSource, data: DataSource, *key: Any) -> Evaluator:
    parts = shards(problem, data, *key)
    shares = client_shares(list(map(len, parts)), weighting)
    meta = dataset(data, *key[-2:]).meta
    return Evaluator(problem.build(), [one.judged for one in parts], shares, meta)


def public_evaluator(config: Experiment) -> PublicEvaluator | None:
    """Makes the evaluator on a public file; None where the config names none.

    Raises:
        ConfigError: the file cannot be read, or holds a record that nothing can be computed from.
    """
    held = config.evaluation
    data = config.data
    if held.kind != "public":
        return None
    assert isinstance(data, SiteData)
    with named_by("evaluation.path", OSError, ValueError):
        found = data.read(Path(held.path))
        size, *_ = config.federation.num_examples or (count(found),)
        examples = prepared(config, found, size)
        config.problem.check_records(rows_of(examples))
    return PublicEvaluator(config.minimised, examples)
