"""When a run must stop: the last cohort draw that its budget pays, fixed before any is made.

A *draw* is one attempt of one round: a fresh cohort, charged before its messages leave. The budget
is ``privacy.max_epsilon``, or the target of ``privacy.noise.kind = "target"`` where none is given.
Draw k is refused when k draws would cost more than the budget *a priori*, in the view that the
budget names (a target's own; else "server" for examples, "client-level" for clients).

Guarantee: the price of k draws is a function of the config and of k alone, so no stop depends on
who was drawn. Why that matters, and what retries and failed rounds do: the external view below.

**The external view.** Let K be the most draws that a run may make: rounds times attempts, at most
what the budget pays. Show an adversary more than an outsider sees: every cohort and every upload of
all K draws, those included that the run never came to. Each draw is a fresh coin that depends
neither on the data nor on the past; a record's loss in it is 0 with probability 1 - rho and that of
one turn with probability rho, so K draws cost the K-fold mixture of privacy/participation.py. The
models, the round in which a run stopped, and which attempts were retried or failed are a function
of what that adversary has and of randomness that does not depend on the record: they cost no more.
Pricing only the draws that were *made* is no bound when their number depends on the cohorts: with
two clients, one drawn at a time, and one of them always failing, a retried round that needed one
draw was certainly the other's. Hence the statement prices K, and a retry policy multiplies it.

Presumed: whether a client fails does not depend on its records (a failure would be a release of
its own), and whether the server's process crashes or is resumed does not depend on the cohorts. A
draw that a crash makes necessary is added to K.
"""

from dataclasses import dataclass

from manifed.experiment.assembly import server_mechanism_of
from manifed.experiment.pricing import price_client_level, price_external, price_server_a_priori
from manifed.experiment.schema import Experiment, View
from manifed.privacy.charges import ClientReleases


@dataclass(frozen=True)
class Budget:
    """What a run may cost: epsilon at delta in one view; ``field`` is where the config says so."""

    epsilon: float
    delta: float
    view: View
    field: str


def target_of(config: Experiment) -> Budget | None:
    """The target that the noise was calibrated for; None without one."""
    privacy = config.privacy
    if privacy.kind == "none" or privacy.noise.kind != "target":
        return None
    rule = privacy.noise
    view = "client-level" if privacy.kind == "client-level" else rule.view
    return Budget(rule.epsilon, rule.delta, view, "privacy.noise.epsilon")


def budget_of(config: Experiment, delta: float | None) -> Budget | None:
    """``privacy.max_epsilon`` at ``delta``, else the target; None when the config has neither."""
    privacy, target = config.privacy, target_of(config)
    if privacy.kind == "none" or privacy.max_epsilon is None:
        return target
    assert delta is not None
    own = "client-level" if privacy.kind == "client-level" else "server"
    view = target.view if target is not None else own
    return Budget(privacy.max_epsilon, delta, view, "privacy.max_epsilon")


def planned_draws(config: Experiment) -> int:
    """The most draws that the rounds of a config can need, retries included, no crash counted.

    A client-level run has no retries (manifed/experiment/schema.py).
    """
    federation = config.federation
    retries = federation.replies.on_failure == "retry"
    return federation.num_rounds * (federation.replies.max_attempts if retries else 1)


class Prices:
    """A-priori prices of draws, and how many of them a budget pays."""

    def __init__(
        self, config: Experiment, turns: tuple[ClientReleases, ...], delta: float | None
    ) -> None:
        self._config, self._turns = config, turns
        self._target, self.budget = target_of(config), budget_of(config, delta)
        self._known: dict[tuple[str, int, float], float] = {}
        self._last: int | None = None

    def a_priori(self, view: View, draws: int, delta: float) -> float:
        """Epsilon of the worst client after ``draws`` draws, before any cohort is known."""
        key = (view, draws, delta)
        if key not in self._known:
            self._known[key] = self._price(view, draws, delta)
        return self._known[key]

    def _price(self, view: View, draws: int, delta: float) -> float:
        federation = self._config.federation
        if draws == 0:
            return 0.0
        if view == "client-level":
            mechanism = server_mechanism_of(self._config)
            assert mechanism is not None
            sampling = federation.cohort.sampling(federation.num_clients)
            return price_client_level((mechanism.release(count=draws, sampling=sampling),), delta)
        rate = federation.cohort.rate(federation.num_clients)
        price = price_external if view == "external" else price_server_a_priori
        turns = {turn.releases for turn in self._turns}
        return max((price(turn, rate, draws, delta) for turn in turns), default=0.0)

    def pays(self, draws: int) -> bool:
        """Whether the budget pays so many draws."""
        budget = self.budget
        if budget is None or self._is_met_by_calibration(budget, draws):
            return True
        return self.a_priori(budget.view, draws, budget.delta) <= budget.epsilon

    def passes_target(self, draws: int) -> bool:
        """Whether so many draws cost more than the noise was calibrated for."""
        target = self._target
        if target is None or self._is_met_by_calibration(target, draws):
            return False
        return self.a_priori(target.view, draws, target.delta) > target.epsilon

    def _is_met_by_calibration(self, budget: Budget, draws: int) -> bool:
        """Up to num_rounds draws meet the target by construction (experiment/noise_level.py)."""
        target = self._target
        return (
            target is not None
            and draws <= self._config.federation.num_rounds
            and budget.delta >= target.delta
            and budget.epsilon >= target.epsilon
        )

    def planned(self) -> int:
        """K: what the rounds can need, or the most that the budget pays, whichever is less."""
        if self._last is None:
            low, high = 0, planned_draws(self._config)
            if self.pays(high):
                low = high
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if self.pays(middle) else (low, middle)
            self._last = low
        return self._last
