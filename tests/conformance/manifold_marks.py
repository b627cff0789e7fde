"""What the suites over CASES share: which cases, and how many examples."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conformance.manifold_cases import CASES


def of(cases):
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.name)


ALL = of(CASES)
WITH_LOG = of([c for c in CASES if c.manifold.has_logmap])
AMBIENT = of([c for c in CASES if c.is_stored_in_ambient])


def drawn(test):
    """A few seeds, unbatched and batched."""
    few = settings(max_examples=4, derandomize=True, deadline=None)
    return given(seed=st.integers(0, 10_000), lead=st.sampled_from([(), (3,), (2, 2)]))(few(test))
