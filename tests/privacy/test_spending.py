"""Realised accounting: who was asked pays, attempts count, all adversaries of the charges."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from manifed.privacy import accountant
from manifed.privacy.accountant import NoValidBound
from manifed.privacy.adversaries import CLIENT_LEVEL, EXTERNAL, SERVER, Adversary
from manifed.privacy.charges import Charge, ClientReleases, charges
from manifed.privacy.events import (
    GaussianRelease,
    PoissonSampled,
    SampledWithoutReplacement,
    Unsampled,
    repeated,
)
from manifed.privacy.ledger import Ledger
from manifed.privacy.odometer import Odometer
from manifed.privacy.participation import external_epsilon, external_epsilon_of_rounds

settings.register_profile("privacy", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("privacy")
DELTA = 1e-5


def release(z, sampling=None, count=1, unit="example"):
    return GaussianRelease(
        unit=unit,
        neighboring_relation="add-or-remove",
        noise_multiplier=z,
        sampling=sampling or Unsampled(),
        count=count,
    )


SMALL, LARGE = (release(5.0, count=2),), (release(9.0, count=2),)
UPDATES = (
    ClientReleases(partitions=(0, 1, 2), releases=SMALL),
    ClientReleases(partitions=(3, 4), releases=LARGE),
)
PAIRS = SampledWithoutReplacement(sample_size=2, population=5)


def charge(server_round, partitions, *, attempt=0, turns=UPDATES, sampling=PAIRS, **more):
    return Charge(
        server_round=server_round,
        attempt=attempt,
        partitions=partitions,
        turns=turns,
        sampling=sampling,
        **more,
    )


def odometer_of(paid):
    odometer = Odometer()
    for one in paid:
        odometer.charge(one)
    return odometer


def spent(paid):
    return {s.adversary.name: s for s in odometer_of(paid).spent(DELTA)}


def external_spent(paid):
    return odometer_of(paid).epsilon(EXTERNAL, DELTA)


def test_a_client_pays_for_the_rounds_it_was_asked_in_and_only_for_those():
    paid = [charge(1, (0, 3)), charge(2, (0, 1)), charge(3, (3, 4))]
    by_client = odometer_of(paid).spent_by_client(DELTA)
    assert by_client == {
        0: accountant.epsilon(repeated(SMALL, 2), DELTA),
        1: accountant.epsilon(SMALL, DELTA),
        3: accountant.epsilon(repeated(LARGE, 2), DELTA),
        4: accountant.epsilon(LARGE, DELTA),
    }
    found = spent(paid)
    assert list(found) == ["server", "external"]
    assert found["server"].epsilon == max(by_client.values())
    assert found["server"].unit == "example"
    assert found["server"].neighboring_relation == "add-or-remove"
    assert "upload" in found["server"].adversary.text


def test_aborted_attempts_and_retries_are_paid():
    once, again = charge(1, (0, 1)), charge(1, (0, 2), attempt=1)
    by_client = odometer_of([once, again]).spent_by_client(DELTA)
    assert by_client[0] == accountant.epsilon(repeated(SMALL, 2), DELTA)
    assert by_client[1] == by_client[2] == accountant.epsilon(SMALL, DELTA)


def test_an_outsider_prices_every_named_client_for_every_round():
    paid = [charge(r, (3, 4)) for r in range(10)]
    expected = max(
        external_epsilon(update, participation_probability=0.4, num_rounds=10, delta=DELTA)
        for update in (SMALL, LARGE)
    )
    assert external_spent(paid) == pytest.approx(expected, rel=1e-9)


def test_a_retry_with_the_same_cohort_is_one_coin():
    fresh = [charge(1, (0, 1)), charge(1, (0, 1), attempt=1)]
    same = [fresh[0], charge(1, (0, 1), attempt=1, cohort_attempt=0)]
    assert external_spent(fresh) == pytest.approx(
        external_epsilon_of_rounds([(SMALL, 0.4)] * 2, DELTA), rel=1e-9
    )
    assert external_spent(same) == pytest.approx(
        external_epsilon_of_rounds([(repeated(SMALL, 2), 0.4)], DELTA), rel=1e-9
    )
    assert external_spent(same) > external_spent(fresh)


def test_charges_that_name_only_their_cohort_are_completed_where_one_update_fits():
    alike = ClientReleases(partitions=(0,), releases=SMALL)
    other = ClientReleases(partitions=(1,), releases=SMALL)
    coin = PoissonSampled(sampling_probability=0.3)
    paid = [
        charge(1, (0,), turns=(alike,), sampling=coin),
        charge(2, (1,), turns=(other,), sampling=coin),
        charge(3, (), turns=(), sampling=coin),
    ]
    expected = external_epsilon(SMALL, participation_probability=0.3, num_rounds=3, delta=DELTA)
    assert external_spent(paid) == pytest.approx(expected, rel=1e-9)


def test_a_price_that_the_charges_leave_open_is_refused_by_name():
    turns = (ClientReleases(partitions=(0,), releases=SMALL),)
    others = (
        ClientReleases(partitions=(1,), releases=LARGE),
        ClientReleases(partitions=(2,), releases=SMALL),
    )
    paid = [charge(1, (0,), turns=turns), charge(2, (1, 2), turns=others)]
    with pytest.raises(NoValidBound, match=r"round 2 .* client 0 .* Charge.turns"):
        external_spent(paid)


def test_with_everybody_in_every_round_all_pay_the_exact_composition():
    paid = [charge(r, (0, 1, 2, 3, 4), sampling=Unsampled()) for r in range(7)]
    exact = accountant.epsilon(repeated(SMALL, 7), DELTA)
    assert [s.epsilon for s in spent(paid).values()] == [exact, exact]


def test_client_level_releases_have_an_adversary_of_their_own():
    upload = release(1.2, PoissonSampled(sampling_probability=0.1), unit="client")
    paid = [charge(r, (0,), turns=(), aggregate=(upload,)) for r in range(20)]
    ((name, found),) = spent(paid).items()
    assert (name, found.unit) == ("client-level", "client")
    assert found.epsilon == accountant.epsilon(repeated((upload,), 20), DELTA)
    assert list(spent([*paid, charge(20, (0,))])) == ["server", "external", "client-level"]


def test_an_adversary_is_data_and_what_it_sees_decides_its_price():
    """One who sees the cohorts of client-level rounds gains the amplification back."""
    knows_cohorts = Adversary("cohorts", "one who sees cohorts", "aggregate", sees_cohorts=True)
    upload = release(1.2, PoissonSampled(sampling_probability=0.1), unit="client")
    paid = [charge(r, (r % 2,), turns=(), aggregate=(upload,)) for r in range(21)]
    odometer = odometer_of(paid)
    (found,) = odometer.spent(DELTA, [knows_cohorts])
    assert found.epsilon == accountant.epsilon([release(1.2, count=11, unit="client")], DELTA)
    assert found.epsilon > odometer.epsilon(CLIENT_LEVEL, DELTA)


def test_nothing_charged_is_nothing_spent():
    assert spent([]) == {}
    assert odometer_of([]).spent_by_client(DELTA) == {}


def test_spending_is_read_from_a_ledger_with_its_recovered_lines(tmp_path):
    path = tmp_path / "ledger.jsonl"
    paid = [charge(1, (0, 1)), charge(2, (0, 3))]
    with Ledger.create(path, {}) as ledger:
        ledger.append("charge", paid[0].model_dump(mode="json"))
        ledger.append("note", {"text": "no charge"})
    path.write_bytes(path.read_bytes() + b'{"body"')
    with Ledger.recover(path, charge=paid[1].model_dump(mode="json")) as ledger:
        assert charges(ledger.entries) == tuple(paid)


def test_a_budget_is_asked_before_the_charge(tmp_path):
    with Ledger.create(tmp_path / "ledger.jsonl", {}) as ledger:
        for server_round in range(3):
            ledger.append("charge", charge(server_round, (0, 1)).model_dump(mode="json"))
        now = accountant.epsilon(repeated(SMALL, 3), DELTA)
        after = accountant.epsilon(repeated(SMALL, 4), DELTA)
        for budget, partitions, exceeds in (
            (after, (0,), False),
            (after * 0.999, (0,), True),
            (now, (3, 4), False),
            (now * 0.999, (3, 4), True),
        ):
            asked = Odometer.of(ledger.entries)
            asked.charge(charge(3, partitions))
            assert (asked.epsilon(SERVER, DELTA) > budget) == exceeds
        asked = Odometer.of(ledger.entries)
        asked.charge(charge(3, (0,)))
        assert asked.epsilon(EXTERNAL, DELTA) <= after


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=12))
def test_spending_only_grows_and_ignores_the_order(pairs):
    paid = [charge(r, tuple(sorted({a, b}))) for r, (a, b) in enumerate(pairs)]
    total, before, turned = (
        {name: one.epsilon for name, one in spent(some).items()}
        for some in (paid, paid[:-1], paid[::-1])
    )
    assert turned == total
    assert all(before[name] <= total[name] for name in before)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"turns": UPDATES, "partitions": (0, 9)}, r"none for \[9\]"),
        ({"turns": (UPDATES[0], UPDATES[0]), "partitions": (0,)}, "one update at most"),
        ({"partitions": (0,), "server_round": -1}, "server_round"),
    ],
)
def test_a_charge_that_does_not_say_who_released_what_is_refused(fields, message):
    with pytest.raises(ValidationError, match=message):
        Charge(**{"server_round": 0, **fields})
