"""Every epsilon printed for an outsider bounds what the stopping and retrying really release.

The coins of tiny runs are enumerated, the filter decides when a run stops, and the hockey-stick
divergence of what is released (participation revealed, Gaussians) is computed exactly.
"""

import itertools
import math
from collections import Counter, defaultdict
from contextlib import contextmanager, nullcontext, suppress
from statistics import NormalDist

import pytest

from manifed.errors import BudgetExhausted
from manifed.experiment.load import load
from manifed.plan import promise_of
from manifed.privacy.charging import opened
from manifed.privacy.epsilon_bounds import external_epsilon
from tests.runs.running import QUICKSTART

MULTIPLIER = 0.8
DELTA = 1e-3
RATE = 0.3
SIZES = (400, 400)
COMMON = (
    "federation.num_clients=2",
    f"privacy.noise={{kind='multiplier',noise_multiplier={MULTIPLIER}}}",
    f"privacy.delta={DELTA}",
    "evaluation.is_enabled=false",
)
POISSON = f"federation.cohort={{kind='poisson',sampling_probability={RATE}}}"
ONE_OF_TWO = "federation.cohort={kind='fixed-size',cohort_size=1}"
phi = NormalDist().cdf


def config(*sets):
    return load(QUICKSTART, [*COMMON, *sets])


def delta_of(participations, epsilon):
    """The exact delta of so many Gaussian releases (Balle and Wang 2018, Theorem 8)."""
    mu = math.sqrt(participations) / MULTIPLIER
    if mu == 0:
        return 0.0
    return phi(mu / 2 - epsilon / mu) - math.exp(epsilon) * phi(-mu / 2 - epsilon / mu)


class Ends:
    """Ends of runs: what was printed, with which probability, how often client 0 took part."""

    def __init__(self):
        self._mass = defaultdict(Counter)

    def add(self, probability, printed, participations):
        self._mass[printed][participations] += probability

    def worst_excess(self):
        """The largest true delta of a printed epsilon over DELTA, given that it was printed."""
        totals = {printed: sum(law.values()) for printed, law in self._mass.items()}
        assert sum(totals.values()) == pytest.approx(1.0)
        return max(
            sum(p * delta_of(k, printed) for k, p in law.items()) / totals[printed] / DELTA
            for printed, law in self._mass.items()
        )


class FollowsTheCoins:
    """The planted fault: stops by realised counts, and prices the draws that were made."""

    def __init__(self, experiment):
        (clients,) = promise_of(experiment.setting, SIZES).terms.updates
        cohort = experiment.federation.cohort
        self._update = clients.releases
        self._budget, self._rate = experiment.privacy.max_epsilon, cohort.rate(2)
        self._counts = Counter()
        self._draws = 0

    def opened(self, path):
        return nullcontext(self)

    def charge(self, server_round, attempt, cohort):
        after = self._counts + Counter(cohort)
        if self._budget and after and delta_of(max(after.values()), self._budget) > DELTA:
            raise BudgetExhausted
        self._counts = after
        self._draws += 1

    def statement(self):
        epsilon = external_epsilon(((tuple(self._update), self._rate, self._draws),), DELTA)
        return {"adversaries": [{"name": "external", "epsilon": epsilon}]}


class Honest:
    """What a run does: an account whose filter is the config's, and the promise's statement."""

    def __init__(self, experiment):
        self._promise = promise_of(experiment.setting, SIZES)
        self._last = experiment.federation.num_rounds

    @contextmanager
    def opened(self, path):
        with opened(path, self._promise, header={}, last_round=self._last) as self._account:
            yield self._account

    def statement(self):
        return self._promise.statement(self._account.odometer)


def run_rounds(spending, experiment, ledger, cohorts, is_accepted):
    """Charges as federation/rounds.py does; (printed epsilon, participations of client 0)."""
    policy = experiment.federation.replies
    tries = policy.max_attempts if policy.on_failure == "retry" else 1
    draws = iter(cohorts)
    taken = 0
    with suppress(BudgetExhausted), spending.opened(ledger) as account:
        for server_round in range(1, experiment.federation.num_rounds + 1):
            for attempt in range(tries):
                cohort = next(draws)
                account.charge(server_round, attempt, cohort)
                taken += 0 in cohort
                if is_accepted(cohort):
                    break
            else:
                break
    told = {one["name"]: one["epsilon"] for one in spending.statement()["adversaries"]}
    return told["external"], taken


def ends_of(spending, experiment, tmp_path, draws, is_accepted=lambda _: True):
    """All ends of runs of so many draws, each cohort of the two clients with its probability."""
    cohort = experiment.federation.cohort
    law = {(0,): 0.5, (1,): 0.5}
    if cohort.kind == "poisson":
        law = {of: RATE ** len(of) * (1 - RATE) ** (2 - len(of)) for of in ((), (0,), (1,), (0, 1))}
    ends = Ends()
    for number, cohorts in enumerate(itertools.product(law, repeat=draws)):
        path = tmp_path / f"{number}"
        found = run_rounds(spending(experiment), experiment, path, cohorts, is_accepted)
        ends.add(math.prod(law[of] for of in cohorts), *found)
    return ends


def budget_between_one_and_two_participations():
    low, high = (
        next(e / 1000 for e in range(1, 20000) if delta_of(k, e / 1000) <= DELTA) for k in (1, 2)
    )
    return (low + high) / 2


@pytest.mark.parametrize(("spending", "is_sound"), [(Honest, True), (FollowsTheCoins, False)])
def test_a_budget_does_not_stop_where_the_coins_fell(tmp_path, spending, is_sound):
    budget = budget_between_one_and_two_participations()
    experiment = config("federation.num_rounds=2", POISSON, f"privacy.max_epsilon={budget}")
    excess = ends_of(spending, experiment, tmp_path, 2).worst_excess()
    assert (excess <= 1.0) is is_sound, excess


@pytest.mark.parametrize(("spending", "is_sound"), [(Honest, True), (FollowsTheCoins, False)])
@pytest.mark.parametrize(("policy", "draws"), [("retry", 4), ("abort", 2)])
def test_rounds_made_again_or_given_up_are_priced_as_planned(
    tmp_path, policy, draws, spending, is_sound
):
    experiment = config(
        ONE_OF_TWO,
        "federation.num_rounds=2",
        f"federation.replies={{on_failure='{policy}',max_attempts=2}}",
    )
    # client 1 always fails, so a round is accepted when client 0 is drawn
    excess = ends_of(spending, experiment, tmp_path, draws, lambda of: 0 in of).worst_excess()
    assert (excess <= 1.0) is is_sound, excess


TARGET = "privacy.noise={{kind='target',epsilon=2.0,delta=1e-4,adversary='{}'}}"


@pytest.mark.parametrize(
    ("adversary", "most", "charges", "paid", "words"),
    [
        ("server", None, 9, [5], ["privacy.noise.epsilon", "privacy.max_epsilon may allow more"]),
        ("external", None, 9, [5], ["privacy.noise.epsilon", "privacy.max_epsilon may allow more"]),
        ("server", 1.5, 5, range(1, 5), ["privacy.max_epsilon"]),
        ("server", 2.5, 6, [6], []),
    ],
)
def test_the_budget_is_the_target_unless_a_smaller_or_larger_one_is_said(
    tmp_path, adversary, most, charges, paid, words
):
    more = [f"privacy.max_epsilon={most}"] if most else []
    spending = Honest(config("federation.num_rounds=5", POISSON, TARGET.format(adversary), *more))
    number = 0
    refusal = None
    with spending.opened(tmp_path / "ledger.jsonl") as account:
        try:
            while number < charges:
                account.charge(number + 1, 0, (0,))
                number += 1
        except BudgetExhausted as exhausted:
            refusal = str(exhausted)
    assert number in paid
    assert (refusal is None) is (not words)
    assert all(word in refusal for word in words)
    assert str(spending.statement()["notes"]).count("target epsilon 2 is passed: 6 cohort") == (
        most == 2.5
    )
