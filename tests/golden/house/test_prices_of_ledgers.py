"""Made-up releases, ledgers and plans cost what they cost before the house was halved.

prices_of_ledgers.json holds entries, terms and releases as a ledger writes them, with the prices.
"""

import json
from pathlib import Path

import pytest

from manifed.privacy import epsilon_bounds
from manifed.privacy.events import (
    ADVERSARIES,
    CLIENT_LEVEL_COHORTS,
    OF_MASKS,
    Adversary,
    Release,
    seen_by,
)
from manifed.privacy.ledger import Entry
from manifed.privacy.odometer import Odometer
from manifed.privacy.statement import Budget, Promise
from manifed.privacy.tariff import Tariff, Terms

pytestmark = pytest.mark.slow
RECORDED = json.loads(Path(__file__).with_name("prices_of_ledgers.json").read_text())
SEES_AGGREGATES = Adversary("inside", "", "aggregate", sees_cohorts=True)
ADVERSARY = {one.name: one for one in (*ADVERSARIES, *OF_MASKS[1:], SEES_AGGREGATES)}


def assert_priced(told, price):
    """``told`` are rows of a name, a delta, and the price or the name of a refusal."""
    for name, delta, expected in told:
        try:
            found = price(name, delta)
        except ValueError as refused:
            found = type(refused).__name__
        # A sum of probabilities differs by 1e-16 from one processor to another.
        is_refused = isinstance(expected, str)
        near = (
            expected
            if is_refused
            else pytest.approx(expected, rel=max(2e-12, 1e-16 / (delta or 1)))
        )
        assert found == near, (name, delta)


def test_releases_cost_what_is_recorded():
    for case in RECORDED["releases"]:
        found = tuple(map(Release.model_validate, case["releases"]))
        assert_priced(case["told"], lambda k, d, r=found: epsilon_bounds.epsilon(seen_by(k, r), d))


def test_recorded_ledgers_count_and_cost_what_is_recorded():
    for case in RECORDED["ledgers"]:
        odometer = Odometer()
        for entry in case["entries"]:
            odometer.feed(Entry.model_validate(entry))
        for name in ("rounds_counted", "participations", "covered"):
            assert getattr(odometer, name) == case[name]
        rounds = range(1, len(case["attempts"]) + 1)
        assert [*map(odometer.attempts, rounds)] == case["attempts"]
        spent = {one["name"]: one for one in odometer.spent(1e-3)}
        seen = spent.pop(CLIENT_LEVEL_COHORTS.name, None)  # it was not told then
        assert (seen is not None) == ("client-level" in spent)
        assert {name: one["unit"] for name, one in spent.items()} == case["units"]
        assert_priced(case["spent"], lambda name, _, spent=spent: spent[name]["epsilon"])
        for told, one in (
            (case["told"], odometer),
            (case["of_everybody"], odometer.of_everybody()),
        ):
            assert_priced(told, lambda name, delta, one=one: one.epsilon(ADVERSARY[name], delta))


def test_plans_cost_what_is_recorded_and_last_as_long():
    for case in RECORDED["plans"]:
        lines = tuple(map(Terms.model_validate, case["lines"]))
        tariff = Tariff(lines, tuple(case["lengths"]), case["attempts"])
        made = tuple(case["made"])
        assert_priced(
            case["told"], lambda name, d, t=tariff, m=made: t.ahead(ADVERSARY[name], m, d)
        )
        against = ADVERSARY[case["against"]]
        for epsilon, rounds in case["planned"].items():
            promise = Promise(tariff, 6, budget=Budget(float(epsilon), 1e-4, against))
            assert promise.planned_draws == rounds
