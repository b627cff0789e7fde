"""The engines that are Flower's own: real SuperNodes on this machine's loopback, or simulation.

In a deployment everything runs as in a federation of several machines: separate processes, HTTP
between them, one new Python process for each message to a client. What travels is encrypted, and a
SuperNode joins with a registered key only, unless a run is asked to be insecure. It takes seconds
for each round; docs/deployment.md tells how to do it on machines of your own. The simulation is a
check that the app behaves under Ray as it does inline; for speed use the inline engine.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.credentials import TLSFiles, found_or_made
from app.processes import CONNECTION, LOOPBACK, PrivateFlower, Service, free_ports, private_flower
from app.superlink import START_SECONDS, start_superlink, submit
from manifed.errors import ConfigError
from manifed.flower.run_config import SIMULATION

RESTART_SECONDS = 5.0


def run(
    *,
    run_config: Mapping[str, str],
    num_supernodes: int,
    project: Path,
    timeout: float,
    on_line: Callable[[str], None],
    is_simulation: bool = False,
    is_insecure: bool = False,
    credentials: Path | None = None,
    data_paths: Sequence[Path] | None = None,
) -> None:
    """Runs the app in ``project`` on one SuperLink and ``num_supernodes`` SuperNodes.

    Args:
        run_config: what every process of the run reads (manifed/flower/run_config.py).
        num_supernodes: how many SuperNodes; node i gets partition i.
        project: the folder with the Flower app's ``pyproject.toml``.
        timeout: seconds from the submission to the end of the run.
        on_line: called with each line of the run's log.
        is_simulation: the SuperNodes are virtual, one CPU each, under Ray.
        is_insecure: neither TLS nor node authentication.
        credentials: a folder with the keys and certificates, which are made if it has none; left
            out, they are made for this run only and removed with its temporary folder.
        data_paths: one folder for each node, which its ClientApp finds as ``data-path`` in its
            node_config; the path never leaves the node.

    Raises:
        ConfigError: a data path with a quotation mark, or ``credentials`` that are not fit for use.
        EngineFailed: the run did not end as finished:completed, or a process of it ended.
    """
    configs = [] if is_simulation else node_configs(num_supernodes, data_paths)
    with private_flower(project, {SIMULATION: "1"} if is_simulation else None) as flower:
        if is_simulation:
            link, address = start_superlink(
                flower, ["--insecure", "--simulation", "--isolation", "subprocess"]
            )
            flower.connect(address)
            nodes = f"num-supernodes={num_supernodes} client-resources-num-cpus=1"
            options = ["--federation-config", nodes]
            checks = [link.check]
        else:
            if is_insecure:
                on_line(
                    "insecure: no TLS and no SuperNode authentication: whoever reaches this "
                    "machine's loopback can read and change what travels, and take part as a node"
                )
            folder = credentials or flower.home / "credentials"
            tls = None if is_insecure else found_or_made(folder, num_supernodes)
            link, address = start_superlink(flower, link_options(tls))
            flower.connect(address, tls.ca_certificate if tls else None)
            for key in tls.supernode_keys if tls else ():
                flower.call("flwr", "supernode", "register", str(key) + ".pub", CONNECTION)
            nodes = SuperNodes(flower, address, configs, tls, on_line)
            options = []
            checks = [link.check, nodes.restart_those_that_ended]

        def check() -> None:
            for one in checks:
                one()

        submit(flower, run_config, options, timeout=timeout, on_line=on_line, check=check)


def node_configs(num_supernodes: int, data_paths: Sequence[Path] | None) -> list[str]:
    """Returns Flower's ``--node-config`` of each SuperNode."""
    configs = [f"partition-id={i} num-partitions={num_supernodes}" for i in range(num_supernodes)]
    if data_paths is None:
        return configs
    if any('"' in str(path) for path in data_paths):
        raise ConfigError("data.paths: expected paths without quotation marks")
    return [
        f'{config} data-path="{path.absolute()}"'
        for config, path in zip(configs, data_paths, strict=True)
    ]


def link_options(tls: TLSFiles | None) -> list[str]:
    """Returns the options of a SuperLink with these credentials."""
    common = ["--isolation", "subprocess", "--disable-runtime-dependency-installation"]
    if tls is None:
        return ["--insecure", *common]
    return [
        *("--ssl-ca-certfile", str(tls.ca_certificate)),
        *("--ssl-certfile", str(tls.server_certificate)),
        *("--ssl-keyfile", str(tls.server_key)),
        "--enable-supernode-auth",
        *common,
    ]


ACCEPTED = "SuperNode ID:"
"""What a SuperNode says once the SuperLink has taken it."""


@dataclass
class SuperNodes:
    """The SuperNodes of a run, which are started again when one ends.

    What it was asked meanwhile comes back as an error, and the reply policy decides. Flower refuses
    a key that it believes online, for up to 60 s after a crash, so one start may not be enough.
    """

    flower: PrivateFlower
    address: str
    """Of the SuperLink."""
    configs: Sequence[str]
    tls: TLSFiles | None
    on_line: Callable[[str], None]

    def __post_init__(self) -> None:
        """Start all of them; the SuperLink has accepted them afterwards."""
        self._ports = free_ports(len(self.configs))
        self._ended: dict[int, float] = {}
        """Services that are out, by number, and when they were last found so."""
        self.services = list(map(self._start, range(len(self.configs))))
        for node in self.services:
            node.wait_for(ACCEPTED, START_SECONDS + 20.0 * len(self.services))

    def restart_those_that_ended(self) -> None:
        """Start each one that ended `RESTART_SECONDS` ago, and say who left and who is back."""
        now = time.monotonic()
        for i, node in enumerate(self.services):
            code = node.process.poll()
            if code is None:
                if i in self._ended and node.says(ACCEPTED):
                    del self._ended[i]
                    self.on_line(f"{node.name} is back")
            elif i not in self._ended:
                self._ended[i] = now
                self.on_line(
                    f"{node.name} ended with {code}: its messages fail, federation.replies decides "
                    f"what a round does without it; it is started again every {RESTART_SECONDS:g} s"
                )
            elif now >= self._ended[i] + RESTART_SECONDS:
                self._ended[i] = now
                self.services[i] = self._start(i)

    def _start(self, partition: int) -> Service:
        keys = ["--insecure"]
        if self.tls is not None:
            private = str(self.tls.supernode_keys[partition])
            keys = ["--root-certificates", str(self.tls.ca_certificate)]
            keys += ["--auth-supernode-private-key", private]
        return self.flower.start(
            f"supernode-{partition}",
            *("flower-supernode", "--superlink", self.address),
            *("--host", LOOPBACK, "--port", str(self._ports[partition])),
            *("--node-config", self.configs[partition], *keys),
        )
