"""Calls that go from module to module in one round of the quickstart, and in one client update.

    python benchmarks/calls.py [--list] [--json] [--out benchmarks/results]

A call counts where a Python function of this product is entered from another module, of its own or
of a library. Calls into libraries and calls within a module do not count. A module counts where it
calls or is called. Comprehensions and lambdas belong to the module they stand in. A frame is every
entry of a Python function of this product, from its own module too.

The window is the second round, when caches are warm: from the entry of `one_round` (cohort, charge,
messages, client updates, replies, server update) to its return, the report. Start-up, evaluation
and checkpoint lie outside. The client update is the first call of `run_update` in it.
"""

import contextlib
import json
import logging
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.common.page import Page
from benchmarks.common.quiet import flower_says_only
from benchmarks.common.stopwatch import table

PRODUCT = ("manifed", "app", "strategies", "clients")
QUICKSTART = Path(__file__).resolve().parents[1] / "configs" / "quickstart.toml"
CLIENTS = 2

Crossing = tuple[str, str, str]
"""From a module, to a module, into a function."""


@dataclass
class Window:
    """What happens inside the ``number``-th outermost call of a function ``name``."""

    name: str
    number: int
    crossings: list[Crossing] = field(default_factory=list[Crossing])
    modules: set[str] = field(default_factory=set[str])
    entered: int = 0
    frames: int = 0
    frame: FrameType | None = None

    def see(self, frame: FrameType, event: str) -> None:
        """One event of `sys.setprofile` in a function of the product."""
        if event == "call" and self.frame is None and frame.f_code.co_name == self.name:
            self.frame = frame
            self.entered += 1
        if event == "call" and self.frame is not None and self.entered == self.number:
            self._note(frame)
        if event == "return" and frame is self.frame:
            self.frame = None

    def _note(self, frame: FrameType) -> None:
        callee = _module(frame)
        caller = _module(frame.f_back) if frame.f_back else ""
        self.modules.add(callee)
        self.frames += 1
        if caller != callee:
            self.crossings.append((caller, callee, frame.f_code.co_name))
            if _is_ours(caller):
                self.modules.add(caller)

    def numbers(self) -> dict[str, int]:
        """How many calls go over how many modules.

        Raises:
            ValueError: where the function was not called often enough.
        """
        if not self.crossings:
            raise ValueError(
                f"Expected {self.number} calls of a function {self.name!r}, got {self.entered}: "
                "name the function of one round and of one client update in WINDOWS"
            )
        return {
            "calls": len(self.crossings),
            "modules": len(self.modules),
            "frames": self.frames,
        }


COUNTS = ("calls", "modules", "frames")
WINDOWS = {"round": ("one_round", 2), "update": ("run_update", CLIENTS + 1)}


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _is_ours(module: str) -> bool:
    return module.split(".", 1)[0] in PRODUCT


def measure() -> dict[str, Window]:
    """The windows of the second round, with messages in one process."""
    from manifed.cli.main import main as main_of_the_command

    windows = {name: Window(*window) for name, window in WINDOWS.items()}

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event in {"call", "return"} and _is_ours(_module(frame)):
            for window in windows.values():
                window.see(frame, event)

    values = (
        f"federation.num_clients={CLIENTS}",
        "federation.num_rounds=2",
        "evaluation.is_enabled=false",
        "output.quiet=true",
    )
    sets = [part for value in values for part in ("--set", value)]
    with tempfile.TemporaryDirectory(prefix="manifed-bench-") as root:
        words = ["run", str(QUICKSTART), *sets, "--out", f"{root}/run", "--plain"]
        before = sys.getprofile()
        with flower_says_only(logging.ERROR), contextlib.suppress(SystemExit):
            sys.setprofile(profile)
            try:
                main_of_the_command(words)
            finally:
                sys.setprofile(before)
    return windows


def report(kept: dict[str, dict[str, dict[str, int]]]) -> str:
    """The table: a row a window, before and now."""
    rows = [
        [window, *(str(kept[when][window][what]) for what in COUNTS for when in kept)]
        for window in WINDOWS
    ]
    header = ["window", *(f"{what} {when}" for what in COUNTS for when in kept)]
    return table(header, rows)


def main() -> None:
    """Print the table; with --list each crossing, with --json the numbers as the last line.

    With --out what stands for now in calls.json and calls.md is replaced; what stands for before
    stays.
    """
    page = Page(__doc__, "calls.md")
    page.parser.add_argument("--list", action="store_true", help="pairs of modules with calls")
    given = page.parser.parse_args()
    windows = measure()
    found = {name: window.numbers() for name, window in windows.items()}
    if given.list:
        for name, window in windows.items():
            print(f"{name}:")
            for (caller, callee, function), times in Counter(window.crossings).most_common():
                print(f"  {times:3d}  {caller} -> {callee}.{function}")
    kept = {}
    if given.out is not None and (given.out / "calls.json").exists():
        kept = json.loads((given.out / "calls.json").read_text())
    kept["now"] = found
    page.say(
        "# Calls across modules\n\n`python benchmarks/calls.py --out benchmarks/results`\n\n"
        f"One round of the quickstart with {CLIENTS} clients and messages in one process, and one "
        "client update in it. Before: the last commit before the house was halved (4718394).\n\n"
        + report(kept)
    )
    page.save(given, found)
    if given.out is not None:
        (given.out / "calls.json").write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
