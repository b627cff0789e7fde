"""A federation of real processes for tests: a SuperLink, site processes and SuperNodes.

Nothing here waits without an end: a wait that is too long is a failure that says for what.
"""

import os
import signal
import threading
import time
from dataclasses import dataclass, field

import torch

from app.credentials import TLSFiles, found_or_made
from app.deployment import link_options
from app.process_tree import family, process_table
from app.processes import CONNECTION, LOOPBACK, PrivateFlower, Service, free_ports
from app.superlink import COMPLETED, submit
from manifed.errors import EngineFailed
from manifed.experiment.load import load
from manifed.flower.run_config import run_config_of
from manifed.runs import checkpoint
from manifed.runs.folder import RunFolder
from tests.deployment.tap import Tap

PATIENCE = 300.0
ACCEPTED = "SuperNode ID:"
SETS = ("output.checkpoint_every=1", "output.plots=false", "engine.kind=deployment")


def soon(is_true, what, timeout=PATIENCE):
    """Wait until it is true; AssertionError after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while not is_true():
        assert time.monotonic() < deadline, f"not within {timeout:g} s: {what}"
        time.sleep(0.1)


def below(process):
    """A process of ours and its living descendants."""
    return family("MANIFED_ENGINE_MARK=nobody's", [process.pid])


def gone(processes):
    """Wait for the end of all of them."""
    soon(lambda: not processes & process_table().keys(), f"the end of {processes}")


def end(process, number=signal.SIGKILL):
    """Send one process of ours a signal, and wait for its end and that of its descendants."""
    descendants = below(process)
    process.send_signal(number)
    process.wait(PATIENCE)
    gone(descendants)


@dataclass
class Sites:
    """One SuperLink with a database, and what belongs to it; each process can be ended alone."""

    flower: PrivateFlower
    num_nodes: int
    link: Service = field(init=False)
    sites: dict[str, Service] = field(default_factory=dict[str, Service])
    nodes: dict[str, Service] = field(default_factory=dict[str, Service])
    taps: dict[str, Tap] = field(default_factory=dict[str, Tap])
    said: list[str] = field(default_factory=list[str])
    """Every line of the runs' logs."""
    _starts: int = 0

    def __post_init__(self):
        self.tls: TLSFiles = found_or_made(self.flower.home / "credentials", self.num_nodes)
        self.link_port, *self._ports = free_ports(1 + self.num_nodes)
        self.start_link()
        self.flower.connect(self.address, self.tls.ca_certificate)
        for key in self.tls.supernode_keys:
            self.flower.call("flwr", "supernode", "register", f"{key}.pub", CONNECTION)

    @property
    def address(self):
        """Of the SuperLink."""
        return f"{LOOPBACK}:{self.link_port}"

    def _start(self, name, *command):
        self._starts += 1
        return self.flower.start(f"{self._starts:02d}-{name}", *command)

    def start_link(self):
        """The SuperLink, on its own port and database."""
        where = ["--host", LOOPBACK, "--port", str(self.link_port)]
        database = ["--database", str(self.flower.home / "state.db")]
        self.link = self._start(
            "superlink", "flower-superlink", *where, *database, *link_options(self.tls)
        )
        self.link.wait_for("Uvicorn running on", PATIENCE)

    def kill_link(self):
        """Kill the SuperLink; what is left of its family.

        Its ServerApp may wait for it to come back before it ends: start it again first, then wait.
        """
        descendants = below(self.link.process)
        self.link.process.kill()
        self.link.process.wait(PATIENCE)
        return descendants

    def socket(self, name):
        """Where a site answers."""
        return self.flower.home / f"door-{name}" / "site.sock"

    def tap(self, name):
        """Where a SuperNode asks: what passes to the site and back is written down."""
        if name not in self.taps:
            self.taps[name] = Tap(self.flower.home / f"tap-{name}" / "sock", self.socket(name))
        return self.taps[name]

    @staticmethod
    def ledger(data):
        """The folder that accounts for a file."""
        return data.with_suffix(".ledger")

    def start_site(self, name, partition, data, config, max_epsilon, *more):
        """A site process that answers an experiment."""
        self.sites[name] = self._start(
            f"site-{name}", "manifed", "site", "--data", str(data), "--partition", str(partition),
            "--ledger", str(self.ledger(data)), "--socket", str(self.socket(name)),
            "--max-epsilon", repr(max_epsilon), "--delta", "1e-5",
            "--config", str(config), *more,
        )  # fmt: skip
        self.sites[name].wait_for("ready: ", PATIENCE)

    def start_node(self, name, key, partition, more):
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

    def submit(self, config, out, *sets):
        """Run an experiment in the background."""
        given = run_config_of(load(config, [*SETS, *sets], {"output.directory": str(out)}))
        return Submission(self.flower, given, self.said)

    def log_files(self):
        """The logs of all processes."""
        return sorted(self.flower.home.glob("*.log"))


class Submission:
    """A run that was submitted, followed by a thread of its own."""

    def __init__(self, flower, config, said):
        self._failed: EngineFailed | None = None

        def go():
            try:
                submit(flower, config, (), timeout=3 * PATIENCE, on_line=said.append)
            except EngineFailed as error:
                self._failed = error

        self._thread = threading.Thread(target=go, daemon=True)
        self._thread.start()

    def end(self):
        """Wait for it: how it ended."""
        self._thread.join(4 * PATIENCE)
        assert not self._thread.is_alive(), "the submission does not end"
        return COMPLETED if self._failed is None else self._failed.status


class Watched:
    """The state after each round of a run, copied from its checkpoints while it goes on."""

    def __init__(self, folder):
        self.states: dict[int, torch.Tensor] = {}
        self._path, self._is_over = RunFolder(folder).checkpoint_path, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    @property
    def newest(self):
        """The last round that has a checkpoint; 0 before there is one."""
        return max(self.states, default=0)

    def _watch(self):
        while not self._is_over.wait(0.1):
            if self._path.exists():
                saved = checkpoint.load(self._path)
                self.states[saved.server_round] = saved.tensors["x"]

    def stop(self):
        """After the run."""
        time.sleep(0.5)
        self._is_over.set()
        self._thread.join(PATIENCE)


def stopped(pid, *, is_stopped):
    """Hold a process of ours, or let it go on."""
    os.kill(pid, signal.SIGSTOP if is_stopped else signal.SIGCONT)
