"""The deployment engine: a real SuperLink and real SuperNodes, on this machine's loopback.

Everything runs as in a federation of several machines: separate processes, HTTP between them, one
new Python process for each message to a client. It takes seconds for each round;
docs/deployment.md tells how to do it on machines of your own.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from app.credentials import TLSFiles
from app.processes import LOOPBACK, PrivateFlower, Service, free_ports, private_flower
from app.superlink import CONNECTION, START_SECONDS, start_superlink, submit

NODE_START_SECONDS = 20.0


def run(
    *,
    run_config: Mapping[str, str],
    num_supernodes: int,
    project: Path,
    timeout: float,
    on_line: Callable[[str], None],
    tls: TLSFiles | None = None,
    data_paths: Sequence[Path] | None = None,
) -> None:
    """Runs the app in ``project`` on one SuperLink and ``num_supernodes`` SuperNodes.

    Args:
        run_config: what every process of the run reads (manifed/flower/run_config.py).
        num_supernodes: how many SuperNodes; node i gets partition i.
        project: the folder with the Flower app's ``pyproject.toml``.
        timeout: seconds from the submission to the end of the run.
        on_line: called with each line of the run's log.
        tls: TLS and node authentication with these files; without it neither (loopback only).
        data_paths: one folder for each node, which its ClientApp finds as ``data-path`` in its
            node_config; the path never leaves the node.

    Raises:
        ValueError: not one key or data path for each node, or a path with a quotation mark.
        EngineFailed: the run did not end as finished:completed, or a process of it ended.
    """
    configs = node_configs(num_supernodes, data_paths)
    if tls is not None and len(tls.supernode_keys) < num_supernodes:
        have = len(tls.supernode_keys)
        raise ValueError(f"Expected {num_supernodes} keys in tls.supernode_keys, got {have}")
    with private_flower(project) as flower:
        link, address = start_superlink(flower, _link_options(tls))
        flower.connect(CONNECTION, address, tls.ca_certificate if tls else None)
        if tls is not None:
            for key in tls.supernode_keys[:num_supernodes]:
                flower.call("flwr", "supernode", "register", str(key) + ".pub", CONNECTION)
        nodes = start_nodes(flower, address, configs, tls)
        submit(
            flower,
            run_config,
            (),
            timeout=timeout,
            on_line=on_line,
            watched=[link, *nodes],
        )


def node_configs(num_supernodes: int, data_paths: Sequence[Path] | None) -> list[str]:
    """Flower's ``--node-config`` of each SuperNode."""
    if num_supernodes < 1:
        raise ValueError(f"Expected num_supernodes >= 1, got {num_supernodes}")
    configs = [f"partition-id={i} num-partitions={num_supernodes}" for i in range(num_supernodes)]
    if data_paths is None:
        return configs
    if len(data_paths) != num_supernodes:
        raise ValueError(f"Expected {num_supernodes} data_paths, got {len(data_paths)}")
    for path in data_paths:
        if '"' in str(path):
            raise ValueError(f"Expected a data path without quotation marks, got {path}")
    return [
        f'{config} data-path="{path.absolute()}"'
        for config, path in zip(configs, data_paths, strict=True)
    ]


def _link_options(tls: TLSFiles | None) -> list[str]:
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


def _node_options(tls: TLSFiles | None, partition: int) -> list[str]:
    if tls is None:
        return ["--insecure"]
    return [
        *("--root-certificates", str(tls.ca_certificate)),
        *("--auth-supernode-private-key", str(tls.supernode_keys[partition])),
    ]


def start_nodes(
    flower: PrivateFlower, address: str, configs: Sequence[str], tls: TLSFiles | None
) -> list[Service]:
    """SuperNodes that the SuperLink has accepted."""
    nodes = [
        flower.start(
            f"supernode-{partition}",
            "flower-supernode",
            *("--superlink", address, "--host", LOOPBACK, "--port", str(port)),
            *("--node-config", config),
            *_node_options(tls, partition),
        )
        for partition, (config, port) in enumerate(
            zip(configs, free_ports(len(configs)), strict=True)
        )
    ]
    for node in nodes:
        node.wait_for("SuperNode ID:", START_SECONDS + NODE_START_SECONDS * len(nodes))
    return nodes
