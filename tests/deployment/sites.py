"""A federation of real processes for tests: a SuperLink, site processes and SuperNodes."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from app.credentials import TLSFiles, found_or_made
from app.deployment import link_options
from app.process_tree import family, process_table
from app.processes import LOOPBACK, PrivateFlower, Service, free_ports
from app.superlink import CONNECTION
from manifed.runs import checkpoint
from manifed.runs.run_folder import RunFolder

PATIENCE = 600.0
ACCEPTED = "SuperNode ID:"


def soon(is_true: Callable[[], bool], timeout: float = PATIENCE) -> None:
    """Wait until it is true; AssertionError after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while not is_true():
        assert time.monotonic() < deadline, f"not within {timeout:g} s"
        time.sleep(0.1)


def end(process: subprocess.Popen[bytes], number: signal.Signals = signal.SIGKILL) -> None:
    """Send one process of ours a signal, and wait for its end and that of its descendants."""
    below = family("MANIFED_ENGINE_MARK=nobody's", [process.pid])
    process.send_signal(number)
    process.wait()
    soon(lambda: not below & process_table().keys())


@dataclass
class Sites:
    """One SuperLink with a database, and what belongs to it; each process can be ended alone."""

    flower: PrivateFlower
    num_nodes: int
    link: Service = field(init=False)
    sites: dict[str, Service] = field(default_factory=dict[str, Service])
    nodes: dict[str, Service] = field(default_factory=dict[str, Service])
    said: list[str] = field(default_factory=list[str])
    """Every line of the runs' logs."""
    _starts: int = 0

    def __post_init__(self) -> None:
        self.tls: TLSFiles = found_or_made(self.flower.home / "credentials", self.num_nodes)
        self.link_port, *self._ports = free_ports(1 + self.num_nodes)
        self.start_link()
        self.flower.connect(CONNECTION, self.address, self.tls.ca_certificate)
        for key in self.tls.supernode_keys:
            self.flower.call("flwr", "supernode", "register", f"{key}.pub", CONNECTION)

    @property
    def address(self) -> str:
        """Of the SuperLink."""
        return f"{LOOPBACK}:{self.link_port}"

    def _start(self, name: str, *command: str) -> Service:
        self._starts += 1
        return self.flower.start(f"{self._starts:02d}-{name}", *command)

    def start_link(self) -> None:
        """The SuperLink, on its own port and database."""
        where = ["--host", LOOPBACK, "--port", str(self.link_port)]
        database = ["--database", str(self.flower.home / "state.db")]
        self.link = self._start(
            "superlink", "flower-superlink", *where, *database, *link_options(self.tls)
        )
        self.link.wait_for("Uvicorn running on", PATIENCE)

    def socket(self, name: str) -> Path:
        """Where a site answers."""
        return self.flower.home / f"door-{name}" / "site.sock"

    @staticmethod
    def ledger(data: Path) -> Path:
        """The folder that accounts for a file."""
        return data.with_suffix(".ledger")

    def start_site(
        self, name: str, partition: int, data: Path, config: Path, max_epsilon: float
    ) -> None:
        """A site process that answers an experiment, even if it is a rehearsal."""
        self.sites[name] = self._start(
            f"site-{name}", "manifed", "site", "--data", str(data), "--partition", str(partition),
            "--ledger", str(self.ledger(data)), "--socket", str(self.socket(name)),
            "--max-epsilon", f"{max_epsilon:g}", "--delta", "1e-5", "--rehearsal",
            "--config", str(config),
        )  # fmt: skip
        self.sites[name].wait_for("ready: ", PATIENCE)

    def start_node(self, name: str, key: int, partition: int, more: Mapping[str, Path]) -> None:
        """A SuperNode that the SuperLink has taken; Flower refuses a killed one's key for 60 s."""
        config = [f"partition-id={partition} num-partitions=3"]
        config += [f'{name}="{path}"' for name, path in more.items()]
        deadline = time.monotonic() + PATIENCE
        while True:
            node = self.nodes[name] = self._start(
                f"supernode-{name}", "flower-supernode", "--superlink", self.address,
                "--root-certificates", str(self.tls.ca_certificate),
                "--auth-supernode-private-key", str(self.tls.supernode_keys[key]),
                "--host", LOOPBACK, "--port", str(self._ports[key]),
                "--node-config", " ".join(config),
            )  # fmt: skip
            while node.process.poll() is None:
                if node.says(ACCEPTED):
                    return
                time.sleep(0.1)
            assert time.monotonic() < deadline
            time.sleep(2.0)

    def log_files(self) -> list[Path]:
        """The logs of all processes."""
        return sorted(self.flower.home.glob("*.log"))


class Watched:
    """The state after each round of a run, copied from its checkpoints while it goes on."""

    def __init__(self, folder: Path) -> None:
        self.states: dict[int, torch.Tensor] = {}
        self._path, self._is_over = RunFolder(folder).checkpoint_path, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    @property
    def newest(self) -> int:
        """The last round that has a checkpoint; 0 before there is one."""
        return max(self.states, default=0)

    def _watch(self) -> None:
        while not self._is_over.wait(0.1):
            if self._path.exists():
                saved = checkpoint.load(self._path)
                self.states[saved.server_round] = saved.tensors["x"]

    def stop(self) -> None:
        """After the run."""
        time.sleep(0.5)
        self._is_over.set()
        self._thread.join()


def stopped(pid: int, *, is_stopped: bool) -> None:
    """Hold a process of ours, or let it go on."""
    os.kill(pid, signal.SIGSTOP if is_stopped else signal.SIGCONT)
