"""Check 13: what the papers' noise buys, setting by setting, and an attack on it."""

import math
from dataclasses import dataclass

import numpy as np
from scipy.stats import norm

from manifed.audit.bound import audit
from manifed.privacy.epsilon_bounds import epsilon
from manifed.privacy.events import Release, SampledWithoutReplacement, Sampling, Unsampled
from reproduction.findings import Finding

TRIALS = 200_000


@dataclass(frozen=True)
class Setting:
    """One of the paper's settings; ``inner`` is m (1 for DP-RSGD)."""

    examples: int
    local_epsilon: float
    delta: float
    epochs: int
    inner: int = 1

    @property
    def steps(self) -> int:
        """K, or m K."""
        return self.epochs * self.inner

    @property
    def stddev(self) -> float:
        """sigma_i / tau with the constant set to one."""
        return math.sqrt(self.steps * math.log(1 / self.delta)) / (
            self.examples * self.local_epsilon
        )


FULL_BATCH = {
    "Fig 1 column 1, epsilon 0.08": Setting(70, 0.08, 1e-5, 1),
    "Fig 1 column 1, epsilon 0.15": Setting(70, 0.15, 1e-5, 1),
    "Fig 1 column 1, epsilon 0.3": Setting(70, 0.3, 1e-5, 1),
    "delta 1e-4, epsilon 0.15": Setting(250, 0.15, 1e-4, 3),
}
RSVRG = {
    "Fig 1 column 3, epsilon 0.3": Setting(100, 0.3, 1e-5, 2, 53),
    "MNIST N=50": Setting(1200, 0.15, 1e-4, 3, 166),
    "MNIST N=100": Setting(600, 0.15, 1e-4, 3, 333),
    "SPD N_i=250": Setting(250, 0.15, 1e-4, 3, 10),
    "SPD N_i=100": Setting(100, 0.15, 1e-4, 3, 10),
    "hyperbolic": Setting(131, 0.15, 1e-4, 3, 5),
}


def priced(setting: Setting, multiplier: float, sampling: Sampling) -> float:
    """Epsilon at the stated delta of all steps, replace-one."""
    release = Release(
        unit="example",
        neighboring_relation="replace-one",
        noise_multiplier=multiplier,
        sampling=sampling,
        count=setting.steps,
    )
    return epsilon([release], setting.delta)


def full_batch_price(setting: Setting, constant: float = 1.0) -> float:
    """Exact epsilon at the stated delta of K full-batch gradients with noise constant o."""
    multiplier = math.sqrt(constant) * setting.stddev * setting.examples / 2
    return priced(setting, multiplier, Unsampled())


def needed_constant(setting: Setting) -> float:
    """The least o_i whose exact price is the stated epsilon."""
    low = 0.1
    high = 100.0
    for _ in range(50):
        middle = math.sqrt(low * high)
        if full_batch_price(setting, middle) <= setting.local_epsilon:
            high = middle
        else:
            low = middle
    return high


def correction_price(setting: Setting) -> float:
    """A sound upper bound (Rényi) on epsilon of the corrections alone: sensitivity 4 tau."""
    one = SampledWithoutReplacement(sample_size=1, population=setting.examples)
    return priced(setting, setting.stddev / 4, one)


def transcript_lower_bound(setting: Setting) -> float:
    """What any honest epsilon of the inner iterates is at least (exact, worst-case records).

    Neighbouring datasets: the changed record's correction is 2 tau u or -2 tau u whenever it is
    drawn, the others' is 0. Event: some inner step moved by more than c along u.
    """
    c = np.linspace(0.0, 40.0, 4001)
    shift = 2 / setting.stddev
    rate = 1 / setting.examples
    tail_1 = (1 - rate) * norm.sf(c) + rate * norm.sf(c - shift)
    tail_0 = (1 - rate) * norm.sf(c) + rate * norm.sf(c + shift)
    p_1, p_0 = (-np.expm1(setting.steps * np.log1p(-tail)) for tail in (tail_1, tail_0))
    good = (p_1 > setting.delta) & (p_0 > 0)
    return float(np.log((p_1[good] - setting.delta) / p_0[good]).max())


def attack(setting: Setting, rng: np.random.Generator) -> float:
    """Lower bound (95 %) from transcripts of two neighbouring datasets, by the product's audit."""
    scores = []
    for sign in (1.0, -1.0):
        most = np.full(TRIALS, -np.inf)
        for _ in range(setting.steps):
            drawn = rng.random(TRIALS) * setting.examples < 1
            moved = setting.stddev * rng.standard_normal(TRIALS) + 2 * sign * drawn
            most = np.maximum(most, moved)
        scores.append(most)
    # at one delta the bound does not depend on the claim
    found = audit(*scores, claim=lambda at: 1.0 if at == setting.delta else math.inf)
    return found.epsilon_lower_bound


def check_13() -> Finding:
    """The stated epsilon, the exact or sound one, and what an attacker shows."""
    rsgd = {
        name: {
            "stated": s.local_epsilon,
            "exact": full_batch_price(s),
            "constant needed": needed_constant(s),
        }
        for name, s in FULL_BATCH.items()
    }
    rng = np.random.default_rng(0)
    rsvrg = {
        name: {
            "stated": s.local_epsilon,
            "at least (exact event)": transcript_lower_bound(s),
            "at least (attack)": attack(s, rng),
            "at most (Rényi)": correction_price(s),
        }
        for name, s in RSVRG.items()
    }
    honest = all(row["exact"] <= row["stated"] for row in rsgd.values()) and all(
        row["at least (exact event)"] <= row["stated"] for row in rsvrg.values()
    )
    return Finding(
        "sigma_i with constants set to one gives the stated (epsilon, delta)",
        honest,
        {"DP-RSGD, full batch": rsgd, "DP-RSVRG": rsvrg},
        (0,),
        "replace-one, as in the paper; DP-RSVRG: corrections alone, inner iterates visible",
    )
