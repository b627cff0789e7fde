"""Reserved rounds count until they are proved unused; what is live is what an audit reads."""

import random
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manifed.privacy import accountant, cohorts
from manifed.privacy.account import Account
from manifed.privacy.adversaries import CLIENT_LEVEL, EXTERNAL, SERVER
from manifed.privacy.charges import Charge, ClientReleases, Consumption, Reservation, Terms
from manifed.privacy.events import PoissonSampled, SampledWithoutReplacement, repeated
from manifed.privacy.ledger import Ledger, LedgerDamaged
from manifed.privacy.odometer import Odometer
from manifed.privacy.participation import external_epsilon, external_epsilon_of_rounds
from tests.privacy.test_spending import DELTA, LARGE, SMALL, UPDATES, odometer_of, release

settings.register_profile("privacy", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("privacy")
PAIRS = SampledWithoutReplacement(sample_size=2, population=5)
TERMS = Terms(population=5, updates=UPDATES, sampling=PAIRS)


def opened(path, *, block=1, terms=TERMS, last_round=None):
    ledger = Ledger.create(path, {})
    return Account(ledger, Odometer(), terms, block=block, last_round=last_round)


def audited(path):
    odometer = Odometer()
    Ledger.verify(path, feed=odometer.feed)
    return odometer


def state(odometer):
    """Everything that can be asked, without a price."""
    return (
        odometer.participations_by_client().tolist(),
        odometer.rounds_counted,
        odometer.rounds_consumed,
        odometer.covered,
        [odometer.attempts(r) for r in range(12)],
    )


# -- cohorts -----------------------------------------------------------------------------------
@given(st.sets(st.integers(0, 400)), st.booleans())
def test_a_cohort_is_read_back_whatever_its_shape(some, is_complement):
    cohort = cohorts.members(set(range(401)) - some if is_complement else some)
    text = cohorts.encode(cohort)
    assert (cohorts.decode(text, 401) == cohort).all()
    assert len(text) <= 2 + 4 * 17 * 4


@pytest.mark.parametrize(
    "text", ["4", "b:EA==", "0-4", "3,2", "1-0", "x", "1,,2", "b:*", "0-999999999"]
)
def test_a_cohort_that_names_others_or_is_no_cohort_is_refused(text):
    with pytest.raises(ValueError, match="cohort"):
        cohorts.decode(text, 4)


def test_a_cohort_takes_the_shorter_of_ranges_and_bits():
    assert cohorts.encode(np.arange(10_000)) == "0-9999"
    assert cohorts.encode(np.arange(0, 0)) == ""
    half = cohorts.members(random.Random(0).sample(range(10_000), 5_000))
    assert cohorts.encode(half).startswith("b:")
    assert len(cohorts.encode(half)) < 1_700


# -- what counts -------------------------------------------------------------------------------
def test_one_round_is_one_line_and_prices_are_those_of_self_contained_charges(tmp_path):
    path, rng = tmp_path / "ledger.jsonl", random.Random(1)
    drawn = [tuple(sorted(rng.sample(range(5), 2))) for _ in range(9)]
    with (account := opened(path)).ledger as ledger:
        for server_round, cohort in enumerate(drawn, start=1):
            account.charge(server_round, 0, cohort)
            assert ledger.head.sequence == server_round
            assert state(audited(path)) == state(account.odometer)
            assert account.odometer.rounds_consumed == server_round - 1
    found = account.odometer.spent(DELTA)
    paid = [Charge(server_round=1, partitions=c, turns=UPDATES, sampling=PAIRS) for c in drawn]
    for mine, theirs in zip(found, odometer_of(paid).spent(DELTA), strict=True):
        assert mine.epsilon == pytest.approx(theirs.epsilon, rel=1e-12)
        assert mine.epsilon_consumed <= mine.epsilon
    assert audited(path).spent(DELTA) == found


def test_a_crash_counts_the_whole_block_and_an_orderly_end_only_what_was_run(tmp_path):
    path = tmp_path / "ledger.jsonl"
    with (account := opened(path, block=6)).ledger as ledger:
        account.charge(1, 0, (0,))
        account.charge(2, 0, (0, 3))
        assert ledger.head.sequence == 1
        crashed = tmp_path / "crashed.jsonl"
        shutil.copy(path, crashed)
        shutil.copy(f"{path}.head", f"{crashed}.head")
        assert state(audited(crashed)) == state(account.odometer)
        account.settle()
    worst, real = audited(crashed), audited(path)
    assert (worst.rounds_counted, worst.rounds_consumed, worst.covered) == (6, 0, 6)
    assert worst.participations_by_client().tolist() == [6] * 5
    assert worst.epsilon(SERVER, DELTA) == accountant.epsilon(repeated(SMALL, 6), DELTA)
    assert (real.rounds_counted, real.rounds_consumed, real.covered) == (2, 2, 2)
    assert real.participations_by_client().tolist() == [2, 0, 0, 1, 0]
    assert [real.attempts(r) for r in (1, 2, 3)] == [1, 1, 0]
    assert state(real) == state(account.odometer)
    resumed = Account.recover(crashed, TERMS, resumed_at=2, block=6)
    with resumed.ledger:
        assert [resumed.attempts(r) for r in (1, 2, 6, 7)] == [1, 1, 1, 0]
        resumed.charge(2, 1, (1, 2))
        resumed.settle()
    after = audited(crashed)
    assert (after.rounds_counted, after.rounds_consumed) == (7, 1)  # the lost block stays
    assert after.participations_by_client().tolist() == [6, 7, 7, 6, 6]


def test_a_note_inside_a_block_bounds_what_a_crash_costs(tmp_path):
    path = tmp_path / "ledger.jsonl"
    with (account := opened(path, block=4)).ledger:
        account.charge(1, 0, (0,))
        account.charge(2, 0, ())
        account.note()
        assert state(audited(path)) == state(account.odometer)
        assert audited(path).participations_by_client().tolist() == [3, 2, 2, 2, 2]
        assert audited(path).rounds_consumed == 2
        account.charge(3, 0, (4,))
        account.settle()
    assert audited(path).participations_by_client().tolist() == [1, 0, 0, 0, 1]


def test_a_retry_ends_a_block_and_one_cohort_used_again_is_one_coin(tmp_path):
    path = tmp_path / "ledger.jsonl"
    with (account := opened(path, block=4, last_round=6)).ledger:
        account.charge(1, 0, (0, 1))
        account.charge(2, 0, (0, 1))
        account.charge(2, 1, (0, 1), cohort_attempt=0)
        assert [account.attempts(r) for r in (2, 3)] == [2, 0]
        account.charge(3, 0, (0, 1))
        account.settle()
    found = audited(path)
    assert found.participations_by_client().tolist() == [4, 4, 0, 0, 0]
    updates = [(SMALL, 0.4), (repeated(SMALL, 2), 0.4), (SMALL, 0.4)]
    assert found.epsilon(EXTERNAL, DELTA) == pytest.approx(
        external_epsilon_of_rounds(updates, DELTA), rel=1e-9
    )
    assert found.spent(DELTA)[1].epsilon_consumed == found.epsilon(EXTERNAL, DELTA)


@settings(max_examples=6)
@given(st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_live_and_audit_agree_after_every_step_whatever_happens(tmp_path_factory, block, seed):
    """Rounds, retries, notes, orderly ends and crashes, in any order; nothing is under-reported."""
    path, rng = tmp_path_factory.mktemp("any") / "ledger.jsonl", random.Random(seed)
    account, server_round, released = opened(path, block=block, last_round=8), 1, []
    for _ in range(10):
        step = rng.choice(["round", "round", "round", "retry", "note", "crash", "end"])
        if step in ("round", "retry"):
            server_round += step == "round" and server_round < 8
            cohort = tuple(rng.sample(range(5), rng.randrange(4)))
            attempt = account.attempts(server_round)
            account.charge(server_round, attempt, cohort)
            released.append((server_round, attempt, cohort))
        elif step == "note":
            account.note()
        else:
            if step == "end":
                account.settle()
            account.ledger.close()
            server_round = max(1, server_round - rng.randrange(3))
            account = Account.recover(
                path, TERMS, resumed_at=server_round, block=block, last_round=8
            )
        found = audited(path)
        assert state(found) == state(account.odometer)
        real = np.bincount([p for _, _, cohort in released for p in cohort], minlength=5)
        counted = np.zeros(5, dtype=int)
        counted[: found.participations_by_client().size] = found.participations_by_client()
        assert (counted >= real).all()
        assert found.rounds_counted >= len(released)
    assert len({(r, a) for r, a, _ in released}) == len(released)
    account.ledger.close()


def test_what_if_is_what_happens_and_changes_nothing(tmp_path):
    with (account := opened(tmp_path / "ledger.jsonl")).ledger:
        account.charge(1, 0, (0, 3))
        before = state(account.odometer)
        asked = account.after(2, 0, (0, 1))
        assert state(account.odometer) == before
        account.charge(2, 0, (0, 1))
        assert state(asked) == state(account.odometer)
        assert asked.spent(DELTA) == account.odometer.spent(DELTA)


def test_planned_draws_are_priced_for_the_outsider_and_for_nobody_else(tmp_path):
    terms = TERMS.model_copy(update={"planned_draws": 10})
    with (account := opened(tmp_path / "ledger.jsonl", terms=terms)).ledger:
        account.charge(1, 0, (3, 4))
    expected = max(
        external_epsilon(update, participation_probability=0.4, num_rounds=10, delta=DELTA)
        for update in (SMALL, LARGE)
    )
    found = {one.adversary.name: one.epsilon for one in account.odometer.spent(DELTA)}
    assert found["external"] == pytest.approx(expected, rel=1e-9)
    assert found["server"] == accountant.epsilon(LARGE, DELTA)


def test_a_client_whose_terms_change_pays_for_both(tmp_path):
    path, turned = (
        tmp_path / "ledger.jsonl",
        (
            ClientReleases(partitions=(3, 4), releases=SMALL),
            ClientReleases(partitions=(0, 1, 2), releases=LARGE),
        ),
    )
    with (account := opened(path)).ledger as ledger:
        account.charge(1, 0, (0, 3))
        account.settle()
        other = Account(ledger, account.odometer, TERMS.model_copy(update={"updates": turned}))
        other.charge(2, 0, (0, 4))
        other.settle()
    found = audited(path)
    by_client = found.spent_by_client(DELTA)
    assert by_client == {
        0: accountant.epsilon((*SMALL, *LARGE), DELTA),
        3: accountant.epsilon(LARGE, DELTA),
        4: accountant.epsilon(SMALL, DELTA),
    }
    assert found.epsilon(SERVER, DELTA) == max(by_client.values())


def test_client_level_rounds_are_priced_from_the_ledger_alone(tmp_path):
    coin = PoissonSampled(sampling_probability=0.1)
    upload = release(1.2, coin, unit="client")
    terms = Terms(population=50, sampling=coin, aggregate=(upload,))
    with (account := opened(tmp_path / "ledger.jsonl", terms=terms, block=8)).ledger:
        for server_round in range(1, 21):
            account.charge(server_round, 0, ())
        account.settle()
    (found,) = audited(tmp_path / "ledger.jsonl").spent(DELTA)
    assert (found.adversary, found.unit) == (CLIENT_LEVEL, "client")
    assert found.epsilon == accountant.epsilon(repeated((upload,), 20), DELTA)
    assert found.epsilon_consumed == found.epsilon


# -- what is refused ---------------------------------------------------------------------------
BOUND = np.arange(3)


@pytest.mark.parametrize(
    ("consumption", "message"),
    [
        (Consumption(0), "up to 1 to 4"),
        (Consumption(5), "up to 1 to 4"),
        (Consumption(3, (BOUND,)), "2 cohorts"),
        (Consumption(2, (np.array([4]),)), "reserved clients"),
    ],
)
def test_a_consumption_that_proves_what_was_never_reserved_is_refused(consumption, message):
    odometer = Odometer()
    odometer.declare(TERMS)
    odometer.reserve(Reservation(2, 4, 0, BOUND))
    before = state(odometer)
    with pytest.raises(ValueError, match=message):
        odometer.consume(consumption)
    with pytest.raises(ValueError, match=message):
        odometer.check(Reservation(5, 5, 0, BOUND, consumed=consumption))
    assert state(odometer) == before


def test_a_lost_reservation_cannot_be_consumed_later(tmp_path):
    odometer = Odometer()
    odometer.declare(TERMS)
    odometer.reserve(Reservation(1, 4, 0, BOUND))
    odometer.reserve(Reservation(1, 1, 1, BOUND))
    odometer.consume(Consumption(1))
    with pytest.raises(ValueError, match="open reservation"):
        odometer.consume(Consumption(4, (BOUND,) * 4))
    assert (odometer.rounds_counted, odometer.rounds_consumed) == (5, 1)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("consumed", {"upto": 1}),
        ("reserved", {"rounds": [1, 1], "attempt": 0, "cohort": "0-1"}),
        ("reserved", {"rounds": [2, 1], "attempt": 0, "cohort": "", "terms": TERMS.body()}),
        ("reserved", {"rounds": [1, 1], "attempt": 0, "cohort": "7", "terms": TERMS.body()}),
        ("reserved", {"rounds": [1, 10**12], "attempt": 0, "cohort": "", "terms": TERMS.body()}),
        ("reserved", {"rounds": [1, 1], "attempt": 0, "cohort": 7, "terms": TERMS.body()}),
        ("reserved", {}),
        ("refund", {"epsilon": -1}),
    ],
)
def test_an_entry_that_cannot_be_counted_is_found_by_line(tmp_path, kind, body):
    with Ledger.create(tmp_path / "ledger.jsonl", {}) as ledger:
        ledger.append(kind, body)
    with pytest.raises(LedgerDamaged, match="line 2: is no charge that can be counted"):
        audited(tmp_path / "ledger.jsonl")
    assert len(Ledger.read(tmp_path / "ledger.jsonl")) == 2


def test_what_could_not_be_read_back_is_not_written(tmp_path):
    with (account := opened(tmp_path / "ledger.jsonl")).ledger as ledger:
        for charge in ((1, 0, (7,)), (1, -1, (0,))):
            with pytest.raises(ValueError, match="Expected"):
                account.charge(*charge)
        assert ledger.head.sequence == 0
        account.charge(1, 0, (0,))
        with pytest.raises(ValueError, match="Expected clients < 5"):
            account.charge(2, 0, (7,))
        assert ledger.head.sequence == 1
    assert state(audited(tmp_path / "ledger.jsonl")) == state(account.odometer)
    assert account.odometer.rounds_counted == 1
