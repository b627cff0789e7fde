"""What the suites over CASES share: which cases, how many examples, how close."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conformance.manifold_cases import CASES

ALL = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
WITH_LOG = pytest.mark.parametrize(
    "case", [c for c in CASES if c.manifold.has_logmap], ids=lambda case: case.name
)
WITH_INVRETR = pytest.mark.parametrize(
    "case", [c for c in CASES if c.has_invretr], ids=lambda case: case.name
)
AMBIENT = pytest.mark.parametrize(
    "case", [c for c in CASES if c.is_stored_in_ambient], ids=lambda case: case.name
)
SEEDS = given(seed=st.integers(0, 10_000), lead=st.sampled_from([(), (3,), (2, 2)]))
FEW = settings(max_examples=4, derandomize=True, deadline=None)


def generator(seed):
    return torch.Generator().manual_seed(seed)


def normals(seed, *size):
    return torch.randn(size, generator=generator(seed), dtype=torch.float64)


def close(actual, expected, tolerance):
    """Assert an entrywise absolute gap of at most ``tolerance``."""
    gap = float((actual - expected).abs().max())
    assert gap <= tolerance, f"gap {gap:.3g} > {tolerance:.3g}"
