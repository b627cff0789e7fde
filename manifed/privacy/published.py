"""What the papers print: PriRFed's Theorem 4.2, for reproduction only.

Huang, Huang, Jawanpuria, Mishra, "Federated learning on Riemannian manifolds with differential
privacy". Symbols: (epsilon, delta) local_epsilon, local_delta; N num_clients; s cohort_size;
T num_rounds; delta-hat slack_delta; rho = s / N.

**Unsound at record level.** Theorem 4.2 takes amplification by *client* sampling for a guarantee
about *one record*: Lemma 4.1 needs the outputs of two whole clients to be close, which record-level
privacy does not give (spec/000 §11 has the two-line counter-example, tests/privacy plays it).
`parallel` repairs only its sequential composition over a cohort and is unsound for the same reason.
`compare` sets them beside what does hold.

>>> claim = Claim(0.15, 1e-4, num_clients=100, cohort_size=1, slack_delta=1e-3)
>>> epsilon, delta = claim.after(50)
>>> print(f"{epsilon:.2e} {delta:.2e}")
4.26e-02 1.05e-03
>>> round(claim.compared(50)["external"]["epsilon"], 4)
0.2705
"""

import math
from dataclasses import dataclass

import numpy as np

from manifed.privacy.loss import Loss, LossPmf
from manifed.privacy.participation import a_priori_epsilon


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
