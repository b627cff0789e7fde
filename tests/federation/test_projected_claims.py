"""The numeric claims of the projected federated learning paper, as tests (spec 001 §8)."""

import pytest

from reproduction.checks_001 import CHECKS

NOT_HERE = {"C12", "C13", "EQUAL", "PAIR", "STEP"}
"""Times, and searches of a minute on a slow machine: `python -m reproduction 001` runs them."""


@pytest.mark.slow
@pytest.mark.parametrize("claim", [name for name in CHECKS if name not in NOT_HERE])
def test_the_claim_holds(claim):
    found = CHECKS[claim]()
    assert found.verdict == "reproduced", found.numbers
