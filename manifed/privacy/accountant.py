"""Prices releases: the (epsilon, delta) curve of whatever the events say was released.

========================= ===================== ================================================
sampling of the releases  neighbouring relation bound
========================= ===================== ================================================
unsampled Gaussian        either                exact: Gaussian differential privacy
Laplace (and unsampled)   either                privacy loss distribution, rounded up; Rényi
                                                where more than 32 scales differ; pure
                                                epsilon where it is all
Poisson (and these)       add-or-remove         privacy loss distribution, rounded up; coins
                                                revealed where all rates are below 1e-6
without replacement       replace-one           Rényi (Wang, Balle, Kasiviswanathan 2019),
(and these unsampled)                           at most the price of taking everybody
anything else             --                    refused: `NoValidBound`
========================= ===================== ================================================

>>> from manifed.privacy.events import GaussianRelease, PoissonSampled, Unsampled
>>> step = GaussianRelease(
...     unit="example", neighboring_relation="add-or-remove", noise_multiplier=1.0,
...     sampling=PoissonSampled(sampling_probability=0.01), count=1000)
>>> round(epsilon([step], 1e-5), 3)
1.828
>>> round(epsilon([step.model_copy(update={"sampling": Unsampled()})], 1e-5), 1)
633.9

Guarantees: both functions return upper bounds, are monotone in the releases, take noise
multiplier 0 for an infinite epsilon, and nothing released for 0.
"""

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

from manifed.privacy import gaussian, rare, renyi
from manifed.privacy.composition import Composition, NoValidBound, compose, grid_interval
from manifed.privacy.events import Event, LaplaceRelease, PoissonSampled, SampledWithoutReplacement
from manifed.privacy.loss_distribution import Loss

__all__ = ["NoValidBound", "delta", "epsilon", "epsilon_of", "to_dp_event"]


def epsilon(releases: Iterable[Event], delta: float) -> float:
    """The least epsilon known to hold at ``delta`` for all releases together.

    Raises:
        NoValidBound: when no theorem covers the combination.
        ValueError: unless 0 <= delta <= 1.
    """
    if not 0 <= delta <= 1:
        raise ValueError(f"Expected 0 <= delta <= 1, got {delta}")
    return epsilon_of(compose(releases), delta)


def delta(releases: Iterable[Event], epsilon: float) -> float:
    """The least delta known to hold at ``epsilon``; errors as `epsilon`."""
    if not epsilon >= 0:
        raise ValueError(f"Expected epsilon >= 0, got {epsilon}")
    return _delta(compose(releases), epsilon)


def to_dp_event(releases: Iterable[Event]) -> Any:
    """The releases as a ``dp_accounting.DpEvent``, for its accountants and ledgers."""
    import dp_accounting

    events: list[Any] = []
    for release in releases:
        event: Any = dp_accounting.GaussianDpEvent(release.noise_multiplier)
        if isinstance(release, LaplaceRelease):
            event = dp_accounting.LaplaceDpEvent(release.noise_multiplier)
        sampling = release.sampling
        if isinstance(sampling, PoissonSampled):
            event = dp_accounting.PoissonSampledDpEvent(sampling.sampling_probability, event)
        elif isinstance(sampling, SampledWithoutReplacement):
            event = dp_accounting.SampledWithoutReplacementDpEvent(
                sampling.population, sampling.sample_size, event
            )
        events.append(dp_accounting.SelfComposedDpEvent(event, release.count))
    return dp_accounting.ComposedDpEvent(events)


@lru_cache(maxsize=1 << 14)
def epsilon_of(total: Composition, delta: float) -> float:
    """`epsilon` of releases already composed."""
    if total.is_gaussian:
        return gaussian.epsilon(delta, mu=total.mu)
    if delta == 1:
        return 0.0
    if total.mu == math.inf or delta == 0:
        return total.pure_epsilon
    if total.without_replacement:
        most = epsilon_of(total.everybody, delta)
        return min(renyi.epsilon(renyi.curve(total), delta), most)
    return min(_rounded_epsilon(total, delta), total.pure_epsilon)


_MOST_LAPLACE: Final = 32
"""Different Laplace releases that are put on a grid; more are priced by their Rényi divergences."""


def _rounded_epsilon(total: Composition, delta: float) -> float:
    if len(total.laplace) > _MOST_LAPLACE:
        return renyi.epsilon(renyi.curve(total), delta)
    if rare.is_rare(total.poisson):
        if total.laplace:  # no closed form, and a grid for such rates would be too long
            return renyi.epsilon(renyi.curve(total), delta)
        return rare.epsilon(total.poisson, total.mu, delta)
    loss, is_fine = _loss(total)
    found = loss.epsilon(delta)
    if math.isfinite(found) and is_fine:
        return found
    return min(found, renyi.epsilon(renyi.curve(total), delta))


@lru_cache(maxsize=1 << 14)
def _delta(total: Composition, epsilon: float) -> float:
    if total.is_gaussian:
        return gaussian.delta(epsilon, mu=total.mu)
    if total.mu == math.inf:
        return 1.0
    if epsilon >= total.pure_epsilon:
        return 0.0
    if total.without_replacement:
        most = _delta(total.everybody, epsilon)
        return min(renyi.delta(renyi.curve(total), epsilon), most)
    return _rounded_delta(total, epsilon)


def _rounded_delta(total: Composition, epsilon: float) -> float:
    if len(total.laplace) > _MOST_LAPLACE:
        return renyi.delta(renyi.curve(total), epsilon)
    if rare.is_rare(total.poisson):
        if total.laplace:
            return renyi.delta(renyi.curve(total), epsilon)
        return rare.delta(total.poisson, total.mu, epsilon)
    loss, is_fine = _loss(total)
    found = loss.delta(epsilon)
    return found if is_fine else min(found, renyi.delta(renyi.curve(total), epsilon))


@lru_cache(maxsize=8)
def _loss(total: Composition) -> tuple[Loss, bool]:
    interval, is_fine = grid_interval([(total, 1.0)])
    return total.loss(interval), is_fine
