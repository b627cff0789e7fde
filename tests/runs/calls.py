"""Calls that go from module to module in one round of the quickstart, and in one client update.

A call counts where a Python function of this product is entered from another module, of its own or
of a library. Calls into libraries and calls within a module do not count. A module counts where it
calls or is called. Comprehensions and lambdas belong to the module they stand in. A frame is every
entry of a Python function of this product, from its own module too.

The window is the second round, when caches are warm: from the entry of `one_round` (cohort, charge,
messages, client updates, replies, server update) to its return, the report. Start-up, evaluation
and checkpoint lie outside. The client update is the first call of `run_update` in it.
"""

import contextlib
import logging
import sys
from collections import Counter

from benchmarks.common.quiet import flower_says_only
from manifed.cli.main import main
from tests.fresh import ROOT

PRODUCT = ("manifed", "app", "strategies", "clients")
CLIENTS = 2
SETS = (
    f"federation.num_clients={CLIENTS}",
    "federation.num_rounds=2",
    "evaluation.is_enabled=false",
    "output.quiet=true",
)


class Window:
    """What happens inside the ``number``-th outermost call of a function ``name``."""

    def __init__(self, name, number):
        self.name, self.number = name, number
        self.crossings = Counter()
        self.modules = set()
        self.entered = self.frames = 0
        self.frame = None

    def see(self, frame, event):
        """One event of `sys.setprofile` in a function of the product."""
        if event == "call" and self.frame is None and frame.f_code.co_name == self.name:
            self.frame = frame
            self.entered += 1
        if event == "call" and self.frame is not None and self.entered == self.number:
            callee, caller = module_of(frame), module_of(frame.f_back)
            self.frames += 1
            self.modules.add(callee)
            if caller != callee:
                self.crossings[caller, callee, frame.f_code.co_name] += 1
                self.modules |= {caller} if is_ours(caller) else set()
        if event == "return" and frame is self.frame:
            self.frame = None

    def numbers(self):
        """How many calls go over how many modules, in how many frames."""
        calls = self.crossings.total()
        return {"calls": calls, "modules": len(self.modules), "frames": self.frames}


def module_of(frame):
    return str(frame.f_globals.get("__name__", "")) if frame else ""


def is_ours(module):
    return module.split(".", 1)[0] in PRODUCT


def measure(folder):
    """The windows of the second round, with messages in one process, its run in a folder."""
    windows = {"round": Window("one_round", 2), "update": Window("run_update", CLIENTS + 1)}

    def profile(frame, event, _):
        if event in {"call", "return"} and is_ours(module_of(frame)):
            for window in windows.values():
                window.see(frame, event)

    sets = [part for value in SETS for part in ("--set", value)]
    before = sys.getprofile()
    with flower_says_only(logging.ERROR), contextlib.suppress(SystemExit):
        sys.setprofile(profile)
        try:
            main(["run", str(ROOT / "configs" / "quickstart.toml"), *sets, "--out", str(folder),
                  "--plain"])  # fmt: skip
        finally:
            sys.setprofile(before)
    return windows
