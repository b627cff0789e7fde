"""The checks of spec 001 §8 by name, and of what goes beyond the paper."""

from collections.abc import Callable, Mapping

from reproduction.checks_001 import beyond, claims, rivals
from reproduction.findings import Finding

CHECKS: Mapping[str, Callable[[], Finding]] = {
    "C3": claims.check_c3,
    "C4": claims.check_c4,
    "C5": claims.check_c5,
    "C6": claims.check_c6,
    "C7": claims.check_c7,
    "C8": claims.check_c8,
    "C9": claims.check_c9,
    "C10": claims.check_c10,
    "C12": claims.check_c12,
    "C13": claims.check_c13,
    "EQUAL": rivals.check_equal,
    "STEP": rivals.check_step,
    "PAIR": rivals.check_pair,
    "PARTIAL": beyond.check_partial,
    "EXAMPLE": beyond.check_example,
    "CLIENT": beyond.check_client,
}
"""C1, C2 and C11 are equalities and bounds, which the test suite holds."""
