"""The numeric claims of the projected federated learning paper, as tests."""

import pytest

from reproduction.checks_001 import CHECKS
from reproduction.judged import source_of
from tests.robustness.long_claims import CLAIMS, archived

OVER_TEN_SEEDS = {"C4", "C7", "C9", "C12"}
"""Judged in docs/experiments/judged.json."""
NOT_HERE = {"C13", "EQUAL", "PAIR", "STEP", *CLAIMS, *OVER_TEN_SEEDS}
"""Times, and searches of minutes: `python -m reproduction 001` and `make evidence` run them."""
CONTRADICTED = {"002-18"}


@pytest.mark.slow
@pytest.mark.parametrize("claim", [name for name in CHECKS if name not in NOT_HERE])
def test_the_claim_holds(claim):
    found = CHECKS[claim]()
    assert found.verdict == "reproduced", found.numbers


def test_the_table_of_long_claims_is_of_this_source_and_says_what_the_pages_say():
    rows = archived()
    assert {*rows} == {*CLAIMS}
    for name, row in rows.items():
        expected = "contradicted" if name in CONTRADICTED else "reproduced"
        assert row[2] == expected, name
        assert row[-1] == source_of(CLAIMS[name]), f"make evidence measures {name} again"
