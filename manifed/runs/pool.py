"""Several runs beside each other: one folder and one process each.

A finished run of the same resolved config is kept, an unfinished one is resumed, and a folder of
another config is refused before any run, so that whoever is interrupted goes on by the same
command. Every run is a process of its own: one that dies takes no other with it. All are forked off
one that has imported what a run needs, which takes longer than many a run.
"""

import importlib
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import active_children, get_context
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import TypeVar

from manifed.durable import make_folder
from manifed.errors import one_line
from manifed.experiment.load import sha256
from manifed.experiment.schema import Experiment
from manifed.runs.resume import refused, saved_config
from manifed.runs.run_folder import RunFolder, is_fresh

THREADS = "OMP_NUM_THREADS"
_REMEDY = "move it away, or name another place with --out"


@dataclass(frozen=True)
class Task:
    """One run that is wanted."""

    source: str
    """The path of its config, or FILE.toml::CURVE."""
    overrides: tuple[str, ...]
    """Everything that is put over that, the seed too."""
    directory: Path
    config: Experiment

    @property
    def is_finished(self) -> bool:
        """Whether its folder holds the whole run."""
        folder = RunFolder(self.directory)
        return folder.manifest_path.is_file() and "final" in folder.manifest()


T = TypeVar("T", bound=Task)


def check_folder(task: Task) -> None:
    """Refuse a folder that is neither new nor of this very run.

    Raises:
        ConfigError: naming the folder.
    """
    if RunFolder(task.directory).experiment_path.is_file():
        if sha256(saved_config(task.directory)) != sha256(task.config):
            raise refused(
                task.directory, "expected a run of this config", f"one of another config; {_REMEDY}"
            )
    elif not is_fresh(task.directory):
        raise refused(task.directory, "expected a new folder", f"one that is no run's; {_REMEDY}")


def run_all(
    tasks: Sequence[T],
    jobs: int,
    on_end: Callable[[T, str | None], None],
    on_start: Callable[[T], None] = lambda _: None,
) -> list[T]:
    """Run what is not finished, ``jobs`` processes beside each other; the tasks that failed.

    ``on_start`` hears of each task before its process is made. ``on_end`` hears of each task, with
    the line of its error if it failed. When all this is interrupted the processes are ended too,
    each after it has written what it has.
    """
    for folder in {task.directory.parent for task in tasks}:
        make_folder(folder)
    waiting, failed = list(reversed(tasks)), list[T]()
    running: dict[ForkServerProcess, tuple[T, Path]] = {}
    others = set(active_children())
    with tempfile.TemporaryDirectory() as said:
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    task = waiting.pop()
                    if task.is_finished:
                        on_end(task, None)
                        continue
                    errors = Path(said) / str(len(waiting))
                    on_start(task)
                    running[_start(task, jobs, errors)] = task, errors
                ended = wait([process.sentinel for process in running]) if running else ()
                for process in [process for process in running if process.sentinel in ended]:
                    task, errors = running.pop(process)
                    process.join()
                    error = None if process.exitcode == 0 else _last_line(errors, process.exitcode)
                    failed += [task] if error else []
                    on_end(task, error)
        except BaseException:
            mine = set(active_children()) - others
            for process in mine:
                process.terminate()
            for process in mine:
                process.join()
            raise
    return failed


def _start(task: Task, jobs: int, errors: Path) -> ForkServerProcess:
    """A process that plays one task, forked off one that has imported everything."""
    sets = [part for override in task.overrides for part in ("--set", override)]
    words = ["run", task.source, *sets, "--out", str(task.directory), "--plain"]
    if RunFolder(task.directory).experiment_path.is_file():
        words = ["run", "--resume", str(task.directory), "--plain"]
    context = get_context("forkserver")
    context.set_forkserver_preload(["manifed.cli.launch", "manifed.runs.driver"])
    before = os.environ.get(THREADS)
    os.environ.setdefault(THREADS, str(max(1, (os.cpu_count() or 1) // jobs)))
    try:
        process = context.Process(target=_play, args=(words, str(errors)))
        process.start()
    finally:
        if before is None:
            del os.environ[THREADS]
    return process


def _play(words: list[str], errors: str) -> None:
    """Be ``manifed WORDS``, in a session of its own: Ctrl-C reaches who started it alone."""
    os.setsid()
    sys.argv = ["manifed", *words]
    with Path(errors).open("w") as file, Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())
    importlib.import_module("manifed.cli.main").main(words)


def _last_line(errors: Path, code: int | None) -> str:
    said = errors.read_text(errors="replace") if errors.is_file() else ""
    last = next(reversed(said.strip().splitlines()), f"exit code {code}")
    return one_line(last, 400).removeprefix("error: ")
