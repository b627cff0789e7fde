"""What client sampling does and does not buy: the prices of spec/000 §11.

A client takes part in a round by a coin that does not depend on the data, with probability rho.

* *external* (record level; broadcast models seen, cohorts not): in the worst case the output
  betrays the coin, so the loss of a round is ``(1 - rho) delta_0 + rho * loss of an update`` and T
  rounds are its T-fold convolution. Amplification by rho in epsilon (Lemma 4.1 of PriRFed) does
  *not* hold: neighbouring datasets make neighbouring clients only inside one client.
* *server* (cohorts and uploads seen): the releases of the rounds a client really served; before
  the run, of all rounds or of a quantile of the binomial count, its tail paid in delta.
* *client level* (whole clients are the unit): the two cohorts are neighbours, and Poisson or
  fixed-size amplification holds. There the sampling stands in the release itself, and
  ``privacy.accountant`` is the price.

Guarantee: every number is an upper bound.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import numpy as np
from scipy import special

from manifed.privacy import accountant
from manifed.privacy.composition import Composition, compose
from manifed.privacy.events import Release, Releases, repeated
from manifed.privacy.loss import Array

_special: Any = special


def external_epsilon(rounds: Iterable[tuple[Releases, float, int]], delta: float) -> float:
    """Epsilon at ``delta`` against who sees the models of all rounds, not the cohorts.

    ``rounds``: (what an update releases, the probability of taking part, how often).

    Raises:
        NoValidBound: as `accountant.epsilon`.
    """
    return _external_epsilon(tuple(rounds), delta)


@lru_cache(maxsize=1 << 12)
def _external_epsilon(rounds: tuple[tuple[Releases, float, int], ...], delta: float) -> float:
    certain: list[Release] = []
    counts = Counter[tuple[Composition, float]]()
    for update, probability, times in rounds:
        if probability == 1:
            certain.extend(repeated(update, times))
        else:
            counts[compose(update), probability] += times
    counts = Counter({key: n for key, n in counts.items() if n > 0 and key[0] != Composition()})
    if not counts:
        return accountant.epsilon(certain, delta)
    if delta == 1:
        return 0.0
    if (sure := compose(certain)) != Composition():
        counts[sure, 1.0] = 1
    return accountant.mixed_epsilon(counts, delta)


def a_priori_epsilon(
    price: Callable[[int, float], float],
    *,
    participation_probability: float,
    num_rounds: int,
    delta: float,
) -> float:
    """Epsilon at ``delta`` against the server, before the cohorts are drawn.

    The least over k of price(k participations, delta - P[Binomial(T, rho) > k]); k = T is the
    worst case.
    """
    best = price(num_rounds, delta)
    for k in _quantiles(num_rounds, participation_probability, delta):
        left = delta - float(_binomial_tail(np.asarray(k), num_rounds, participation_probability))
        if left > 0:
            best = min(best, price(k, left))
    return best


def _binomial_tail(count: Array, trials: int, probability: float) -> Array:
    """P[Binomial(trials, probability) > count], elementwise, rounded up."""
    return np.minimum(_special.bdtrc(count, trials, probability) * (1 + 1e-12), 1.0)


def _quantiles(num_rounds: int, probability: float, delta: float) -> list[int]:
    """Counts worth trying: the quantiles at which the tail takes 1/2, 1/4, ... of delta."""
    if probability >= 1 or delta <= 0:
        return []
    tails = _binomial_tail(np.arange(num_rounds, dtype=np.float64), num_rounds, probability)
    shares = [share for share in delta * 0.5 ** np.arange(1, 12) if (tails <= share).any()]
    return sorted({int(np.argmax(tails <= share)) for share in shares})
