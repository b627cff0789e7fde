"""Attacks on variance reduction: a record whose gradient changes after the first step."""

import math
from dataclasses import dataclass
from functools import cached_property

import torch

from manifed.algorithms.algorithm import Here
from manifed.algorithms.payloads import Point
from manifed.algorithms.rsvrg import RSVRG
from manifed.audit.attacks import SHORT_STEP, ExampleAttack
from manifed.audit.bound import Attack
from manifed.oracles.noisy_oracle import Draws, Oracle
from manifed.privacy import epsilon_bounds
from manifed.privacy.mechanism import ExampleMechanism
from manifed.privacy.random_numbers import NoiseSource
from manifed.problems.examples import Examples
from manifed.problems.pca import PrincipalEigenvector

ROWS = 200_000
"""Records that are held at once."""
POLE, PULL = torch.eye(4, dtype=torch.float64)[:2]
"""The broadcast point on the sphere, and the direction in which a canary pulls."""


def rows_of(z):
    """A shard of rows (n, 4)."""
    return Examples({"z": z}, {"z": 1})


def canary(length):
    """A row whose gradient -2 (z.x)(z - (z.x) x) at the pole is ``-length * PULL``."""
    return (length / 2.0) ** 0.5 * (POLE + PULL)


@dataclass(frozen=True, eq=False)
class FlippingAttack(ExampleAttack):
    """DP-RSVRG as printed: a record whose gradient flips between the anchor and the next iterate.

    All other rows pull along e_2 with the full clip norm; the canary's gradient points one way at
    the anchor and, one step later, the other way: its correction is two clip norms long, and with
    one sample a step nothing averages it away.
    """

    @cached_property
    def neighbours(self):
        clip = self.mechanism.l2_norm_clip
        assert clip is not None
        pull = math.sqrt(clip) * (POLE + PULL)
        rows = pull.repeat(len(self.shard), 1)
        absent = rows_of(rows.clone())
        rows[0] = (PULL - SHORT_STEP * clip / 2 * POLE) * math.sqrt(100.0 / SHORT_STEP)
        return rows_of(rows), absent, PULL


class Witness(Oracle):
    """An oracle that keeps its answers, shape (trials, *point): the queries that are charged."""

    def __init__(self, *given):
        super().__init__(*given)
        self.reference = torch.zeros(0)
        """The last gradient, noised or not."""
        self.moved = []
        """The un-noised reference at every iterate, which a correction's noise covers."""
        self.corrections = []

    def gradient(self, *given, **named):
        """The oracle's."""
        self.reference = super().gradient(*given, **named)
        return self.reference

    def correction(self, *given, **named):
        """The oracle's."""
        self.corrections.append(super().correction(*given, **named))
        return self.corrections[-1]

    def carried(self, *given, **named):
        """The oracle's."""
        self.moved.append(super().carried(*given, **named))
        return self.moved[-1]


@dataclass(frozen=True)
class CorrectionAttack(Attack):
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

    def claim(self, delta):
        """Epsilon of one client update."""
        return epsilon_bounds.epsilon(self.training.releases(self.mechanism, self.size), delta)

    @property
    def _is_reversed(self):
        """For two clips; where the change is clipped as one vector, the gradient grows."""
        return self.training.correction_clip == "each"

    def examples(self, is_present):
        assert self.mechanism.l2_norm_clip is not None
        pull = self.mechanism.l2_norm_clip
        rows = canary(4.0 * pull).expand(self.size, -1).clone()
        rows[0] = 0.0
        if is_present:
            margin = SHORT_STEP * pull * (-0.02 if self._is_reversed else 1.0)
            rows[0] = (PULL + margin * POLE) * (1e4 / SHORT_STEP) ** 0.5
        return rows_of(rows)

    @property
    def at_once(self):
        return max(1, ROWS // self.size)

    def run(self, trials, *, is_present):
        """One score a client."""
        problem = PrincipalEigenvector()
        count = len(trials)
        draws = Draws(self.source, trials, 1, 0, 0, "cpu")
        examples = self.examples(is_present)
        x = POLE.expand(count, 4)
        queries = [self.training.queries(self.mechanism, self.size)] * count
        oracle = Witness(problem, Examples.stack([examples] * count), queries, draws)
        here = Here(problem.manifold, "train", 1, Point(x), None, draws)
        self.training.client(x, oracle, here)
        return self._log_ratio(oracle.reference, oracle.corrections, oracle.moved)

    def _log_ratio(self, reference, corrections, moved):
        """Of the answers along e_2, whose law is known but for the canary.

        It shifts the reference by +-clip / N and, where it is in the batch, a correction by the
        correction's sensitivity, except at the anchor itself.
        """
        mechanism = self.mechanism
        training = self.training
        size = self.size
        assert mechanism.l2_norm_clip is not None
        others = -mechanism.l2_norm_clip * (size - 1) / size
        first, second = training.queries(mechanism, size)
        there = first.sensitivity * (1.0 if self._is_reversed else -1.0)
        here = -second.sensitivity
        rate = second.expected_size / size
        assert second.drawn is not None
        stddev = second.drawn
        y = reference @ PULL
        total = torch.zeros_like(y)
        is_fresh = training.variant == "fresh"
        if not is_fresh:
            total += _gaussian(y - others, there, first.stddev)
        for step, answer in enumerate(corrections):
            y = answer @ PULL
            without = 0.0
            if is_fresh:
                y = y + moved[step] @ PULL - others
                without = there
            inside = without + (here if step % training.inner_steps else 0.0)
            total += torch.logaddexp(
                (math.log1p(-rate) if rate < 1 else -math.inf) + _gaussian(y, without, stddev),
                math.log(rate) + _gaussian(y, inside, stddev),
            )
        return total


def _gaussian(y, shift, stddev):
    """Log density ratio of N(shift, stddev^2) to N(0, stddev^2) at y."""
    return (shift * y - 0.5 * shift**2) / stddev**2
