"""The claims of PriRFed as numerical checks: what reproduces, in which regime, and what does not.

    python reproduction/reproduce_000.py --check 4 [--json]
    python reproduction/reproduce_000.py --all [--json]

Verdicts are computed from the numbers printed beside them; docs/experiments.md explains each.
Checks 11 and 12 use MNIST and the WordNet mammals where MANIFED_DATA names a folder that has
them, and their stand-ins elsewhere. With --json the last line printed is one JSON object.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main(argv: Sequence[str] | None = None) -> int:
    """0, or 2 for bad arguments; a contradicted claim is a finding and no failure."""
    sys.path.insert(0, str(ROOT))
    from reproduction.checks_000 import CHECKS
    from reproduction.findings import Layout, command

    return command(
        CHECKS,
        argv,
        Layout(without_seeds="none needed", is_leaf_inline=True),
        description=__doc__.splitlines()[0] if __doc__ else None,
        reference="number in spec 000 §8",
    )


if __name__ == "__main__":
    sys.exit(main())
