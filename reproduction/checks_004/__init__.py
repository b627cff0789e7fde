"""The checks of DECOR, by id."""

from reproduction.findings import checks_of

CHECKS = checks_of(__name__, __path__, "004-")
