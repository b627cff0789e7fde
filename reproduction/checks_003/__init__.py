"""The checks of DP-RSVRG, by id."""

from reproduction.findings import checks_of

CHECKS = checks_of(__name__, __path__)
