"""The claims of DP-RSVRG (TMLR 2023) as numerical checks: what reproduces, and in which regime.

    python benchmarks/reproduce_003.py --check H10 [--json]
    python benchmarks/reproduce_003.py --all [--json]

Utpala, Han, Jawanpuria, Mishra: Improved Differentially Private Riemannian Optimization: Fast
Sampling and Variance Reduction. Ids are those of spec 003 §11; docs/experiments/003.md explains
each. Verdicts are computed from the numbers printed beside them. One thread.
"""

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def main(argv: Sequence[str] | None = None) -> int:
    """0, or 2 for bad arguments; a contradicted claim is a finding and no failure."""
    sys.path.insert(0, str(ROOT))
    import torch

    from app.run_folder import jsonable
    from benchmarks.checks_003 import CHECKS

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--check", choices=CHECKS, help="id in spec 003 §11")
    which.add_argument("--all", action="store_true", help="all checks")
    parser.add_argument("--json", action="store_true", help="print one JSON object as last line")
    given = parser.parse_args(argv)
    torch.set_num_threads(1)
    findings: list[dict[str, Any]] = []
    for name in CHECKS if given.all else [given.check]:
        began = time.process_time()
        found = asdict(CHECKS[name]()) | {"cpu_seconds": time.process_time() - began}
        findings.append(found)
        sys.stdout.write(text_of(found))
        sys.stdout.flush()
    if given.json:
        sys.stdout.write(json.dumps(jsonable({"checks": findings})) + "\n")
    return 0


def text_of(found: Mapping[str, Any]) -> str:
    """A few lines about one finding."""
    seeds = ", ".join(str(seed) for seed in found["seeds"]) or "fixed"
    lines = [
        f"check {found['check']}: {found['verdict'].upper()}",
        f"  {found['claim']}",
        *(f"  {line}" for line in lines_of(found["numbers"])),
        f"  seeds {seeds}; {found['cpu_seconds']:.1f} s of CPU time",
    ]
    if found["remark"]:
        lines.append(f"  {found['remark']}")
    return "\n".join(lines) + "\n"


def lines_of(numbers: Mapping[str, Any], indent: str = "") -> list[str]:
    """Nested numbers, one line for each innermost value."""
    lines: list[str] = []
    for key, value in numbers.items():
        if isinstance(value, Mapping):
            lines += [f"{indent}{key}:", *lines_of(value, indent + "  ")]
        else:
            lines.append(f"{indent}{key}: {short(value)}")
    return lines


def short(value: Any) -> str:
    """Four digits of every number in ``value``."""
    if isinstance(value, list | tuple):
        return "  ".join(short(v) for v in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
