"""Several runs beside each other: one folder and one process each.

A finished run of the same resolved config is kept, an unfinished one is resumed, and a folder of
another config is refused before any run, so that whoever is interrupted goes on by the same
command. Every run is a process of its own: one that dies takes no other with it.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from manifed.durable import make_folder
from manifed.errors import one_line
from manifed.experiment.load import sha256
from manifed.experiment.schema import Experiment
from manifed.runs.resume import refused, saved_config
from manifed.runs.run_folder import RunFolder, is_fresh


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
            raise refused(task.directory, "expected a run of this config", "one of another config")
    elif not is_fresh(task.directory):
        raise refused(task.directory, "expected a new folder", "one that is no run's")


def run_all(tasks: Sequence[T], jobs: int, on_end: Callable[[T, str | None], None]) -> list[T]:
    """Run what is not finished, ``jobs`` processes beside each other; the tasks that failed.

    ``on_end`` hears of each task, with the line of its error if it failed. When all this is
    interrupted the processes are ended too, each after it has written what it has.
    """
    failed: list[T] = []
    processes: set[subprocess.Popen[str]] = set()
    stopping = threading.Event()
    for folder in {task.directory.parent for task in tasks}:
        make_folder(folder)
    with ThreadPoolExecutor(jobs) as pool:
        waiting = {pool.submit(_run, task, jobs, processes, stopping): task for task in tasks}
        try:
            for future in as_completed(waiting):
                task, error = waiting[future], future.result()
                failed += [task] if error else []
                on_end(task, error)
        except BaseException:
            stopping.set()
            for process in tuple(processes):
                process.terminate()
            raise
    return failed


def _run(
    task: Task, jobs: int, processes: set[subprocess.Popen[str]], stopping: threading.Event
) -> str | None:
    """Run one task in a process; the last line it wrote if it failed."""
    if stopping.is_set() or task.is_finished:
        return None
    sets = [part for override in task.overrides for part in ("--set", override)]
    where = [task.source, *sets, "--out", str(task.directory)]
    if RunFolder(task.directory).experiment_path.is_file():
        where = ["--resume", str(task.directory)]
    threads = str(max(1, (os.cpu_count() or 1) // jobs))
    process = subprocess.Popen(
        [sys.executable, "-m", "manifed", "run", *where, "--plain"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C reaches this process alone, which then ends the others
        env={"OMP_NUM_THREADS": threads, **os.environ},
    )
    processes.add(process)
    if stopping.is_set():
        process.terminate()
    try:
        _, said = process.communicate()
    finally:
        processes.discard(process)
    if process.returncode == 0:
        return None
    last = next(reversed(said.strip().splitlines()), f"exit code {process.returncode}")
    return one_line(last, 400).removeprefix("error: ")
