"""The parts of a ClientApp around the local steps: node, records, memory, site.

What the client adds to its gradients comes from its own reading of the config, never from the
message; a message of another config is refused. An error stays in this node's own log: the server
learns that the node is absent, and no more.

Where a node's records lie behind a site's own process, this code forwards and sees none of them.
What the site refuses, it refuses for its own reasons, which stay in the logs of site and node.
"""

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from pkgutil import resolve_name

from flwr.app import ArrayRecord, Context, RecordDict
from flwr.clientapp import ClientApp

from manifed.experiment.assembly import own_node
from manifed.experiment.schema import Experiment
from manifed.federation.client import Node
from manifed.federation.exchange import BadMessage, Header
from manifed.federation.memory import Kept, MemoryStore
from manifed.flower.handshake import Introduction
from manifed.flower.records import (
    CONFIG_SHA256,
    PAYLOAD,
    facts_from_record,
    facts_to_record,
    pack,
    shown,
    tensors_from_record,
    tensors_to_record,
)
from manifed.site import protocol

SITE_SOCKET = "site-socket"
"""In a node's own config: where the site's own process listens, which has the data."""
FindNode = Callable[[Context], Node]
"""Makes the node of a context: its errors, whose text may hold data, stay in the node's own log."""


def partition_of(context: Context, count: int | None = None) -> int:
    """Returns this node's partition, checked against ``count`` where that is known.

    Raises:
        BadMessage: when the node's own config does not name it.
    """
    partition = context.node_config.get("partition-id")
    if type(partition) is not int or partition < 0 or (count is not None and partition >= count):
        last = "federation.num_clients - 1" + ("" if count is None else f" = 0..{count - 1}")
        raise BadMessage(
            f"Expected a whole partition-id of this node in 0..{last}, got {shown(partition)}"
        )
    return partition


def node_of(experiment: Callable[[Context], Experiment], context: Context) -> Node:
    """Makes the node of an experiment, which opens only the file that its node config names."""
    config = experiment(context)
    partition = partition_of(context, config.federation.num_clients)
    path = context.node_config.get("data-path")
    declared = context.node_config.get("num-examples")
    if not (declared is None or type(declared) is int):
        raise BadMessage(f"Expected a whole num-examples of this node, got {shown(declared)}")
    return own_node(config, partition, None if path is None else Path(str(path)), declared)


def opened(find: FindNode, context: Context) -> Node:
    """Returns this node with its records read.

    Raises:
        BadMessage: the node is pinned to another config. Others as ``find``.
    """
    node = find(context)
    pinned = context.node_config.get(CONFIG_SHA256)
    if pinned is not None and pinned != node.digest:
        raise BadMessage(f"This node is pinned to config {pinned}, the run has {node.digest}")
    return node


class Memory:
    """A node's memory of its client in this run of Flower's.

    Flower keeps a context in the memory of one SuperNode process, which is enough where no node can
    die alone. A deployed node has ``state-dir`` in its own config, or ``manifed`` in its Flower
    home, so that a restart loses nothing.
    """

    def __init__(self, context: Context, node: Node) -> None:
        """Makes the memory of the node of a context.

        Raises:
            ValueError: ``state-dir`` is no absolute path.
        """
        self._context, self._node = context, node
        named = context.node_config.get("state-dir")
        # the program that a SuperNode starts for each message
        if named is None and Path(sys.argv[0]).name == "flwr-clientapp":
            named = str(
                Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr").absolute() / "manifed"
            )
        if named is not None and not (isinstance(named, str) and Path(named).is_absolute()):
            raise ValueError(
                f"Expected an absolute path as this node's state-dir, got {shown(named)}"
            )
        self._store = None if named is None else MemoryStore(Path(named) / "memory")
        self.kept: Kept | None = None
        """What was written last."""
        state = context.state
        if self._store is not None:
            self.kept = self._store.read(str(context.run_id), node.partition)
        elif "memory" in state.array_records:
            self.kept = Kept(
                facts_from_record(Header, state["memory-tag"]),
                tensors_from_record(state.array_records["memory"]),
            )

    def keep(self, kept: Kept) -> None:
        """Writes what a client remembers, once its reply is made; an error keeps nothing."""
        if self._store is not None:
            lasts = self._node.setup.training.remembers_setup
            self._store.write(str(self._context.run_id), self._node.partition, kept, lasts=lasts)
            return
        self._context.state["memory"] = tensors_to_record(kept.tensors)
        self._context.state["memory-tag"] = facts_to_record(kept.header)


def client_app_of(experiment: Callable[[Context], Experiment]) -> ClientApp:
    """Makes the ClientApp of nodes that take part in the experiment of their context.

    A node whose own config names ``site-socket`` forwards to the site's process there.
    """
    # In a checkout this is the folder `clients` beside the library.
    app_of = resolve_name("manifed.flower.clients.local_training:app_of")
    return app_of(partial(node_of, experiment), experiment)


def site_introduction(context: Context, config: Experiment) -> Introduction:
    """Returns what the site says of itself; errors as `site_answer`."""
    told, _ = _asked(context, config, None, {})
    if not isinstance(told, protocol.Introduction):
        raise RuntimeError("the site did not introduce itself")
    return Introduction(told.partition, told.num_examples, told.config_sha256, told.code_sha256)


def site_answer(
    content: RecordDict, header: Header, context: Context, config: Experiment
) -> RecordDict:
    """Returns the site's reply to a training message, which the site noised itself.

    Raises:
        RuntimeError, OSError, BadFrame: the site refused, or there is none.
    """
    arrays = content.get(PAYLOAD)
    down = tensors_from_record(arrays) if isinstance(arrays, ArrayRecord) else {}
    told, up = _asked(context, config, header, down)
    if not isinstance(told, protocol.Update):
        raise RuntimeError("the site did not answer with an update")
    return pack(header, tensors_to_record(up), noise_origin=told.noise_origin)


def _asked(
    context: Context, config: Experiment, header: Header | None, down: protocol.Tensors
) -> tuple[protocol.Introduction | protocol.Update, protocol.Tensors]:
    path = Path(str(context.node_config[SITE_SOCKET]))
    question = protocol.about(config, str(context.run_id), header)
    told, up = protocol.ask(path, question, down, config.federation.replies.timeout)
    if isinstance(told, protocol.Refusal):
        raise RuntimeError(f"the site refused: {told.reason}")
    return told, up
