"""The archive of checks that are judged by an interval over seeds, and the page written from it.

python -m reproduction C4 004-H18 --archive docs/experiments/judged.json
python -m reproduction.judged docs/experiments    # writes judged.md beside it
"""

import json
import math
import platform
import sys
import tomllib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from manifed.durable import write_atomically
from manifed.runs.folder import jsonable
from manifed.runs.manifest import LIBRARY, git_state

_HEAD = """# Claims judged over seeds

Each part of a claim is one number, measured once for each seed, with the bounds that the claim
says. A part is *reproduced* where the 95 % interval of its mean (Student's t) lies inside the
bounds, *contradicted* where it lies outside, and *open* otherwise. This page is written from
[judged.json](judged.json) and the table of claims, `reproduction/claims.toml`, by
`python -m reproduction.judged docs/experiments`; no cell is typed. Bounds follow from the claim as
the paper states it, not from what was measured. What the paper does not say is called *ours*.
"""
CLAIMS = Path(__file__).with_name("claims.toml")


def claims() -> dict[str, dict[str, str]]:
    """The table of claims by check: paper, place, quotation, what is measured, threshold."""
    return tomllib.loads(CLAIMS.read_text())


def archive(path: Path, checks: Sequence[Mapping[str, Any]]) -> None:
    """Writes checks into the archive, in place of older ones of their names."""
    known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    made = {
        "commit": git_state(LIBRARY.parent),
        "machine": f"{platform.machine()}, {platform.system()}, Python {platform.python_version()}",
        "date": datetime.now(UTC).date().isoformat(),
    }
    known |= {check["check"]: {**check, **made} for check in checks if check["parts"]}
    text = json.dumps(jsonable(known), indent=1, sort_keys=True)
    write_atomically(path, (text + "\n").encode())


def page(known: Mapping[str, Mapping[str, Any]], stated: Mapping[str, Mapping[str, str]]) -> str:
    """Returns the page of an archive: a table for each check, below the claim as it is stated."""
    lines = [_HEAD.rstrip()]
    for name, check in sorted(known.items()):
        seeds = check["seeds"]
        said = stated[name]
        lines += [
            "",
            f"## {name}: {check['verdict']}",
            "",
            f"> {said['quotation']}",
            "",
            f"{said['paper']}, {said['place']}. Measured: {said['measured']}",
            f"Threshold: {said['threshold']}",
            "",
            f"{check['claim']}. {check['remark']}".strip(),
            "",
            f"`python -m reproduction {name} --seeds {len(seeds)}`, {check['date']}, "
            f"{check['cpu_seconds']:.0f} s, {check['machine']}.",
            "",
            "| part | bound | mean | 95 % interval | verdict |",
            "|---|---|--:|--:|---|",
        ]
        lines += [
            f"| {part.replace('|', chr(92) + '|')} | {_bound(one)} | {_said(one['mean'])} | "
            f"{_said(one['low'])} to {_said(one['high'])} | {one['verdict']} |"
            for part, one in check["parts"].items()
        ]
    return "\n".join(lines) + "\n"


def _bound(one: Mapping[str, Any]) -> str:
    low, high = float(one["least"]), float(one["most"])
    if math.isfinite(low) and math.isfinite(high):
        return f"{low:g} to {high:g}"
    return f"at least {low:g}" if high == math.inf else f"at most {high:g}"


def _said(value: Any) -> str:
    return f"{float(value):.3g}"


def main(folder: Path) -> None:
    """Writes judged.md from judged.json in a folder, and the table of claims."""
    text = page(json.loads((folder / "judged.json").read_text()), claims())
    (folder / "judged.md").write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
