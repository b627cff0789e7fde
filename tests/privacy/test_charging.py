"""Reserved rounds count until they are proved unused; what is live is what an audit reads."""

import random
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manifed.errors import BudgetExhausted
from manifed.privacy import tariff
from manifed.privacy.charging import Account, opened
from manifed.privacy.events import (
    CLIENT_LEVEL,
    EXTERNAL,
    SERVER,
    PoissonSampled,
    repeated,
)
from manifed.privacy.ledger import Entry, Ledger, LedgerDamaged, Reserves, Settles
from manifed.privacy.odometer import Odometer
from manifed.privacy.statement import Budget, Promise
from manifed.privacy.tariff import ClientReleases, Tariff, Terms
from tests.privacy.forging import audited
from tests.privacy.releases import cost, poisson, release
from tests.privacy.test_spending import (
    DELTA,
    KNOWS,
    SMALL,
    TERMS,
    reserved,
    state,
)


def promise_of(*lines, **more):
    return Promise(Tariff(lines), 100, **more)


PROMISE = promise_of(TERMS)


def account_at(path, promise=PROMISE, **more):
    return Account(promise, Ledger.create(path, {}), **more)


# -- cohorts -----------------------------------------------------------------------------------
@given(st.sets(st.integers(0, 400)), st.booleans())
def test_a_cohort_is_read_back_whatever_its_shape(some, is_complement):
    cohort = set(range(401)) - some if is_complement else some
    text = tariff.encode(cohort)
    assert tariff.decode(text, 401).tolist() == sorted(cohort)
    assert len(text) <= 2 + 4 * 17 * 4


@pytest.mark.parametrize(
    "text", ["4", "b:EA==", "0-4", "3,2", "1-0", "x", "1,,2", "b:*", "0-999999999"]
)
def test_a_cohort_that_names_others_or_is_no_cohort_is_refused(text):
    with pytest.raises(ValueError, match="cohort"):
        tariff.decode(text, 4)


def test_a_cohort_takes_the_shorter_of_ranges_and_bits():
    assert tariff.encode(range(10_000)) == "0-9999"
    assert tariff.encode(()) == ""
    half = random.Random(0).sample(range(10_000), 5_000)
    assert tariff.encode(half).startswith("b:")
    assert len(tariff.encode(half)) < 1_700


# -- what counts -------------------------------------------------------------------------------
def test_a_crash_counts_the_whole_block_and_an_orderly_end_only_what_was_run(tmp_path):
    path = tmp_path / "ledger.jsonl"
    crashed = tmp_path / "crashed.jsonl"
    with (account := account_at(path, block=6)).ledger as ledger:
        account.charge(1, 0, (0,))
        account.charge(2, 0, (0, 3))
        assert ledger.head.sequence == 1
        shutil.copy(path, crashed)
        shutil.copy(f"{path}.head", f"{crashed}.head")
        assert state(audited(crashed)) == state(account.odometer)
        account.settle()
    unwritten = Account(PROMISE, block=6)
    unwritten.charge(1, 0, (0,))
    unwritten.charge(2, 0, (0, 3))
    unwritten.settle()
    worst = audited(crashed)
    real = audited(path)
    assert state(unwritten.odometer) == state(real)
    assert (worst.rounds_counted, worst.covered) == (6, 6)
    assert worst.participations_by_client().tolist() == [6] * 5
    assert worst.epsilon(SERVER, DELTA) == cost(*repeated(SMALL, 6))
    assert (real.rounds_counted, real.covered) == (2, 2)
    assert real.participations_by_client().tolist() == [2, 0, 0, 1, 0]
    assert [real.attempts(r) for r in (1, 2, 3)] == [1, 1, 0]
    assert state(real) == state(account.odometer)
    with opened(crashed, PROMISE, last_round=8, header={}, block=6, resumed_at=2) as again:
        assert [again.attempts(r) for r in (1, 2, 6, 7)] == [1, 1, 1, 0]
        again.charge(2, 1, (1, 2))
    after = audited(crashed)
    assert after.rounds_counted == 7  # the lost block stays
    assert after.participations_by_client().tolist() == [6, 7, 7, 6, 6]


def test_a_retry_ends_a_block_and_is_a_coin_of_its_own(tmp_path):
    path = tmp_path / "ledger.jsonl"
    with (account := account_at(path, block=4, last_round=6)).ledger:
        account.charge(1, 0, (0, 1))
        account.charge(2, 0, (0, 1))
        account.charge(2, 1, (0, 1))
        assert [account.attempts(r) for r in (2, 3)] == [2, 0]
        account.charge(3, 0, (0, 1))
        account.settle()
    found = audited(path)
    assert found.participations_by_client().tolist() == [4, 4, 0, 0, 0]
    priced = Tariff((TERMS,)).ahead(EXTERNAL, (4,), DELTA)
    assert found.epsilon(EXTERNAL, DELTA) == pytest.approx(priced, rel=1e-9)


@settings(max_examples=6)
@given(st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_live_and_audit_agree_after_every_step_whatever_happens(tmp_path_factory, block, seed):
    """Rounds, retries, orderly ends and crashes, in any order; nothing is under-reported."""
    path = tmp_path_factory.mktemp("any") / "ledger.jsonl"
    rng = random.Random(seed)
    account = account_at(path, block=block, last_round=8)
    server_round = 1
    released = []
    for _ in range(10):
        step = rng.choice(["round", "round", "round", "retry", "crash", "end"])
        if step in ("round", "retry"):
            server_round += step == "round" and server_round < 8
            cohort = tuple(rng.sample(range(5), rng.randrange(4)))
            attempt = account.attempts(server_round)
            account.charge(server_round, attempt, cohort)
            released.append((server_round, attempt, cohort))
        else:
            if step == "end":
                account.settle()
            account.ledger.close()
            server_round = max(1, server_round - rng.randrange(3))
            odometer = Odometer()
            ledger = Ledger.recover(path, feed=odometer.feed)
            account = Account(PROMISE, ledger, odometer, block=block, last_round=8)
        found = audited(path)
        assert state(found) == state(account.odometer)
        real = np.bincount([p for _, _, cohort in released for p in cohort], minlength=5)
        assert (found.participations_by_client() >= real).all()
        assert found.rounds_counted >= len(released)
    assert len({(r, a) for r, a, _ in released}) == len(released)
    account.ledger.close()


# -- what is refused ---------------------------------------------------------------------------
def forged(**reserves):
    """An entry that no account makes."""
    made = Reserves.model_construct(attempt=0, **reserves)
    return Entry.model_construct(reserves=made, terms=TERMS, said={})


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (Entry(settles=Settles(upto=1)), "open reservation"),
        (reserved(1, (0, 1)), "terms before or in the first"),
        (reserved(1, (7,), terms=TERMS), "clients < 5"),
        (forged(first=2, last=1, cohort=""), "first <= last"),
        (forged(first=1, last=10**12, cohort=""), "less than or equal"),
        (forged(first=1, last=1, cohort=7), "valid string"),
        (Entry(said={"place": "nowhere"}), "Error"),
    ],
)
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_an_entry_that_cannot_be_counted_is_found_by_line(tmp_path, entry, why):
    with Ledger.create(tmp_path / "ledger.jsonl", {}) as ledger:
        ledger.append(entry)
    with pytest.raises(LedgerDamaged, match=f"line 2: is no charge that can be counted: .*{why}"):
        audited(tmp_path / "ledger.jsonl")


def test_what_could_not_be_read_back_is_not_written(tmp_path):
    with (account := account_at(tmp_path / "ledger.jsonl")).ledger as ledger:
        for charge in ((1, 0, (7,)), (1, -1, (0,))):
            with pytest.raises(ValueError, match=r"Expected clients < 5|greater than or equal"):
                account.charge(*charge)
        assert ledger.head.sequence == 0
        account.charge(1, 0, (0,))
        with pytest.raises(ValueError, match="Expected clients < 5"):
            account.charge(2, 0, (7,))
        assert ledger.head.sequence == 1
    assert state(audited(tmp_path / "ledger.jsonl")) == state(account.odometer)
    assert account.odometer.rounds_counted == 1


# -- budgets -----------------------------------------------------------------------------------
COUNT = release(40.0, kind="laplace", label="count")
UPDATE = (*SMALL, COUNT)
"""What a site releases each time: two noised gradients and one noised count."""
SITE = Terms(population=1, updates=(ClientReleases(partitions=(0,), releases=UPDATE),))


def of_site(times):
    """Just enough for so many updates."""
    epsilon = cost(*repeated(UPDATE, times)) * 1.0001
    return promise_of(SITE, budget=Budget(epsilon, DELTA, SERVER))


@pytest.mark.parametrize(
    ("block", "rounds", "lines"),
    [(1, (3, 4, 5, 8, 9, 12), 6), (4, (3, 4, 5, 8, 9, 12), 3), (4, range(1, 7), 2)],
)
def test_a_site_pays_until_its_own_budget_is_spent_and_a_block_is_cut_there(
    tmp_path, block, rounds, lines
):
    promise = of_site(6)
    path = tmp_path / "ledger.jsonl"
    assert promise.planned_draws == 6
    with (account := account_at(path, promise, block=block)).ledger as ledger:
        for server_round in rounds:
            account.charge(server_round, 0, (0,))
            assert account.odometer.rounds_counted <= 6
        assert ledger.head.sequence == lines
        with pytest.raises(BudgetExhausted, match="would be cohort draw 7"):
            account.charge(13, 0, (0,))
        account.settle()
    found = audited(path)
    assert found.participations == 6
    assert found.epsilon(SERVER, DELTA) == pytest.approx(cost(*repeated(UPDATE, 6)), rel=1e-12)


def test_the_price_of_draws_never_falls_and_is_least_for_who_sees_least():
    upload = (poisson(2.0, 0.2, unit="client"),)
    own = (ClientReleases(partitions=(0,), releases=SMALL),)
    terms = Terms(population=1, updates=own, sampling=upload[0].sampling, aggregate=upload)
    draw = Tariff((terms,))
    for unknowing, knowing in ((EXTERNAL, SERVER), (CLIENT_LEVEL, KNOWS)):
        less, more = (
            [draw.ahead(adversary, (draws,), DELTA) for draws in (0, 1, 5, 25)]
            for adversary in (unknowing, knowing)
        )
        assert less == sorted(less)
        assert less[0] == 0.0
        assert all(a <= b for a, b in zip(less, more, strict=True))


def test_draws_of_ranges_are_summed_by_line_and_the_most_attempts_count():
    terms = [Terms(population=n) for n in range(1, 5)]
    tariff = Tariff(tuple(terms), lengths=(2, 3, 5, 1))
    ranges = [(1, 4, 1), (5, 9, 1), (3, 4, 2), (12, 14, 3)]
    assert tariff.counted(ranges) == (2, 2 + 2 + 1, 4, 9)
    assert tariff.counted([]) == ()
    first_and_last = [tariff.of(r).population for r in (1, 2, 3, 5, 6, 10, 11, 99)]
    assert first_and_last == np.repeat([1, 2, 3, 4], 2).tolist()
    coin = PoissonSampled(sampling_probability=0.5)
    with pytest.raises(ValueError, match="rounds one by one where cohorts are drawn"):
        Tariff((Terms(population=1, sampling=coin),), lengths=(3,))


def test_an_outsider_is_promised_what_the_ledger_says(tmp_path):
    promise = promise_of(TERMS, adversaries=(EXTERNAL,), delta=DELTA).for_draws(10)
    with (account := account_at(tmp_path / "ledger.jsonl", promise)).ledger:
        account.charge(1, 0, (0, 1))
    found = audited(tmp_path / "ledger.jsonl")
    assert found.epsilon(EXTERNAL, DELTA) == pytest.approx(
        Tariff((TERMS,)).ahead(EXTERNAL, (10,), DELTA), rel=1e-9
    )


def test_without_a_budget_all_is_paid():
    assert PROMISE.planned_draws == 100
    PROMISE.check(PROMISE.odometer(10**6), 1)
