"""A federation of real processes for tests: a SuperLink, site processes and SuperNodes.

Nothing here waits without an end.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from app.credentials import found_or_made
from app.deployment import ACCEPTED, link_options
from app.processes import CONNECTION, LOOPBACK, PrivateFlower, free_ports
from app.superlink import submit
from manifed.errors import EngineFailed
from manifed.experiment.load import load
from manifed.flower.run_config import run_config_of
from tests.deployment.kills import PATIENCE, killed
from tests.deployment.tap import Tap

SETS = ("output.checkpoint_every=1", "engine.kind=deployment")


@dataclass
class Sites:
    """One SuperLink with a database, and what belongs to it; each process can be ended alone."""

    flower: PrivateFlower
    num_nodes: int

    def __post_init__(self):
        self.sites, self.nodes, self.taps = {}, {}, {}
        self.said = []
        """Every line of the runs' logs."""
        self._starts = 0
        self._background = ThreadPoolExecutor()
        self.tls = found_or_made(self.flower.home / "credentials", self.num_nodes)
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
        return killed(self.link.process)

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
        """Run an experiment in the background: how it will have ended."""
        given = run_config_of(load(config, [*SETS, *sets], {"output.directory": str(out)}))
        return self._background.submit(self._status, given)

    def _status(self, given):
        try:
            submit(self.flower, given, (), timeout=3 * PATIENCE, on_line=self.said.append)
        except EngineFailed as error:
            return error.status
        return "finished:completed"

    def log_files(self):
        """The logs of all processes."""
        return sorted(self.flower.home.glob("*.log"))
