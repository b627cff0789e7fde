"""The checks of spec 003 §11, by id."""

from collections.abc import Callable

from reproduction.checks_003 import accounting, convergence, figure_3, laws, timing
from reproduction.findings import Finding

CHECKS: dict[str, Callable[[], Finding]] = {
    "H1": laws.check_h1,
    "H2": laws.check_h2,
    "H3": timing.check_h3,
    "H4": timing.check_h4,
    "H5": timing.check_h5,
    "H6": timing.check_h6,
    "H7": timing.check_h7,
    "H8": laws.check_h8,
    "H9": accounting.check_h9,
    "H10": accounting.check_h10,
    "H11": accounting.check_h11,
    "H12": accounting.check_h12,
    "H13": accounting.check_h13,
    "H14": convergence.check_h14,
    "H15": convergence.check_h15,
    "H16": convergence.check_h16,
    "H17": figure_3.check_h17,
    "H18": figure_3.check_h18,
    "H19": figure_3.check_h19,
    "H20": figure_3.check_h20,
    "H21": laws.check_h21,
    "H22": laws.check_h22,
}
