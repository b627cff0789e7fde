r"""What a private search over settings costs: the best of a random number of runs.

Papernot, Steinke: Hyperparameter Tuning with Renyi Differential Privacy (ICLR 2022). K is drawn
from a public law; K times, a setting is drawn from a public list, independently of the data, and a
run is made with it whose releases *include its score*; only the best run is published. Its Renyi
divergence of order a is at most, for every order b > 1 (Theorem 2, K truncated negative binomial
with parameters eta > -1 and gamma),

    D(a) + (1 + eta) (1 - 1/b) D(b) + (1 + eta) log(1/gamma) / b + log(E K) / (a - 1),

and for K Poisson with mean m (Theorem 6) D(a) + m delta + log(m) / (a - 1), where the run is
(log(1 + 1/(a - 1)), delta)-DP. Both are evaluated by dp-accounting (``RepeatAndSelectDpEvent``).

Symbols: ``shape`` is eta (1: geometric, 0: logarithmic, infinity: Poisson), ``mean`` is E K.

Not covered: a fixed number of runs, whose price is the composition of all of them, and a search
whose list or law was chosen after a look at the data.
"""

import math
from collections.abc import Iterable
from functools import lru_cache

from pydantic import BaseModel, ConfigDict, Field

from manifed.privacy import renyi
from manifed.privacy.accountant import to_dp_event
from manifed.privacy.composition import NoValidBound
from manifed.privacy.events import Event

_LONGEST = 10**6
"""Runs of one search; the law's mass beyond is added to the last."""


class Search(BaseModel):
    """The law of the number of runs: public, fixed before the data are looked at."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mean: float = Field(ge=1, le=1e4, allow_inf_nan=False)
    """E K."""
    shape: float = Field(default=1.0, ge=0)
    """eta; infinity for the Poisson law, under which no run at all may be made."""

    @property
    def gamma(self) -> float:
        """The parameter of the truncated negative binomial of this mean, by bisection; in (0, 1].

        Raises:
            ValueError: for the Poisson law, which has none.
        """
        if math.isinf(self.shape):
            raise ValueError("search.shape: the Poisson law has no gamma, got infinity")
        return _gamma(self.mean, self.shape)

    def probability(self, k: int) -> float:
        """P[K = k]."""
        if k < 0:
            return 0.0
        if math.isinf(self.shape):
            return math.exp(k * math.log(self.mean) - self.mean - math.lgamma(k + 1))
        eta, gamma = self.shape, self.gamma
        if k == 0:
            return 0.0
        if gamma == 1.0:
            return float(k == 1)
        if eta == 0:
            return (1 - gamma) ** k / (k * math.log(1 / gamma))
        rising = math.lgamma(k + eta) - math.lgamma(eta) - math.lgamma(k + 1)
        return math.exp(rising + k * math.log1p(-gamma)) / math.expm1(-eta * math.log(gamma))

    def draw(self, uniform: float) -> int:
        """K as a function of a uniform draw in (0, 1): the inverse of its distribution."""
        k, below = 0, self.probability(0)
        while below < uniform and k < _LONGEST:
            k += 1
            below += self.probability(k)
        return k


@lru_cache(maxsize=64)
def _gamma(mean: float, eta: float) -> float:
    """The gamma of a mean, by bisection: the mean falls with it."""
    low, high = 0.0, 1.0
    while high - low > 1e-15 * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if _mean(eta, middle) > mean else (low, middle)
    return high


def _mean(eta: float, gamma: float) -> float:
    """E K of the truncated negative binomial (Definition 1)."""
    if gamma >= 1:
        return 1.0
    if eta == 0:
        return (1 / gamma - 1) / math.log(1 / gamma)
    return eta * (1 - gamma) / (gamma * -math.expm1(eta * math.log(gamma)))


def epsilon(run: Iterable[Event], search: Search, delta: float) -> float:
    """What the best of K runs costs, each of which releases ``run``, its score included.

    Raises:
        NoValidBound: for releases that have no Renyi curve in dp-accounting.
        ValueError: unless 0 < delta < 1.
    """
    if not 0 < delta < 1:
        raise ValueError(f"Expected 0 < delta < 1, got {delta}")
    from dp_accounting import NeighboringRelation
    from dp_accounting.dp_event import RepeatAndSelectDpEvent
    from dp_accounting.rdp import RdpAccountant

    releases = tuple(run)
    if not releases:
        return 0.0
    if any(getattr(one, "noise_multiplier", None) == 0 for one in releases):
        return math.inf
    relations = {one.neighboring_relation for one in releases}
    if len(relations) > 1:
        raise NoValidBound(f"Expected releases of one neighbouring relation, got {relations}")
    relation = {
        "add-or-remove": NeighboringRelation.ADD_OR_REMOVE_ONE,
        "replace-one": NeighboringRelation.REPLACE_ONE,
    }[relations.pop()]
    accountant = RdpAccountant(list(map(float, renyi.orders())), relation)
    event = RepeatAndSelectDpEvent(to_dp_event(releases), search.mean, search.shape)
    if not accountant.supports(event):
        kinds = sorted({one.kind for one in releases})
        raise NoValidBound(f"Expected releases with a Renyi curve, got {', '.join(kinds)}")
    accountant.compose(event)
    return float(accountant.get_epsilon(delta))
