"""A client as Flower sees it: open the message, run the client update, write the memory last.

The handler is transactional: Flower's simulation discards a state change when a handler raises and
its deployment keeps it, so everything is computed first and the state is written at the end. What
the client adds to its gradients comes from its own reading of the config, never from the message; a
message of another config is refused.
"""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from logging import ERROR
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.logger import log

from manifed.algorithms.broadcast import BadBroadcast
from manifed.experiment.assembly import own_node
from manifed.experiment.schema import Experiment
from manifed.federation import client as federation
from manifed.federation.client import Node
from manifed.federation.header import BadMessage
from manifed.federation.memory import Kept, MemoryStore
from manifed.flower import keys, site
from manifed.flower.handshake import check_code
from manifed.flower.records import (
    pack,
    read_header,
    read_payload,
    shown,
    tensors_from_record,
    tensors_to_record,
)
from manifed.runs.manifest import code_sha256


class Absent(RuntimeError):
    """What the server learns of a node that cannot take part: that it is absent, and no more."""

    def __init__(self) -> None:
        super().__init__("this node is absent; its own log says why")


@dataclass(frozen=True)
class _absent_if_it_fails:  # noqa: N801  it is used as a verb: with _absent_if_it_fails(...)
    """Keep an error, whose text may hold data, in this node's own log."""

    what: str

    def __enter__(self) -> None:
        """Nothing yet."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if not isinstance(error, Exception) or isinstance(
            error, BadMessage | BadBroadcast | Absent
        ):
            return
        log(ERROR, "this node is absent, %s: %s: %s", self.what, type(error).__name__, error)
        raise Absent from None


DEPLOYED = "flwr-clientapp"
"""The program that a SuperNode starts for each message."""
HOME = "manifed"
"""A deployed node's folder in its Flower home."""
FindNode = Callable[[Context], Node]
"""Makes the node of a context: its errors, whose text may hold data, stay in the node's own log."""


def partition_of(context: Context, count: int | None = None) -> int:
    """This node's partition, of ``count`` where the number is known.

    Raises:
        BadMessage: when the node's own config does not name it.
    """
    partition = context.node_config.get(keys.PARTITION_ID)
    if type(partition) is not int or partition < 0 or (count is not None and partition >= count):
        last = "federation.num_clients - 1" + ("" if count is None else f" = 0..{count - 1}")
        raise BadMessage(
            f"Expected a whole partition-id of this node in 0..{last}, got {shown(partition)}"
        )
    return partition


def node_of(context: Context, config: Experiment) -> Node:
    """The node of an experiment; it opens its own file only, which its node config names."""
    partition = partition_of(context, config.federation.num_clients)
    path, declared = (context.node_config.get(key) for key in (keys.DATA_PATH, keys.NUM_EXAMPLES))
    with _absent_if_it_fails("its data cannot be loaded"):
        if not (declared is None or type(declared) is int):
            raise BadMessage(f"Expected a whole num-examples of this node, got {shown(declared)}")
        return own_node(config, partition, None if path is None else Path(str(path)), declared)


def _found(find: FindNode, context: Context) -> Node:
    with _absent_if_it_fails("its data cannot be loaded"):
        node = find(context)
    pinned = context.node_config.get(keys.CONFIG_SHA256)
    if pinned is not None and pinned != node.digest:
        raise BadMessage(f"This node is pinned to config {pinned}, the run has {node.digest}")
    return node


def introduce(message: Message, context: Context, find: FindNode) -> Message:
    """The reply to the handshake's query."""
    with _absent_if_it_fails("it could not introduce itself"):
        return _introduced(message, context, find)


def _introduced(message: Message, context: Context, find: FindNode) -> Message:
    node = _found(find, context)
    _check_server(message)
    record = ConfigRecord(
        {
            keys.CONFIG_SHA256: node.digest,
            keys.CODE_SHA256: code_sha256(),
            keys.PARTITION_ID: node.partition,
            keys.NUM_EXAMPLES: node.num_examples,
        }
    )
    return Message(RecordDict({keys.HEADER: record}), reply_to=message)


def _check_server(message: Message) -> None:
    """Refuse a server that runs other code; errors as `check_code`."""
    asked = message.content.config_records.get(keys.HEADER, ConfigRecord())
    check_code("the server", asked.get(keys.CODE_SHA256))


def answer(message: Message, context: Context, find: FindNode) -> Message:
    """The reply to a training message."""
    with _absent_if_it_fails("it could not answer"):
        return _answered(message, context, find)


def _answered(message: Message, context: Context, find: FindNode) -> Message:
    node = _found(find, context)
    header = read_header(message.content)
    with _absent_if_it_fails("its update failed"):
        read = partial(read_payload, message.content)
        made = federation.answer(node, header, read, _kept(context, node))
    reply = Message(pack(header, made.up, noise_origin=made.noise_origin), reply_to=message)
    if made.kept is not None:
        with _absent_if_it_fails("its memory cannot be written"):
            _write(made.kept, context, node)
    return reply


def _store(context: Context) -> MemoryStore | None:
    """The folder that keeps what this node remembers; None in a simulation that names none.

    Flower keeps a context in the memory of one SuperNode process, which is enough where no node can
    die alone. A deployed node has ``state-dir`` in its own config, or ``manifed`` in its Flower
    home, so that a restart loses nothing.

    Raises:
        ValueError: ``state-dir`` is no absolute path.
    """
    named = context.node_config.get(keys.STATE_DIR)
    if named is None and Path(sys.argv[0]).name == DEPLOYED:
        named = str(Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr").absolute() / HOME)
    if named is None:
        return None
    if not isinstance(named, str) or not Path(named).is_absolute():
        raise ValueError(f"Expected an absolute path as this node's state-dir, got {shown(named)}")
    return MemoryStore(Path(named) / "memory")


def _kept(context: Context, node: Node) -> Kept | None:
    """What this node kept of its client in this run of Flower's."""
    store = _store(context)
    if store is not None:
        return store.read(str(context.run_id), node.partition)
    if keys.MEMORY not in context.state.array_records:
        return None
    tag = context.state.config_records[keys.MEMORY_TAG]
    return Kept(
        str(tag[keys.CONFIG_SHA256]),
        int(str(tag[keys.SERVER_ROUND])),
        int(str(tag[keys.ATTEMPT])),
        tensors_from_record(context.state.array_records[keys.MEMORY]),
    )


def _write(kept: Kept, context: Context, node: Node) -> None:
    store = _store(context)
    if store is not None:
        lasts = node.setup.remembers_setup
        store.write(str(context.run_id), node.partition, kept, lasts=lasts)
        return
    context.state[keys.MEMORY] = tensors_to_record(dict(kept.tensors))
    context.state[keys.MEMORY_TAG] = ConfigRecord(
        {
            keys.CONFIG_SHA256: kept.config_sha256,
            keys.SERVER_ROUND: kept.server_round,
            keys.ATTEMPT: kept.attempt,
        }
    )


Forward = Callable[[Message, Context, Experiment], Message]


def client_app_of(experiment: Callable[[Context], Experiment]) -> ClientApp:
    """The ClientApp of nodes that take part in the experiment of their context.

    A node whose own config names ``site-socket`` forwards to the site's process there.
    """

    def forwarded(message: Message, context: Context, forward: Forward) -> Message:
        with _absent_if_it_fails("its site did not answer"):
            return forward(message, context, experiment(context))

    return client_app(lambda context: node_of(context, experiment(context)), forwarded)


def _no_site(message: Message, context: Context, forward: Forward) -> Message:
    """Refuse to open data where the node's own config says that a site has them."""
    del message, forward
    with _absent_if_it_fails("it cannot forward"):
        raise ValueError(
            f"Expected an experiment to forward to {shown(context.node_config[keys.SITE_SOCKET])}, "
            "got an app of another kind; start the node without site-socket"
        )


def client_app(
    find: FindNode, forwarded: Callable[[Message, Context, Forward], Message] = _no_site
) -> ClientApp:
    """The ClientApp of the nodes that ``find`` makes, or of sites that are asked instead."""
    made = ClientApp()

    @made.query()
    def query(message: Message, context: Context) -> Message:
        """Which partition this node holds and how many examples (a public size)."""
        if keys.SITE_SOCKET in context.node_config:
            _check_server(message)
            return forwarded(message, context, site.introduced)
        return introduce(message, context, find)

    @made.train()
    def train(message: Message, context: Context) -> Message:
        """One client update."""
        if keys.SITE_SOCKET in context.node_config:
            return forwarded(message, context, site.answered)
        return answer(message, context, find)

    return made
