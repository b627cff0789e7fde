"""What client sampling does and does not buy: the views of spec/000 §11.

A client takes part in a round by a coin that does not depend on the data, with probability rho.

* *external* (record level; broadcast models seen, cohorts not): in the worst case the output
  betrays the coin, so the loss of a round is ``(1 - rho) delta_0 + rho * loss of a turn`` and T
  rounds are its T-fold convolution. Amplification by rho in epsilon (Lemma 4.1 of PriRFed) does
  *not* hold: neighbouring datasets make neighbouring clients only inside one client.
* *server* (cohorts and uploads seen): the releases of the rounds a client really served; before
  the run, of all rounds or of a quantile of the binomial count, its tail paid in delta.
* *client level* (whole clients are the unit): the two cohorts are neighbours, and Poisson or
  fixed-size amplification holds. There the sampling stands in the release itself, and
  ``privacy.accountant`` is the price.

>>> turn = Guarantee(epsilon=0.15, delta=1e-4)
>>> round(external_epsilon(turn, participation_probability=0.01, num_rounds=50, delta=1.05e-3), 4)
0.2705
>>> round(external_epsilon(turn, participation_probability=0.01, num_rounds=500, delta=1.5e-3), 4)
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


Turn = Guarantee | Iterable[Event]
"""What one participation releases."""


def external_epsilon(
    turn: Turn, *, participation_probability: float, num_rounds: int, delta: float
) -> float:
    """Epsilon at ``delta`` against who sees the models of ``num_rounds`` rounds, not the cohorts.

    Raises:
        NoValidBound: as `accountant.epsilon`.
        ValueError: for a probability outside (0, 1], or a negative number of rounds.
    """
    _check(participation_probability, num_rounds, delta)
    if isinstance(turn, Guarantee):
        return _guaranteed(turn, participation_probability, num_rounds, delta)
    return _external({(compose(turn), participation_probability): num_rounds}, delta)


def external_epsilon_of_rounds(
    rounds: Iterable[tuple[Iterable[Event], float]], delta: float
) -> float:
    """The same for rounds that differ: (releases of a turn, its probability) for every round."""
    counted = Counter((tuple(turn), probability) for turn, probability in rounds)
    return external_epsilon_of_counts(counted, delta)


def external_epsilon_of_counts(
    rounds: Mapping[tuple[tuple[Event, ...], float], int], delta: float
) -> float:
    """The same from how often each (releases of a turn, its probability) occurred."""
    certain: list[Event] = []
    counts = Counter[tuple[Composition, float]]()
    for (turn, probability), times in rounds.items():
        _check(probability, times, delta)
        if probability == 1:
            certain.extend(repeated(turn, times))
        else:
            counts[compose(turn), probability] += times
    counts[compose(certain), 1.0] += 1
    return _external(counts, delta)


def server_epsilon(turn: Turn, *, participations: int, delta: float) -> float:
    """Epsilon at ``delta`` against the server, of a client that served so many rounds."""
    _check(1.0, participations, delta)
    if isinstance(turn, Guarantee):
        return _guaranteed(turn, 1.0, participations, delta)
    return accountant.epsilon(repeated(turn, participations), delta)


def server_epsilon_a_priori(
    turn: Turn, *, participation_probability: float, num_rounds: int, delta: float
) -> float:
    """Epsilon at ``delta`` against the server, before the cohorts are drawn.

    The least over k of epsilon(k participations, delta - P[Binomial(T, rho) > k]); k = T is the
    worst case.
    """
    _check(participation_probability, num_rounds, delta)
    releases = turn if isinstance(turn, Guarantee) else tuple(turn)
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


def _guaranteed(turn: Guarantee, probability: float, rounds: int, delta: float) -> float:
    """The smaller of optimal and basic composition (the latter needs no delta of its own)."""
    if rounds == 0:
        return 0.0
    loss = guarantee_loss(turn.epsilon, turn.delta).mixed(probability).composed(rounds)
    failing = -math.expm1(rounds * math.log1p(-probability * turn.delta))
    basic = rounds * turn.epsilon if delta >= failing else math.inf
    return min(loss.epsilon(delta), basic)


def _external(counts: Mapping[tuple[Composition, float], int], delta: float) -> float:
    """Price of turns by (composition, probability); probability 1 has at most one entry."""
    present = {key: n for key, n in counts.items() if n > 0 and not key[0].is_empty}
    if not present or delta == 1:
        return 0.0
    if all(probability == 1 for _, probability in present):
        ((turn, _), count), *_ = present.items()
        return accountant.epsilon_of(turn.times(count), delta)
    if delta == 0 or any(turn.mu == math.inf for turn, _ in present):
        return math.inf
    if any(turn.without_replacement for turn, _ in present):
        return min(_renyi(present, delta), _of_everybody(present, delta))
    interval, is_fine = grid_interval((turn, n * p) for (turn, p), n in present.items())
    parts = [_mixture(turn, p, interval).composed(n) for (turn, p), n in present.items()]
    total = parts[0]
    for part in parts[1:]:
        total = total.convolved(part)
    found = total.epsilon(delta)
    return found if math.isfinite(found) and is_fine else min(found, _renyi(present, delta))


def _of_everybody(present: Mapping[tuple[Composition, float], int], delta: float) -> float:
    """The price of the same turns when each takes all units (`Composition.everybody`).

    A turn that would alone cost more than _USELESS makes the grid large and the bound useless.
    """
    everybody = Counter[tuple[Composition, float]]()
    for (turn, probability), count in present.items():
        everybody[turn.everybody, probability] += count
    largest = max(turn.mu for turn, _ in everybody)
    return _external(everybody, delta) if largest**2 / 2 <= _USELESS else math.inf


def _renyi(present: Mapping[tuple[Composition, float], int], delta: float) -> float:
    curves = [n * renyi.mixed(renyi.curve(turn), p) for (turn, p), n in present.items()]
    return renyi.epsilon(np.sum(curves, axis=0), delta)


@lru_cache(maxsize=16)
def _mixture(turn: Composition, probability: float, interval: float) -> Loss:
    return turn.loss(interval).mixed(probability)


def _check(probability: float, num_rounds: int, delta: float) -> None:
    if not 0 < probability <= 1:
        raise ValueError(f"Expected 0 < participation_probability <= 1, got {probability}")
    if num_rounds < 0:
        raise ValueError(f"Expected a number of rounds >= 0, got {num_rounds}")
    if not 0 <= delta <= 1:
        raise ValueError(f"Expected 0 <= delta <= 1, got {delta}")
