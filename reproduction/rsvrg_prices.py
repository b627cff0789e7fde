r"""What DP-RSVRG's releases cost: the moments accountant of its experiments, and tight rivals.

Utpala, Han, Jawanpuria, Mishra (TMLR 2023), section 6.2. The paper prices with autodp, at the best
split of a step's variance between the two mechanisms; `moments_epsilon` is the same bound on a
dense grid of orders. For reproduction: runs are priced by ``privacy.epsilon_bounds``.

>>> from reproduction.published_rsvrg import Schedule
>>> paper = Schedule(num_examples=10**5, inner_steps=10**4, epochs=50, l2_norm_clip=0.1,
...                  correction_l2_norm_clip=0.01)
>>> round(moments_epsilon(paper.releases(0.05, share=0.5), 1e-6), 4)    # Figure 2, "standard"
0.6425
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from manifed.privacy.composition import gaussian_epsilon
from manifed.privacy.epsilon_bounds import least_multiplier
from manifed.privacy.events import PoissonSampled, Release, SampledWithoutReplacement
from manifed.privacy.loss import Array
from manifed.privacy.renyi import subset_divergences
from reproduction.published_rsvrg import Counting, Schedule

Price = Callable[[Sequence[Release], float], float]


def moments_epsilon(releases: Sequence[Release], delta: float) -> float:
    """The moments accountant: Wang et al.'s bound at a dense grid of orders up to 2048.

    Replace-one; conversion of Canonne, Kamath, Steinke (2020), Proposition 12.

    Raises:
        ValueError: for Poisson sampling, which this bound is not about.
    """
    if any(release.noise_multiplier == 0 and release.count > 0 for release in releases):
        return math.inf
    orders = _orders()
    total = np.zeros(len(orders))
    for release in releases:
        z = release.noise_multiplier
        sampling = release.sampling
        if isinstance(sampling, PoissonSampled):
            raise ValueError("Expected subsets or no sampling, got Poisson; use epsilon_bounds")
        if isinstance(sampling, SampledWithoutReplacement):
            each = _subset(z, sampling.sample_size, sampling.population)
        else:
            each = orders / (2 * z**2)
        total = total + release.count * each
    spent = np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
    return max(0.0, float((total + spent).min()))


def tight_epsilon(
    releases: Sequence[Release], delta: float, *, is_optimistic: bool = False
) -> float:
    """An estimate: the loss distribution of Poisson sampling, with replace-one's multipliers.

    Zhu, Dong, Wang (2022) show that its pair dominates one subset release in each direction; that
    the worse direction of the whole composition bounds replace-one is customary, not proved.
    dp-accounting's; ``is_optimistic`` rounds losses down, so that with one release it is what some
    pair of data sets really loses.
    """
    from dp_accounting.pld import privacy_loss_distribution as distribution

    rates = [_rate(r) / r.noise_multiplier for r in releases if _rate(r) < 1]
    interval = min(max(0.2 * min(rates, default=1.0), 1e-5), 1e-3)
    total = None
    for release in releases:
        z = release.noise_multiplier
        count = release.count
        rate = _rate(release)
        if rate == 1:
            z = z / math.sqrt(count)
            count = 1
        loss = distribution.from_gaussian_mechanism(
            z,
            sampling_prob=rate,
            value_discretization_interval=interval,
            pessimistic_estimate=not is_optimistic,
            use_connect_dots=not is_optimistic,
        ).self_compose(count)
        total = loss if total is None else total.compose(loss)
    return float(total.get_epsilon_for_delta(delta))


def certain_epsilon(schedule: Schedule, stddev: float, delta: float) -> float:
    """What m S full-gradient queries with *all* of the noise cost: no split can cost less.

    Attained by two data sets whose corrections agree.
    """
    z = stddev * schedule.num_examples / (2 * schedule.l2_norm_clip)
    return gaussian_epsilon(delta, mu=math.sqrt(schedule.steps) / z)


def least_epsilon(
    schedule: Schedule,
    stddev: float,
    delta: float,
    *,
    counting: Counting = "every-step",
    price: Price = moments_epsilon,
) -> tuple[float, float]:
    """(epsilon, alpha) at the best split of section 6.2 (Figure 2), to four digits of epsilon."""

    def cost(share: float) -> float:
        return price(schedule.releases(stddev, share=share, counting=counting), delta)

    coarse = [0.005, 0.02, 0.05, *np.linspace(0.1, 0.9, 9).tolist(), 0.95, 0.98, 0.995]
    best = int(np.argmin([cost(share) for share in coarse]))
    ends = coarse[max(best - 1, 0)], coarse[min(best + 1, len(coarse) - 1)]
    fine = np.linspace(*ends, 21).tolist()  # a search would stop at the kinks between two orders
    return min((cost(share), share) for share in fine)


def calibrated_stddev(
    schedule: Schedule, epsilon: float, delta: float, *, counting: Counting = "every-step"
) -> tuple[float, float]:
    """(sigma, alpha) at which `moments_epsilon` with the best split is ``epsilon``, to 0.5 %."""
    stddev = 1.0
    share = 0.5
    for _ in range(4):
        stddev = _stddev_at(schedule, share, epsilon, delta, counting)
        found, better = least_epsilon(schedule, stddev, delta, counting=counting)
        if found > 0.995 * epsilon:
            break
        share = better
    return stddev, share


def _stddev_at(
    schedule: Schedule, share: float, epsilon: float, delta: float, counting: Counting
) -> float:
    def cost(stddev: float) -> float:
        return moments_epsilon(schedule.releases(stddev, share=share, counting=counting), delta)

    return least_multiplier(cost, epsilon)


def _rate(release: Release) -> float:
    sampling = release.sampling
    if isinstance(sampling, SampledWithoutReplacement):
        return sampling.sample_size / sampling.population
    return sampling.sampling_probability if isinstance(sampling, PoissonSampled) else 1.0


@lru_cache(maxsize=1)
def _orders() -> Array:
    fine = np.concatenate([np.arange(1.2, 64.0, 0.2), np.arange(64.0, 128.0)])
    coarse = np.round(np.geomspace(128, 2048, 64))
    return np.unique(np.concatenate([fine, coarse]))


@lru_cache(maxsize=4096)
def _subset(z: float, sample_size: int, population: int) -> Array:
    return subset_divergences(z, sample_size, population, _orders())
