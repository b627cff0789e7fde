"""A private Flower installation for one run: its home, its ports, its processes.

Guarantees: nothing is read from or written to the user's own Flower home; every process
started here, and every process that those start, carries a mark of its own in its environment
and is ended by its id when the block ends, whether by success, by an error, by Ctrl-C or by
SIGTERM; the temporary home is removed after that. Where this process is killed with SIGKILL, a
process of its own that was started first does both (Linux, where a mark can be read).
"""

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
import uuid
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import NoReturn

from app.process_tree import end_family, heir
from manifed.errors import EngineFailed

MARK = "MANIFED_ENGINE_MARK"
LOOPBACK = "127.0.0.1"
GRACE_SECONDS = 4.0
FLOWER_SETTINGS = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25",  # 2 % of a core for each poller
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_ADDRESS": "local",  # never join somebody else's Ray cluster
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
    "PYTHONWARNINGS": "ignore::DeprecationWarning",  # of libraries; they would fill the log
}


def environment(home: Path, mark: str, inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment of every process of one run.

    The user's own ``FLWR_*`` and ``RAY_*`` variables are dropped, so that a run does not depend
    on them; everything else (``PATH``, ``MANIFED_DATA``, ...) is kept.
    """
    kept = {k: v for k, v in inherited.items() if not k.startswith(("FLWR_", "RAY_"))}
    no_proxy = [v for k, v in kept.items() if k.lower() == "no_proxy" and v]
    direct = ",".join([*no_proxy, LOOPBACK, "localhost"])
    scripts = str(Path(sys.executable).parent)
    return {
        **kept,
        **FLOWER_SETTINGS,
        "PATH": os.pathsep.join([scripts, kept.get("PATH", os.defpath)]),
        "FLWR_HOME": str(home / "flwr"),
        "RAY_TMPDIR": str(home),
        "TMPDIR": str(home),
        "NO_PROXY": direct,
        "no_proxy": direct,
        MARK: mark,
    }


def free_ports(count: int) -> list[int]:
    """``count`` distinct ports on the loopback interface that nothing listens on now."""
    taken: list[socket.socket] = []
    try:
        for _ in range(count):
            probe = socket.socket()
            taken.append(probe)
            probe.bind((LOOPBACK, 0))
        return [probe.getsockname()[1] for probe in taken]
    finally:
        for probe in taken:
            probe.close()


def tail(log_file: Path, lines: int = 15) -> str:
    """The last ``lines`` lines of a log file; empty when there is none."""
    if not log_file.exists():
        return ""
    return "\n".join(log_file.read_text(errors="replace").splitlines()[-lines:])


@dataclass(frozen=True)
class Service:
    """A long-running process of this run and the file that its output goes to."""

    name: str
    process: subprocess.Popen[bytes]
    log_file: Path

    def says(self, text: str) -> bool:
        """Whether its output so far has ``text``."""
        return text in self.log_file.read_text(errors="replace")

    def wait_for(self, text: str, timeout: float) -> None:
        """Waits until its output has ``text``; EngineFailed when it ends first or never says it."""
        deadline = time.monotonic() + timeout
        while not self.says(text):
            self.check()
            if time.monotonic() > deadline:
                said = tail(self.log_file)
                raise EngineFailed("timeout", f"{self.name} not ready in {timeout:g} s:\n{said}")
            time.sleep(0.1)

    def check(self) -> None:
        """Raises EngineFailed when the process has ended."""
        code = self.process.poll()
        if code is not None:
            raise EngineFailed("stopped", f"{self.name} exited with {code}:\n{tail(self.log_file)}")


@dataclass(frozen=True)
class PrivateFlower:
    """One run's own Flower: ``home`` (removed at the end), ``app`` (staged), its processes."""

    home: Path
    app: Path
    env: Mapping[str, str]
    services: list[Service] = field(default_factory=list)

    def command(self, *arguments: str) -> list[str]:
        """The command line of a Flower program of this Python's own installation."""
        program = shutil.which(arguments[0], path=self.env["PATH"])
        if program is None:
            raise EngineFailed("not-started", f"Expected {arguments[0]} on PATH; pip install flwr")
        return [program, *arguments[1:]]

    def start(self, name: str, *arguments: str) -> Service:
        """Starts a long-running program in a session of its own; its output goes to a file."""
        log_file = self.home / f"{name}.log"
        with log_file.open("wb") as output:
            process = subprocess.Popen(
                self.command(*arguments), env=self.env, stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        service = Service(name, process, log_file)
        self.services.append(service)
        return service

    def call(self, *arguments: str, timeout: float = 180.0) -> str:
        """The standard output of a short Flower command; EngineFailed when it fails or hangs."""
        try:
            process = subprocess.run(
                self.command(*arguments), env=self.env, stdin=subprocess.DEVNULL, text=True,
                capture_output=True, timeout=timeout, start_new_session=True, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise EngineFailed("timeout", f"{' '.join(arguments)}: {timeout:g} s") from None
        if process.returncode != 0:
            said = (process.stdout + process.stderr).strip()
            raise EngineFailed("not-started", f"{' '.join(arguments)}: {said}")
        return process.stdout

    def connect(self, name: str, address: str, root_certificates: Path | None = None) -> None:
        """Writes the private ``config.toml`` with one SuperLink connection called ``name``."""
        security = "insecure = true"
        if root_certificates is not None:
            security = f'root-certificates = "{root_certificates.absolute()}"'
        config = self.home / "flwr" / "config.toml"
        config.parent.mkdir(exist_ok=True)
        config.write_text(
            f'[superlink]\ndefault = "{name}"\n\n[superlink.{name}]\n'
            f'address = "{address}"\n{security}\n'
        )


def _short_temporary_folder() -> Path:
    """A new folder whose name leaves room for Ray's Unix sockets (107 characters)."""
    default = tempfile.gettempdir()
    is_long = len(default) > 24 and os.access("/tmp", os.W_OK)
    return Path(tempfile.mkdtemp(prefix="mf-", dir="/tmp" if is_long else default))


def _raise_exit(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


@contextmanager
def signals(
    handlers: Mapping[signal.Signals, signal.Handlers | Callable[..., None]],
) -> Generator[None, None, None]:
    """Sets signal handlers for a block; a no-op outside the main thread, as Python demands."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {
        number: signal.signal(number, handler)
        for number, handler in handlers.items()
        if signal.getsignal(number) is not signal.SIG_IGN  # nohup and sh's & stay as they are
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def stage(project: Path, target: Path) -> Path:
    """The folder to build the FAB from: a copy of the files that ``fab-include`` names.

    Building in the repository itself would walk through ``.venv``, ``.git`` and all run folders,
    and would take up edits made while the run is under way.
    """
    config = tomllib.loads((project / "pyproject.toml").read_text())
    patterns = config["tool"]["flwr"]["app"].get("fab-include")
    if not patterns:
        return project
    names = {path.relative_to(project) for pattern in patterns for path in project.glob(pattern)}
    for name in sorted({*names, Path("pyproject.toml")}):
        if (project / name).is_file() and "__pycache__" not in name.parts:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(project / name, target / name)
    return target


@contextmanager
def private_flower(
    project: Path, variables: Mapping[str, str] | None = None
) -> Generator[PrivateFlower, None, None]:
    """A private Flower for one run of the app in ``project``; nothing of it is left afterwards.

    Its processes have ``variables`` in their environment.

    SIGTERM and SIGHUP end the block like Ctrl-C does (SystemExit 128 + number); a second signal
    does not interrupt the cleaning up.
    """
    mark = uuid.uuid4().hex
    ends = {signal.SIGTERM: _raise_exit, signal.SIGHUP: _raise_exit}
    deaf = dict.fromkeys((signal.SIGINT, *ends), signal.SIG_IGN)
    with signals(ends):
        home = _short_temporary_folder()
        flower, watch = None, heir(f"{MARK}={mark}", home)
        try:
            app = stage(project.resolve(), home / "app")
            flower = PrivateFlower(
                home, app, environment(home, mark, os.environ) | dict(variables or {})
            )
            yield flower
        finally:
            with signals(deaf):
                started = [service.process for service in flower.services] if flower else []
                end_family(f"{MARK}={mark}", started, GRACE_SECONDS)
                shutil.rmtree(home, ignore_errors=True)
                watch.kill()
                watch.wait()


class Parser(argparse.ArgumentParser):
    """Arguments of ``python -m app...``: a wrong one ends in one line and exit code 2."""

    def error(self, message: str) -> NoReturn:
        """End."""
        sys.stderr.write(f"error: {' '.join(message.split())}; {self.prog} --help explains\n")
        raise SystemExit(2)
