"""The checks of projected federated learning by name, and of what goes beyond the paper.

C1, C2 and C11 are equalities and bounds, which the test suite holds.
"""

from reproduction.findings import checks_of

CHECKS = checks_of(__name__, __path__)
