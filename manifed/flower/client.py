"""A client as Flower sees it: open the message, run the client update, write the memory last.

The handler is transactional: Flower's simulation discards a state change when a handler raises and
its deployment keeps it, so everything is computed first and the state is written at the end. What
the client adds to its gradients comes from its own reading of the config, never from the message; a
message of another config is refused.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from logging import ERROR

import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.logger import log
from torch import Tensor

from manifed.algorithms.broadcast import BadBroadcast, check_broadcast
from manifed.algorithms.interface import Memory
from manifed.algorithms.payloads import Payload
from manifed.experiment.assembly import check_shard, client_side
from manifed.experiment.load import sha256
from manifed.experiment.schema import Experiment
from manifed.federation.client import ClientSetup, ClientSide, Seat, run_update
from manifed.federation.header import Header
from manifed.flower import keys
from manifed.flower.handshake import check_code
from manifed.flower.records import (
    BadMessage,
    pack,
    read_header,
    read_payload,
    shown,
    tensors_from_record,
    tensors_to_record,
)
from manifed.privacy.noise import NoiseSource
from manifed.problems.base import Examples
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


@dataclass(frozen=True)
class Node:
    """What a node brings to a run: its client setup, its own shard, and what it agrees to."""

    setup: ClientSetup
    shard: Examples
    partition: int
    digest: str
    """Hash of the config, or of the privacy parameters, that this node reads for itself."""
    point_shape: tuple[int, ...]
    source: Callable[[], NoiseSource]
    """Makes the source of one client update."""
    dtype: torch.dtype = torch.float64


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


@lru_cache(maxsize=4)
def _side(config: Experiment) -> tuple[ClientSide, str]:
    return client_side(config), sha256(config)


@lru_cache(maxsize=4096)
def _check_once(config: Experiment, partition: int) -> None:
    check_shard(config, partition)


def node_of(context: Context, config: Experiment) -> Node:
    """The node of an experiment."""
    with _absent_if_it_fails("its data cannot be loaded"):
        side, digest = _side(config)
    partition = partition_of(context, len(side.shards))
    with _absent_if_it_fails("its data are not valid"):
        _check_once(config, partition)
    shard, source = side.shards[partition], side.turn_source
    return Node(side.setup, shard, partition, digest, side.point_shape, source, side.dtype)


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
    asked = message.content.config_records.get(keys.HEADER, ConfigRecord())
    check_code("the server", asked.get(keys.CODE_SHA256))
    record = ConfigRecord(
        {
            keys.CONFIG_SHA256: node.digest,
            keys.CODE_SHA256: code_sha256(),
            keys.PARTITION_ID: node.partition,
            keys.NUM_EXAMPLES: len(node.shard),
        }
    )
    return Message(RecordDict({keys.HEADER: record}), reply_to=message)


def answer(message: Message, context: Context, find: FindNode) -> Message:
    """The reply to a training message."""
    with _absent_if_it_fails("it could not answer"):
        return _answered(message, context, find)


def _answered(message: Message, context: Context, find: FindNode) -> Message:
    node = _found(find, context)
    header = read_header(message.content)
    if (header.config_sha256, header.partition_id) != (node.digest, node.partition):
        raise BadMessage(
            f"Expected a message for config {node.digest}, client {node.partition}, got config "
            f"{header.config_sha256}, client {header.partition_id}"
        )
    setup, shard = node.setup, node.shard
    _, phase = setup.phase(header.phase)
    down = read_payload(message.content, phase.down, node.point_shape, node.dtype)
    check_broadcast(phase, down, setup.problem.manifold)
    blank = setup.training.initial_memory(_point(down))
    memory = _remember(header, context, blank)
    seat = Seat(node.partition, header.server_round, header.attempt, header.phase)
    with _absent_if_it_fails("its update failed"):
        source = node.source()
        made = run_update(setup, seat, down, memory, shard, len(shard), source)
    reply = Message(pack(header, made.up, noise_origin=source.origin), reply_to=message)
    if made.memory is not None:
        _write(made.memory, header, context)
    return reply


def _point(down: Payload) -> Tensor:
    """The broadcast point, the first field of everything that goes down."""
    return next(iter(down.tensors().values()))


def _remember(header: Header, context: Context, blank: Memory | None) -> Memory | None:
    """The memory that belongs to the last round the server accepted from this client.

    A SuperNode that restarted has lost it, and one whose last reply was lost has one too many:
    either way the tag differs and the client starts from its initial memory.
    """
    if blank is None or keys.MEMORY not in context.state.array_records:
        return blank
    tag = context.state.config_records[keys.MEMORY_TAG]
    if tag[keys.CONFIG_SHA256] != header.config_sha256:
        return blank
    if not header.continues(int(str(tag[keys.SERVER_ROUND])), int(str(tag[keys.ATTEMPT]))):
        return blank
    return type(blank)(**tensors_from_record(context.state.array_records[keys.MEMORY]))


def _write(memory: Memory, header: Header, context: Context) -> None:
    context.state[keys.MEMORY] = tensors_to_record(memory.tensors())
    context.state[keys.MEMORY_TAG] = ConfigRecord(
        {
            keys.CONFIG_SHA256: header.config_sha256,
            keys.SERVER_ROUND: header.server_round,
            keys.ATTEMPT: header.attempt,
        }
    )


def client_app_of(experiment: Callable[[Context], Experiment]) -> ClientApp:
    """The ClientApp of nodes that take part in the experiment of their context."""
    return client_app(lambda context: node_of(context, experiment(context)))


def client_app(find: FindNode) -> ClientApp:
    """The ClientApp of the nodes that ``find`` makes."""
    made = ClientApp()

    @made.query()
    def query(message: Message, context: Context) -> Message:
        """Which partition this node holds and how many examples (a public size)."""
        return introduce(message, context, find)

    @made.train()
    def train(message: Message, context: Context) -> Message:
        """One client update."""
        return answer(message, context, find)

    return made
