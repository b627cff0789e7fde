"""The claims of DP-RSVRG (TMLR 2023) as numerical checks: what reproduces, and in which regime.

    python reproduction/reproduce_003.py --check H10 [--json]
    python reproduction/reproduce_003.py --all [--json]

Utpala, Han, Jawanpuria, Mishra: Improved Differentially Private Riemannian Optimization: Fast
Sampling and Variance Reduction. Ids are those of spec 003 §11; docs/experiments/003.md explains
each. Verdicts are computed from the numbers printed beside them. One thread.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main(argv: Sequence[str] | None = None) -> int:
    """0, or 2 for bad arguments; a contradicted claim is a finding and no failure."""
    sys.path.insert(0, str(ROOT))
    import torch

    from reproduction.checks_003 import CHECKS
    from reproduction.findings import Layout, command

    torch.set_num_threads(1)
    return command(
        CHECKS,
        argv,
        Layout(without_seeds="fixed", is_leaf_inline=False),
        description=__doc__.splitlines()[0] if __doc__ else None,
        reference="id in spec 003 §11",
    )


if __name__ == "__main__":
    sys.exit(main())
