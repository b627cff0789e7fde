"""The table of misuses is as it is checked in: nothing raw, nothing late, one line each."""

import pytest

from tests.federation.misuses import CASES, TABLE, section

_, *WRITTEN = TABLE.read_text(encoding="utf-8").split("\n### ")


@pytest.mark.parametrize(("case", "written"), zip(CASES, WRITTEN, strict=True), ids=CASES)
def test_odd_values_of_an_argument_are_taken_or_refused_as_the_table_says(case, written):
    assert section(case).strip() == f"### {written}".strip()
