"""What a ClientApp does before and after the local steps (clients/local_training.py).

What the client adds to its gradients comes from its own reading of the config, never from the
message; a message of another config is refused. An error stays in this node's own log: the server
learns that the node is absent, and no more.

Where a node's records lie behind a site's own process, this code forwards and sees none of them.
What the site refuses, it refuses for its own reasons, which stay in the logs of site and node.
"""

import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from logging import ERROR
from pathlib import Path
from pkgutil import resolve_name

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.logger import log

from manifed.algorithms.broadcast import BadBroadcast
from manifed.experiment.assembly import own_node
from manifed.experiment.schema import Experiment
from manifed.federation.client import Node
from manifed.federation.memory import Kept, MemoryStore
from manifed.federation.replies import BadMessage, Header
from manifed.flower.handshake import Introduction, check_code
from manifed.flower.records import (
    CODE_SHA256,
    CONFIG_SHA256,
    HEADER,
    PAYLOAD,
    facts_from_record,
    facts_to_record,
    pack,
    shown,
    tensors_from_record,
    tensors_to_record,
)
from manifed.runs.manifest import code_sha256
from manifed.site import protocol

_DEPLOYED = "flwr-clientapp"
"""The program that a SuperNode starts for each message."""
SITE_SOCKET = "site-socket"
"""In a node's own config: where the site's own process listens, which has the data."""
HOME = "manifed"
"""A deployed node's folder in its Flower home."""
FindNode = Callable[[Context], Node]
"""Makes the node of a context: its errors, whose text may hold data, stay in the node's own log."""


class Absent(RuntimeError):
    """What the server learns of a node that cannot take part: that it is absent, and no more."""

    def __init__(self) -> None:
        super().__init__("this node is absent; its own log says why")


@contextmanager
def absent_if_it_fails() -> Generator[None]:
    """Keep an error, whose text may hold data, in this node's own log, and raise `Absent` instead.

    A BadMessage or BadBroadcast, which say what came alone, stay as they are.
    """
    try:
        yield
    except (BadMessage, BadBroadcast):
        raise
    except Exception as error:
        log(ERROR, "this node is absent: %s: %s", type(error).__name__, error)
        raise Absent from None


def partition_of(context: Context, count: int | None = None) -> int:
    """This node's partition, of ``count`` where the number is known.

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


def node_of(context: Context, config: Experiment) -> Node:
    """The node of an experiment; it opens its own file only, which its node config names."""
    partition = partition_of(context, config.federation.num_clients)
    path, declared = (context.node_config.get(key) for key in ("data-path", "num-examples"))
    if not (declared is None or type(declared) is int):
        raise BadMessage(f"Expected a whole num-examples of this node, got {shown(declared)}")
    return own_node(config, partition, None if path is None else Path(str(path)), declared)


def opened(find: FindNode, context: Context) -> Node:
    """This node, with its records.

    Raises:
        BadMessage: the node is pinned to another config. Others as ``find``.
    """
    node = find(context)
    pinned = context.node_config.get(CONFIG_SHA256)
    if pinned is not None and pinned != node.digest:
        raise BadMessage(f"This node is pinned to config {pinned}, the run has {node.digest}")
    return node


def check_server(message: Message) -> None:
    """Refuse a server that runs other code; errors as `manifed.flower.handshake.check_code`."""
    asked = message.content.config_records.get(HEADER, ConfigRecord())
    check_code("the server", asked.get(CODE_SHA256))


def introduction(node: Node, message: Message) -> Message:
    """The reply to the handshake's query: all of it public."""
    own = Introduction(node.partition, node.num_examples, node.digest, code_sha256())
    return _said_of(own, message)


def _said_of(own: Introduction, message: Message) -> Message:
    return Message(RecordDict({HEADER: facts_to_record(own)}), reply_to=message)


def _store(context: Context) -> MemoryStore | None:
    """The folder that keeps what this node remembers; None in a simulation that names none.

    Flower keeps a context in the memory of one SuperNode process, which is enough where no node can
    die alone. A deployed node has ``state-dir`` in its own config, or ``manifed`` in its Flower
    home, so that a restart loses nothing.

    Raises:
        ValueError: ``state-dir`` is no absolute path.
    """
    named = context.node_config.get("state-dir")
    if named is None and Path(sys.argv[0]).name == _DEPLOYED:
        named = str(Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr").absolute() / HOME)
    if named is None:
        return None
    if not isinstance(named, str) or not Path(named).is_absolute():
        raise ValueError(f"Expected an absolute path as this node's state-dir, got {shown(named)}")
    return MemoryStore(Path(named) / "memory")


def kept_of(context: Context, node: Node) -> Kept | None:
    """What this node kept of its client in this run of Flower's."""
    store = _store(context)
    if store is not None:
        return store.read(str(context.run_id), node.partition)
    if "memory" not in context.state.array_records:
        return None
    return Kept(
        facts_from_record(Header, context.state["memory-tag"]),
        tensors_from_record(context.state.array_records["memory"]),
    )


def keep(kept: Kept, context: Context, node: Node) -> None:
    """Write what a client remembers, once its reply is made; one that raises keeps nothing."""
    store = _store(context)
    if store is not None:
        lasts = node.setup.training.remembers_setup
        store.write(str(context.run_id), node.partition, kept, lasts=lasts)
        return
    context.state["memory"] = tensors_to_record(kept.tensors)
    context.state["memory-tag"] = facts_to_record(kept.header)


def client_app_of(experiment: Callable[[Context], Experiment]) -> ClientApp:
    """The ClientApp of nodes that take part in the experiment of their context.

    A node whose own config names ``site-socket`` forwards to the site's process there.
    """
    # In a checkout this is the folder `clients` beside the library.
    app_of = resolve_name("manifed.flower.clients.local_training:app_of")
    return app_of(lambda context: node_of(context, experiment(context)), experiment)


class _NoAnswer(RuntimeError):
    """The site did not answer; the text is for the log of this node."""


def introduced(message: Message, context: Context, config: Experiment) -> Message:
    """The reply to the handshake's query, in the site's name.

    Raises:
        NoAnswer, OSError, BadFrame: the site refused, or there is none.
    """
    told, _ = _asked(context, config, protocol.about(config), {})
    if not isinstance(told, protocol.Introduction):
        raise _NoAnswer("the site did not introduce itself")
    said = Introduction(told.partition, told.num_examples, told.config_sha256, told.code_sha256)
    return _said_of(said, message)


def answered(message: Message, context: Context, config: Experiment) -> Message:
    """The reply to a training message, as the site noised it; errors as `introduced`."""
    header = facts_from_record(Header, message.content.get(HEADER))
    arrays = message.content.get(PAYLOAD)
    down = tensors_from_record(arrays) if isinstance(arrays, ArrayRecord) else {}
    question = protocol.about(config, str(context.run_id), header)
    told, up = _asked(context, config, question, down)
    if not isinstance(told, protocol.Update):
        raise _NoAnswer("the site did not answer with an update")
    content = pack(header, tensors_to_record(up), noise_origin=told.noise_origin)
    return Message(content, reply_to=message)


def _asked(
    context: Context, config: Experiment, question: protocol.Question, down: protocol.Tensors
) -> tuple[protocol.Introduction | protocol.Update, protocol.Tensors]:
    path = Path(str(context.node_config[SITE_SOCKET]))
    told, up = protocol.ask(path, question, down, config.federation.replies.timeout)
    if isinstance(told, protocol.Refusal):
        raise _NoAnswer(f"the site refused: {told.reason}")
    return told, up
