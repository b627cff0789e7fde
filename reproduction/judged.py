"""The archive of all checks, and the pages written from it and from the table of claims.

python -m reproduction --all --seeds 0-9 --archive docs/experiments/judged.json
python -m reproduction.judged docs/experiments    # writes judged.md and judged_000.md to _004.md
"""

import hashlib
import inspect
import json
import math
import platform
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from manifed.durable import write_atomically
from manifed.runs.folder import jsonable
from manifed.runs.manifest import LIBRARY, git_state
from reproduction.findings import lines_of

TITLES = {
    "000": "PriRFed", "001": "Projected federated learning", "002": "Growing samples",
    "003": "DP-RSVRG", "004": "DECOR",
}  # fmt: skip
_HEAD = """\
A part of a claim that draws at random is one number, measured once a seed, with the bounds
that the claim says. A part is *reproduced* where the 95 % interval of its mean (Student's t) lies
inside the bounds, *contradicted* where it lies outside, and *open* otherwise. Other claims are
judged by the numbers of their section: *reproduced* as printed, or *in the stated regime*, or
*contradicted*. Bounds follow from the claim as the paper states it, not from what was measured;
what the paper does not say is called *ours*.

This page is written from [judged.json](judged.json) and the table of claims,
`reproduction/claims.toml`, by `python -m reproduction.judged docs/experiments`; no cell is typed.
"""
CLAIMS = Path(__file__).with_name("claims.toml")
ARCHIVE = CLAIMS.parents[1] / "docs" / "experiments" / "judged.json"
_IMPORT = re.compile(r"^from (reproduction[\w.]*) import ([\w, ]*)", re.MULTILINE)
Stated = Mapping[str, Mapping[str, str]]
Archive = Mapping[str, Mapping[str, Any]]


def claims() -> dict[str, dict[str, str]]:
    """The table of claims by check: paper, place, what is measured, threshold, and the claim.

    The claim is a ``quotation``, or where the paper does not make it, ``ours``. Where there is no
    check, ``not_attempted`` says why.
    """
    return tomllib.loads(CLAIMS.read_text())


def sha256_of(files: Iterable[Path]) -> str:
    """The SHA-256 of the contents of files, in the order of their names."""
    return hashlib.sha256(b"".join(file.read_bytes() for file in sorted(files))).hexdigest()


def source_of(check: Callable[..., object]) -> str:
    """The beginning of the SHA-256 of the module of a check and of those of ours that it uses."""
    home = CLAIMS.parent
    files = {Path(inspect.getfile(check))}
    unread = [*files]
    while unread:
        for module, names in _IMPORT.findall(unread.pop().read_text()):
            place = home.joinpath(*module.split(".")[1:])
            used = {
                place.with_suffix(".py"),
                *(place / f"{name.split(' as ')[0]}.py" for name in names.split(", ")),
            }
            found = {file for file in used if file.is_file() and file.stem != "findings"} - files
            files |= found
            unread += found
    return sha256_of(files)[:16]


def archived(path: Path | None) -> dict[str, Any]:
    """The archive at a path, by check; of no checks where there is no file."""
    return json.loads(path.read_text()) if path is not None and path.exists() else {}


def archive(path: Path, check: Mapping[str, Any]) -> None:
    """Writes a check into the archive, in place of an older one of its name."""
    made = {
        "commit": git_state(LIBRARY.parent),
        "machine": f"{platform.machine()}, {platform.system()}, Python {platform.python_version()}",
        "date": datetime.now(UTC).date().isoformat(),
    }
    known = archived(path) | {check["check"]: {**check, **made}}
    text = json.dumps(jsonable(known), indent=1, sort_keys=True) + "\n"
    write_atomically(path, text.encode())


def pages(known: Archive, stated: Stated) -> dict[str, str]:
    """The texts of all pages by their names: the table of verdicts, and a page for each paper."""
    lines = ["# Claims and verdicts", "", *_HEAD.splitlines()]
    found = {}
    for number, paper in TITLES.items():
        names = [name for name in sorted(stated, key=_order) if stated[name]["paper"] == paper]
        lines += ["", f"## {paper}"]
        for head, key in (("claim of the paper", "quotation"), ("check of ours", "ours")):
            rows = [
                f"| {_link(number, name, known)} | {_cell(stated[name][key])} | "
                f"{verdict_of(name, known, stated)} |"
                for name in names
                if key in stated[name]
            ]
            lines += ["", f"| check | {head} | verdict |", "|---|---|---|", *rows]
        told = [f"# {paper}: claims and verdicts", "", *_HEAD.splitlines()]
        for name in names:
            told += _section(name, known[name], stated[name]) if name in known else []
        found[f"judged_{number}.md"] = "\n".join(told) + "\n"
    return {"judged.md": "\n".join(lines) + "\n"} | found


def verdict_of(name: str, known: Archive, stated: Stated) -> str:
    """The archived verdict of a claim, or why there is none."""
    if name in known:
        return str(known[name]["verdict"])
    why = stated[name].get("not_attempted")
    return f"not attempted: {why}" if why else "not run yet"


def _order(name: str) -> list[Any]:
    """The letters of a name, then its numbers as numbers."""
    parts = re.split(r"(\d+)", name)
    return [parts[::2], [int(part) for part in parts[1::2]]]


def _link(number: str, name: str, known: Archive) -> str:
    anchor = f"{name}-{known[name]['verdict']}" if name in known else ""
    return f"[{name}](judged_{number}.md#{anchor.lower().replace(' ', '-')})" if anchor else name


def _cell(text: str) -> str:
    """The text with what Markdown would read escaped."""
    return re.sub(r"([|*_<\[\]])", r"\\\1", text)


def _section(name: str, check: Mapping[str, Any], said: Mapping[str, str]) -> list[str]:
    seeds = f" --seeds {len(check['seeds'])}" if check["parts"] else ""
    claim = f"> {_cell(said['quotation'])}" if "quotation" in said else f"*Ours*: {said['ours']}"
    lines = [
        "", f"## {name}: {check['verdict']}", "", claim, "",
        f"{said['paper']}, {said['place']}. Measured: {said['measured']}",
        f"Threshold: {said['threshold']}", "", f"{check['claim']}. {check['remark']}".strip(), "",
        f"`python -m reproduction {name}{seeds}`, {check['date']}, commit "
        f"{check['commit']['commit'][:8]}, {check['cpu_seconds']:.0f} s, "
        f"{check['machine']}.", "",
    ]  # fmt: skip
    if not check["parts"]:
        return [*lines, "```text", *lines_of(check["numbers"]), "```"]
    lines += ["| part | bound | mean | 95 % interval | verdict |", "|---|---|--:|--:|---|"]
    return lines + [
        f"| {_cell(part)} | {_bound(one)} | {_said(one['mean'])} | "
        f"{_said(one['low'])} to {_said(one['high'])} | {one['verdict']} |"
        for part, one in check["parts"].items()
    ]


def _bound(one: Mapping[str, Any]) -> str:
    low, high = float(one["least"]), float(one["most"])
    if math.isfinite(low) and math.isfinite(high):
        return f"{low:g} to {high:g}"
    return f"at least {low:g}" if high == math.inf else f"at most {high:g}"


def _said(value: Any) -> str:
    return "not a number" if value is None else f"{float(value):.3g}"


def main(folder: Path) -> None:
    """Writes the pages beside the archive judged.json in a folder."""
    for name, text in pages(archived(folder / "judged.json"), claims()).items():
        (folder / name).write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
