"""What the papers print: PriRFed's Theorem 4.2 and its noise formulas, for reproduction only.

Huang, Huang, Jawanpuria, Mishra, "Federated learning on Riemannian manifolds with differential
privacy". Symbols: (epsilon, delta) local_epsilon, local_delta; N num_clients; s cohort_size;
T num_rounds; delta-hat slack_delta; rho = s / N; K, m, o_i in `local_noise_stddev`.

**Unsound at record level.** Theorem 4.2 takes amplification by *client* sampling for a guarantee
about *one record*: Lemma 4.1 needs the outputs of two whole clients to be close, which record-level
privacy does not give (spec/000 §11 has the two-line counter-example, tests/privacy plays it).
`parallel` repairs only its sequential composition over a cohort and is unsound for the same reason.
`compare` sets them beside what does hold.

>>> epsilon, delta = theorem(
...     0.15, 1e-4, num_clients=100, cohort_size=1, num_rounds=50, slack_delta=1e-3)
>>> print(f"{epsilon:.2e} {delta:.2e}")
4.26e-02 1.05e-03
>>> round(compare(0.15, 1e-4, 100, 1, 50, 1e-3)["external"]["epsilon"], 4)
0.2705
"""

import math
from dataclasses import dataclass
from typing import Literal

from manifed.privacy.participation import Guarantee, external_epsilon, server_epsilon_a_priori

Epsilons = dict[str, dict[str, float]]


def theorem(
    local_epsilon: float,
    local_delta: float,
    *,
    num_clients: int,
    cohort_size: int,
    num_rounds: int,
    slack_delta: float,
) -> tuple[float, float]:
    """(epsilon', delta') of Theorem 4.2, verbatim; unsound at record level.

    Raises:
        ValueError: naming the argument outside its range.
    """
    _check(local_epsilon, local_delta, num_clients, cohort_size, num_rounds, slack_delta)
    rho = cohort_size / num_clients
    once = math.log1p(rho * _expm1(cohort_size * local_epsilon))
    return _composed(once, rho * cohort_size * local_delta, num_rounds, slack_delta)


@dataclass(frozen=True)
class Claim:
    """What Theorem 4.2 prints for a run, to stand labelled beside what holds."""

    local_epsilon: float
    local_delta: float
    num_clients: int
    cohort_size: int
    slack_delta: float

    def after(self, num_rounds: int) -> tuple[float, float]:
        """(epsilon', delta') after so many rounds; see `theorem`."""
        return theorem(
            self.local_epsilon,
            self.local_delta,
            num_clients=self.num_clients,
            cohort_size=self.cohort_size,
            num_rounds=num_rounds,
            slack_delta=self.slack_delta,
        )


def parallel(
    local_epsilon: float,
    local_delta: float,
    *,
    num_clients: int,
    cohort_size: int,
    num_rounds: int,
    slack_delta: float,
) -> tuple[float, float]:
    """The same with parallel composition over the cohort (s epsilon -> epsilon); still unsound."""
    _check(local_epsilon, local_delta, num_clients, cohort_size, num_rounds, slack_delta)
    rho = cohort_size / num_clients
    once = math.log1p(rho * _expm1(local_epsilon))
    return _composed(once, rho * local_delta, num_rounds, slack_delta)


def local_noise_stddev(
    algorithm: Literal["rsgd", "rsvrg"],
    steps: int,
    num_examples: int,
    l2_norm_clip: float,
    local_epsilon: float,
    local_delta: float,
    constant: float = 1.0,
    *,
    inner_steps: int = 1,
) -> float:
    """sigma_i = tau sqrt(o K log(1/delta)) / (N_i epsilon); for RSVRG times sqrt(m).

    K is ``steps`` (iterations or epochs), m ``inner_steps``, o ``constant``. The papers set o = 1,
    which is too small under their own replace-one relation (spec/000 §7.3).
    """
    noisy_steps = steps * (inner_steps if algorithm == "rsvrg" else 1)
    root = math.sqrt(constant * noisy_steps * math.log(1 / local_delta))
    return l2_norm_clip * root / (num_examples * local_epsilon)


def compare(
    local_epsilon: float,
    local_delta: float,
    num_clients: int,
    cohort_size: int,
    num_rounds: int,
    slack_delta: float,
) -> Epsilons:
    """Published, parallel, external and server, each {"epsilon", "delta"}, at the published delta.

    The first two are unsound at record level. ``parallel`` spends less delta than it is shown at.
    ``server`` is a priori (`server_epsilon_a_priori`) and infinite where delta is too small for any
    number of participations.
    """
    federation = {
        "num_clients": num_clients,
        "cohort_size": cohort_size,
        "num_rounds": num_rounds,
    }
    published, delta = theorem(local_epsilon, local_delta, **federation, slack_delta=slack_delta)
    repaired, _ = parallel(local_epsilon, local_delta, **federation, slack_delta=slack_delta)
    update = Guarantee(epsilon=local_epsilon, delta=local_delta)
    rho, at = cohort_size / num_clients, min(delta, 1.0)
    epsilons = {
        "published": published,
        "parallel": repaired,
        "external": external_epsilon(
            update, participation_probability=rho, num_rounds=num_rounds, delta=at
        ),
        "server": server_epsilon_a_priori(
            update, participation_probability=rho, num_rounds=num_rounds, delta=at
        ),
    }
    return {name: {"epsilon": epsilon, "delta": delta} for name, epsilon in epsilons.items()}


def _composed(once: float, once_delta: float, rounds: int, slack: float) -> tuple[float, float]:
    """The smaller of basic and advanced composition, with the slack kept in both."""
    basic = rounds * once
    advanced = math.sqrt(2 * rounds * math.log(1 / slack)) * once + basic * _expm1(once)
    return min(basic, advanced), slack + rounds * once_delta


def _expm1(x: float) -> float:
    """e^x - 1, infinite instead of an overflow."""
    return math.expm1(x) if x < 700 else math.inf


def _check(
    local_epsilon: float,
    local_delta: float,
    num_clients: int,
    cohort_size: int,
    num_rounds: int,
    slack_delta: float,
) -> None:
    bounds = {
        f"local_epsilon > 0, got {local_epsilon}": local_epsilon > 0,
        f"0 <= local_delta < 1, got {local_delta}": 0 <= local_delta < 1,
        f"1 <= cohort_size <= num_clients = {num_clients}, got {cohort_size}": (
            1 <= cohort_size <= num_clients
        ),
        f"num_rounds >= 1, got {num_rounds}": num_rounds >= 1,
        f"0 < slack_delta < 1, got {slack_delta}": 0 < slack_delta < 1,
    }
    for bound, holds in bounds.items():
        if not holds:
            raise ValueError(f"Expected {bound}")
