"""The checks of spec 000 §8, one function each, verdicts computed from what they measure."""

from collections.abc import Callable, Mapping

from reproduction.checks_000 import (
    bounds,
    calibration,
    figure_1,
    figure_2,
    heterogeneity,
    hyperbolic,
    identities,
    optimum,
    spd,
    theorem,
)
from reproduction.findings import Finding

CHECKS: Mapping[str, Callable[[], Finding]] = {
    "1": theorem.check_1,
    "2": theorem.check_2,
    "3": theorem.check_3,
    "4": figure_1.check_4,
    "5": optimum.check_5,
    "6": bounds.check_6,
    "7": bounds.check_7,
    "8": heterogeneity.check_8,
    "9": spd.check_9,
    "10": spd.check_10,
    "11": figure_2.check_11,
    "12": hyperbolic.check_12,
    "13": calibration.check_13,
    "14": bounds.check_14,
    "15": identities.check_15,
    "16": identities.check_16,
}
