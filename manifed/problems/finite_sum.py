"""Evaluation of min_x f(x) = sum_i p_i (1/N_i) sum_j f_ij(x) over the shards of a federation.

Huang, Huang, Jawanpuria, Mishra: Federated Learning on Riemannian Manifolds with Differential
Privacy, (1.1) and (2.1). Everything here sees all data: it is for evaluation and references, never
for a client. Weights p_i default to N_i / sum_l N_l; the projected method of Zhang et al. uses 1/n.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from manifed.problems.base import Examples, ProblemBase
from manifed.problems.steepest_descent import Descent, descend

Shards = Sequence[Examples]

_POOLED_ELEMENTS = 2**22


@dataclass(frozen=True)
class Optimum:
    """A reference solution of the pooled problem and how stationary it is."""

    x: Tensor
    value: float
    gradient_norm: float


@dataclass(frozen=True)
class Constant:
    """A constant of the theory, and whether it was read off private data.

    A data-dependent constant that sets a clip norm or a step size is itself a release.
    """

    value: float
    reference: str
    is_data_dependent: bool = True


def client_weights(shards: Shards, weights: Tensor | None = None) -> Tensor:
    """p_i, shape (N,), summing to one: ``weights`` normalised, or N_i / sum_l N_l."""
    if not shards:
        raise ValueError("Expected at least one shard, got none")
    if weights is None:
        weights = torch.tensor([len(shard) for shard in shards], dtype=torch.float64)
    if weights.shape != (len(shards),):
        raise ValueError(f"Expected {len(shards)} weights, got shape {tuple(weights.shape)}")
    return weights / weights.sum()


def pool(shards: Shards, weights: Tensor | None = None) -> tuple[Examples, Tensor]:
    """All examples in one, and the weight p_i / N_i of each, shape (sum N_i,)."""
    sizes = torch.tensor([len(shard) for shard in shards])
    each = (client_weights(shards, weights) / sizes).repeat_interleave(sizes)
    return Examples.concatenate(shards), each


class FiniteSum(ProblemBase):
    """A problem with its evaluation; ``optimum`` is closed form where a subclass knows one."""

    has_optimum: bool = True
    """Whether there is a reference to compare with."""

    def point_shape(self, examples: Examples) -> tuple[int, ...]:
        """Shape of one point, from the shape of the examples."""
        raise NotImplementedError

    def losses(self, x: Tensor, examples: Examples) -> Tensor:
        """f_j(x) for every example, shape ``(..., n)``."""
        raise NotImplementedError

    def check_records(self, examples: Examples) -> None:
        """Refuse prepared examples that are no records of this problem (see `problems.records`).

        Raises:
            InvalidRecord: naming the record.
        """
        del examples

    def objective(self, x: Tensor, shards: Shards, weights: Tensor | None = None) -> Tensor:
        """f(x), shape ``(...)`` of x's leading dimensions."""  # (2.1)
        parts = [
            (each.to(x) * self.losses(x, examples)).sum(-1)
            for examples, each in _weighted_parts(shards, weights)
        ]
        return torch.stack(parts).sum(0)

    def gradient(self, x: Tensor, shards: Shards, weights: Tensor | None = None) -> Tensor:
        """Grad f(x), tangent at x, shape of x."""
        lead = x.shape[: x.dim() - self.manifold.ndim]
        total = torch.zeros_like(x)
        for examples, each in _weighted_parts(shards, weights):
            spread = each.to(x).expand(*lead, len(examples))
            total = total + self.rgrad_sum(x, examples, spread)
        return total

    def gradient_norm(self, x: Tensor, shards: Shards, weights: Tensor | None = None) -> Tensor:
        """Metric norm of grad f(x), shape ``(...)``."""
        return self.manifold.norm(x, self.gradient(x, shards, weights))

    def optimum(self, shards: Shards, weights: Tensor | None = None) -> Optimum:
        """A minimiser of f: here by Riemannian steepest descent from ``reference_start``."""
        examples, each = pool(shards, weights)
        start = self.reference_start(examples, each)
        found = self.descend_from(start, shards, weights)
        return Optimum(found.x, found.value, found.gradient_norm)

    def reference_start(self, examples: Examples, weights: Tensor) -> Tensor:
        """Where the reference solver starts (deterministic; never sent to a client)."""
        raise NotImplementedError(f"{type(self).__name__} has no start for its reference solver")

    def descend_from(
        self, x: Tensor, shards: Shards, weights: Tensor | None = None, tolerance: float = 1e-10
    ) -> Descent:
        """Riemannian steepest descent on f from x (the paper's "true value")."""
        return descend(
            self.manifold,
            lambda y: float(self.objective(y, shards, weights)),
            lambda y: self.gradient(y, shards, weights),
            x,
            tolerance=tolerance,
        )

    def metrics(self, x: Tensor, optimum: Optimum, meta: Mapping[str, Any]) -> dict[str, float]:
        """Measures that only this problem has; ``meta`` is the data set's."""
        del x, optimum, meta
        return {}

    def correct(self, x: Tensor, examples: Examples) -> Tensor | None:
        """1 where an example is predicted right, else 0, shape ``(..., n)``; None: no classes."""
        del x, examples
        return None

    def lipschitz(self, shards: Shards) -> Constant:
        """L_f of Assumption 5.1: a bound on every per-example gradient norm (inf: none)."""
        del shards
        return Constant(math.inf, "no global bound", is_data_dependent=False)

    def smoothness(self, shards: Shards) -> Constant:
        """L_g of Assumption 5.2 (inf: none known)."""
        del shards
        return Constant(math.inf, "no global bound", is_data_dependent=False)


def _weighted_parts(shards: Shards, weights: Tensor | None) -> Sequence[tuple[Examples, Tensor]]:
    """Shards with the weight p_i / N_i of each example; many small shards are pooled into one."""
    if len(shards) > 1 and _elements(shards[0]) * len(shards) <= _POOLED_ELEMENTS:
        return [pool(shards, weights)]
    share = client_weights(shards, weights)
    return [(s, (p / len(s)).expand(len(s))) for s, p in zip(shards, share, strict=True)]


def _elements(shard: Examples) -> int:
    return sum(tensor.numel() for tensor in shard.tensors.values())
