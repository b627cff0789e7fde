"""The config's own problem under attack: its shard, its manifold, its point, its clip norm.

The canary takes the place of the last record of the smallest shard, and is searched for: of the
records at hand, longer copies of them, rows along two axes, and far points of the manifold, the one
that moves the noise-free upload most (under replace-one: the pair). The score is the upload along
that move.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from manifed.algorithms.interface import ClientUpdate
from manifed.algorithms.one_shot import OneShot
from manifed.algorithms.payloads import Point
from manifed.audit.attack import clients
from manifed.audit.client_attacks import stack
from manifed.federation.client import ClientSetup, Seat, run_update
from manifed.oracles.sums import keeps_rows_apart
from manifed.privacy.audit import Scores
from manifed.privacy.mechanism import ExampleMechanism, RelativeNoise
from manifed.privacy.noise import NoiseSource
from manifed.problems.base import Examples, Gradients, Problem, ProblemBase
from manifed.problems.frechet_mean import FrechetMean
from manifed.problems.hyperbolic_prediction import HyperbolicPrediction
from manifed.problems.linear import with_squared_norms

IS_PRESENT = "is_present"
_ELEMENTS = 2_000_000
"""Numbers of records that are held at once."""
_COINS = tuple(range(32))
"""Clients whose mean upload is the noise-free move."""
_AT_HAND = 4


@dataclass(frozen=True)
class Present:
    """Gradients of which those with ``mask`` (..., n) 0 leave no trace in a sum."""

    gradients: Gradients
    mask: Tensor

    @property
    def norms(self) -> Tensor:
        """Of all."""
        return self.gradients.norms

    def sum(self, weights: Tensor) -> Tensor:
        """Of what is present."""
        return self.gradients.sum(weights * self.mask)


class Masked(ProblemBase):
    """A problem whose records count only where ``examples["is_present"]`` is 1.

    A removed record leaves no trace, while sizes, batches and the rows of all others stay.
    """

    def __init__(self, inner: Problem) -> None:
        self.inner = inner
        self.manifold = inner.manifold
        self.needs_keys = inner.needs_keys
        self.keeps_rows_apart = keeps_rows_apart(inner)
        self.looks_at_all_rows = inner.looks_at_all_rows
        self.points_per_example = inner.points_per_example

    def point_shape(self, examples: Examples) -> tuple[int, ...]:
        """That of what is present."""
        return self.inner.point_shape(examples)

    def made_up(self, like: Examples, count: int, generator: torch.Generator) -> Examples:
        """What is present."""
        made = self.inner.made_up(like, count, generator)
        return made.beside(IS_PRESENT, torch.ones(count, dtype=torch.float64))

    @cached_property
    def sufficient_statistic(self) -> "Masked | None":
        """That of what is present."""
        inner = self.inner.sufficient_statistic
        return None if inner is None else Masked(inner)

    def is_priced_as(self, kind: type[Problem]) -> bool:
        """As what is present is."""
        return self.inner.is_priced_as(kind)

    def rgrads(self, x: Tensor, examples: Examples) -> Tensor:
        """Zero for what is absent."""
        mask = self.manifold.expand_scalar(examples[IS_PRESENT])
        return self.inner.rgrads(x, examples) * mask

    def gradients(self, x: Tensor, examples: Examples) -> Present:
        """Of what is present."""
        return Present(self.inner.gradients(x, examples), examples[IS_PRESENT])


@dataclass(frozen=True, eq=False)
class OwnProblemAttack:
    """Updates of the client with the smallest shard at one point, with and without a canary."""

    problem: Problem
    training: ClientUpdate
    mechanism: ExampleMechanism
    shard: Examples
    x: Tensor
    source: NoiseSource
    num_rounds: int = 1

    def scores(self, trials: int, *, is_present: bool) -> Scores:
        """The uploads of all rounds along the move of the noise-free one, one score a client."""
        present, absent, move = self._neighbours
        examples = present if is_present else absent
        most = max(1, _ELEMENTS // sum(t.numel() for t in examples.tensors.values()))
        found: list[Tensor] = []
        for partitions in clients(trials, most, is_present=is_present):
            rounds = [
                self._uploads(examples, self.mechanism, partitions, server_round)
                for server_round in range(1, self.num_rounds + 1)
            ]
            found.append(sum(rounds[1:], rounds[0]).flatten(1) @ move)
        return torch.cat(found).numpy()

    @cached_property
    def _neighbours(self) -> tuple[Examples, Examples, Tensor]:
        """(with the canary, without, covector of the move)."""
        silent = self.mechanism.model_copy(update={"noise": RelativeNoise(multiplier=0.0)})
        nobody = self._with(next(self._canaries()), is_present=False)
        base = self._uploads(nobody, silent, _COINS).mean(0)
        moves = [
            (canary, self._uploads(self._with(canary), silent, _COINS).mean(0) - base)
            for canary in self._canaries()
        ]
        best, move = max(moves, key=lambda found: self._length(found[1]))
        absent = nobody
        if self.mechanism.neighboring_relation == "replace-one":
            other, away = max(moves, key=lambda found: self._length(move - found[1]))
            absent, move = self._with(other), move - away
        return self._with(best), absent, self._covector(move)

    def _canaries(self) -> Iterator[dict[str, Tensor]]:
        """Records to put in the last place, without a leading dimension."""
        norms = self.problem.gradients(self.x, self.shard).norms
        norms = norms.reshape(-1, norms.shape[-1]).amax(0)  # of the longest of a record's groups
        stored = self.shard.tensors
        for row in norms.argsort(descending=True)[:_AT_HAND].tolist():
            record = {key: t[row] for key, t in stored.items() if key != "squared_norm"}
            yield record
            if isinstance(self.problem, FrechetMean | HyperbolicPrediction):
                points = [key for key, value in record.items() if value.shape == self.x.shape]
                yield from (record | {key: y} for key in points for y in self._far_points())
            else:
                rows = [key for key in record if self.shard.feature_ndim[key] == 1]
                yield from (record | {k: c * record[k]} for k in rows for c in (-1.0, 30.0, 1e3))
                yield from (record | {k: 1e3 * e} for k in rows for e in _two_axes(record[k]))

    def _far_points(self) -> Iterator[Tensor]:
        manifold, clip = self.problem.manifold, self.mechanism.l2_norm_clip or 1.0
        shape = manifold.coords_shape(tuple(self.x.shape))
        for seed, length in ((0, 1.0), (1, 2.0)):
            generator = torch.Generator().manual_seed(seed)
            u = manifold.from_coords(
                self.x, torch.randn(shape, generator=generator, dtype=self.x.dtype)
            )
            u = min(length * clip, 3.0) * u / manifold.norm(self.x, u)
            yield from (manifold.expmap(self.x, u), manifold.expmap(self.x, -u))

    def _with(self, canary: dict[str, Tensor], *, is_present: bool = True) -> Examples:
        tensors = {key: tensor.clone() for key, tensor in self.shard.tensors.items()}
        for key, value in canary.items():
            tensors[key][-1] = value
        has_norms = tensors.pop("squared_norm", None) is not None
        whole = Examples(tensors, {key: self.shard.feature_ndim[key] for key in tensors})
        if has_norms:
            whole = with_squared_norms(whole, "z" if "z" in tensors else "feature")
        mask = torch.ones(len(self.shard), dtype=self.x.dtype)
        mask[-1] = float(is_present)
        return Examples(
            dict(whole.tensors) | {IS_PRESENT: mask}, dict(whole.feature_ndim) | {IS_PRESENT: 0}
        )

    def _uploads(
        self,
        examples: Examples,
        mechanism: ExampleMechanism,
        partitions: tuple[int, ...],
        server_round: int = 1,
    ) -> Tensor:
        masked = Masked(self.problem)
        setup = ClientSetup(
            masked,  # pyright: ignore[reportArgumentType] - has no losses, which no update asks for
            self.training,
            mechanism,
        )
        (phase,) = self.training.phases
        x = self.x.expand(len(partitions), *self.x.shape)
        seat = Seat(partitions, server_round, 0, phase.name)
        memory, sizes = self.training.initial_memory(x), [len(self.shard)] * len(partitions)
        stacked = stack(examples, len(partitions))
        done = run_update(setup, seat, Point(x), memory, stacked, sizes, self.source)
        return done.up.tensors()["u"]

    @property
    def _is_flat(self) -> bool:
        """Whether the upload is a statistic, which is no vector at x."""
        return isinstance(self.training, OneShot)

    def _length(self, move: Tensor) -> float:
        if self._is_flat:
            return float(torch.linalg.vector_norm(move))
        return float(self.problem.manifold.norm(self.x, self.problem.manifold.proju(self.x, move)))

    def _covector(self, move: Tensor) -> Tensor:
        """The linear form u -> <u, move>_x on ambient coordinates, flat."""
        if self._is_flat:
            return move.flatten()
        manifold = self.problem.manifold
        move = manifold.proju(self.x, move)
        eye = torch.eye(self.x.numel(), dtype=self.x.dtype).reshape(-1, *self.x.shape)
        tangents = manifold.proju(self.x, eye)
        return manifold.inner(self.x.expand_as(eye), tangents, move.expand_as(eye)).reshape(-1)


def _two_axes(row: Tensor) -> Tensor:
    """The first and the last of R^d, (2, d): their second moments are as far apart as any two."""
    eye = torch.eye(row.numel(), dtype=row.dtype, device=row.device)
    return eye[[0, -1]]
