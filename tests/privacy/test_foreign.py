"""Our prices beside those of dp_accounting's own accountants, which compose our events."""

import dp_accounting as dp
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from manifed.privacy.epsilon_bounds import epsilon
from manifed.privacy.events import (
    CLIENT_LEVEL,
    EXTERNAL,
    SERVER,
    PoissonSampled,
    SampledWithoutReplacement,
    Unsampled,
    repeated,
)
from manifed.privacy.foreign import DPSGD, of_clients
from manifed.privacy.ledger import Entry, Ledger, Reserves
from manifed.privacy.odometer import Odometer
from manifed.privacy.tariff import Terms
from tests.privacy.releases import laplace, poisson, release

ADD = dp.NeighboringRelation.ADD_OR_REMOVE_ONE
TENTH = PoissonSampled(sampling_probability=0.2)
SUBSET = SampledWithoutReplacement(sample_size=20, population=100)


def dp_event(releases):
    """The releases as an event that dp_accounting's accountants compose."""
    made = []
    for one in releases:
        kind = dp.LaplaceDpEvent if one.kind == "laplace" else dp.GaussianDpEvent
        event = kind(one.noise_multiplier)
        match one.sampling:
            case PoissonSampled(sampling_probability=q):
                event = dp.PoissonSampledDpEvent(q, event)
            case SampledWithoutReplacement(sample_size=m, population=n):
                event = dp.SampledWithoutReplacementDpEvent(n, m, event)
        made.append(dp.SelfComposedDpEvent(event, one.count))
    return dp.ComposedDpEvent(made)


def by(accountant, event, delta=1e-5):
    return accountant.compose(event).get_epsilon(delta)


@pytest.mark.parametrize(
    "releases",
    [
        [release(2.0, count=3)],
        [release(0.7)],
        [poisson(1.0, 0.02, 100)],
        [poisson(1.0, 0.01, 1000)],
        [poisson(0.6, 0.1, 10)],
        [poisson(3.0, 0.5, 40)],
        [poisson(1.0, 0.1, 4), release(9.0)],
        [poisson(1.5, 0.02, 20), poisson(0.9, 0.04, 3)],
        [laplace(10.0, 50)],
        [laplace(20.0, 9), poisson(1.0, 0.01, 9)],
    ],
)
def test_its_pld_accountant_gives_our_events_our_epsilon(releases):
    found = by(PLDAccountant(ADD), dp_event(releases))
    assert epsilon(releases, 1e-5) == pytest.approx(found, rel=1e-3)


@pytest.mark.parametrize(
    ("sampling", "accountant", "printed"),
    [
        (Unsampled(), PLDAccountant(ADD), 31.1362),
        (SUBSET, RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE), 11.4245),
        (TENTH, PLDAccountant(ADD), 5.3391),
    ],
)
def test_cohorts_of_20_of_100_clients_cost_what_the_specification_says(
    sampling, accountant, printed
):
    releases = [of_clients(1.0, sampling, 30)]
    mine = epsilon(releases, 1e-3)
    assert mine == pytest.approx(printed, abs=1e-4)
    assert mine == pytest.approx(by(accountant, dp_event(releases), 1e-3), rel=1e-3)


def dp_events(odometer, adversary):
    """The event of each kind of client; the dearest has the odometer's epsilon."""
    kinds = odometer.coins(adversary)
    assert all(probability == 1 for coins in kinds for _, probability, _ in coins), "secret coins"
    return [
        dp_event([one for update, _, n in each for one in repeated(update, n)])
        for each in kinds
        if each
    ]


def test_the_events_of_a_ledger_have_the_epsilon_of_its_odometer(tmp_path):
    file = tmp_path / "ledger.jsonl"
    with Ledger.create(file, {}) as ledger:
        terms = Terms(population=100, aggregate=(of_clients(1.0, TENTH),))
        ledger.append(Entry(terms=terms, reserves=Reserves(first=1, last=30, cohort="0-19")))
    odometer = Odometer()
    Ledger.verify(file, feed=odometer.feed)
    (event,) = dp_events(odometer, CLIENT_LEVEL)
    assert by(PLDAccountant(ADD), event, 1e-3) == pytest.approx(5.3391, rel=1e-3)


def test_declared_steps_cost_the_server_all_rounds_and_an_outsider_its_coins():
    declares = DPSGD(noise_multiplier=1.0, sampling_probability=0.01, steps_per_round=100)
    promise = declares.promise(20, TENTH, 10, 1e-5)
    odometer = promise.odometer(10)
    (event,) = dp_events(odometer, SERVER)
    told = {one["name"]: one for one in promise.statement(odometer)["adversaries"]}
    assert by(PLDAccountant(ADD), event) == pytest.approx(told["server"]["epsilon"], rel=1e-3)
    assert told["server"]["epsilon"] == pytest.approx(1.828, abs=1e-3)
    assert odometer.epsilon(EXTERNAL, 1e-5) < 1.5
    with pytest.raises(AssertionError, match="secret coins"):
        dp_events(odometer, EXTERNAL)
