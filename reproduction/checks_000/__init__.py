"""The checks of PriRFed, one function each, verdicts computed from what they measure."""

from reproduction.findings import checks_of

CHECKS = checks_of(__name__, __path__)
