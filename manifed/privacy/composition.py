"""The composition of a list of releases, sorted by how each can be bounded.

A `Composition` is the normal form of adaptively composed releases: one mu for all unsampled
Gaussian ones, and counts per (noise multiplier, sampling) for the rest. Building it is where
combinations without a valid bound are refused by name.

Gaussian releases alone have a closed form (`gaussian_delta`, `gaussian_epsilon`): one with noise
multiplier z is mu-GDP with mu = 1/z, and adaptive ones compose to the root of the sum of squares.
Balle and Wang (2018), "Improving the Gaussian mechanism for differential privacy"; Dong, Roth, Su
(2022), "Gaussian differential privacy". Both functions err on the private side, rounding included.

>>> round(gaussian_epsilon(1e-5, mu=1.0), 4)
4.3772
>>> round(gaussian_delta(1.0, mu=0.5), 6)
0.00683
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce

from manifed.privacy.events import PoissonSampled, Release, SampledWithoutReplacement
from manifed.privacy.loss import Loss, gaussian_loss, laplace_loss, special

_LEAST_RATE = 1e-9
"""Below this sampling probability a release counts as sampled with this one: still a bound."""


class NoValidBound(ValueError):
    """Error: no proved bound covers these releases; the text says which and what to do."""


def gaussian_delta(epsilon: float, *, mu: float) -> float:
    """Phi(-eps/mu + mu/2) - e^eps Phi(-eps/mu - mu/2), rounded up (Balle and Wang 2018, (6))."""
    if mu == 0 or epsilon == math.inf:
        return 0.0
    if mu == math.inf:
        return 1.0
    upper = float(special.log_ndtr(mu / 2 - epsilon / mu))
    lower = epsilon + float(special.log_ndtr(-mu / 2 - epsilon / mu))
    value = -math.expm1(min(lower - upper, 0.0))
    # 2^-49, a few roundings, is allowed to each logarithm of a normal tail
    rounding = 2.0**-49 * (1.0 + epsilon + abs(upper) + abs(lower - epsilon))
    return min(1.0, math.exp(upper) * (value + rounding))


def gaussian_epsilon(delta: float, *, mu: float) -> float:
    """Returns the least epsilon >= 0 whose `gaussian_delta` is at most delta, rounded up."""
    if mu == 0 or gaussian_delta(0.0, mu=mu) <= delta:
        return 0.0
    if mu == math.inf or delta == 0:
        return math.inf
    low = 0.0
    high = mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta))  # tail of the N(mu^2/2, mu^2) loss
    while gaussian_delta(high, mu=mu) > delta:
        high *= 1.0 + 2.0**-20
    for _ in range(200):
        middle = (low + high) / 2
        if not low < middle < high or high - low <= 1e-13 * high:
            break
        is_private = gaussian_delta(middle, mu=mu) <= delta
        low, high = (low, middle) if is_private else (middle, high)
    return high


@dataclass(frozen=True)
class Composition:
    """The releases about one unit under one relation, in a normal form that can be hashed."""

    mu: float = 0.0
    """mu of all unsampled Gaussians together; infinite when anything was released without noise."""
    poisson: tuple[tuple[float, float, int], ...] = ()
    """(noise multiplier, sampling probability, count)."""
    without_replacement: tuple[tuple[float, int, int, int], ...] = ()
    """(noise multiplier, sample size, population, count)."""
    laplace: tuple[tuple[float, int], ...] = ()
    """(noise multiplier, count)."""

    @property
    def pure_epsilon(self) -> float:
        """Epsilon at delta 0: finite where all noise is Laplace."""
        if self.mu > 0 or self.poisson or self.without_replacement:
            return math.inf
        return math.fsum(count / z for z, count in self.laplace) * (1 + 1e-12)

    @property
    def everybody(self) -> "Composition":
        """The composition with every unit in every sample, an upper bound with an exact price.

        Let the sample be seen: given it, either the unit is in it and the output is that of a
        Gaussian release with the same noise multiplier, or neighbours give the same output. For
        every epsilon the delta of the release is at most an average of the two, so each release is
        (1/z)-GDP whatever was sampled, and GDP composes adaptively (Dong, Roth, Su 2022).
        """
        sampled = (*self.poisson, *self.without_replacement)
        mu = math.sqrt(math.fsum([self.mu**2, *(n * (1 / z) * (1 / z) for z, *_, n in sampled)]))
        return replace(self, mu=mu, poisson=(), without_replacement=())

    @property
    def _on_a_grid(self) -> tuple[tuple[float, float, int], ...]:
        """The sampled releases, rates raised where float64 could not tell them from 0: safe."""
        return tuple((z, max(q, _LEAST_RATE * z), n) for z, q, n in self.poisson)

    @property
    def rounded(self) -> list[tuple[float, float, int]]:
        """Lists about (variance, largest finite value, count) of each loss that a grid rounds.

        The unsampled Gaussians are rounded together, and no release of theirs alone.
        """
        found = [(self.mu**2, 0.0, 1)] if self.mu > 0 else []
        for z, q, n in self._on_a_grid:
            variance = min(q**2 * math.expm1(min(1 / z**2, 700.0)), 1 / z**2)
            reach = min((9.4 * z + 0.5) / z**2, 600.0)
            found.append((variance, math.log1p(q * math.expm1(reach)), n))
        return found + [(min(1 / z**2, 3.0), 1 / z, n) for z, n in self.laplace]

    def length(self, interval: float) -> int:
        """Returns the largest number of grid points that the composed loss of one release takes."""
        return max((loss.composed_length(n) for loss, n in self._losses(interval)), default=0)

    def loss(self, interval: float) -> Loss:
        """Returns the privacy loss distribution of all releases on a grid; needs a finite mu."""
        parts = [loss.composed(n) for loss, n in self._losses(interval)]
        if self.mu > 0:
            parts.append(gaussian_loss(1 / self.mu, 1.0, interval))
        return reduce(Loss.convolved, parts)

    def _losses(self, interval: float) -> list[tuple[Loss, int]]:
        """Each loss that a grid rounds, and its count."""
        sampled = [(gaussian_loss(z, q, interval), n) for z, q, n in self._on_a_grid]
        return sampled + [(laplace_loss(z, interval), n) for z, n in self.laplace]


def grid_interval(parts: Iterable[tuple[Composition, float]]) -> tuple[float, bool]:
    """Returns the grid for compositions made ``times`` over, and whether it is fine enough.

    Connecting the dots inflates the variance of every rounded loss by about interval^2 / 6, so the
    interval is a fixed share of the root mean variance of a rounded loss. It is a power of two
    (grids nest, so a finer one is never worse) and bounded below by memory.
    """
    parts = list(parts)
    rounded = [(*one, times) for part, times in parts for one in part.rounded]
    variance = math.fsum(times * n * each for each, _, n, times in rounded)
    finest = math.sqrt(variance / math.fsum(times * n for *_, n, times in rounded))
    finest = min(0.01, finest / 50)
    least = max(largest for _, largest, *_ in rounded) / (1 << 21)  # cells
    wanted = 2.0 ** math.floor(math.log2(finest))
    interval = max(wanted, 2.0 ** math.ceil(math.log2(max(least, 1e-300))))
    while any(part.length(interval) > 1 << 22 for part, _ in parts):
        interval *= 4
    return interval, interval <= wanted


def compose(releases: Iterable[Release]) -> Composition:
    """Makes the normal form of the releases; those with count 0 are left out.

    Raises:
        NoValidBound: for mixed units or relations, and for a sampling scheme whose amplification
            is not proved under its relation.
    """
    present = [release for release in releases if release.count > 0]
    for name, found in (
        ("privacy unit", {release.unit for release in present}),
        ("neighbouring relation", {release.neighboring_relation for release in present}),
    ):
        if len(found) > 1:
            raise NoValidBound(
                f"One bound covers one {name}, got {sorted(found)}; price the releases of each "
                "alone, or state all noise multipliers under the same one"
            )
    unsampled = list[tuple[float, int]]()
    poisson = Counter[tuple[float, float]]()
    subsets = Counter[tuple[float, int, int]]()
    laplace = Counter[float]()
    for release in present:
        z = release.noise_multiplier
        count = release.count
        # at and below 1e-3 (epsilon > 10^5) sampling is not worth a bound of its own
        sampling = release.sampling if z > 1e-3 else None
        if release.kind == "laplace":
            if z < 2e-3:  # epsilon > 500 on its own: counts as no noise
                unsampled.append((0.0, count))
            else:
                laplace[min(z, 1e9)] += count  # less noise: still a bound
        elif (
            isinstance(sampling, PoissonSampled)
            and _LEAST_RATE * z < 1
            and (rate := max(sampling.sampling_probability, _LEAST_RATE)) < 1
        ):
            poisson[z, rate] += count
        elif (
            isinstance(sampling, SampledWithoutReplacement)
            and sampling.sample_size < sampling.population
        ):
            subsets[z, sampling.sample_size, sampling.population] += count
        else:
            unsampled.append((z, count))
    for found, proved, sampled, others in (  # under which relation an amplification is proved
        (poisson, "add-or-remove", "Poisson sampling", "'without-replacement'"),
        (subsets, "replace-one", "Sampling without replacement", "'poisson'"),
    ):
        if found and (said := present[0].neighboring_relation) != proved:
            raise NoValidBound(
                f"{sampled} is priced under {proved}, got {said!r}; use neighboring_relation "
                f"{proved!r}, or sampling 'unsampled' or {others}"
            )
    mu = math.sqrt(math.fsum(count * (1 / z) * (1 / z) for z, count in unsampled if z > 0))
    return Composition(
        math.inf if any(z == 0 for z, _ in unsampled) else mu,
        tuple(sorted((*key, count) for key, count in poisson.items())),
        tuple(sorted((*key, count) for key, count in subsets.items())),
        tuple(sorted(laplace.items())),
    )
