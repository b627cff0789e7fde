"""The checks of spec 004 §8, by id."""

from collections.abc import Callable

from reproduction.checks_004 import accounting, engines, identities, learning, least_squares
from reproduction.findings import Finding

CHECKS: dict[str, Callable[[], Finding]] = {
    "004-H1": identities.check_h1,
    "004-H2": identities.check_h2,
    "004-H3": identities.check_h3,
    "004-H4": identities.check_h4,
    "004-H5": identities.check_h5,
    "004-H6": accounting.check_h6,
    "004-H7": accounting.check_h7,
    "004-H8": accounting.check_h8,
    "004-H9": accounting.check_h9,
    "004-H10": accounting.check_h10,
    "004-H11": accounting.check_h11,
    "004-H12": accounting.check_h12,
    "004-H13": least_squares.check_h13,
    "004-H14": least_squares.check_h14,
    "004-H15": least_squares.check_h15,
    "004-H16": least_squares.check_h16,
    "004-H17": learning.check_h17,
    "004-H18": learning.check_h18,
    "004-H19": learning.check_h19,
    "004-H20": learning.check_h20,
    "004-H21": least_squares.check_h21,
    "004-H22": accounting.check_h22,
    "004-H23": accounting.check_h23,
    "004-H24": least_squares.check_h24,
    "004-H25": engines.check_h25,
}
