"""What client sampling does and does not buy: the prices of spec/000 §11, and the paper's.

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

Guarantee: every number is an upper bound, but for `Claim`: what PriRFed's Theorem 4.2 prints
(Huang, Huang, Jawanpuria, Mishra, "Federated learning on Riemannian manifolds with differential
privacy"), for reproduction. Its symbols: (epsilon, delta) local_epsilon, local_delta; N
num_clients; s cohort_size; T num_rounds; delta-hat slack_delta; rho = s / N. **Unsound at record
level**: it takes amplification by *client* sampling for a guarantee about *one record*. Lemma 4.1
needs the outputs of two whole clients to be close, which record-level privacy does not give
(spec/000 §11 has the two-line counter-example, tests/privacy plays it). Parallel composition over
a cohort repairs only its sequential one and is unsound for the same reason.

>>> claim = Claim(0.15, 1e-4, num_clients=100, cohort_size=1, slack_delta=1e-3)
>>> epsilon, delta = claim.after(50)
>>> print(f"{epsilon:.2e} {delta:.2e}")
4.26e-02 1.05e-03
>>> round(claim.compared(50)["external"]["epsilon"], 4)
0.2705
"""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from scipy import special

from manifed.privacy import accountant
from manifed.privacy.composition import Composition, compose
from manifed.privacy.events import Release, Releases, repeated
from manifed.privacy.loss import Array, Loss, LossPmf

_binomial_upper: Any = special.bdtrc  # scipy ships no stubs
Coins = tuple[tuple[Releases, float, int], ...]
"""(What an update releases, the probability that it is made and counts, how often)."""


@lru_cache(maxsize=1 << 12)
def external_epsilon(updates: Coins, delta: float) -> float:
    """Epsilon of updates that happen by coins; of those with probability 1 it is the plain price.

    Raises:
        NoValidBound: as `accountant.epsilon`.
    """
    certain: list[Release] = []
    counts = Counter[tuple[Composition, float]]()
    for update, probability, times in updates:
        if probability == 1:
            certain.extend(repeated(update, times))
        elif times > 0 and (composed := compose(update)) != Composition():
            counts[composed, probability] += times
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
    worst case. Other k worth trying are quantiles, at which the tail takes 1/2, 1/4, ... of delta.
    """
    best = price(num_rounds, delta)
    if participation_probability >= 1 or delta <= 0:
        return best
    counts = np.arange(num_rounds, dtype=np.float64)
    upper: Array = _binomial_upper(counts, num_rounds, participation_probability) * (1 + 1e-12)
    tails = np.minimum(upper, 1.0)
    shares = [share for share in delta * 0.5 ** np.arange(1, 12) if (tails <= share).any()]
    for k in sorted({int(np.argmax(tails <= share)) for share in shares}):
        if (left := delta - float(tails[k])) > 0:
            best = min(best, price(k, left))
    return best


# -- what the paper prints ---------------------------------------------------------------------
@dataclass(frozen=True)
class Claim:
    """What Theorem 4.2 prints for a run, to stand labelled beside what holds."""

    local_epsilon: float
    local_delta: float
    num_clients: int
    cohort_size: int
    slack_delta: float

    def after(self, num_rounds: int, *, is_parallel: bool = False) -> tuple[float, float]:
        """(epsilon', delta') of Theorem 4.2 after so many rounds; unsound at record level.

        ``is_parallel``: with parallel composition over the cohort (s epsilon -> epsilon).
        """
        rho, together = self.cohort_size / self.num_clients, 1 if is_parallel else self.cohort_size
        once = math.log1p(rho * _expm1(together * self.local_epsilon))
        basic = num_rounds * once
        root = math.sqrt(2 * num_rounds * math.log(1 / self.slack_delta))
        advanced = root * once + basic * _expm1(once)
        once_delta = rho * together * self.local_delta
        return min(basic, advanced), self.slack_delta + num_rounds * once_delta

    def compared(self, num_rounds: int) -> dict[str, dict[str, float]]:
        """Published, parallel, external and server, each {"epsilon", "delta"}.

        All at the published delta. The first two are unsound at record level; ``parallel`` spends
        less delta than it is shown at. ``server`` is a priori (`a_priori_epsilon`) and infinite
        where delta is too small for any number of participations.
        """
        published, delta = self.after(num_rounds)
        rho, at = self.cohort_size / self.num_clients, min(delta, 1.0)
        epsilons = {
            "published": published,
            "parallel": self.after(num_rounds, is_parallel=True)[0],
            "external": guaranteed(self.local_epsilon, self.local_delta, rho, num_rounds, at),
            "server": a_priori_epsilon(
                lambda k, left: guaranteed(self.local_epsilon, self.local_delta, 1.0, k, left),
                participation_probability=rho,
                num_rounds=num_rounds,
                delta=at,
            ),
        }
        return {name: {"epsilon": epsilon, "delta": delta} for name, epsilon in epsilons.items()}


def guaranteed(
    epsilon: float, delta: float, probability: float, rounds: int, at_delta: float
) -> float:
    """Epsilon of updates known only to be (epsilon, delta)-private, each made by a seen coin.

    The worst loss of one is that of Kairouz, Oh, Viswanath (2015). The smaller of its optimal and
    of basic composition (the latter needs no delta of its own).
    """
    if rounds == 0:
        return 0.0
    share = (1.0 - delta) / (1.0 + math.exp(-epsilon))
    worst = Loss((LossPmf(epsilon, -1, np.array([1.0 - delta - share, 0.0, share]), delta),))
    failing = -math.expm1(rounds * math.log1p(-probability * delta))
    basic = rounds * epsilon if at_delta >= failing else math.inf
    return min(worst.mixed(probability).composed(rounds).epsilon(at_delta), basic)


def _expm1(x: float) -> float:
    """e^x - 1, infinite instead of an overflow."""
    return math.expm1(x) if x < 700 else math.inf
