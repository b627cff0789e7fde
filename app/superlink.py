"""Submits a run to a SuperLink, follows it to its end, and reads its true status.

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
from typing import Annotated, NoReturn

import tomli_w
from typer import Argument, Option, echo

from app.processes import (
    CONNECTION,
    LOOPBACK,
    PrivateFlower,
    Service,
    free_ports,
    private_flower,
    tail,
)
from manifed.cli.main import call_alone
from manifed.cli.options import Sets
from manifed.errors import ConfigError, EngineFailed, one_line
from manifed.experiment.load import load
from manifed.experiment.schema import Experiment
from manifed.flower.run_config import find, run_config_of
from manifed.runs.driver import named_directory
from manifed.runs.evidence import held_or_refused, read_past

_LOST = "lost"
"""Our status of a run whose SuperLink does not answer."""
START_SECONDS = 90.0


def start_superlink(
    flower: PrivateFlower, options: Sequence[str], attempts: int = 3
) -> tuple[Service, str]:
    """Starts this run's own SuperLink on a free loopback port, and returns it with its address.

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


def _status_of(flower: PrivateFlower, run_id: str) -> tuple[str, str]:
    """Flower's own status of a run and its details: the exception text of the ServerApp.

    `_LOST` when the SuperLink does not answer.
    """
    try:
        listing = flower.call("flwr", "list", CONNECTION, "--run-id", run_id, "--format", "json")
        run = json.loads(listing[listing.index("{") :])["runs"][0]
        return run["status"], run["status-details"]
    except (EngineFailed, ValueError, LookupError) as error:
        return _LOST, one_line(f"the SuperLink does not say how run {run_id} is: {error}")


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
        run_id = run_id or next(iter(re.findall(r"Successfully started run (\d+)", line)), None)
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
                if text := re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line).rstrip():
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
        status, details = _status_of(flower, run_id)
        if status != _LOST:
            answered = time.monotonic()
        # longer than a SuperLink takes to come back, and than it waits for a dead ServerApp (60 s)
        elif time.monotonic() > answered + 120.0:
            raise EngineFailed(_LOST, details)
        if status == "finished:completed":
            return
        if status.startswith("finished"):
            raise EngineFailed(status, details)
        if time.monotonic() > deadline:
            raise EngineFailed("timeout", f"run {run_id} is still {status}")
        check()
        time.sleep(1.0)


def _check_past(experiment: Experiment) -> None:
    """Refuse to resume a finished or damaged run, where its folder is here.

    Raises:
        ConfigError, FolderDamaged, LedgerDamaged: in one line.
    """
    directory = named_directory(experiment)
    if experiment.output.resume and os.access(directory, os.R_OK | os.X_OK):
        with held_or_refused(directory):
            read_past(directory, experiment)


def _submitted(
    address: Annotated[str, Argument(help="HOST:PORT of the SuperLink.")],
    experiment: Annotated[Path, Option(help="Config of the experiment (TOML).")],
    root_certificates: Annotated[
        Path | None, Option(help="File with the certificate of the CA.")
    ] = None,
    is_insecure: Annotated[bool, Option("--insecure", help="Connect without TLS.")] = False,
    sets: Sets = None,
    out: Annotated[Path | None, Option(help="Run folder on the SuperLink's machine.")] = None,
    project: Annotated[Path, Option(help="Folder of the Flower app.")] = Path(),
    timeout: Annotated[float, Option(help="Seconds to wait for the run.")] = 86400.0,
) -> None:
    """Run an experiment on a running SuperLink. The exit code is 0 only if the run completed."""
    if is_insecure == (root_certificates is not None):
        raise ConfigError("Expected --root-certificates FILE or --insecure, one of the two")
    where = {} if out is None else {"output.directory": str(out.absolute())}
    config = load(find(str(experiment)), tuple(sets or ()), where)
    _check_past(config)
    with private_flower(project) as flower:
        flower.connect(address, root_certificates)
        submit(flower, run_config_of(config), (), timeout=timeout, on_line=echo)


def main(arguments: Sequence[str]) -> NoReturn:
    """``python -m app.superlink``."""
    call_alone(_submitted, arguments, "python -m app.superlink")


if __name__ == "__main__":
    main(sys.argv[1:])
