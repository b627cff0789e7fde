"""What entries cost: who was asked pays, attempts count, all adversaries of the charges."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from manifed.errors import ConfigError
from manifed.privacy.events import (
    CLIENT_LEVEL,
    EXTERNAL,
    SERVER,
    Adversary,
    PoissonSampled,
    SampledWithoutReplacement,
    Unsampled,
    repeated,
)
from manifed.privacy.ledger import Entry, Reserves, Settles
from manifed.privacy.odometer import Odometer
from manifed.privacy.tariff import ClientReleases, Terms, encode
from tests.privacy.releases import cost, outside, release

DELTA = 1e-5


SMALL = (release(5.0, count=2),)
LARGE = (release(9.0, count=2),)
UPDATES = (
    ClientReleases(partitions=(0, 1, 2), releases=SMALL),
    ClientReleases(partitions=(3, 4), releases=LARGE),
)
PAIRS = SampledWithoutReplacement(sample_size=2, population=5)
TERMS = Terms(population=5, updates=UPDATES, sampling=PAIRS)
KNOWS = Adversary("cohorts", "one who sees cohorts", "aggregate", sees_cohorts=True)


def reserved(first, cohort, *, last=None, attempt=0, terms=None, settles=None):
    reserves = Reserves(first=first, last=last or first, attempt=attempt, cohort=encode(cohort))
    return Entry(terms=terms, reserves=reserves, settles=settles)


def odometer_of(cohorts, terms=TERMS):
    odometer = Odometer()
    odometer.declare(terms)
    for r, cohort in enumerate(cohorts, start=1):
        odometer.feed(reserved(r, cohort))
    return odometer


def spent(odometer):
    return {one["name"]: one for one in odometer.spent(DELTA)}


def test_a_client_pays_for_the_rounds_it_was_asked_in_and_only_for_those():
    found = spent(odometer_of([(0, 3), (0, 1), (3, 4)]))
    assert list(found) == ["server", "external"]
    assert found["server"]["epsilon"] == cost(*repeated(SMALL, 2))
    assert found["server"]["unit"] == "example"
    assert found["server"]["neighboring_relation"] == "add-or-remove"
    large = spent(odometer_of([(3,), (0, 3), (3, 4), (4, 3)]))["server"]["epsilon"]
    assert large == cost(*repeated(LARGE, 4))


def test_an_outsider_prices_every_client_for_every_draw_whoever_was_in_it():
    expected = max(outside(update, 0.4, 10) for update in (SMALL, LARGE))
    found = odometer_of([(3, 4)] * 10).epsilon(EXTERNAL, DELTA)
    assert found == pytest.approx(expected, rel=1e-9)


def test_with_everybody_in_every_round_all_pay_the_exact_composition():
    terms = TERMS.model_copy(update={"sampling": Unsampled()})
    exact = cost(*repeated(SMALL, 7))
    found = spent(odometer_of([range(5)] * 7, terms))
    assert [one["epsilon"] for one in found.values()] == [exact, exact]


def test_a_client_whose_terms_change_pays_for_both():
    turned = (
        ClientReleases(partitions=(3, 4), releases=SMALL),
        ClientReleases(partitions=(0, 1, 2), releases=LARGE),
    )
    odometer = odometer_of([(0, 3), (1,)])
    odometer.feed(reserved(3, (0, 4), terms=TERMS.model_copy(update={"updates": turned})))
    both = cost(*SMALL, *LARGE)
    assert odometer.epsilon(SERVER, DELTA) == pytest.approx(both, rel=1e-12)
    with pytest.raises(ValueError, match="terms of 5 clients, got 6"):
        odometer.declare(Terms(population=6))


def test_client_level_releases_have_an_adversary_of_their_own_and_cohorts_that_are_seen_cost_more():
    coin = PoissonSampled(sampling_probability=0.1)
    upload = release(1.2, coin, unit="client")
    terms = Terms(population=5, sampling=coin, aggregate=(upload,))
    odometer = odometer_of([(r % 2,) for r in range(21)], terms)
    told = spent(odometer)
    assert {name: one["unit"] for name, one in told.items()} == {
        "client-level": "client",
        "client-level-cohorts": "client",
    }
    found = told["client-level"]
    assert told["client-level-cohorts"]["epsilon"] == odometer.epsilon(KNOWS, DELTA)
    assert found["epsilon"] == cost(*repeated((upload,), 21))
    seen = odometer.epsilon(KNOWS, DELTA)
    assert seen == cost(release(1.2, count=11, unit="client"))
    assert seen > odometer.epsilon(CLIENT_LEVEL, DELTA)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=12))
def test_spending_only_grows_and_ignores_the_order(cohorts):
    total, before, turned = (
        {name: one["epsilon"] for name, one in spent(odometer_of(some)).items()}
        for some in (cohorts, cohorts[:-1], cohorts[::-1])
    )
    assert turned == total
    assert all(before[name] <= total[name] for name in before)


# -- what is settled -----------------------------------------------------------------------------
def state(odometer):
    """Everything that can be asked, without a price."""
    return (
        odometer.participations_by_client().tolist(),
        odometer.rounds_counted,
        odometer.covered,
        [odometer.attempts(r) for r in range(12)],
    )


@pytest.mark.parametrize(
    ("settles", "message"),
    [
        (Settles(upto=0), "up to 1 to 4"),
        (Settles(upto=5), "up to 1 to 4"),
        (Settles(upto=3, cohorts=("0-2",)), "2 cohorts"),
        (Settles(upto=2, cohorts=("4",)), "reserved clients"),
        (Settles(upto=2, cohorts=("7",)), "clients < 5"),
    ],
)
def test_a_settlement_that_proves_what_was_never_reserved_is_refused(settles, message):
    odometer = Odometer().after(reserved(2, range(3), last=4, terms=TERMS))
    before = state(odometer)
    for entry in (Entry(settles=settles), reserved(5, (0,), settles=settles)):
        with pytest.raises(ValueError, match=message):
            odometer.after(entry)
    assert state(odometer) == before


def test_a_lost_reservation_counts_for_ever_and_cannot_be_settled_later():
    odometer = Odometer().after(
        reserved(1, range(3), last=4, terms=TERMS),
        reserved(1, range(3), attempt=1),
        Entry(settles=Settles(upto=1)),
    )
    assert odometer.rounds_counted == 5
    with pytest.raises(ValueError, match="open reservation"):
        odometer.feed(Entry(settles=Settles(upto=4)))


@pytest.mark.parametrize(
    "updates",
    [UPDATES[:1], (*UPDATES, UPDATES[0]), (ClientReleases(partitions=range(6), releases=SMALL),)],
)
def test_terms_that_do_not_say_what_each_client_releases_are_refused(updates):
    with pytest.raises(ConfigError, match="each of 5 clients in one update"):
        Terms(population=5, updates=updates)


def test_as_if_everybody_was_asked_no_price_depends_on_a_cohort():
    odometer = odometer_of([(0,), (4,), ()])
    found = odometer.of_everybody()
    assert found.participations_by_client().tolist() == [3] * 5
    assert found.epsilon(SERVER, DELTA) == cost(*repeated(SMALL, 3))
    assert (odometer.participations_by_client() == np.array([1, 0, 0, 0, 1])).all()
