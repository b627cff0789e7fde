"""Every epsilon printed for an outsider bounds what the stopping and retrying really release.

The coins of tiny runs are enumerated, the purse decides when a run stops, and the hockey-stick
divergence of what is released (participation revealed, Gaussians) is computed exactly.
"""

import itertools
import math
from collections import Counter, defaultdict
from contextlib import nullcontext
from statistics import NormalDist

import pytest

from manifed.errors import BudgetExhausted, ConfigError
from manifed.experiment.load import load
from manifed.experiment.treasury import Treasury
from manifed.privacy.participation import external_epsilon
from tests.runs.test_cli import QUICKSTART, ROOT

MULTIPLIER, DELTA, RATE = 0.8, 1e-3, 0.3
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
    return load(ROOT / QUICKSTART, [*COMMON, *sets])


def delta_of(participations, epsilon):
    """The exact delta of so many Gaussian releases (Balle and Wang 2018, Theorem 8)."""
    mu = math.sqrt(participations) / MULTIPLIER
    if mu == 0:
        return 0.0
    return phi(mu / 2 - epsilon / mu) - math.exp(epsilon) * phi(-mu / 2 - epsilon / mu)


def printed_for_an_outsider(statement):
    (view,) = (view for view in statement["views"] if view["view"] == "external")
    return view["epsilon"]


class Worlds:
    """Ends of runs: what was printed, with which probability, how often client 0 took part."""

    def __init__(self):
        self._mass = defaultdict(lambda: defaultdict(float))

    def add(self, probability, printed, participations):
        self._mass[printed][participations] += probability

    def worst_excess(self):
        """The largest true delta of a printed epsilon over DELTA, given that it was printed."""
        found = []
        for printed, law in self._mass.items():
            total = sum(law.values())
            true = sum(p * delta_of(k, printed) for k, p in law.items()) / total
            found.append(true / DELTA)
        assert sum(sum(law.values()) for law in self._mass.values()) == pytest.approx(1.0)
        return max(found)


class FollowsTheCoins:
    """The planted fault: stops by realised counts, and prices the draws that were made."""

    def __init__(self, experiment):
        (turn,) = Treasury.prepare(experiment, SIZES)._turns
        cohort, self._turn = experiment.federation.cohort, turn.releases
        self._budget, self._rate = experiment.privacy.max_epsilon, cohort.rate(2)
        self._counts, self._draws = Counter(), 0

    def open_ledger(self, path, *, resumed_at):
        return nullcontext()

    def charge(self, server_round, attempt, cohort):
        after = self._counts + Counter(cohort)
        if self._budget and after and delta_of(max(after.values()), self._budget) > DELTA:
            raise BudgetExhausted
        self._counts, self._draws = after, self._draws + 1

    def statement(self):
        epsilon = external_epsilon(
            self._turn,
            participation_probability=self._rate,
            num_rounds=self._draws,
            delta=DELTA,
        )
        return {"views": [{"view": "external", "epsilon": epsilon}]}


def honest(experiment):
    return Treasury.prepare(experiment, SIZES)


def run_rounds(treasury, experiment, ledger, cohorts, is_accepted):
    """Charges as manifed/flower/rounds.py does; (printed epsilon, participations of client 0)."""
    policy = experiment.federation.replies
    tries = policy.max_attempts if policy.on_failure == "retry" else 1
    draws, taken = iter(cohorts), 0
    with treasury.open_ledger(ledger, resumed_at=None):
        for server_round in range(1, experiment.federation.num_rounds + 1):
            for attempt in range(tries):
                cohort = next(draws)
                try:
                    treasury.charge(server_round, attempt, cohort)
                except BudgetExhausted:
                    return printed_for_an_outsider(treasury.statement()), taken
                taken += 0 in cohort
                if is_accepted(cohort):
                    break
            else:
                break
    return printed_for_an_outsider(treasury.statement()), taken


def poisson_worlds(experiment, tmp_path, purse=honest):
    worlds, kinds = Worlds(), [(), (0,), (1,), (0, 1)]
    rounds = experiment.federation.num_rounds
    for number, cohorts in enumerate(itertools.product(kinds, repeat=rounds)):
        present = sum(len(cohort) for cohort in cohorts)
        probability = RATE**present * (1 - RATE) ** (2 * rounds - present)
        path = tmp_path / f"{number}"
        printed, taken = run_rounds(purse(experiment), experiment, path, cohorts, lambda _: True)
        worlds.add(probability, printed, taken)
    return worlds


def one_of_two_worlds(experiment, tmp_path, draws, purse=honest):
    """Client 1 always fails, so a round is accepted when client 0 is drawn."""
    worlds = Worlds()
    for number, cohorts in enumerate(itertools.product([(0,), (1,)], repeat=draws)):
        path = tmp_path / f"{number}"
        printed, taken = run_rounds(
            purse(experiment), experiment, path, cohorts, lambda cohort: 0 in cohort
        )
        worlds.add(0.5**draws, printed, taken)
    return worlds


def budget_between_one_and_two_participations():
    low, high = (
        next(e / 1000 for e in range(1, 20000) if delta_of(k, e / 1000) <= DELTA) for k in (1, 2)
    )
    return (low + high) / 2


@pytest.mark.parametrize(("purse", "is_sound"), [(honest, True), (FollowsTheCoins, False)])
def test_a_budget_does_not_stop_where_the_coins_fell(tmp_path, purse, is_sound):
    budget = budget_between_one_and_two_participations()
    experiment = config("federation.num_rounds=2", POISSON, f"privacy.max_epsilon={budget}")
    excess = poisson_worlds(experiment, tmp_path, purse).worst_excess()
    assert (excess <= 1.0) is is_sound, excess


@pytest.mark.parametrize(("purse", "is_sound"), [(honest, True), (FollowsTheCoins, False)])
@pytest.mark.parametrize(("policy", "draws"), [("retry", 4), ("abort", 2)])
def test_rounds_made_again_or_given_up_are_priced_as_planned(
    tmp_path, policy, draws, purse, is_sound
):
    replies = f"federation.replies={{on_failure='{policy}',max_attempts=2}}"
    experiment = config(ONE_OF_TWO, "federation.num_rounds=2", replies)
    excess = one_of_two_worlds(experiment, tmp_path, draws, purse).worst_excess()
    assert (excess <= 1.0) is is_sound, excess


def test_client_level_rounds_are_neither_made_again_nor_given_up():
    noise = "noise={kind='multiplier',noise_multiplier=3.0}"
    level = f"privacy={{kind='client-level',l2_norm_clip=0.1,delta=0.01,{noise}}}"
    for policy in ("retry", "abort"):
        with pytest.raises(ConfigError, match=r"federation\.replies\.on_failure"):
            load(ROOT / QUICKSTART, [level, f"federation.replies.on_failure={policy}"])


def stopped_after(sets, tmp_path, charges):
    """The text with which the purse refuses one of so many charges; None if it pays them all."""
    treasury = honest(config(*sets))
    with treasury.open_ledger(tmp_path / "ledger.jsonl", resumed_at=None):
        for number in range(charges):
            try:
                treasury.charge(number + 1, 0, (0,))
            except BudgetExhausted as refusal:
                return number, str(refusal), treasury.statement()
    return charges, None, treasury.statement()


TARGET = "privacy.noise={{kind='target',epsilon=2.0,delta=1e-4,view='{}'}}"


@pytest.mark.parametrize("view", ["server", "external"])
def test_the_budget_of_a_target_run_is_the_target(tmp_path, view):
    sets = ("federation.num_rounds=5", POISSON, TARGET.format(view))
    paid, refusal, _ = stopped_after(sets, tmp_path, 9)
    assert paid == 5
    assert "privacy.noise.epsilon" in refusal
    assert "privacy.max_epsilon may allow more" in refusal


def test_a_run_that_may_pass_its_target_says_so(tmp_path):
    sets = ("federation.num_rounds=5", POISSON, TARGET.format("server"), "privacy.max_epsilon=2.5")
    paid, refusal, statement = stopped_after(sets, tmp_path, 6)
    assert (paid, refusal) == (6, None)
    assert [note for note in statement["notes"] if "target epsilon 2 is passed: 6 cohort" in note]


def test_a_smaller_budget_than_the_target_stops_earlier(tmp_path):
    sets = ("federation.num_rounds=5", POISSON, TARGET.format("server"), "privacy.max_epsilon=1.5")
    paid, refusal, statement = stopped_after(sets, tmp_path, 5)
    assert 0 < paid < 5
    assert "privacy.max_epsilon" in refusal
    assert not [note for note in statement["notes"] if "is passed" in note]
