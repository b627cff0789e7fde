r"""DP-RSVRG's privacy analysis as printed, and as its experiments need it; for reproduction only.

Utpala, Han, Jawanpuria, Mishra: Improved Differentially Private Riemannian Optimization: Fast
Sampling and Variance Reduction (TMLR 2023), section 5.1 and Appendix B.3. Replace-one; n public.

Symbols: n num_examples, m inner_steps, S epochs, C0 l2_norm_clip, C1 correction_l2_norm_clip,
sigma stddev, alpha share (sigma_1^2 = alpha sigma^2 of the full gradient, sigma_2^2 the rest),
lambda order (a moment's; the Rényi order less one), K log_moment.

**Claim 5 is no calibration.** Claim 4 holds for lambda <= `order_limit` only; the lambda that
Claim 5 needs exceeds it unless n >= 1.3e4 ... 3.1e5, and then its noise can be far
too small. `Counting` names the other trap: Algorithm 11 queries the full gradient at every step
(m S times, eq. 3), and the public code charges it once an epoch (S times). What the
releases really cost: reproduction/rsvrg_prices.py.

>>> schedule = Schedule(num_examples=10704, inner_steps=1070, epochs=10)
>>> round(schedule.least_share(), 4), round(schedule.bracket(schedule.least_share()), 3)
(0.2109, 44.967)
>>> round(schedule.claimed_stddev(0.1, 1e-6), 3)
4.826
"""

import math
from collections.abc import Callable
from typing import Final, Literal

from pydantic import Field

from manifed.fields import Frozen, Positive, PositiveCount
from manifed.privacy.events import Release, SampledWithoutReplacement

PRINTED_FACTOR: Final = 28.0
"""Claim 4: K <= 28 lambda (lambda + 1) C1^2 / (n sigma_2)^2; the lemma it cites gives 56."""

Counting = Literal["every-step", "every-epoch"]
"""How often the full gradient is charged: m S times (eq. 3) or S times (the public code)."""

Releases = tuple[Release, ...]


class Schedule(Frozen):
    """Algorithm 11's sizes and clips, one example a step."""

    num_examples: int = Field(ge=2)
    inner_steps: PositiveCount
    epochs: PositiveCount
    l2_norm_clip: Positive = 1.0
    correction_l2_norm_clip: Positive = 1.0

    @property
    def steps(self) -> int:
        """The product m S."""
        return self.inner_steps * self.epochs

    def bracket(self, share: float, factor: float = PRINTED_FACTOR) -> float:
        """2 C0^2 / alpha + 28 C1^2 / (1 - alpha), eq. (3) with its clips kept apart."""
        c0 = self.l2_norm_clip
        c1 = self.correction_l2_norm_clip
        return 2 * c0**2 / share + factor * c1**2 / (1 - share)

    def least_share(self, factor: float = PRINTED_FACTOR) -> float:
        """alpha* = C0 / (C0 + sqrt(14) C1), the minimiser of `bracket` (B.3.3)."""
        c0 = self.l2_norm_clip
        c1 = self.correction_l2_norm_clip
        return c0 / (c0 + math.sqrt(factor / 2) * c1)

    def log_moment(self, order: float, stddev: float, share: float | None = None) -> float:
        """K(lambda) of eq. (3); at alpha* where no share is given."""
        scale = self.steps * order * (order + 1) / (self.num_examples * stddev) ** 2
        return scale * self.bracket(share or self.least_share())  # (3)

    def order_limit(self, stddev: float) -> float:
        """The largest lambda that Claim 4 admits, its dimensions corrected; 0 where none is.

        sigma'^2 = sigma_2^2 / (16 C1^2) >= 0.75 and lambda <= (2/3) sigma'^2 log(n / ((lambda + 1)
        (1 + sigma'^2))).
        """
        squared = (1 - self.least_share()) * (stddev / (4 * self.correction_l2_norm_clip)) ** 2
        if squared < 0.75:
            return 0.0

        def admits(order: float) -> bool:
            room = self.num_examples / ((order + 1) * (1 + squared))
            return room > 0 and order <= 2 / 3 * squared * math.log(room)

        return _last(admits, 0.0, float(self.num_examples))

    def needed_order(self, epsilon: float, delta: float) -> float:
        """The lambda of Claim 5's proof, 2 log(1/delta) / epsilon (eq. 8)."""
        return 2 * math.log(1 / delta) / epsilon

    def claimed_stddev(self, epsilon: float, delta: float, factor: float = PRINTED_FACTOR) -> float:
        """Sigma of Claim 5 with the constant its proof implies: c1 = 4 x 44.967 for equal clips.

        It solves K(lambda) = lambda epsilon / 2 at `needed_order`, wherever that lies.
        """
        order = self.needed_order(epsilon, delta)
        least = self.bracket(self.least_share(factor), factor)
        root = 2 * self.steps * (order + 1) * least / epsilon
        return math.sqrt(root) / self.num_examples

    def searched_epsilon(self, stddev: float, delta: float) -> float:
        """Eq. (3) through Mironov: min over lambda of (K(lambda) + log(1/delta)) / lambda."""
        unit = self.log_moment(1.0, stddev) / 2
        order = math.sqrt(math.log(1 / delta) / unit)
        return unit * (order + 1) + math.log(1 / delta) / order

    def releases(
        self, stddev: float, *, share: float | None = None, counting: Counting = "every-step"
    ) -> Releases:
        """What the analysis says was released, for any accountant."""
        alpha = self.least_share() if share is None else share
        sampling = SampledWithoutReplacement(sample_size=1, population=self.num_examples)
        full = Release(
            unit="example",
            neighboring_relation="replace-one",
            noise_multiplier=math.sqrt(alpha) * stddev * self.num_examples / 2 / self.l2_norm_clip,
            count=self.steps if counting == "every-step" else self.epochs,
            label="reference",
        )
        stochastic = Release(
            unit="example",
            neighboring_relation="replace-one",
            noise_multiplier=math.sqrt(1 - alpha) * stddev / 4 / self.correction_l2_norm_clip,
            sampling=sampling,
            count=self.steps,
            label="correction",
        )
        return (full, stochastic)


def _last(holds: Callable[[float], bool], low: float, high: float) -> float:
    """The last point of [low, high] at which a falling predicate holds; ``low`` if none."""
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
