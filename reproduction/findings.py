"""What a numerical check found, and the command that runs checks and prints their findings."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from manifed.runs.run_folder import jsonable

Verdict = Literal["reproduced", "reproduced in the stated regime", "contradicted"]


@dataclass(frozen=True)
class Finding:
    """The result of one check: a verdict computed from measured numbers, and their seeds."""

    check: int | str
    claim: str
    verdict: Verdict
    numbers: Mapping[str, Any]
    seeds: tuple[int, ...] = ()
    remark: str = ""


def verdict_of(*, as_printed: bool, in_regime: bool = False) -> Verdict:
    """The verdict of a claim that holds as printed, only in a regime, or not at all."""
    if as_printed:
        return "reproduced"
    return "reproduced in the stated regime" if in_regime else "contradicted"


def log_slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Slope of the least-squares line through the logarithms."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


@dataclass(frozen=True)
class Layout:
    """How a paper's findings are printed."""

    without_seeds: str
    is_leaf_inline: bool
    """An innermost mapping on one line, or one line for each of its values."""


def command(
    checks: Mapping[Any, Callable[[], Finding]],
    argv: Sequence[str] | None,
    layout: Layout,
    *,
    description: str | None,
    reference: str,
) -> int:
    """Run one check or all; 0, or 2 for bad arguments: a contradicted claim is no failure."""
    parser = argparse.ArgumentParser(description=description)
    which = parser.add_mutually_exclusive_group(required=True)
    kind = type(next(iter(checks)))
    which.add_argument("--check", type=kind, choices=list(checks), help=reference)
    which.add_argument("--all", action="store_true", help="all checks")
    parser.add_argument("--json", action="store_true", help="print one JSON object as last line")
    given = parser.parse_args(argv)
    findings: list[dict[str, Any]] = []
    for check in checks if given.all else [given.check]:
        began = time.process_time()
        found = asdict(checks[check]()) | {"cpu_seconds": time.process_time() - began}
        findings.append(found)
        sys.stdout.write(text_of(found, layout))
        sys.stdout.flush()
    if given.json:
        sys.stdout.write(json.dumps(jsonable({"checks": findings})) + "\n")
    return 0


def text_of(found: Mapping[str, Any], layout: Layout) -> str:
    """A few lines about one finding."""
    seeds = ", ".join(str(seed) for seed in found["seeds"]) or layout.without_seeds
    lines = [
        f"check {found['check']}: {found['verdict'].upper()}",
        f"  {found['claim']}",
        *(f"  {line}" for line in lines_of(found["numbers"], layout)),
        f"  seeds {seeds}; {found['cpu_seconds']:.1f} s of CPU time",
    ]
    if found["remark"]:
        lines.append(f"  {found['remark']}")
    return "\n".join(lines) + "\n"


def lines_of(numbers: Mapping[str, Any], layout: Layout, indent: str = "") -> list[str]:
    """Nested numbers, indented by depth."""
    lines: list[str] = []
    for key, value in numbers.items():
        if isinstance(value, Mapping) and not (layout.is_leaf_inline and _is_leaf(value)):
            lines += [f"{indent}{key}:", *lines_of(value, layout, indent + "  ")]
        else:
            lines.append(f"{indent}{key}: {short(value)}")
    return lines


def _is_leaf(numbers: Mapping[str, Any]) -> bool:
    return not any(isinstance(value, Mapping) for value in numbers.values())


def short(value: Any) -> str:
    """Four digits of every number in ``value``."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {short(v)}" for key, v in value.items())
    if isinstance(value, list | tuple):
        return "  ".join(short(v) for v in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)
