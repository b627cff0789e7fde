"""Payloads to Flower records and back, and the header that goes with them."""

from dataclasses import dataclass, fields
from typing import TypeVar

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from wire import keys
from wire.payloads import Payload

P = TypeVar("P", bound=Payload)


class BadLetter(ValueError):
    """A message that does not hold what it must; the text says which field and why."""


@dataclass(frozen=True)
class Header:
    """Which config, round, attempt and phase a payload belongs to, and whose it is."""

    config_sha256: str
    server_round: int
    attempt: int
    phase: str
    partition_id: int
    last_accepted_round: int = 0


_HEADER_KEYS = {
    "config_sha256": keys.CONFIG_SHA256,
    "server_round": keys.SERVER_ROUND,
    "attempt": keys.ATTEMPT,
    "phase": keys.PHASE,
    "partition_id": keys.PARTITION_ID,
    "last_accepted_round": keys.LAST_ACCEPTED,
}


def tensors_to_record(tensors: dict[str, Tensor]) -> ArrayRecord:
    """An ArrayRecord with one entry a tensor; C order, dtype kept."""
    record = ArrayRecord()
    for name, tensor in tensors.items():
        record[name] = Array(np.ascontiguousarray(tensor.detach().cpu().numpy()))
    return record


def tensors_from_record(record: ArrayRecord) -> dict[str, Tensor]:
    """The tensors of an ArrayRecord, as copies of their own."""
    return {name: torch.from_numpy(_to_numpy(array)) for name, array in record.items()}


def _to_numpy(array: Array) -> np.ndarray:
    return np.array(array.numpy(), order="C", copy=True)


def pack(header: Header, payload: Payload | None) -> RecordDict:
    """The content of one message."""
    values = {key: getattr(header, name) for name, key in _HEADER_KEYS.items()}
    content = RecordDict({keys.LETTER: ConfigRecord(values)})
    if payload is not None:
        content[keys.PAYLOAD] = tensors_to_record(payload.tensors())
    return content


def read_header(content: RecordDict) -> Header:
    """The header of a message.

    Raises:
        BadLetter: when it is missing or a field has another type.
    """
    if keys.LETTER not in content.config_records:
        raise BadLetter(f"Expected a {keys.LETTER!r} record, got {sorted(content)}")
    record = content.config_records[keys.LETTER]
    values: dict[str, str | int] = {}
    for field in fields(Header):
        key = _HEADER_KEYS[field.name]
        value = record.get(key)
        wanted = str if field.name in {"config_sha256", "phase"} else int
        if not isinstance(value, wanted):
            raise BadLetter(f"Expected {key} of type {wanted.__name__}, got {value!r}")
        values[field.name] = value
    return Header(**values)  # type: ignore[arg-type]


def read_payload(
    content: RecordDict, kind: type[P], shape: tuple[int, ...], dtype: torch.dtype
) -> P:
    """The payload of a message, checked field by field.

    Raises:
        BadLetter: when a tensor is missing, has another shape or dtype, or is not finite.
    """
    if keys.PAYLOAD not in content.array_records:
        raise BadLetter(f"Expected a {keys.PAYLOAD!r} record, got {sorted(content)}")
    record = content.array_records[keys.PAYLOAD]
    if tuple(record) != kind.names():
        raise BadLetter(
            f"Expected the arrays {kind.names()} of {kind.__name__}, got {list(record)}"
        )
    tensors = tensors_from_record(record)
    for name, tensor in tensors.items():
        check_tensor(name, tensor, shape, dtype)
    return kind(**tensors)


def check_tensor(name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Refuse another shape, another dtype, or entries that are not finite.

    Raises:
        BadLetter: naming the tensor, what it has and what was expected.
    """
    if tuple(tensor.shape) != tuple(shape):
        raise BadLetter(f"Expected {name} of shape {tuple(shape)}, got {tuple(tensor.shape)}")
    if tensor.dtype != dtype:
        raise BadLetter(f"Expected {name} of dtype {dtype}, got {tensor.dtype}")
    if not bool(torch.isfinite(tensor).all()):
        bad = int((~torch.isfinite(tensor)).sum())
        raise BadLetter(f"Expected finite entries in {name}, got {bad} of {tensor.numel()} not so")
