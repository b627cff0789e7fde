"""The filter refuses what would exceed; a site uses it with its own records and budget."""

import pytest

from manifed.errors import BudgetExhausted
from manifed.privacy import accountant
from manifed.privacy.account import Account
from manifed.privacy.adversaries import CLIENT_LEVEL, EXTERNAL, SERVER, Adversary
from manifed.privacy.charges import ClientReleases, Terms
from manifed.privacy.events import LaplaceRelease, PoissonSampled, repeated
from manifed.privacy.filter import Budget, Draw, Filter, a_priori
from manifed.privacy.ledger import Ledger
from manifed.privacy.odometer import Odometer
from tests.privacy.test_spending import DELTA, SMALL, release

COUNT = LaplaceRelease(
    unit="example", neighboring_relation="add-or-remove", noise_multiplier=40.0, label="count"
)
UPDATE = (*SMALL, COUNT)
"""What a site releases each time: two noised gradients and one noised count."""
SITE = Terms(population=1, updates=(ClientReleases(partitions=(0,), releases=UPDATE),))


def budget(times, adversary=SERVER):
    """Just enough for so many updates."""
    return Budget(accountant.epsilon(repeated(UPDATE, times), DELTA) * 1.0001, DELTA, adversary)


@pytest.mark.parametrize("block", [1, 4])
def test_a_site_pays_its_own_updates_until_its_own_budget_is_spent(tmp_path, block):
    allowed, path = Filter(Draw.of(SITE), 100, budget(6)), tmp_path / "ledger.jsonl"
    assert allowed.planned_draws == 6
    with Ledger.create(path, {}) as ledger:
        account = Account(ledger, Odometer(), SITE, allowed=allowed, block=block)
        for server_round in (3, 4, 5, 8, 9, 12):
            account.charge(server_round, 0, (0,))
        with pytest.raises(BudgetExhausted, match="would be cohort draw 7"):
            account.charge(13, 0, (0,))
        account.settle()
    audited = Odometer.of(Ledger.read(path))
    assert audited.participations == 6
    assert audited.epsilon(SERVER, DELTA) == pytest.approx(
        accountant.epsilon(repeated(UPDATE, 6), DELTA), rel=1e-12
    )
    assert audited.epsilon(SERVER, DELTA) <= budget(6).epsilon


def test_a_block_is_cut_where_the_budget_ends(tmp_path):
    with Ledger.create(tmp_path / "ledger.jsonl", {}) as ledger:
        allowed = Filter(Draw.of(SITE), 100, budget(6))
        account = Account(ledger, Odometer(), SITE, allowed=allowed, block=4)
        for server_round in range(1, 7):
            account.charge(server_round, 0, (0,))
            assert account.odometer.rounds_counted <= 6
        with pytest.raises(ValueError, match="fresh cohort"):
            account.charge(7, 1, (0,), cohort_attempt=0)


def test_the_price_of_draws_never_falls_and_is_least_for_who_sees_least():
    coin = PoissonSampled(sampling_probability=0.2)
    knows = Adversary("cohorts", "one who sees cohorts", "aggregate", sees_cohorts=True)
    draw = Draw(0.2, frozenset({SMALL}), (release(2.0, coin, unit="client"),))
    for unknowing, knowing in ((EXTERNAL, SERVER), (CLIENT_LEVEL, knows)):
        prices = [a_priori(draw, unknowing, draws, DELTA) for draws in (0, 1, 5, 25)]
        assert prices == sorted(prices)
        assert prices[0] == 0.0
        assert all(
            price <= a_priori(draw, knowing, draws, DELTA)
            for price, draws in zip(prices, (0, 1, 5, 25), strict=True)
        )


def test_without_a_budget_everything_is_paid():
    allowed = Filter(Draw.of(SITE), 50)
    assert allowed.planned_draws == 50
    assert allowed.pays(10**6)
    allowed.check(10**6, 1)
