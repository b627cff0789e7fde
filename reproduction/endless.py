r"""What scheduled releases cost in K rounds, and in infinitely many: sums with proved tails.

    python -m reproduction.endless (CONFIG | --example N) [--rounds K] [--budget E] [--delta D]

The releases are those of `manifed.privacy.series`; their sums stay true in the limit
(docs/time_varying.md has the proofs, also of the tails here). Printed are the conditions of the
theorems one by one, the price of K rounds, of all rounds, and the round in which a budget ends.

Guarantee: `Sum.partial`, `Sum.tail` and `Sum.total` are upper bounds, rounding included, for powers
that the platform computes to 16 ulps; ``partial_low`` and ``tail_low`` are lower bounds.
"""

import argparse
import math
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from manifed.privacy import series
from manifed.privacy.composition import gaussian_epsilon
from manifed.schedules import Geometric, Schedule
from reproduction.conditions import ProblemConstants, checks
from reproduction.powers import EXAMPLES, WHOLE_SLACK, Power, power_of

ROUNDING: Final = 2.0**-44
"""Allowed, relatively, to each term and each step of a recursion, as manifed/privacy/series.py."""
MOST_TERMS: Final = 10**7
_LEAST_EXCESS: Final = 1e-9
"""An exponent no more than this above 1 counts as one whose sum diverges."""


@dataclass(frozen=True)
class Sum:
    """A sum of infinitely many costs: the first ``terms`` of them, and what is left."""

    terms: int
    partial: float
    partial_low: float
    tail: float
    """Infinite where the sum diverges, or no bound is known."""
    tail_low: float

    @property
    def total(self) -> float:
        """All rounds, from above."""
        return (self.partial + self.tail) * (1 + ROUNDING)

    @property
    def total_low(self) -> float:
        """All rounds, from below."""
        return self.partial_low + self.tail_low


def _check(rounds: int) -> None:
    if not 0 <= rounds <= MOST_TERMS:
        raise ValueError(f"rounds: expected 0 to {MOST_TERMS}, got {rounds}")


class Releases(series.Releases):
    """Releases whose rounds never end."""

    def spent(self, rounds: int, side: int = 1) -> float:
        """Epsilon (Laplace) or rho (Gaussian) after ``rounds`` rounds; with side -1 from below.

        Raises:
            ValueError: unless 0 <= rounds <= 10^7.
        """
        _check(rounds)
        return math.fsum(self.costs(rounds, side)) * (1 + side * ROUNDING)

    def series(self, rounds: int, *, with_tail: bool = True) -> Sum:
        """Epsilon (Laplace) or rho (Gaussian) after ``rounds`` rounds, and of all that follow.

        After K rounds K updates have been made, and the K-th state has been shown.

        Raises:
            ValueError: unless 0 <= rounds <= 10^7.
        """
        high = self.spent(rounds)
        low = self.spent(rounds, -1)
        last, last_low = (
            float(self.sensitivities(rounds, s)[-1]) if rounds else 0.0 for s in (1, -1)
        )
        tail = math.inf
        tail_low = 0.0
        if with_tail and self.num_examples is None:
            is_gradient = self.algorithm == "gradient"
            tail = self._gradient_tail(rounds) if is_gradient else self._output_tail(rounds, last)
            tail *= 1 + ROUNDING
            tail_low = min(self._tail_low(rounds, last_low), tail)
        return Sum(rounds, high, low, tail, tail_low)

    def once(self, rounds: int) -> float:
        """Epsilon or rho after ``rounds`` rounds of a record that is used in one of them alone.

        Which one is public: a stream, or a file that is read in order. What costs most of
        cost_l = (C alpha_l / gamma_l / sigma)^p over all that round l moves (p = 1, or 2 and half
        of it): gradient perturbation releases it once; with output perturbation it stays in the
        hidden state, times 1 - beta_k + alpha_k Lip a round, and is shown in every later one.

        Raises:
            ValueError: unless 0 <= rounds <= 10^7.
        """
        _check(rounds)
        if rounds == 0:
            return 0.0
        if self.algorithm == "gradient":
            return float(self.costs(rounds).max())
        s = self.schedules
        k = np.arange(rounds, dtype=np.float64)
        power, share = (1, 1.0) if self.noise == "laplace" else (2, 0.5)
        up = 1 + ROUNDING
        with np.errstate(over="ignore", under="ignore"):
            fresh = self.sensitivity * s.step_size.values(k) / self.sizes(k) * up
            shown = s.noise_scale.values(k + 1) ** -power * up
        kept = 1.0 - s.mixing.values(k) + self.lipschitz * s.step_size.values(k) + ROUNDING
        after = 0.0
        worst = 0.0
        for i in reversed(range(rounds)):  # what a unit in the state of k = i + 1 costs from there
            grown = max(float(kept[i + 1]), 0.0) ** power * after if i + 1 < rounds else 0.0
            after = (float(shown[i]) + grown) * up
            worst = max(worst, share * float(fresh[i]) ** power * after * up)
        return worst

    def rounds_within(self, budget: float, most: int = 10**6) -> int | None:
        """The most rounds whose cost is at most ``budget``; None where all are, for ever.

        Raises:
            ValueError: for a budget < 0, or where more than ``most`` rounds would have to be
                added up to know.
        """
        if not budget >= 0:
            raise ValueError(f"budget: expected a number >= 0, got {budget:g}")
        count = min(1024, most)
        while True:
            costs = np.cumsum(self.costs(count)) * (1 + count * 2.0**-52)
            if costs[-1] > budget:
                return int(np.searchsorted(costs, budget, side="right"))
            total = self.series(count).total
            if total <= budget:
                return None
            if count == most:
                break
            count = min(2 * count, most)
        raise ValueError(
            f"budget: {budget:g} holds for {most} rounds, which cost {costs[-1]:.6g}, and they are "
            f"the most that are added up here; all rounds cost at most {total:.6g}"
        )

    # -- all that follow ----------------------------------------------------------------------
    def _gradient_tail(self, rounds: int) -> float:
        s = self.schedules
        if isinstance(s.sample_size, Geometric) or isinstance(s.noise_scale, Geometric):
            ratio = _falls(s.sample_size, rounds) * _falls(s.noise_scale, rounds)
            first = self.sensitivity / (s.sample_size(rounds) * s.noise_scale(rounds))
            return self._geometric(first * (1 + WHOLE_SLACK), ratio)
        size, noise = map(power_of, (s.sample_size, s.noise_scale))
        if size is None or noise is None:
            return math.inf
        shared = min(size.offset, noise.offset)
        scales = _moved(size, shared, rounds, -1).scale * _moved(noise, shared, rounds, -1).scale
        scale = self.sensitivity / (scales * (1 - WHOLE_SLACK))
        return self._integral(scale, size.exponent + noise.exponent, rounds - 0.5 + shared)

    def _geometric(self, first: float, ratio: float) -> float:
        if not ratio < 1 - _LEAST_EXCESS:
            return math.inf
        if self.noise == "laplace":
            return first / (1 - ratio)
        return first * first / 2 / (1 - ratio * ratio)

    def _integral(self, scale: float, exponent: float, start: float) -> float:
        """The costs of all Delta / sigma <= scale x^-exponent over x = start + 1/2, + 3/2, ...

        The cost is convex in x, so each term is at most the integral over its unit interval.
        """
        power = exponent if self.noise == "laplace" else 2 * exponent
        cost = scale if self.noise == "laplace" else scale * scale / 2
        excess = power - 1 - power * 2.0**-50
        if excess <= _LEAST_EXCESS or start <= 0:
            return math.inf
        return cost * start**-excess / excess

    def _laws(self, rounds: int, side: int) -> tuple[Power, Power, Power, Power] | None:
        """Step, mixing, size and noise of round ``rounds`` on, in one offset.

        With side 1 for an upper bound of the costs, which wants small sizes and little noise.
        """
        s = self.schedules
        step, mixing, size, noise = map(
            power_of, (s.step_size, s.mixing, s.sample_size, s.noise_scale)
        )
        if step is None or mixing is None or size is None or noise is None:
            return None
        at = mixing.offset
        return (
            _moved(step, at, rounds, side),
            mixing,
            _moved(size, at, rounds, -side),
            _moved(noise, at, rounds, -side),
        )

    def _output_tail(self, rounds: int, last: float) -> float:
        r"""The least bound by Delta_k <= M x^-q, x = k + offset, over several q.

        With Delta_K <= M X^-q, X = K + offset, and for all x >= X
        M (b - Lip a x^(beta - alpha) - q x^(beta - 1)) >= c x^-(p - q), where
        p = alpha + gamma - beta and c = C a / a3, the recursion keeps Delta_k <= M x^-q, by
        (x + 1)^-q >= x^-q (1 - q / x). The left side grows and the right side falls in x.
        """
        laws = self._laws(rounds, 1)
        if laws is None:
            return math.inf
        step, mixing, size, noise = laws
        x = rounds + mixing.offset
        alpha = -step.exponent
        beta = -mixing.exponent
        p = alpha + size.exponent - beta
        c = self.sensitivity * step.scale / (size.scale * (1 - WHOLE_SLACK))
        grown = self.lipschitz * step.scale
        if grown > 0 and beta >= alpha:
            return math.inf
        drift = grown * x ** (beta - alpha)
        summable = 1.0 if self.noise == "laplace" else 0.5
        least = max(0.0, summable - noise.exponent)
        most_q = min(p, mixing.scale) if beta == 1 else p
        best = math.inf
        for q in np.linspace(least, most_q, 50).tolist():
            lost = drift + q * x ** (beta - 1)
            room = mixing.scale - lost - ROUNDING * (mixing.scale + lost)
            if not 0 < q <= p or beta > 1 or room <= 1e-9 * mixing.scale:
                continue
            most = max(last * x**q, c * x ** (q - p) / room) / noise.scale
            best = min(best, self._integral(most, q + noise.exponent, x + 0.5))
        return best

    def _tail_low(self, rounds: int, last: float) -> float:
        """What the releases behind the first ``rounds`` cost, from below; 0 where nothing is known.

        Sizes are at most their power + 1. Output: Delta_k >= m x^-p with p = alpha + gamma - beta,
        by (x + 1)^-p <= x^-p (1 - p / x + p (p + 1) / (2 x^2)) once x >= (p + 1) / 2.
        """
        laws = self._laws(rounds, -1)
        if laws is None or rounds < 1:
            return 0.0
        step, mixing, size, noise = laws
        x = rounds + mixing.offset
        rest = 1 - 1 / (size.scale * x**size.exponent)
        if size.exponent < 0 or rest <= 0:
            return 0.0
        if self.algorithm == "gradient":
            power = size.exponent
            scale = self.sensitivity * rest / size.scale
            start = x
        else:
            power = -step.exponent + size.exponent + mixing.exponent
            fresh = self.sensitivity * step.scale * rest / (size.scale * mixing.scale)
            scale = min(last * x**power, fresh)
            start = x + 1
            if power < 0 or x < (power + 1) / 2:
                return 0.0
        scale = scale * (1 - WHOLE_SLACK) / noise.scale
        power += noise.exponent
        if self.noise == "gaussian":
            scale = scale * scale / 2
            power = 2 * power
        if scale <= 0 or power <= 0:
            return 0.0
        return math.inf if power <= 1 else scale * start ** (1 - power) / (power - 1)


def _moved(law: Power, offset: float, rounds: int, side: int) -> Power:
    """A bound (side 1: from above) with another offset for all k >= ``rounds``.

    ((k + o) / (k + o'))^e goes to 1 monotonically, so it is extreme at k = rounds or at the end.
    """
    ratio = ((rounds + law.offset) / (rounds + offset)) ** law.exponent
    factor = max(1.0, ratio) if side > 0 else min(1.0, ratio)
    return Power(law.scale * factor * (1 + side * ROUNDING), offset, law.exponent)


def _falls(schedule: Schedule, rounds: int) -> float:
    """A bound of schedule(k) / schedule(k + 1), before any rounding up, for all k >= ``rounds``."""
    if isinstance(schedule, Geometric):
        return 1 / schedule.ratio
    power = power_of(schedule)
    if power is None:
        return math.inf
    x = rounds + power.offset
    return max(1.0, (x / (x + 1)) ** power.exponent)


def printed_epsilon(releases: series.Releases, rounds: int) -> float:
    """The paper's own formulas: eq. (4) for Algorithm 1, a sum from k = 1 for Algorithm 2.

    Both leave out what is released (the newest sample; the first gradient), so they are too low:
    no bound of anything.
    """
    whole = releases.model_copy(update={"lipschitz": 0.0, "noise": "laplace"})
    s = whole.schedules
    k = np.arange(rounds, dtype=np.float64)
    if whole.algorithm == "gradient":  # Theorem 5 as printed: k = 1..rounds
        return whole.spent(rounds + 1) - whole.sensitivity / (s.size(0) * s.noise_scale(0))
    fresh = whole.sensitivity * s.step_size.values(k) / s.sizes(k)
    left_out = math.fsum((fresh / s.noise_scale.values(k + 1))[1:])  # eq. (4): k > 1
    return whole.spent(rounds) - left_out


def printed_sum(releases: Releases, rounds: int) -> Sum:
    """`printed_epsilon`, with the tail of `Releases.series` less a rest."""
    whole = releases.model_copy(update={"lipschitz": 0.0, "noise": "laplace"})
    own = printed_epsilon(whole, rounds)
    is_gradient = whole.algorithm == "gradient"
    found = whole.series(rounds + is_gradient)
    rest = 0.0 if is_gradient else _left_out_behind(whole, rounds)
    low = found.partial_low - (found.partial - own)
    return Sum(rounds, own, low, found.tail - rest, found.tail_low - rest)


def _left_out_behind(releases: Releases, rounds: int) -> float:
    """About sum over k > rounds of C alpha_{k-1} / (gamma_{k-1} sigma_k)."""
    s = releases.schedules
    step, size, noise = map(power_of, (s.step_size, s.sample_size, s.noise_scale))
    if step is None or size is None or noise is None:
        return 0.0
    power = -step.exponent + size.exponent + noise.exponent
    scale = releases.sensitivity * step.scale / (size.scale * noise.scale)
    return scale * (rounds + step.offset) ** (1 - power) / (power - 1) if power > 1 else math.inf


def epsilon_of_rho(rho: float, delta: float) -> float:
    """Returns epsilon of adaptive Gaussian releases with sum Delta^2 / (2 sigma^2) = rho.

    They are mu-GDP with mu = sqrt(2 rho), infinitely many of them too.
    """
    return gaussian_epsilon(delta, mu=math.sqrt(2 * rho) * (1 + ROUNDING))


def main() -> int:
    """Print what K rounds and all rounds cost; 2 for bad arguments."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("config", type=Path, nargs="?", help="TOML file of schedules, C and noise")
    parser.add_argument("--example", type=int, choices=EXAMPLES, help="an example of the paper")
    parser.add_argument("--rounds", type=int, default=100_000, help="rounds K that are summed")
    parser.add_argument("--budget", type=float, help="epsilon: print the round that spends it")
    parser.add_argument("--delta", type=float, default=1e-5, help="delta of Gaussian noise")
    given = parser.parse_args()
    if (given.config is None) == (given.example is None):
        parser.error("config, --example: expected one of them")
    if not 0 < given.delta < 1:
        parser.error(f"--delta: expected a number between 0 and 1, got {given.delta:g}")
    constants = None
    try:
        if given.config is not None:
            table = tomllib.loads(given.config.read_text(encoding="utf-8"))
            if (problem := table.pop("problem", None)) is not None:
                constants = ProblemConstants(**problem)
            releases = Releases.model_validate(table)
        else:
            one = EXAMPLES[given.example]
            releases = Releases(algorithm=one.algorithm, schedules=one.schedules,
                                sensitivity=one.sensitivity)  # fmt: skip
        whole = releases.series(given.rounds)
    except (OSError, ValueError, TypeError, KeyError) as error:
        parser.error(" ".join(str(error).split()))
    for check in checks(releases.schedules, releases.algorithm, constants):
        fails = "".join(f"; not {one.text}" for one in check.failing)
        verdict = f"holds, margin {check.margin:.4g}" if check.holds else f"FAILS{fails}"
        print(f"{check.source} ({check.claim}): {verdict}")
    unit = "epsilon" if releases.noise == "laplace" else "rho"
    print(f"{unit} after {given.rounds} rounds {whole.partial:.6g}, after all {whole.total:.6g} "
          f"(tail at most {whole.tail:.3g})")  # fmt: skip
    if releases.noise == "gaussian":
        totals = (epsilon_of_rho(rho, given.delta) for rho in (whole.partial, whole.total))
        print("epsilon at delta {:g}: {:.6g}, {:.6g}".format(given.delta, *totals))
    else:
        print(f"the paper's formula, too low: {printed_sum(releases, given.rounds).total:.6g}")
    if given.budget is not None:
        within = releases.rounds_within(given.budget)
        told = "never spent" if within is None else f"{within} rounds fit"
        print(f"budget {given.budget:g}: {told}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
