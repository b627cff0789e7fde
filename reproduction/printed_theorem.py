"""PriRFed's Theorem 4.2 (`manifed.privacy.epsilon_bounds.Claim`) beside prices that hold.

>>> claim = Claim(0.15, 1e-4, num_clients=100, cohort_size=1, slack_delta=1e-3)
>>> round(compared(claim, 50)["external"]["epsilon"], 4)
0.2705
"""

import math
from dataclasses import replace

import numpy as np

from manifed.privacy.epsilon_bounds import Claim, a_priori_epsilon
from manifed.privacy.loss import Loss, LossPmf


def in_parallel(claim: Claim) -> Claim:
    """The claim with parallel composition over a cohort: s epsilon becomes epsilon."""
    return replace(claim, local_epsilon=claim.local_epsilon / claim.cohort_size)


def compared(claim: Claim, num_rounds: int) -> dict[str, dict[str, float]]:
    """Returns published, parallel, external and server, each {"epsilon", "delta"}.

    All at the published delta. The first two are unsound at record level; ``parallel`` spends
    less delta than it is shown at. ``server`` is a priori (`a_priori_epsilon`) and infinite
    where delta is too small for any number of participations.
    """
    published, delta = claim.after(num_rounds)
    rho = claim.cohort_size / claim.num_clients
    at = min(delta, 1.0)
    epsilons = {
        "published": published,
        "parallel": in_parallel(claim).after(num_rounds)[0],
        "external": guaranteed(claim.local_epsilon, claim.local_delta, rho, num_rounds, at),
        "server": a_priori_epsilon(
            lambda k, left: guaranteed(claim.local_epsilon, claim.local_delta, 1.0, k, left),
            participation_probability=rho,
            num_rounds=num_rounds,
            delta=at,
        ),
    }
    return {name: {"epsilon": epsilon, "delta": delta} for name, epsilon in epsilons.items()}


def guaranteed(
    epsilon: float, delta: float, probability: float, rounds: int, at_delta: float
) -> float:
    """Returns epsilon of updates that are (epsilon, delta)-private and made by seen coins.

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
