"""Runs that are killed at one chosen call of the file system, gone on with, and judged.

A warm process forks a child for each run, so that a trial costs a fork and a short run. In the
child every call that changes files (`CALLS`) is counted, and at the n-th the child is killed with
SIGKILL before it, after it, or half-way through a write; or the disk is full from there on. The
child bears witness, before a client computes anything, of what it is about to release.

`judge` compares what is left, when the run was gone on with to its end, with what must be there.
"""

import errno
import os
import signal
import sys
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import torch

from manifed.cli.launch import Request, launch
from manifed.cli.options import outcome
from manifed.experiment.assembly import initial_point, plan_of
from manifed.experiment.load import load
from manifed.federation import client as node
from manifed.privacy.ledger import Ledger
from manifed.privacy.odometer import Odometer
from manifed.runs import manifest
from manifed.runs.folder import FolderDamaged, RunFolder
from strategies.any_update import AnyUpdate

QUICKSTART = str(Path(__file__).resolve().parents[2] / "configs" / "quickstart.toml")
CALLS = ("write", "replace", "fsync", "ftruncate", "mkdir", "link", "unlink")
Mode = Literal["before", "half", "after", "full"]
FILES = {
    "experiment.toml",
    "manifest.json",
    "metrics.csv",
    "ledger.jsonl",
    "ledger.jsonl.head",
    "checkpoint.safetensors",
    "model.safetensors",
}


@dataclass(frozen=True)
class Case:
    """One experiment that is crashed."""

    name: str
    sets: tuple[str, ...]
    """Of the quickstart."""
    most_redone: int
    """Rounds that one crash may cost: those since the newest checkpoint, with the one under way."""

    def experiment(self):
        """The experiment, resolved."""
        return load(QUICKSTART, self.sets)


@dataclass(frozen=True)
class Crash:
    """Where and how a run ends: at the ``number``-th call that changes files, from 1."""

    number: int
    mode: Mode


@dataclass(frozen=True)
class Trial:
    """What a crashed run left behind, with what was wrong (nothing, one hopes)."""

    crashes: tuple[Crash, ...]
    at: tuple[str, ...]
    """The name of the call each crash came at; empty where the run ended before."""
    parts: int
    findings: tuple[str, ...]


class Killer:
    """Counts the calls that change files, and ends the process at one of them."""

    def __init__(self, crash, note):
        """``note`` is told the name of the call at which it ends the process."""
        self.names = []
        self._crash = crash
        self._note = note
        self._is_full = False

    def install(self):
        """Put a counting twin in the place of each call."""
        for name in CALLS:
            setattr(os, name, self.twin(name, getattr(os, name)))

    def twin(self, name, real):
        """A function that is ``real``, and a point at which the process may end."""

        def call(*args, **kwargs):
            self.names.append(name)
            crash = self._crash
            is_now = crash is not None and len(self.names) == crash.number
            if crash is not None and is_now:
                self._note(name)
                self._is_full = crash.mode == "full"
                if crash.mode in {"half", "full"} and name == "write":
                    real(args[0], args[1][: len(args[1]) // 2])
            if self._is_full and (is_now or name == "write"):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if crash is None or not is_now:
                return real(*args, **kwargs)
            if crash.mode == "after":
                with suppress(OSError):  # mkdir of a folder that is there
                    real(*args, **kwargs)
            os.kill(os.getpid(), signal.SIGKILL)
            raise AssertionError("unreachable")

        return call


def points(case, folder):
    """The names of all calls that change files in one whole run of ``case``, in order."""
    found = folder / "calls"
    part(case, folder, None, on_end=lambda names: found.write_text("\n".join(names)))
    return found.read_text().splitlines()


def crashes_of(names):
    """Every way to end a run at every point."""
    for number, name in enumerate(names, start=1):
        yield Crash(number, "before")
        if name == "write":
            yield Crash(number, "half")
            yield Crash(number, "full")
        yield Crash(number, "after")


def attempt(case, folder, crashes):
    """A run that is crashed (and its continuations with it), gone on with to its end, judged."""
    at = list[str]()
    findings = list[str]()
    parts = 0
    for crash in [*crashes, None]:
        if RunFolder(folder / "run").is_finished:
            break
        parts += 1
        code, name = part(case, folder, crash)
        at += [name] if name else []
        wanted = 0 if not name else (1 if crash and crash.mode == "full" else -signal.SIGKILL)
        # A disk that is full before the folder is there is bad input: nothing was begun.
        is_refused = code == 2 and wanted == 1 and not (folder / "run").exists()
        if code != wanted and not is_refused:
            findings.append(
                f"part {parts} ended with {code} at {name or 'its end'}: {said(folder)}"
            )
    return Trial(tuple(crashes), tuple(at), parts, (*findings, *judge(case, folder, len(at))))


def judge(case, folder, kills):
    """What is wrong with the finished run in ``folder``."""
    run = RunFolder(folder / "run")
    found = list[str]()
    config = case.experiment()
    rounds = config.federation.num_rounds
    names = {path.name for path in run.directory.iterdir()}
    if names != FILES:
        found.append(f"files: {sorted(names ^ FILES)}")
        if FILES - names:
            return found
    try:
        told = run.metrics()["round"]
    except FolderDamaged as error:
        told = [str(error)]
    if told != list(range(rounds + 1)):
        found.append(f"rows: {told}")
    if run.manifest().get("final", {}).get("rounds") != rounds:
        found.append("no final")
    released = witnessed(folder)
    if config.privacy.kind != "none":
        found += under_reported(run.ledger_path, released)
    attempts = tuple(
        max(a for r, a, _ in released if r == server_round) for server_round in range(1, rounds + 1)
    )
    if not torch.equal(run.load_tensors("model")["x"], reference(config, attempts)):
        found.append(f"model: not that of the attempts {attempts}")
    redone = sum(attempts)
    if redone > kills * case.most_redone:
        found.append(f"{redone} rounds were paid again after {kills} crashes")
    return found


def under_reported(path, released):
    """What a ledger does not count of what was released, verified as an auditor would."""
    odometer = Odometer()
    found = list[str]()
    Ledger.verify(path, feed=odometer.feed)
    for server_round, number, _ in sorted(released):
        if odometer.attempts(server_round) <= number:
            found.append(f"ledger: attempt {number} of round {server_round} is not in it")
    for partition, count in Counter(partition for _, _, partition in released).items():
        if odometer.participations_by_client()[partition] < count:
            found.append(f"ledger: client {partition} took part {count} times, it counts fewer")
    return found


class Free(AnyUpdate):
    """The strategy of any update, which charges nothing."""

    def charge(self, server_round, attempt, partitions):
        """Nothing is paid."""


@lru_cache(maxsize=256)
def reference(config, attempts):
    """The model of an uninterrupted run in memory whose round r is attempt ``attempts[r - 1]``."""
    from manifed.flower.client import inline_grid

    plan = plan_of(config)
    grid = inline_grid(config)
    start = plan.server_update.start(initial_point(config))
    talk = Free.of_plan(plan)
    talk.go_on_at(1, start, {}, lambda r: attempts[r - 1])
    talk.start(grid, num_rounds=config.federation.num_rounds)
    return plan.server_update.output(talk.state, plan.manifold)


def witnessed(folder):
    """(round, attempt, partition) of every client update that any part of the run began."""
    path = folder / "witness"
    return {
        (int(r), int(a), int(i))
        for r, a, i in (
            line.split() for line in (path.read_text().splitlines() if path.exists() else [])
        )
    }


def warm_up(case, folder):
    """Import, load and calibrate in this process what every child will need."""
    manifest.git_state = lambda _source: None  # three subprocesses a run
    torch.set_num_threads(1)
    launch(_request(case, folder))
    reference(case.experiment(), (0,) * case.experiment().federation.num_rounds)


def _request(case, folder):
    run = folder / "run"
    if (run / "experiment.toml").exists():
        return Request(QUICKSTART, resume=run)
    return Request(QUICKSTART, case.sets, out=run)


def said(folder):
    return " ".join((folder / "stderr").read_text(errors="replace").splitlines()[-1:])


@contextmanager
def _witness(folder, write):
    update = node.run_update
    file = os.open(folder / "witness", os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def run_update(setup, seat, *rest):
        write(file, f"{seat.server_round} {seat.attempt} {seat.partition}\n".encode())
        return update(setup, seat, *rest)

    node.run_update = run_update
    yield


def part(
    case,
    folder,
    crash,
    on_end=lambda _: None,
):
    """Exit code of one part of a run (negative: the signal), and the call it was ended at."""

    def live(write, killer):
        request = _request(case, folder)
        with _witness(folder, write):
            killer.install()
            launch(request)

    return forked(folder, crash, live, on_end)


def forked(folder, crash, live, on_end=lambda _: None):
    """As `part`, of ``live(write, killer)`` in a process of its own; ``write`` is not counted."""
    folder.mkdir(parents=True, exist_ok=True)
    noted = folder / "crashed-at"
    noted.unlink(missing_ok=True)
    pid = os.fork()
    if pid == 0:
        live_and_die(live, folder, crash, noted, on_end)
    return os.waitstatus_to_exitcode(
        os.waitpid(pid, 0)[1]
    ), noted.read_text() if noted.exists() else ""


def live_and_die(live, folder, crash, noted, on_end):
    code = 70
    torch.set_num_threads(1)  # the threads of a pool do not survive a fork
    try:
        log = os.open(folder / "stderr", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        write = os.write
        exists = os.open(noted.parent, os.O_RDONLY)

        def note(name):
            write(os.open(noted.name, os.O_CREAT | os.O_WRONLY, dir_fd=exists), name.encode())

        killer = Killer(crash, note)
        try:
            live(write, killer)
            code = 0
        except Exception as error:
            line, code = outcome(error)
            sys.stderr.write(f"error: {line}\n")
        on_end(list(killer.names))
    except BaseException as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
    finally:
        sys.stderr.flush()
        os._exit(code)
