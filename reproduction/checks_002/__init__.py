"""The checks of spec 002 §7, by id."""

from collections.abc import Callable

from reproduction.checks_002 import accounting, asynchrony, coupled, least_squares, network
from reproduction.findings import Finding

CHECKS: dict[str, Callable[[], Finding]] = {
    "002-1": accounting.check_1,
    "002-2": accounting.check_2,
    "002-3": accounting.check_3,
    "002-4": accounting.check_4,
    "002-5": accounting.check_5,
    "002-6": accounting.check_6,
    "002-7": least_squares.check_7,
    "002-8": least_squares.check_8,
    "002-9": least_squares.check_9,
    "002-10": least_squares.check_10,
    "002-11": least_squares.check_11,
    "002-12": least_squares.check_12,
    "002-13": accounting.check_13,
    "002-14": accounting.check_14,
    "002-15": accounting.check_15,
    "002-16": least_squares.check_16,
    "002-17": network.check_17,
    "002-18": coupled.check_18,
    "002-19": accounting.check_19,
    "002-20": least_squares.check_20,
    "002-21": accounting.check_21,
    "002-B1": least_squares.check_b1,
    "002-B2": asynchrony.check_b2,
}
