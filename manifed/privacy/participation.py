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

>>> update = Guarantee(epsilon=0.15, delta=1e-4)
>>> round(external_epsilon(update, participation_probability=0.01, num_rounds=50, delta=1.05e-3), 4)
0.2705
>>> round(external_epsilon(update, participation_probability=0.01, num_rounds=500, delta=1.5e-3), 4)
0.8777

Guarantee: every number is an upper bound.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

import numpy as np
from pydantic import Field

from manifed.privacy import accountant, renyi
from manifed.privacy.composition import Composition, compose, grid_interval
from manifed.privacy.events import Event, Frozen, repeated
from manifed.privacy.loss_distribution import Loss
from manifed.privacy.loss_grid import guarantee_loss
from manifed.privacy.normal_law import binomial_tail

_USELESS: Final = 200.0


class Guarantee(Frozen):
    """A local training call known only to be (epsilon, delta)-private."""

    epsilon: float = Field(gt=0)
    delta: float = Field(ge=0, lt=1)


Update = Guarantee | Iterable[Event]
"""What one participation releases."""


def external_epsilon(
    update: Update, *, participation_probability: float, num_rounds: int, delta: float
) -> float:
    """Epsilon at ``delta`` against who sees the models of ``num_rounds`` rounds, not the cohorts.

    Raises:
        NoValidBound: as `accountant.epsilon`.
        ValueError: for a probability outside (0, 1], or a negative number of rounds.
    """
    _check(participation_probability, num_rounds, delta)
    if isinstance(update, Guarantee):
        return _guaranteed(update, participation_probability, num_rounds, delta)
    return _external({(compose(update), participation_probability): num_rounds}, delta)


def external_epsilon_of_rounds(
    rounds: Iterable[tuple[Iterable[Event], float]], delta: float
) -> float:
    """The same for rounds that differ: (releases of an update, its probability) for every round."""
    counted = Counter((tuple(update), probability) for update, probability in rounds)
    return external_epsilon_of_counts(counted, delta)


def external_epsilon_of_counts(
    rounds: Mapping[tuple[tuple[Event, ...], float], int], delta: float
) -> float:
    """The same from how often each (releases of an update, its probability) occurred."""
    certain: list[Event] = []
    counts = Counter[tuple[Composition, float]]()
    for (update, probability), times in rounds.items():
        _check(probability, times, delta)
        if probability == 1:
            certain.extend(repeated(update, times))
        else:
            counts[compose(update), probability] += times
    counts[compose(certain), 1.0] += 1
    return _external(counts, delta)


def server_epsilon(update: Update, *, participations: int, delta: float) -> float:
    """Epsilon at ``delta`` against the server, of a client that served so many rounds."""
    _check(1.0, participations, delta)
    if isinstance(update, Guarantee):
        return _guaranteed(update, 1.0, participations, delta)
    return accountant.epsilon(repeated(update, participations), delta)


def server_epsilon_a_priori(
    update: Update, *, participation_probability: float, num_rounds: int, delta: float
) -> float:
    """Epsilon at ``delta`` against the server, before the cohorts are drawn.

    The least over k of epsilon(k participations, delta - P[Binomial(T, rho) > k]); k = T is the
    worst case.
    """
    _check(participation_probability, num_rounds, delta)
    releases = update if isinstance(update, Guarantee) else tuple(update)
    best = server_epsilon(releases, participations=num_rounds, delta=delta)
    for k in _quantiles(num_rounds, participation_probability, delta):
        left = delta - float(binomial_tail(np.asarray(k), num_rounds, participation_probability))
        if left > 0:
            best = min(best, server_epsilon(releases, participations=k, delta=left))
    return best


def _quantiles(num_rounds: int, probability: float, delta: float) -> list[int]:
    """Counts worth trying: the quantiles at which the tail takes 1/2, 1/4, ... of delta."""
    if probability >= 1 or delta <= 0:
        return []
    tails = binomial_tail(np.arange(num_rounds, dtype=np.float64), num_rounds, probability)
    shares = [share for share in delta * 0.5 ** np.arange(1, 12) if (tails <= share).any()]
    return sorted({int(np.argmax(tails <= share)) for share in shares})


def _guaranteed(update: Guarantee, probability: float, rounds: int, delta: float) -> float:
    """The smaller of optimal and basic composition (the latter needs no delta of its own)."""
    if rounds == 0:
        return 0.0
    loss = guarantee_loss(update.epsilon, update.delta).mixed(probability).composed(rounds)
    failing = -math.expm1(rounds * math.log1p(-probability * update.delta))
    basic = rounds * update.epsilon if delta >= failing else math.inf
    return min(loss.epsilon(delta), basic)


def _external(counts: Mapping[tuple[Composition, float], int], delta: float) -> float:
    """Price of updates by (composition, probability); probability 1 has at most one entry."""
    present = {key: n for key, n in counts.items() if n > 0 and not key[0].is_empty}
    if not present or delta == 1:
        return 0.0
    if all(probability == 1 for _, probability in present):
        ((update, _), count), *_ = present.items()
        return accountant.epsilon_of(update.times(count), delta)
    if delta == 0 or any(update.mu == math.inf for update, _ in present):
        return math.inf
    if any(update.without_replacement for update, _ in present):
        return min(_renyi(present, delta), _of_everybody(present, delta))
    interval, is_fine = grid_interval((update, n * p) for (update, p), n in present.items())
    parts = [_mixture(update, p, interval).composed(n) for (update, p), n in present.items()]
    total = parts[0]
    for part in parts[1:]:
        total = total.convolved(part)
    found = total.epsilon(delta)
    return found if math.isfinite(found) and is_fine else min(found, _renyi(present, delta))


def _of_everybody(present: Mapping[tuple[Composition, float], int], delta: float) -> float:
    """The price of the same updates when each takes all units (`Composition.everybody`).

    A update that would alone cost more than _USELESS makes the grid large and the bound useless.
    """
    everybody = Counter[tuple[Composition, float]]()
    for (update, probability), count in present.items():
        everybody[update.everybody, probability] += count
    largest = max(update.mu for update, _ in everybody)
    return _external(everybody, delta) if largest**2 / 2 <= _USELESS else math.inf


def _renyi(present: Mapping[tuple[Composition, float], int], delta: float) -> float:
    curves = [n * renyi.mixed(renyi.curve(update), p) for (update, p), n in present.items()]
    return renyi.epsilon(np.sum(curves, axis=0), delta)


@lru_cache(maxsize=16)
def _mixture(update: Composition, probability: float, interval: float) -> Loss:
    return update.loss(interval).mixed(probability)


def _check(probability: float, num_rounds: int, delta: float) -> None:
    if not 0 < probability <= 1:
        raise ValueError(f"Expected 0 < participation_probability <= 1, got {probability}")
    if num_rounds < 0:
        raise ValueError(f"Expected a number of rounds >= 0, got {num_rounds}")
    if not 0 <= delta <= 1:
        raise ValueError(f"Expected 0 <= delta <= 1, got {delta}")
