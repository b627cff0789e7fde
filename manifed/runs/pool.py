"""Several runs beside each other: one folder each, and one process at a time.

A finished run of the same resolved config is kept, an unfinished one is resumed, and a folder of
another config is refused before any run, so that whoever is interrupted goes on by the same
command. A process plays one run after the other, those on the same data first: libraries, data and
the reference solution are there already, which takes longer than many a run. One that dies takes
its own run with it and no other; the next run gets a new one. A run that a process did not even
begin is given to another, once.
"""

import importlib
import os
import sys
import tempfile
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from multiprocessing import active_children, get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, TypeVar

from manifed.durable import make_folder
from manifed.errors import one_line
from manifed.experiment.load import sha256
from manifed.experiment.schema import Experiment
from manifed.runs.in_force import refused, saved_config
from manifed.runs.interrupt import Ended, ending_signals
from manifed.runs.report.apart import NotDrawn, draw_figures
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
    def data(self) -> tuple[Any, ...]:
        """What its data are made from."""
        federation = self.config.federation
        shares = (federation.partition, federation.num_clients, federation.seed)
        return (self.config.problem, self.config.data, *shares)

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

    ``on_start`` hears of each task before it is played. ``on_end`` hears of each task, with the
    line of its error if it failed. When all this is interrupted the processes are ended too, each
    after it has written what it has.
    """
    for folder in {task.directory.parent for task in tasks}:
        make_folder(folder)
    waiting, failed, given_back = list(tasks), list[T](), set[Path]()
    playing: dict[Connection, tuple[_Player, T, Path]] = {}
    free: list[_Player] = []
    others = set(active_children())
    with tempfile.TemporaryDirectory() as said:
        names = count()
        try:
            while waiting or playing:
                while waiting and len(playing) < jobs:
                    player = free.pop() if free else None
                    taken = [task.data for _, task, _ in playing.values()]
                    task = _next(waiting, None if player is None else player.data, taken)
                    waiting.remove(task)
                    if task.is_finished:
                        free += [] if player is None else [player]
                        on_end(task, None)
                        continue
                    on_start(task)
                    player = player or _start(jobs)
                    errors = Path(said) / str(next(names))
                    player.play(task, errors)
                    playing[player.door] = player, task, errors
                while free:
                    free.pop().dismiss()
                for door in wait(list(playing)) if playing else ():
                    assert isinstance(door, Connection)
                    player, task, errors = playing.pop(door)
                    try:
                        error = door.recv()
                        free.append(player)
                    except (EOFError, OSError):
                        player.process.join()
                        if not errors.exists() and task.directory not in given_back:
                            given_back.add(task.directory)
                            waiting.insert(0, task)
                            continue
                        error = _last_line(errors, player.process.exitcode)
                    failed += [task] if error else []
                    on_end(task, error)
            for player in free:
                player.dismiss()
        except BaseException:
            mine = set(active_children()) - others
            for process in mine:
                process.terminate()
            for process in mine:
                process.join()
            raise
    return failed


def _next(waiting: Sequence[T], own: object, taken: Collection[object]) -> T:
    """The first on the data that a process has, else on data that no other has, else the first."""
    same = (task for task in waiting if task.data == own)
    fresh = (task for task in waiting if task.data not in taken)
    return next(same, None) or next(fresh, None) or waiting[0]


@dataclass
class _Player:
    """A process that plays one task after the other."""

    process: ForkServerProcess
    door: Connection
    data: object = None
    """Of its newest task."""

    def play(self, task: Task, errors: Path) -> None:
        self.data = task.data
        with suppress(OSError):  # it died meanwhile: that is heard at the door
            self.door.send((task.source, task.overrides, task.directory, errors))

    def dismiss(self) -> None:
        self.door.close()
        self.process.join()


def _start(jobs: int) -> _Player:
    """Forked off a process that has imported everything."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["manifed.cli.launch", "manifed.runs.driver"])
    before = os.environ.get(THREADS)
    os.environ.setdefault(THREADS, str(max(1, (os.cpu_count() or 1) // jobs)))
    ours, theirs = context.Pipe()
    try:
        process = context.Process(target=_play_all, args=(theirs,))
        process.start()
    finally:
        theirs.close()
        if before is None:
            del os.environ[THREADS]
    return _Player(process, ours)


def _play_all(door: Connection) -> None:
    """Play what comes, until nobody is left who sends anything.

    In a session of its own: Ctrl-C reaches who started it alone.
    """
    os.setsid()
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
    while True:
        try:
            asked = door.recv()
        except EOFError:
            return
        door.send(_play(*asked))


def _play(source: str, overrides: tuple[str, ...], folder: Path, errors: Path) -> str | None:
    """Be ``manifed run``; the line of the error if it failed."""
    request: dict[str, Any] = {"sets": overrides, "out": folder}
    sets = [part for override in overrides for part in ("--set", override)]
    words = [source, *sets, "--out", str(folder)]
    if RunFolder(folder).experiment_path.is_file():
        request, words = {"resume": folder}, ["--resume", str(folder)]
    sys.argv = ["manifed", "run", *words, "--plain"]
    with errors.open("w") as file:
        os.dup2(file.fileno(), sys.stderr.fileno())
    own = importlib.import_module("manifed.cli.launch")
    assembly = importlib.import_module("manifed.experiment.assembly")
    try:
        with ending_signals():
            draw_figures(own.launch(own.Request(source, plain=True, **request)))
    except (own.RunEnded, NotDrawn) as ended:
        if ended.code > 128:  # a signal: whoever sent it waits for this process
            sys.stderr.write(f"{ended}\n")
            sys.exit(ended.code)
        return one_line(str(ended), 400)
    except Ended as ended:
        sys.exit(ended.code)
    except Exception as error:
        return one_line(str(error) if own.is_expected(error) else own.unexpected(error), 400)
    finally:
        assembly.own_node.cache_clear()  # nodes hold their data and are of this config alone
    return None


def _last_line(errors: Path, code: int | None) -> str:
    said = errors.read_text(errors="replace") if errors.is_file() else ""
    last = next(reversed(said.strip().splitlines()), f"exit code {code}")
    return one_line(last, 400).removeprefix("error: ")
