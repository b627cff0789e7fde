"""Attacks on a client update: the same shard with and without a canary.

The broadcast point is the pole x = e_1 of a sphere, every other example has gradient zero there,
and the canary's gradient is as long as the clip norm allows. Steps are so short that the sphere is
flat for them: then the upload is the sum of the noised gradients and the canary is the worst case.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from manifed.algorithms.interface import ClientUpdate
from manifed.algorithms.payloads import Point
from manifed.algorithms.rsvrg import RSVRG
from manifed.audit.attack import clients
from manifed.federation.client import ClientSetup, Seat, run_update
from manifed.oracles.oracle import Draws, Oracle
from manifed.privacy import accountant
from manifed.privacy.audit import Scores
from manifed.privacy.mechanism import ExampleMechanism
from manifed.privacy.noise import NoiseSource
from manifed.problems.base import Examples
from manifed.problems.linear import with_squared_norms
from manifed.problems.pca import PrincipalEigenvector

DIMENSION = 4
SHORT_STEP = 1e-6
"""Step size of what is attacked: curvature moves a score by less than 1e-5 of its noise."""
_ROWS = 200_000
"""Records that are held at once."""


def pole() -> Tensor:
    """e_1: the broadcast point."""
    x = torch.zeros(DIMENSION, dtype=torch.float64)
    x[0] = 1.0
    return x


def direction() -> Tensor:
    """e_2: the direction in which the canary pulls."""
    u = torch.zeros(DIMENSION, dtype=torch.float64)
    u[1] = 1.0
    return u


def canary(length: float, sign: float = 1.0) -> Tensor:
    """A row whose gradient -2 (z.x)(z - (z.x) x) at the pole is ``-sign * length * e_2``."""
    side = (length / 2.0) ** 0.5
    return side * (pole() + sign * direction())


def shard(size: int, first: Tensor | None, others: Tensor | None = None) -> Examples:
    """``size`` rows: the canary (or an all-zero row) and copies of ``others`` or of the pole.

    The pole's gradient is zero.
    """
    rows = (pole() if others is None else others).expand(size, DIMENSION).clone()
    rows[0] = 0.0 if first is None else first
    return with_squared_norms(Examples({"z": rows}, {"z": 1}), "z")


def stack(examples: Examples, count: int) -> Examples:
    """The same shard for ``count`` clients."""
    tensors = {key: t.expand(count, *t.shape) for key, t in examples.tensors.items()}
    return Examples(tensors, examples.feature_ndim)


@dataclass(frozen=True)
class ExampleAttack:
    """A client update under attack: with which mechanism, how large a shard, which canary."""

    training: ClientUpdate
    mechanism: ExampleMechanism
    size: int
    canary_length: float
    absent_sign: float | None
    """None: the canary is removed. -1: it is replaced by its mirror image (replace-one)."""
    source: NoiseSource
    num_rounds: int = 1
    others_pull: bool = False
    """Whether all others are the canary's mirror image: where it is in a subset of fixed size it
    takes one of their places, and only then does it move a mean by two clip norms."""
    score: Callable[[list[Tensor]], Tensor] | None = None
    """Score of the uploads of all rounds; the default sums them along the canary's pull."""

    def scores(self, trials: int, *, is_present: bool) -> Scores:
        """One score a client."""
        examples, score = self._examples(is_present=is_present), self.score or self.score_of
        most = max(1, _ROWS // self.size)
        found = [
            score(self._uploads(examples, partitions))
            for partitions in clients(trials, most, is_present=is_present)
        ]
        return torch.cat(found).numpy()

    def score_of(self, uploads: list[Tensor]) -> Tensor:
        """The uploads of all rounds, (clients, *upload) each, along the canary's pull."""
        return torch.stack(uploads).sum(0) @ direction()

    def _examples(self, *, is_present: bool) -> Examples:
        sign = 1.0 if is_present else self.absent_sign
        first = None if sign is None else canary(self.canary_length, sign)
        others = canary(self.canary_length, -1.0) if self.others_pull else None
        return shard(self.size, first, others)

    def _uploads(self, examples: Examples, partitions: tuple[int, ...]) -> list[Tensor]:
        """What these clients upload in each round, shape (clients, *upload)."""
        setup = ClientSetup(PrincipalEigenvector(), self.training, self.mechanism)
        down = Point(pole().expand(len(partitions), DIMENSION))
        stacked, sizes = stack(examples, len(partitions)), [self.size] * len(partitions)
        uploads: list[Tensor] = []
        for server_round in range(1, self.num_rounds + 1):
            seat = Seat(partitions, server_round, 0, self.training.phases[0].name)
            memory = self.training.initial_memory(down.x)
            done = run_update(setup, seat, down, memory, stacked, sizes, self.source)
            uploads.append(done.up.tensors()["u"] / SHORT_STEP)
        return uploads

    def with_mechanism(self, mechanism: ExampleMechanism) -> "ExampleAttack":
        """The same attack on another mechanism (planted faults)."""
        return replace(self, mechanism=mechanism)


@dataclass(frozen=True)
class FlippingAttack(ExampleAttack):
    """DP-RSVRG as printed: a record whose gradient flips between the anchor and the next iterate.

    All other rows pull along e_2 with the full clip norm; the canary's gradient points one way at
    the anchor and, one step later, the other way: its correction is two clip norms long, and with
    one sample a step nothing averages it away (spec 000 §7.3).
    """

    def _examples(self, *, is_present: bool) -> Examples:
        assert self.mechanism.l2_norm_clip is not None
        pull = math.sqrt(self.mechanism.l2_norm_clip) * (pole() + direction())
        rows = pull.expand(self.size, -1).clone()
        if is_present:
            margin = SHORT_STEP * self.mechanism.l2_norm_clip / 2
            rows[0] = (direction() - margin * pole()) * math.sqrt(100.0 / SHORT_STEP)
        return with_squared_norms(Examples({"z": rows}, {"z": 1}), "z")


class Witness(Oracle):
    """An oracle that keeps its answers, shape (trials, *point): the queries that are charged."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.reference = torch.zeros(0)
        """The last gradient, noised or not."""
        self.moved: list[Tensor] = []
        """The un-noised reference at every iterate, which a correction's noise covers."""
        self.corrections: list[Tensor] = []

    def gradient(self, *given: Any, **named: Any) -> Tensor:
        """The oracle's."""
        self.reference = super().gradient(*given, **named)
        return self.reference

    def correction(self, *given: Any, **named: Any) -> Tensor:
        """The oracle's."""
        self.corrections.append(super().correction(*given, **named))
        return self.corrections[-1]

    def carried(self, *given: Any, **named: Any) -> Tensor:
        """The oracle's."""
        self.moved.append(super().carried(*given, **named))
        return self.moved[-1]


@dataclass(frozen=True)
class CorrectionAttack:
    """Variance reduction under attack: a record whose gradient is another after the first step.

    All other rows pull the iterate along e_2 with the full clip norm. The canary is orthogonal to a
    point just ahead of the anchor (its gradient reverses), or to one a step behind it (its
    gradient grows), and so long that gradient and change exceed every clip norm. The others'
    gradients, clipped, stay what they are: their corrections are zero and hide nothing.

    The attacker sees what is charged: the noised reference and every noised correction, or, as
    printed, every sum of both. The score is the log likelihood ratio of them all.
    """

    training: RSVRG
    mechanism: ExampleMechanism
    size: int
    source: NoiseSource

    def claim(self, delta: float) -> float:
        """Epsilon of one client update."""
        return accountant.epsilon(self.training.releases(self.mechanism, self.size), delta)

    def scores(self, trials: int, *, is_present: bool) -> Scores:
        """One score a client."""
        examples, most = self._examples(is_present=is_present), max(1, _ROWS // self.size)
        found = [
            self._run(examples, partitions)
            for partitions in clients(trials, most, is_present=is_present)
        ]
        return torch.cat(found).numpy()

    @property
    def _is_reversed(self) -> bool:
        """For two clips; where the change is clipped as one vector, the gradient grows."""
        return self.training.correction_clip == "each"

    def _examples(self, *, is_present: bool) -> Examples:
        assert self.mechanism.l2_norm_clip is not None
        pull = self.mechanism.l2_norm_clip
        rows = canary(4.0 * pull).expand(self.size, -1).clone()
        rows[0] = 0.0
        if is_present:
            margin = SHORT_STEP * pull * (-0.02 if self._is_reversed else 1.0)
            rows[0] = (direction() + margin * pole()) * (1e4 / SHORT_STEP) ** 0.5
        return with_squared_norms(Examples({"z": rows}, {"z": 1}), "z")

    def _run(self, examples: Examples, partitions: tuple[int, ...]) -> Tensor:
        problem, count = PrincipalEigenvector(), len(partitions)
        draws = Draws(self.source, partitions, 1, 0, 0, "cpu")
        x = pole().expand(count, DIMENSION)
        queries = [self.training.queries(self.mechanism, self.size)] * count
        oracle = Witness(problem, stack(examples, count), queries, draws)
        self.training.update("train", Point(x), None, oracle, problem.manifold, draws)
        return self._log_ratio(oracle.reference, oracle.corrections, oracle.moved)

    def _log_ratio(
        self, reference: Tensor, corrections: list[Tensor], moved: list[Tensor]
    ) -> Tensor:
        """Of the answers along e_2, whose law is known but for the canary.

        It shifts the reference by +-clip / N and, where it is in the batch, a correction by the
        correction's sensitivity, except at the anchor itself.
        """
        mechanism, training, size = self.mechanism, self.training, self.size
        assert mechanism.l2_norm_clip is not None
        others = -mechanism.l2_norm_clip * (size - 1) / size
        first, second = training.queries(mechanism, size)
        there = first.sensitivity * (1.0 if self._is_reversed else -1.0)
        here, rate = -second.sensitivity, second.expected_size / size
        assert second.drawn is not None
        stddev, y = second.drawn, reference @ direction()
        total = torch.zeros_like(y)
        is_fresh = training.variant == "fresh"
        if not is_fresh:
            total += _gaussian(y - others, there, first.stddev)
        for step, answer in enumerate(corrections):
            y, without = answer @ direction(), 0.0
            if is_fresh:
                y, without = y + moved[step] @ direction() - others, there
            inside = without + (here if step % training.inner_steps else 0.0)
            total += torch.logaddexp(
                (math.log1p(-rate) if rate < 1 else -math.inf) + _gaussian(y, without, stddev),
                math.log(rate) + _gaussian(y, inside, stddev),
            )
        return total


def _gaussian(y: Tensor, shift: float, stddev: float) -> Tensor:
    """Log density ratio of N(shift, stddev^2) to N(0, stddev^2) at y."""
    return (shift * y - 0.5 * shift**2) / stddev**2
