"""The claims of PriRFed as numerical checks: what reproduces, in which regime, and what does not.

    python benchmarks/reproduce_000.py --check 4 [--json]
    python benchmarks/reproduce_000.py --all [--json]

Verdicts are computed from the numbers printed beside them; docs/experiments.md explains each.
Checks 11 and 12 use MNIST and the WordNet mammals where MANIFED_DATA names a folder that has
them, and their stand-ins elsewhere. With --json the last line printed is one JSON object.
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
    from app.run_folder import jsonable
    from benchmarks.checks_000 import CHECKS

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--check", type=int, choices=sorted(CHECKS), help="number in spec 000 §8")
    which.add_argument("--all", action="store_true", help="all checks")
    parser.add_argument("--json", action="store_true", help="print one JSON object as last line")
    given = parser.parse_args(argv)
    findings: list[dict[str, Any]] = []
    for number in sorted(CHECKS) if given.all else [given.check]:
        began = time.process_time()
        found = asdict(CHECKS[number]()) | {"cpu_seconds": time.process_time() - began}
        findings.append(found)
        sys.stdout.write(text_of(found))
        sys.stdout.flush()
    if given.json:
        sys.stdout.write(json.dumps(jsonable({"checks": findings})) + "\n")
    return 0


def text_of(found: Mapping[str, Any]) -> str:
    """A few lines about one finding."""
    seeds = ", ".join(str(seed) for seed in found["seeds"]) or "none needed"
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
    """Nested numbers, one line for each innermost mapping or value."""
    lines: list[str] = []
    for key, value in numbers.items():
        if isinstance(value, Mapping) and any(isinstance(v, Mapping) for v in value.values()):
            lines += [f"{indent}{key}:", *lines_of(value, indent + "  ")]
        else:
            lines.append(f"{indent}{key}: {short(value)}")
    return lines


def short(value: Any) -> str:
    """Four digits of every number in ``value``."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {short(v)}" for key, v in value.items())
    if isinstance(value, list | tuple):
        return "  ".join(short(v) for v in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
