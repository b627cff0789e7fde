"""Bounds on epsilon and delta for a list of releases, and the least noise for a target.

========================= ===================== ================================================
sampling of the releases  neighbouring relation bound
========================= ===================== ================================================
unsampled Gaussian        either                exact: Gaussian differential privacy
Laplace (and unsampled)   either                privacy loss distribution, rounded up; Rényi
                                                where more than 32 scales differ; pure
                                                epsilon where it is all
Poisson (and these)       add-or-remove         privacy loss distribution, rounded up; where all
                                                rates are below 1e-6 Rényi, at most the price
                                                of taking everybody
without replacement       replace-one           Rényi (Wang, Balle, Kasiviswanathan 2019),
(and these unsampled)                           at most the price of taking everybody
anything else             --                    refused: `NoValidBound`
========================= ===================== ================================================

>>> from manifed.privacy.events import PoissonSampled, Release, Unsampled
>>> step = Release(
...     unit="example", neighboring_relation="add-or-remove", noise_multiplier=1.0,
...     sampling=PoissonSampled(sampling_probability=0.01), count=1000)
>>> round(epsilon([step], 1e-5), 3)
1.828
>>> round(epsilon([step.model_copy(update={"sampling": Unsampled()})], 1e-5), 1)
633.9

A client takes part in a round by a coin that does not depend on the data, with probability rho.
What that does and does not buy:

* *external* (record level; broadcast models seen, cohorts not): in the worst case the output
  betrays the coin, so the loss of a round is ``(1 - rho) delta_0 + rho * loss of an update`` and T
  rounds are its T-fold convolution. Amplification by rho in epsilon (Lemma 4.1 of PriRFed) does
  *not* hold: neighbouring datasets make neighbouring clients only inside one client.
* *server* (cohorts and uploads seen): the releases of the rounds a client really served; before
  the run, of all rounds or of a quantile of the binomial count, its tail paid in delta.
* *client level* (whole clients are the unit): the two cohorts are neighbours, and Poisson or
  fixed-size amplification holds. There the sampling stands in the release itself.

The least noise that meets a target is found by a bisection that ends on the private side:

>>> def cost(multiplier):
...     step = Release(unit="example", neighboring_relation="add-or-remove",
...                    noise_multiplier=multiplier, count=100)
...     return epsilon([step], 1e-5)
>>> round(least_multiplier(cost, 1.0), 2)
37.36

Guarantees: a price is an upper bound and monotone in the releases; noise multiplier 0 costs an
infinite epsilon, and nothing released costs 0. The price at a calibrated multiplier is at most the
target, and at least 99.8 % of it unless the price jumps there. Only `Claim` is no bound: it is what
PriRFed's Theorem 4.2 prints (Huang, Huang, Jawanpuria, Mishra, "Federated learning on Riemannian
manifolds with differential privacy"), for reproduction. Its symbols: (epsilon, delta)
local_epsilon, local_delta; N num_clients; s cohort_size; T num_rounds; delta-hat slack_delta;
rho = s / N. **Unsound at record level**: it takes amplification by *client* sampling for a
guarantee about *one record*. Lemma 4.1 needs the outputs of two whole clients to be close, which
record-level privacy does not give (tests/privacy/test_participation.py has a counter-example).
Parallel composition over a cohort repairs only its sequential one, so it is unsound too.

>>> claim = Claim(0.15, 1e-4, num_clients=100, cohort_size=1, slack_delta=1e-3)
>>> published, delta = claim.after(50)
>>> print(f"{published:.2e} {delta:.2e}")
4.26e-02 1.05e-03
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache, reduce

import numpy as np

from manifed.privacy import renyi
from manifed.privacy.composition import Composition, compose, gaussian_epsilon, grid_interval
from manifed.privacy.events import Release, Releases, repeated
from manifed.privacy.loss import Array, Loss, special

Coins = tuple[tuple[Releases, float, int], ...]
"""(What an update releases, the probability that it is made and counts, how often)."""
_Counts = Counter[tuple[Composition, float]]
"""How often an update was made, by what it releases and its probability; 1 at most once."""
_WASTE = 0.002
_LARGEST = 2.0**40


def epsilon(releases: Iterable[Release], delta: float) -> float:
    """Returns the least epsilon known to hold at ``delta`` for all releases together.

    Raises:
        NoValidBound: when no theorem covers the combination.
        ValueError: unless 0 <= delta <= 1.
    """
    if not 0 <= delta <= 1:
        raise ValueError(f"Expected 0 <= delta <= 1, got {delta}")
    return _price(compose(releases), delta)


@lru_cache(maxsize=1 << 14)
def _price(total: Composition, delta: float) -> float:
    if not (total.poisson or total.without_replacement or total.laplace):
        return gaussian_epsilon(delta, mu=total.mu)
    if delta in (0, 1):
        return 0.0 if delta == 1 else total.pure_epsilon
    if total.mu == math.inf:
        return math.inf
    once = _Counts({(total, 1.0): 1})
    # where all rates are so small a grid would be too fine
    is_rare = max((q for _, q, _ in total.poisson), default=1.0) < 1e-6
    if total.without_replacement or is_rare:
        return min(_by_renyi(once, delta), _price(total.everybody, delta))
    by = _by_renyi if len(total.laplace) > 32 else _by_loss  # so many scales fit on a grid
    return min(by(once, delta), total.pure_epsilon)


@lru_cache(maxsize=1 << 12)
def external_epsilon(updates: Coins, delta: float) -> float:
    """Bounds epsilon of updates that happen by coins, whether or not the coins are seen.

    Of updates with probability 1 it is the plain price.

    Raises:
        NoValidBound: when no theorem covers the combination.
    """
    certain = list[Release]()
    counts = _Counts()
    for update, probability, times in updates:
        if probability == 1:
            certain.extend(repeated(update, times))
        elif times > 0 and (composed := compose(update)) != Composition():
            counts[composed, probability] += times
    if not counts:
        return epsilon(certain, delta)
    if delta == 1:
        return 0.0
    if (sure := compose(certain)) != Composition():
        counts[sure, 1.0] = 1
    return _mixed(counts, delta)


def _mixed(counts: _Counts, delta: float) -> float:
    if delta == 0 or any(update.mu == math.inf for update, _ in counts):
        return math.inf
    if not any(update.without_replacement for update, _ in counts):
        return _by_loss(counts, delta)
    everybody = _Counts()
    for (update, probability), count in counts.items():
        everybody[update.everybody, probability] += count
    found = _by_renyi(counts, delta)
    # one that would alone cost more than 200 makes the grid large and the bound useless
    is_useless = max(update.mu for update, _ in everybody) ** 2 / 2 > 200
    return found if is_useless else min(found, _mixed(everybody, delta))


def _by_loss(counts: _Counts, delta: float) -> float:
    interval, is_fine = grid_interval((update, n * p) for (update, p), n in counts.items())
    parts = [_mixture(update, p, interval).composed(n) for (update, p), n in counts.items()]
    found = reduce(Loss.convolved, parts).epsilon(delta)
    return found if math.isfinite(found) and is_fine else min(found, _by_renyi(counts, delta))


def _by_renyi(counts: _Counts, delta: float) -> float:
    curves = [n * renyi.mixed(renyi.curve(update), p) for (update, p), n in counts.items()]
    return renyi.epsilon(np.sum(curves, axis=0), delta)


@lru_cache(maxsize=16)
def _mixture(update: Composition, probability: float, interval: float) -> Loss:
    return update.loss(interval).mixed(probability)


def a_priori_epsilon(
    price: Callable[[int, float], float],
    *,
    participation_probability: float,
    num_rounds: int,
    delta: float,
) -> float:
    """Returns epsilon at ``delta`` against the server, before the cohorts are drawn.

    The least over k of price(k participations, delta - P[Binomial(T, rho) > k]); k = T is the
    worst case. Other k worth trying are quantiles, at which the tail takes 1/2, 1/4, ... of delta.
    """
    best = price(num_rounds, delta)
    if participation_probability >= 1 or delta <= 0:
        return best
    counts = np.arange(num_rounds, dtype=np.float64)
    upper: Array = special.bdtrc(counts, num_rounds, participation_probability) * (1 + 1e-12)
    tails = np.minimum(upper, 1.0)
    shares = [share for share in delta * 0.5 ** np.arange(1, 12) if (tails <= share).any()]
    for k in sorted({int(np.argmax(tails <= share)) for share in shares}):
        if (left := delta - float(tails[k])) > 0:
            best = min(best, price(k, left))
    return best


def least_multiplier(cost: Callable[[float], float], target: float) -> float:
    """Searches the least noise multiplier, from above, whose ``cost`` is at most ``target``.

    ``cost`` must fall with the multiplier. 0 when even no noise costs no more than the target
    (there are no releases). Secant steps on (log multiplier, log epsilon), halved when an end
    stays.

    Raises:
        ValueError: for a target that is no target, or that no noise up to 2^40 meets.
        NoValidBound: as `epsilon`.
    """
    if not 0 < target < math.inf:
        raise ValueError(f"Expected 0 < target_epsilon < inf, got {target}")
    if cost(0.0) <= target:
        return 0.0
    low = high = 1.0
    above = below = cost(1.0)  # at low, and at high
    while below > target:
        if high >= _LARGEST:
            raise ValueError(
                f"No noise multiplier up to {_LARGEST:g} brings epsilon from {below:g} to "
                f"target_epsilon = {target:g}; raise a target"
            )
        low = high
        above = below
        high = 2 * high
        below = cost(high)
    while above <= target and low > 1 / _LARGEST:
        high = low
        below = above
        low = low / 2
        above = cost(low)
    for step in range(100):
        if below >= (1 - _WASTE) * target or high - low <= 1e-12 * high:
            break
        share = 0.5
        if step % 3 != 2 and math.isfinite(above) and below > 0:
            share = math.log(above / (target * (1 - _WASTE / 2))) / math.log(above / below)
            share = min(max(share, 0.01), 0.99)
        middle = low * (high / low) ** share
        found = cost(middle)
        if found <= target:
            high = middle
            below = found
        else:
            low = middle
            above = found
    return high


# -- what PriRFed prints --------------------------------------------------------------------
@dataclass(frozen=True)
class Claim:
    """PriRFed's Theorem 4.2 for a run, to be printed with its label beside what holds."""

    local_epsilon: float
    local_delta: float
    num_clients: int
    cohort_size: int
    slack_delta: float

    def after(self, num_rounds: int) -> tuple[float, float]:
        """Returns (epsilon', delta') of Theorem 4.2 after some rounds; unsound at record level."""
        rho = self.cohort_size / self.num_clients
        once = math.log1p(rho * _expm1(self.cohort_size * self.local_epsilon))
        basic = num_rounds * once
        root = math.sqrt(2 * num_rounds * math.log(1 / self.slack_delta))
        advanced = root * once + basic * _expm1(once)
        once_delta = rho * self.cohort_size * self.local_delta
        return min(basic, advanced), self.slack_delta + num_rounds * once_delta


def _expm1(x: float) -> float:
    """e^x - 1, infinite instead of an overflow."""
    return math.expm1(x) if x < 700 else math.inf
