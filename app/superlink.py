"""A run on a SuperLink, submitted, followed to its end, and its true status.

``flwr run --stream`` exits 0 when the ServerApp raises; the truth is in ``flwr list``. It becomes
an exception here (``submit``) or an exit code (``python -m app.superlink``).
"""

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import tomli_w

from app.processes import (
    LOOPBACK,
    Parser,
    PrivateFlower,
    Service,
    free_ports,
    private_flower,
    tail,
)
from manifed.errors import ConfigError, EngineFailed, one_line
from manifed.experiment.load import load
from manifed.experiment.schema import Experiment
from manifed.flower.run_config import find, run_config_of
from manifed.privacy.ledger import LedgerDamaged
from manifed.runs.driver import named_directory
from manifed.runs.folder import FolderDamaged
from manifed.runs.resume import held_or_refused, read_past

CONNECTION = "manifed"
COMPLETED = "finished:completed"
LOST = "lost"
"""Our status of a run whose SuperLink does not answer."""
LOST_SECONDS = 120.0
"""Longer than a SuperLink takes to come back, and than it waits for a dead ServerApp (60 s)."""
START_SECONDS = 90.0
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_RUN_ID = re.compile(r"Successfully started run (\d+)")


def start_superlink(
    flower: PrivateFlower, options: Sequence[str], attempts: int = 3
) -> tuple[Service, str]:
    """A SuperLink of this run's own on a free loopback port, and its address.

    It counts as started when *it* says that it serves, so a stranger's program on the same port is
    never taken for it; a port that was lost to another program meanwhile is replaced.
    """
    (port,) = free_ports(1)
    where = ["--host", LOOPBACK, "--port", str(port)]
    link = flower.start(f"superlink-{port}", "flower-superlink", *where, *options)
    try:
        link.wait_for("Uvicorn running on", START_SECONDS)
    except EngineFailed:
        if attempts > 1 and link.says("address already in use"):
            return start_superlink(flower, options, attempts - 1)
        raise
    return link, f"{LOOPBACK}:{port}"


def status_of(flower: PrivateFlower, run_id: str) -> tuple[str, str]:
    """Flower's own status of a run and its details: the exception text of the ServerApp.

    `LOST` when the SuperLink does not answer.
    """
    try:
        listing = flower.call("flwr", "list", CONNECTION, "--run-id", run_id, "--format", "json")
        run = json.loads(listing[listing.index("{") :])["runs"][0]
        return run["status"], run["status-details"]
    except (EngineFailed, ValueError, LookupError) as error:
        return LOST, one_line(f"the SuperLink does not say how run {run_id} is: {error}")


def submit(
    flower: PrivateFlower,
    config: Mapping[str, str],
    options: Sequence[str],
    *,
    timeout: float,
    on_line: Callable[[str], None],
    check: Callable[[], object] = lambda: None,
) -> None:
    """Runs the app on the connected SuperLink and returns when it is finished:completed.

    Each line of the run's log goes to ``on_line`` as it arrives, without colours. EngineFailed
    with the true status otherwise, or after ``timeout`` s; ``check`` is called all the time, and
    what it raises ends the run.
    """
    name = f"run-{len(flower.services)}"
    values = flower.home / f"{name}.toml"
    values.write_text(tomli_w.dumps(dict(config)), encoding="utf-8")
    stream = flower.start(
        name, "flwr", "run", str(flower.app), CONNECTION, "--stream", "-c", str(values), *options
    )
    deadline = time.monotonic() + timeout
    run_id = None
    for line in _follow(stream, check, deadline, timeout):
        run_id = run_id or next(iter(_RUN_ID.findall(line)), None)
        on_line(line)
    if run_id is None:
        raise EngineFailed("not-started", tail(stream.log_file))
    _wait_for_completion(flower, run_id, check, deadline)


def _follow(
    stream: Service, check: Callable[[], object], deadline: float, timeout: float
) -> Iterator[str]:
    """Yields the complete lines of a process's output until it ends."""
    rest = ""
    with stream.log_file.open(errors="replace") as log:
        while True:
            has_ended = stream.process.poll() is not None
            *lines, rest = (rest + log.read()).split("\n")
            for line in [*lines, *([rest] if has_ended else [])]:
                if text := _ESCAPES.sub("", line).rstrip():
                    yield text
            if has_ended:
                return
            check()
            if time.monotonic() > deadline:
                last = tail(stream.log_file, 1)
                raise EngineFailed("timeout", f"not finished after {timeout:g} s; at: {last}")
            time.sleep(0.05)


def _wait_for_completion(
    flower: PrivateFlower, run_id: str, check: Callable[[], object], deadline: float
) -> None:
    """Returns when the run is finished:completed; a log stream may end before its run does.

    A SuperLink that is gone may come back with its database, and the run with it or ended.
    """
    answered = time.monotonic()
    while True:
        status, details = status_of(flower, run_id)
        if status != LOST:
            answered = time.monotonic()
        elif time.monotonic() > answered + LOST_SECONDS:
            raise EngineFailed(LOST, details)
        if status == COMPLETED:
            return
        if status.startswith("finished"):
            raise EngineFailed(status, details)
        if time.monotonic() > deadline:
            raise EngineFailed("timeout", f"run {run_id} is still {status}")
        check()
        time.sleep(1.0)


BAD_INPUT = (ConfigError, FolderDamaged, LedgerDamaged, FileNotFoundError)


def in_force(config: Experiment) -> Experiment:
    """The config that a resumed run goes on with, after every --rounds, where its folder is here.

    A finished or damaged run is refused before anything is started.

    Raises:
        ConfigError, FolderDamaged, LedgerDamaged: in one line.
    """
    directory = named_directory(config)
    if config.output.resume and os.access(directory, os.R_OK | os.X_OK):
        with held_or_refused(directory):
            return read_past(directory, config).config
    return config


def main(arguments: Sequence[str] | None = None) -> int:
    """``python -m app.superlink``: a run on a SuperLink that is already there.

    Returns:
        0 for finished:completed, 1 for any other end, 2 for an experiment that cannot run.
    """
    parser = Parser(prog="python -m app.superlink", description=__doc__)
    parser.add_argument("address", help="HOST:PORT of the SuperLink")
    parser.add_argument("--root-certificates", type=Path, help="CA file")
    parser.add_argument("--insecure", action="store_true", help="no TLS")
    parser.add_argument("--experiment", type=Path, required=True, help="TOML file")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE")
    parser.add_argument("--out", type=Path, help="run folder on the SuperLink's machine")
    parser.add_argument("--project", type=Path, default=Path.cwd())
    parser.add_argument("--timeout", type=float, default=86400.0, help="seconds")
    given = parser.parse_args(arguments)
    if given.insecure == (given.root_certificates is not None):
        parser.error("Expected --root-certificates FILE or --insecure, one of the two")
    try:
        out = {} if given.out is None else {"output.directory": str(given.out.absolute())}
        experiment = in_force(load(find(str(given.experiment)), given.set, out))
        config = run_config_of(experiment)
        with private_flower(given.project) as flower:
            flower.connect(CONNECTION, given.address, given.root_certificates)
            submit(flower, config, (), timeout=given.timeout, on_line=_print_line)
    except EngineFailed as failure:
        sys.stderr.write(f"error: {failure}\n")
        return 1
    except BAD_INPUT as wrong:
        sys.stderr.write(f"error: {wrong}\n")
        return 2
    return 0


def _print_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
