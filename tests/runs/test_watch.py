"""Watching a run in another process: on a terminal, through a pipe, and when it goes wrong."""

import dataclasses
import io
import json
import os
import pty
import subprocess
import sys
import time

import pytest
from rich.console import Console

from manifed.durable import held
from manifed.runs import watching
from manifed.runs.status import status_of
from manifed.runs.watching import View, rendered, sparkline, view_of
from tests.runs.test_cli import manifed  # noqa: F401  a fixture
from tests.runs.test_public import launched


@pytest.fixture(scope="module")
def seeded(tmp_path_factory):
    sets = ("privacy.noise_source=seed", "federation.cohort={kind='all'}")
    return launched(tmp_path_factory.mktemp("watched") / "run", *sets)


def test_a_curve_is_drawn_from_its_least_to_its_greatest_value():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([1, 10, 100], is_log=True) == "▁▅█"
    assert sparkline([2.0, 2.0]) == "▁▁"
    assert sparkline([]) == sparkline([0.0, -1.0], is_log=True) == ""
    assert len(sparkline(range(1000))) == 48


def test_a_terminal_shows_curves_and_the_budget_that_is_left(seeded):
    stream = io.StringIO()
    Console(file=stream, width=80, force_terminal=True).print(rendered(view_of(seeded)))
    shown = stream.getvalue()
    for text in ("finished", "round 4 of 4", "relative cost gap", "▁", "budget left: epsilon"):
        assert text in shown
    assert "6 of 6 are asked in a round" in shown


def test_a_run_is_running_while_somebody_holds_its_folder(seeded):
    with held(seeded):
        view = view_of(seeded)
    assert (view.state, view_of(seeded).state) == ("running", "finished")
    assert view.seconds_left is None  # what a round takes tells how many answered
    assert view.seconds is None
    took = json.loads((seeded / "manifest.json").read_text())["final"]["seconds"]
    assert view_of(seeded, is_server_view=True).seconds == took == status_of(seeded).seconds
    with held(seeded):
        assert view_of(seeded, is_server_view=True).seconds_left == 0


def test_a_pipe_gets_a_line_a_round_without_control_characters(manifed, seeded, monkeypatch):  # noqa: F811  a fixture
    last = view_of(seeded)
    seen = [(1, "running"), (1, "running"), (2, "running"), (4, "finished")]
    views = iter([dataclasses.replace(last, round=r, state=s, name="a\x1b[31m") for r, s in seen])
    monkeypatch.setattr(watching, "view_of", lambda *_, **__: next(views))
    monkeypatch.setattr(time, "sleep", lambda _: None)
    done = manifed("watch", seeded)
    assert done.exit_code == 0, done.output
    note, *lines = done.stdout.splitlines()
    assert note.startswith("note: the ledger is unkeyed")
    assert [line.split(":")[1].split("  ")[0] for line in lines] == [
        " running, round 1/4",
        " running, round 2/4",
        " finished, round 4/4",
    ]
    assert "\x1b" not in done.stdout


def test_watching_prints_json_and_refuses_what_is_no_run(manifed, seeded, tmp_path):  # noqa: F811  a fixture
    done = manifed("watch", seeded, "--json")
    assert json.loads(done.stdout.splitlines()[-1])["round"] == 4
    none = manifed("watch", tmp_path)
    assert none.exit_code == 2
    assert none.stderr.startswith("error: run folder")


def test_nothing_of_a_name_is_a_control_sequence_on_a_terminal():
    view = View(
        "a\x1b[2J", "release", ("a doubt",), "running", 0, 0, (), "1 of 1", None, None, None,
        ("next: \x1b]0;x\x07",),
    )  # fmt: skip
    stream = io.StringIO()
    Console(file=stream, width=80).print(rendered(view))
    assert "\x1b" not in stream.getvalue()


@pytest.mark.slow
def test_a_terminal_gets_colours_and_its_cursor_back(seeded):
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "manifed", "watch", str(seeded)]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80"}
    done = subprocess.run(command, stdout=theirs, stderr=theirs, env=environment, check=True)
    os.close(theirs)
    said = b""
    try:
        while part := os.read(ours, 1 << 16):
            said += part
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    assert done.returncode == 0
    assert "▁".encode() in said
    assert said.rstrip().endswith(b"\x1b[?25h")
