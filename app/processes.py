"""A private Flower installation for one run: its home, its ports, its processes.

Guarantees: nothing is read from or written to the user's own Flower home; every process
started here, and every process that those start, carries a mark of its own in its environment
and is ended by its id when the block ends, whether by success, by an error, by Ctrl-C or by
SIGTERM; the temporary home is removed after that. Where this process is killed with SIGKILL, a
process of its own that was started first does both (Linux, where a mark can be read).
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
import uuid
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from app.process_tree import end_family, heir
from manifed.errors import EngineFailed
from manifed.runs.interrupt import ENDING, ending_signals

MARK = "MANIFED_ENGINE_MARK"
LOOPBACK = "127.0.0.1"
CONNECTION = "manifed"
"""What Flower's commands call the SuperLink of a run."""
_FLOWER_SETTINGS = {
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
    """Returns the environment of every process of one run.

    The user's own ``FLWR_*`` and ``RAY_*`` variables are dropped, so that a run does not depend
    on them; everything else (``PATH``, ``MANIFED_DATA``, ...) is kept.
    """
    kept = {k: v for k, v in inherited.items() if not k.startswith(("FLWR_", "RAY_"))}
    direct = ",".join(
        [*(v for k, v in kept.items() if k.lower() == "no_proxy" and v), LOOPBACK, "localhost"]
    )
    return {
        **kept,
        **_FLOWER_SETTINGS,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", os.defpath)]),
        "FLWR_HOME": str(home / "flwr"),
        "RAY_TMPDIR": str(home),
        "TMPDIR": str(home),
        "NO_PROXY": direct,
        "no_proxy": direct,
        MARK: mark,
    }


def free_ports(count: int) -> list[int]:
    """Returns ``count`` distinct loopback ports on which nothing listens now."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.create_server((LOOPBACK, 0))) for _ in range(count)]
        return [probe.getsockname()[1] for probe in probes]


def tail(log_file: Path, lines: int = 15) -> str:
    """Returns the last ``lines`` lines of a log file."""
    return "\n".join(log_file.read_text(errors="replace").splitlines()[-lines:])


class Service(NamedTuple):
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

    def start(self, name: str, *arguments: str) -> Service:
        """Starts a long-running program in a session of its own; its output goes to a file."""
        log_file = self.home / f"{name}.log"
        with log_file.open("wb") as output:
            process = subprocess.Popen(
                arguments, env=self.env, stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        service = Service(name, process, log_file)
        self.services.append(service)
        return service

    def call(self, *arguments: str, timeout: float = 180.0) -> str:
        """Runs a short Flower command and returns its output; EngineFailed if it fails or hangs."""
        try:
            process = subprocess.run(
                arguments, env=self.env, stdin=subprocess.DEVNULL, text=True,
                capture_output=True, timeout=timeout, start_new_session=True, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise EngineFailed("timeout", f"{' '.join(arguments)}: {timeout:g} s") from None
        if process.returncode != 0:
            said = (process.stdout + process.stderr).strip()
            raise EngineFailed("not-started", f"{' '.join(arguments)}: {said}")
        return process.stdout

    def connect(self, address: str, root_certificates: Path | None = None) -> None:
        """Writes the private ``config.toml`` with one SuperLink connection, `CONNECTION`."""
        security = "insecure = true"
        if root_certificates is not None:
            security = f'root-certificates = "{root_certificates.absolute()}"'
        config = self.home / "flwr" / "config.toml"
        config.parent.mkdir(exist_ok=True)
        config.write_text(
            f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
            f'address = "{address}"\n{security}\n'
        )


def stage(project: Path, target: Path) -> Path:
    """Makes the folder to build the FAB from: a copy of the files that ``fab-include`` names.

    Building in the repository itself would walk through ``.venv``, ``.git`` and all run folders,
    and would take up edits made while the run is under way.
    """
    config = tomllib.loads((project / "pyproject.toml").read_text())
    patterns = config["tool"]["flwr"]["app"]["fab-include"]
    names = {path.relative_to(project) for pattern in patterns for path in project.glob(pattern)}
    for name in sorted({*names, Path("pyproject.toml")}):
        if (project / name).is_file() and "__pycache__" not in name.parts:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(project / name, target / name)
    return target


@contextmanager
def private_flower(
    project: Path, variables: Mapping[str, str] | None = None
) -> Generator[PrivateFlower]:
    """Makes a private Flower for one run of the app in ``project``; nothing of it is left.

    Its processes have ``variables`` in their environment. SIGTERM and SIGHUP end the block like
    Ctrl-C does (`Ended`); a second signal does not interrupt the cleaning up.
    """
    mark = uuid.uuid4().hex
    with ending_signals():
        # Ray's Unix sockets lie below it, whose names have at most 107 characters
        is_short = len(tempfile.gettempdir()) <= 24
        home = Path(tempfile.mkdtemp(prefix="mf-", dir=None if is_short else "/tmp"))
        flower = None
        watch = heir(f"{MARK}={mark}", home)
        try:
            flower = PrivateFlower(
                home,
                stage(project.resolve(), home / "app"),
                environment(home, mark, os.environ) | dict(variables or {}),
            )
            yield flower
        finally:
            with suppress(ValueError):  # outside the main thread no signal has a handler of ours
                for number in ENDING:
                    signal.signal(number, signal.SIG_IGN)
            started = [service.process for service in flower.services] if flower else []
            end_family(f"{MARK}={mark}", started, 4.0)
            shutil.rmtree(home, ignore_errors=True)
            watch.kill()
            watch.wait()
