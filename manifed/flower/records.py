"""Payloads and their headers as Flower records, and the transport that sends them over a Grid.

Whoever sends a record chooses every byte of it, so what it declares is compared with what is
expected, and its length with what it declares, before anything is decoded or allocated. Nothing is
ever unpickled.

An answer counts only for the message it replies to, only from the node that was asked, and only
with the header that was sent. Whether an upload is tangent is the round's to judge, as for every
transport (manifed/federation/rounds.py).
"""

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Literal, TypeVar, get_type_hints

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.common.logger import log
from flwr.serverapp import Grid
from torch import Tensor

from manifed.algorithms.payloads import Payload, PerClient, layout_of
from manifed.errors import one_line, short
from manifed.federation.exchange import Asked, BadMessage, Failure, Header, Kind, Replies
from manifed.flower.grids import UNREADABLE_REPLY
from manifed.manifolds.linalg import Shape, Tensors, flaw

PAYLOAD = "payload"
"""ArrayRecord: the tensors of one payload, one entry a field."""
HEADER = "header"
"""ConfigRecord: which config, round, attempt and phase a payload belongs to."""
CONFIG_SHA256 = "config-sha256"
"""In the handshake's query, and in the own config of a node that is pinned."""
CODE_SHA256 = "code-sha256"
"""Hash of the source of the ``manifed`` that runs (manifed/runs/manifest.py)."""
NOISE_ORIGIN = "noise-origin"
"""In a reply's message: where the key of the noise in its payload came from, "os" or "seed"."""
_F = TypeVar("_F", bound=tuple[str | int, ...])


def tensors_to_record(tensors: Tensors) -> ArrayRecord:
    """Makes an ArrayRecord with one entry a tensor; C order, dtype kept."""
    record = ArrayRecord()
    for name, tensor in tensors.items():
        record[name] = Array(np.asarray(tensor.detach().cpu().numpy(), order="C"))
    return record


def tensors_from_record(record: ArrayRecord) -> Tensors:
    """Reads the tensors of an ArrayRecord as copies.

    Raises:
        BadMessage: for an entry whose bytes are not the array that it declares.
    """
    return {
        name: _decoded(name[:60], array, *_declared(name[:60], array))
        for name, array in record.items()
    }


_DTYPES = {
    str(np.dtype(kind)): np.dtype(kind)
    for kind in ("f2", "f4", "f8", "c8", "c16", "i1", "i2", "i4", "i8", "u1", "?")
}
"""Names that an Array declares, to the NumPy types that torch has too."""


def _declared(name: str, array: Array) -> tuple[np.dtype[Any], Shape]:
    """What an Array says it is; BadMessage when that is no array of numbers."""
    if array.stype != "numpy.ndarray":
        raise BadMessage(f"Expected {name} as 'numpy.ndarray', got {short(array.stype)}")
    if not isinstance(array.dtype, str) or array.dtype not in _DTYPES:
        raise BadMessage(f"Expected {name} of a plain number type, got {short(array.dtype)}")
    shape = tuple(array.shape)
    if len(shape) > 16 or set(map(type, shape)) - {int} or min(shape, default=0) < 0:
        raise BadMessage(f"Expected {name} with a shape of sizes >= 0, got {short(shape)}")
    if not isinstance(array.data, bytes):
        raise BadMessage(f"Expected the bytes of {name}, got {short(array.data)}")
    return _DTYPES[array.dtype], shape


def _decoded(name: str, array: Array, dtype: np.dtype[Any], shape: Shape) -> Tensor:
    """The tensor of an Array: the declared number of bytes behind the npy header that says so."""
    num_bytes = math.prod(shape) * dtype.itemsize
    for order in ("C", "F"):
        head = _npy_header(dtype, shape, order)
        if len(array.data) == len(head) + num_bytes and array.data.startswith(head):
            flat = np.frombuffer(array.data, dtype=dtype, offset=len(head))
            return torch.from_numpy(np.array(flat.reshape(shape, order=order), order="C"))
    raise BadMessage(
        f"Expected {name} as an npy header of {short(shape)}, {dtype} and {num_bytes} bytes, got "
        f"{len(array.data)} bytes or another header"
    )


def float_array(name: str, array: Array, shape: Shape) -> Tensor:
    """Reads an array of floating-point numbers and of this shape, before anything is allocated.

    Raises:
        BadMessage: it is another one, or its bytes are not what it declares.
    """
    dtype, declared = _declared(name[:60], array)
    if dtype.kind != "f" or declared != shape:
        raise BadMessage(f"Expected floats of shape {shape}, got {dtype} of {short(declared)}")
    return _decoded(name[:60], array, dtype, declared)


@lru_cache(maxsize=64)
def _npy_header(dtype: np.dtype[Any], shape: Shape, order: Literal["C", "F"]) -> bytes:
    """What numpy writes before the numbers of such an array."""
    begin = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(dtype)
    np.lib.format.write_array_header_1_0(
        begin, {"descr": descr, "fortran_order": order == "F", "shape": shape}
    )
    return begin.getvalue()


@cache
def _types(kind: type) -> dict[str, type]:
    """The fields of a named tuple of scalars under their names in kebab-case."""
    return {name.replace("_", "-"): wanted for name, wanted in get_type_hints(kind).items()}


def facts_to_record(facts: tuple[str | int, ...]) -> ConfigRecord:
    """Writes a named tuple of scalars into a record, under their names in kebab-case."""
    return ConfigRecord(dict(zip(_types(type(facts)), facts, strict=True)))


def facts_from_record(kind: type[_F], record: object) -> _F:
    """Reads the named tuple of scalars that a record states.

    Raises:
        BadMessage: it is none, has other fields, or a field has another type.
    """
    types = _types(kind)
    if not isinstance(record, ConfigRecord) or set(record) != set(types):
        got = _names(record) if isinstance(record, ConfigRecord) else f"a {type(record).__name__}"
        raise BadMessage(f"Expected a {HEADER!r} record of {sorted(types)}, got {got}")
    for key, wanted in types.items():
        if type(record[key]) is not wanted:
            raise BadMessage(f"Expected {key} of type {wanted.__name__}, got {short(record[key])}")
    found: Any = map(record.__getitem__, types)
    return kind(*found)


def pack(
    header: Header, payload: Payload | ArrayRecord, *, noise_origin: str | None = None
) -> RecordDict:
    """Makes the content of one message; a reply says where the key of its noise came from.

    A payload that goes to many is made a record once, by the caller.
    """
    said = facts_to_record(header)
    if noise_origin is not None:
        said[NOISE_ORIGIN] = noise_origin
    record = tensors_to_record(vars(payload)) if isinstance(payload, Payload) else payload
    return RecordDict({HEADER: said, PAYLOAD: record})


def read_reply(
    content: RecordDict,
    asked: RecordDict,
    kind: type[Payload],
    shape: Shape,
    dtype: torch.dtype,
) -> tuple[Tensors, str]:
    """Reads the tensors of a reply, and where its noise is said to come from.

    Raises:
        BadMessage: as `read_tensors`, and where it does not repeat the header of ``asked``.
    """
    mine = asked.config_records[HEADER]
    theirs = content.get(HEADER)
    if not isinstance(theirs, ConfigRecord) or set(theirs) - {NOISE_ORIGIN} != set(mine):
        got = _names(theirs) if isinstance(theirs, ConfigRecord) else _names(content)
        raise BadMessage(f"Expected a {HEADER!r} record of {sorted(mine)}, got {got}")
    for key, value in mine.items():
        if type(theirs[key]) is not type(value) or theirs[key] != value:
            raise BadMessage(f"Expected {key} = {short(value)}, got {short(theirs[key])}")
    declared = theirs.get(NOISE_ORIGIN)
    origin = str(declared) if declared in ("os", "seed") else "undeclared"
    return read_tensors(content, kind, shape, dtype), origin


def _names(record: RecordDict | ConfigRecord | ArrayRecord) -> str:
    """Some of the keys that a sender chose."""
    return f"{len(record)} entries, {one_line(str([*record][:7]), 300)}"


def read_tensors(
    content: RecordDict, kind: type[Payload], shape: Shape, dtype: torch.dtype
) -> Tensors:
    """Reads the fields of a message's payload, each checked before it is decoded.

    Raises:
        BadMessage: when a tensor is missing, has another shape or dtype, or is not finite, or when
            there is anything else in the message.
    """
    record = content.get(PAYLOAD)
    if not isinstance(record, ArrayRecord):
        raise BadMessage(f"Expected a {PAYLOAD!r} record, got {_names(content)}")
    if set(content) != {HEADER, PAYLOAD}:
        raise BadMessage(f"Expected the records {[HEADER, PAYLOAD]} alone, got {_names(content)}")
    layout = layout_of(kind, tuple(shape), dtype)
    if set(record) != set(layout):
        raise BadMessage(
            f"Expected the arrays {tuple(layout)} of {kind.__name__}, got {_names(record)}"
        )
    tensors = dict[str, Tensor]()
    for name in layout:
        said = _declared(name, array := record[name])
        wanted = str(layout[name][1]).removeprefix("torch.")
        if said != (_DTYPES[wanted], layout[name][0]):
            raise BadMessage(
                f"Expected {name} of shape {layout[name][0]} and dtype {wanted}, got "
                f"{short(said[1])} and {said[0]}"
            )
        tensors[name] = tensor = _decoded(name, array, *said)
        if not bool(torch.isfinite(tensor).all()):
            raise BadMessage(flaw(name, tensor, *layout[name]) or f"Expected finite {name}")
    return tensors


# -- one exchange ---------------------------------------------------------------------------
@dataclass(frozen=True)
class MessageTransport:
    """Transport that sends each client one message, to the node that holds its partition."""

    grid: Grid
    nodes: Mapping[int, int]
    """Partition to node."""
    timeout: float
    """Seconds to wait for the replies of one exchange."""

    def exchange(self, asked: Asked) -> Replies:
        """Exchanges as `Transport.exchange`."""
        messages = self.messages(asked)
        return self.read(
            asked, messages, self.grid.send_and_receive(messages, timeout=self.timeout)
        )

    def messages(self, asked: Asked) -> list[Message]:
        """Makes one message for each client, in order."""
        header = asked.header
        last = asked.last_accepted
        down = asked.down
        if isinstance(down, PerClient):
            records = [
                tensors_to_record(vars(down.rows.take(row))) for row in range(len(asked.partitions))
            ]
        else:
            records = [tensors_to_record(vars(down))] * len(asked.partitions)
        return [
            Message(
                pack(header._replace(partition_id=i, last_accepted_round=last.get(i, 0)), record),
                dst_node_id=self.nodes[i],
                message_type=MessageType.TRAIN,
                group_id=str(header.server_round),
            )
            for i, record in zip(asked.partitions, records, strict=True)
        ]

    def read(
        self, asked: Asked, messages: Sequence[Message], answers: Iterable[Message]
    ) -> Replies:
        """Returns the readable ones of the ``answers`` to ``messages``.

        Of several replies of one client the first readable one counts.
        """
        by_node = answers_by_node(messages, answers)
        uploads = dict[int, Tensors]()
        failures = dict[int, Failure]()
        origins = set[str]()
        kind = asked.phase.up
        point = asked.down.point
        for i, message in zip(asked.partitions, messages, strict=True):
            first = None
            for reply in by_node.get(self.nodes[i], ()):
                read = _read(reply, message.content, kind, point)
                if not isinstance(read, Failure):
                    uploads[i], origin = read
                    origins.add(origin)
                    break
                first = first or read
            else:
                failures[i] = first or Failure("late", f"no reply within {self.timeout:g} s")
        columns = zip(*(found.values() for found in uploads.values()), strict=True)
        return Replies(
            tuple(uploads),
            kind(*map(torch.stack, columns)) if uploads else asked.gathered([]),
            failures,
            asked.down.bytes_to(len(messages)),
            frozenset(origins),
            self.nodes,
        )


_KIND_OF_CODE: dict[int, Kind] = {
    ErrorCode.MESSAGE_UNAVAILABLE: "unavailable",
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE: "unavailable",
    ErrorCode.NODE_UNAVAILABLE: "unavailable",
    ErrorCode.CLIENT_APP_CRASHED: "unavailable",
    UNREADABLE_REPLY: "unusable",
}


def _read(
    reply: Message, asked: RecordDict, kind: type[Payload], point: Tensor
) -> tuple[Tensors, str] | Failure:
    """The tensors of a reply, and where its noise is said to come from."""
    try:
        if reply.has_error():
            error = reply.error
            text = f"error {error.code}: {error.reason}"
            return Failure(_KIND_OF_CODE.get(error.code, "absent"), text)
        return read_reply(reply.content, asked, kind, tuple(point.shape), point.dtype)
    except BadMessage as bad:
        return Failure("unusable", str(bad))
    except Exception as error:  # whatever a reply makes a check do is that client's failure
        return Failure("unusable", f"not readable: {type(error).__name__}: {error}")


def answers_by_node(
    messages: Sequence[Message], answers: Iterable[Message]
) -> dict[int, list[Message]]:
    """The answers to ``messages`` by the node that was asked, in the order they came.

    An answer counts only for the message it replies to and only from the node that was asked (or
    as an error of the SuperLink's own about that message); any other is logged and left out.
    """
    came = list(answers)  # a lazy grid sends, and so names the messages, only now
    asked = {m.metadata.message_id: m.metadata.dst_node_id for m in messages}
    by_node = dict[int, list[Message]]()
    for answer in came:
        try:
            node = asked.get(answer.metadata.reply_to_message_id)
            sender = answer.metadata.src_node_id
        except Exception as error:
            node = None
            sender = type(error).__name__
        if node is None:
            log(30, "A reply of node %s to no message of this phase is left out", short(sender))
        elif sender == node or (sender == SUPERLINK_NODE_ID and answer.has_error()):
            by_node.setdefault(node, []).append(answer)
        else:
            log(30, "A reply of node %s to node %d's message is left out", short(sender), node)
    return by_node
