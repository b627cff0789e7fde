"""128 hostile replies through Flower's own messages: no crash, no NaN, the right client named.

    python -m tests.robustness.hostile_replies --out tests/robustness/results

Four clients look for a principal eigenvector over two rounds; client 2 (or a fifth node that nobody
invited) is hostile. A case passes when the run ends by itself, the model is finite, exactly the
hostile client is named with its node, and the model is the one of a run in which it is silent. A
reply that must do no harm at all (a second one, a stranger's) names nobody and changes nothing.
"""

import argparse
import io
import pickle
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)

from manifed.experiment.assembly import initial_point, plan_of
from manifed.experiment.load import load
from manifed.experiment.schema import Experiment
from manifed.federation.plan import RoundReport
from manifed.flower.client import client_app_of
from manifed.flower.handshake import HandshakeFailed
from manifed.flower.inline import InlineGrid
from manifed.flower.records import tensors_to_record
from manifed.runs.manifest import code_sha256
from strategies.any_update import AnyUpdate

CLIENTS = 4
ROUNDS = 2
HOSTILE = 2
FIRST_NODE = 2
STRANGER = 6
QUICKSTART = Path(__file__).resolve().parents[2] / "configs" / "quickstart.toml"

Answers = list[Message]
Spoil = Callable[[Message], Answers]
Outcome = Literal["named", "harmless", "refused at the handshake"]


@dataclass(frozen=True)
class Case:
    """One hostile behaviour and what must come of it."""

    family: str
    name: str
    spoil: Spoil
    outcome: Outcome = "named"
    message_type: str = "train"
    node: int = FIRST_NODE + HOSTILE


@lru_cache
def experiment() -> Experiment:
    """The federation that is attacked."""
    return load(
        QUICKSTART,
        [f"federation.num_clients={CLIENTS}", "training.local_steps=1", "privacy={kind='none'}"],
    )


class HostileGrid(InlineGrid):
    """The inline engine with one node that sends what ``spoil`` makes of its honest reply."""

    def __init__(self, case: Case | None, config: Experiment | None = None) -> None:
        config = config or experiment()
        super().__init__(client_app_of(lambda _: config), config.federation.num_clients, {})
        self._case = case
        if case is not None and case.node == STRANGER:
            self._contexts[STRANGER] = Context(1, STRANGER, {"partition-id": 0}, RecordDict(), {})

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies, those of the hostile node spoiled."""
        for reply in super().pull_messages(message_ids):
            case = self._case
            honest = reply.metadata
            if (
                case is None
                or honest.src_node_id != case.node
                or honest.message_type != case.message_type
            ):
                yield reply
                continue
            for sent in case.spoil(reply):
                sent.metadata.__dict__.setdefault("_forged", False)
                if sent is not reply and not sent.metadata.__dict__["_forged"]:
                    sent.metadata.__dict__["_reply_to_message_id"] = honest.reply_to_message_id
                    sent.metadata.__dict__["_src_node_id"] = honest.src_node_id
                yield sent

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """All replies at once; what a hostile node does not send stays away."""
        return list(self.pull_messages(self.push_messages(list(messages))))


class Free(AnyUpdate):
    """The strategy of any update, which charges nothing."""

    def charge(self, server_round: int, attempt: int, partitions: tuple[int, ...]) -> None:
        """Nothing is paid."""


def run(case: Case | None) -> tuple[torch.Tensor, list[RoundReport]]:
    """The model and the rounds of the federation under one case."""
    config = experiment()
    plan = plan_of(config)
    loop = Free.of_plan(plan)
    loop.go_on_at(1, plan.server_update.start(initial_point(config)), {}, lambda _: 0)
    reports = list(loop.rounds(HostileGrid(case), ROUNDS))
    return loop.state["x"], reports


def silent(_: Message) -> Answers:
    """No reply at all."""
    return []


@lru_cache
def expected_models() -> Mapping[str, torch.Tensor]:
    """The model when client 2 is silent, and when everybody is honest."""
    return {
        "named": run(Case("", "", silent))[0],
        "harmless": run(None)[0],
    }


def verdict(case: Case) -> str:
    """What is wrong, or "ok"."""
    try:
        model, reports = run(case)
    except HandshakeFailed as error:
        is_named = f"node {case.node}" in str(error) and "\n" not in str(error)
        if case.outcome == "refused at the handshake" and is_named:
            return "ok"
        return f"handshake failed: {error}"
    except Exception as error:
        return f"server crash: {type(error).__name__}: {error}"
    named = [{i: why.text for i, why in report.failures.items()} for report in reports]
    wanted = {HOSTILE} if case.outcome == "named" else set[int]()
    reasons = [reason for failures in named for reason in failures.values()]
    node = f"(node {FIRST_NODE + HOSTILE})"
    checks = {
        "the model is not finite": bool(torch.isfinite(model).all()),
        "the handshake accepted it": case.outcome != "refused at the handshake",
        f"named {named}": all(set(failures) == wanted for failures in named),
        f"reasons {reasons}": all(
            node in reason and len(reason) <= 300 and reason.isprintable() for reason in reasons
        ),
        "the model moved": case.outcome not in expected_models()
        or torch.equal(model, expected_models()[case.outcome]),
    }
    return next((wrong for wrong, is_right in checks.items() if not is_right), "ok")


# -- what is sent instead of the upload ------------------------------------------------------
def _upload(reply: Message) -> np.ndarray:
    return reply.content.array_records["payload"]["u"].numpy().copy()


def _npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def _header(text: str, body: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    line = text.encode("latin1") + b"\n"
    size = len(line).to_bytes(2 if version == b"\x01\x00" else 4, "little")
    return b"\x93NUMPY" + version + size + line + body


def _sent_array(make: Callable[[np.ndarray], Array]) -> Spoil:
    def spoil(reply: Message) -> Answers:
        if reply.has_content():
            record = ArrayRecord()
            record["u"] = make(_upload(reply))
            reply.content["payload"] = record
        return [reply]

    return spoil


def _bytes(make: Callable[[np.ndarray], bytes], **declared: Any) -> Spoil:
    def array(u: np.ndarray) -> Array:
        said = {"dtype": "float64", "shape": u.shape, "stype": "numpy.ndarray", **declared}
        made = Array(np.zeros(1))
        for name, value in {**said, "data": make(u)}.items():
            setattr(made, name, value)
        return made

    return _sent_array(array)


def _value(change: Callable[[np.ndarray], np.ndarray]) -> Spoil:
    return _sent_array(lambda u: Array(np.asarray(change(u))))


def _with_first(number: float) -> Callable[[np.ndarray], np.ndarray]:
    return lambda u: np.where(np.arange(u.size) == 0, number, u)


def _normal(share: float) -> Spoil:
    """A part along the base point, which is normal to the sphere in both rounds (x is a unit)."""
    return _value(lambda u: u + share * np.ones_like(u))


def _structured(u: np.ndarray) -> np.ndarray:
    return np.zeros(u.shape, dtype=[("a", "f4"), ("b", "f4")])


def _pickled(u: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.array([{"a": 1}] * u.size, dtype=object), allow_pickle=True)
    return buffer.getvalue()


def _zipped(u: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, u=u)
    return buffer.getvalue()


_TRUE = "{'descr': '<f8', 'fortran_order': False, 'shape': (64,), }"


def _array_cases() -> Iterable[Case]:
    for kind in ("f2", "f4", "c16", "i1", "i4", "i8", "u1", "?"):
        name = str(np.dtype(kind))
        yield Case("dtype", name, _value(lambda u, kind=kind: u.astype(kind)))
    for said in ("float32", "object", "", ">f8", "float128", "x" * 10**6):
        yield Case("dtype", f"says {said[:12]!r}", _bytes(_npy, dtype=said))
    claims = {
        "1e12 numbers": "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }",
        "1e12 x 1e12": "{'descr': '<f8', 'fortran_order': False, 'shape': (10**12, 10**12), }",
        "a negative size": "{'descr': '<f8', 'fortran_order': False, 'shape': (-64,), }",
        "a void of 1e12 bytes": "{'descr': '|V1000000000000', 'fortran_order': False, "
        "'shape': (1,), }",
        "an object dtype": "{'descr': '|O', 'fortran_order': False, 'shape': (64,), }",
        "code": "__import__('os').getpid()",
        "another key": _TRUE.replace("}", "'more': 1}"),
        "a missing key": "{'descr': '<f8', 'shape': (64,), }",
        "800 brackets": "(" * 800,
        "big-endian": _TRUE.replace("<", ">"),
        "bool sizes": _TRUE.replace("64", "True"),
    }
    for name, text in claims.items():
        yield Case("npy", name, _bytes(lambda u, text=text: _header(text, u.tobytes())))
    two = b"\x02\x00"
    written: dict[str, Callable[[np.ndarray], bytes]] = {
        "no bytes": lambda u: b"",
        "raw numbers": lambda u: u.tobytes(),
        "a header alone": lambda u: _npy(u)[:128],
        "one byte short": lambda u: _npy(u)[:-1],
        "one byte more": lambda u: _npy(u) + b"\0",
        "10 MB more": lambda u: _npy(u) + bytes(10**7),
        "version 2": lambda u: _header(_TRUE, u.tobytes(), two),
        "a header of 64 kB": lambda u: b"\x93NUMPY\x01\x00\xff\xff" + u.tobytes(),
        "a pickled array": _pickled,
        "a pickle": pickle.dumps,
        "a structured array": lambda u: _npy(_structured(u)),
        "an npz": _zipped,
    }
    for name, make in written.items():
        yield Case("npy", name, _bytes(make))
    yield Case("npy", "text for bytes", _bytes(lambda u: "text"))  # type: ignore[arg-type]  # what is tested


def _shape_cases() -> Iterable[Case]:
    changes: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "63": lambda u: u[:63],
        "65": lambda u: np.append(u, 0.0),
        "1 x 64": lambda u: u[None],
        "8 x 8": lambda u: u.reshape(8, 8),
        "none": lambda u: u[0],
        "0": lambda u: u[:0],
    }
    for name, change in changes.items():
        yield Case("shape", name, _value(change))
    said = ((10**12,), (-64,), (True,), ("64",), (1,) * 200, (64.0,))
    for shape in said:
        yield Case("shape", f"says {str(shape)[:20]}", _bytes(_npy, shape=shape))
    for stype in ("", "pickle", "numpy.ndarray.npz"):
        yield Case("shape", f"stored as {stype!r}", _bytes(_npy, stype=stype))


def _value_cases() -> Iterable[Case]:
    for number in (float("nan"), float("inf"), float("-inf")):
        yield Case("values", f"one {number}", _value(_with_first(number)))
        yield Case("values", f"all {number}", _value(lambda u, n=number: np.full_like(u, n)))
    for size in (1e308, 1e200, 1e160):
        yield Case("values", f"all {size:g}", _value(lambda u, s=size: np.full_like(u, s)))
        yield Case(
            "values", f"honest times {size:g}", _value(lambda u, s=size: u / abs(u).max() * s)
        )
    yield Case("values", "a normal part of 1", _normal(1.0))
    yield Case("values", "a normal part of 1e-3", _normal(1e-3))


# -- records, headers, messages --------------------------------------------------------------
def _content(change: Callable[[RecordDict], object]) -> Spoil:
    def spoil(reply: Message) -> Answers:
        change(reply.content)
        return [reply]

    return spoil


def _rearranged(**records: Any) -> Spoil:
    def change(content: RecordDict) -> None:
        for key, record in records.items():
            if record is None:
                del content[key]
            else:
                content[key] = record

    return _content(change)


def _record_cases() -> Iterable[Case]:
    config = ConfigRecord({"a": 1})
    metric = MetricRecord({"loss": 0.5})
    spoils: dict[str, Spoil] = {
        "no message": _rearranged(header=None),
        "no payload": _rearranged(payload=None),
        "nothing": _rearranged(header=None, payload=None),
        "message of metrics": _rearranged(header=metric),
        "payload of settings": _rearranged(payload=config),
        "payload of metrics": _rearranged(payload=metric),
        "empty payload": _rearranged(payload=ArrayRecord()),
        "metrics beside it": _rearranged(metrics=metric),
        "settings beside it": _rearranged(settings=config),
        "200 records beside it": _rearranged(**{f"r{i}": config for i in range(200)}),
        "another name": _rearranged(payload=ArrayRecord({"v": Array(np.zeros(64))})),
        "two arrays": _content(
            lambda content: content.array_records["payload"].update(v=Array(np.zeros(64)))
        ),
    }
    for name, spoil in spoils.items():
        yield Case("records", name, spoil)


def _said(key: str, value: Any) -> Spoil:
    return _content(lambda content: content.config_records["header"].update({key: value}))


def _header_cases() -> Iterable[Case]:
    wrong: dict[str, tuple[Any, ...]] = {
        "config-sha256": (1, "another", "x\n\x1b[2J" * 10**5),
        "server-round": ("1", True, 99, 2**62),
        "attempt": ("0", False, 7),
        "phase": (b"train", "gradient", "\x00\u202e"),
        "partition-id": ("2", 2.0, [2], 1, -1),
        "last-accepted-round": ("0",),
    }
    for key, values in wrong.items():
        for value in values:
            yield Case("header", f"{key} = {str(value)[:12]!r}", _said(key, value))
        yield Case(
            "header",
            f"no {key}",
            _content(lambda content, key=key: content.config_records["header"].pop(key)),
        )
    more = {f"k{i}": i for i in range(1000)}
    yield Case(
        "header",
        "1000 fields more",
        _content(lambda content: content.config_records["header"].update(more)),
    )


def _error(code: int, reason: str) -> Spoil:
    return lambda reply: [Message(Error(code, reason), reply_to=reply)]


def _forged(reply: Message, *, source: int, target: str | None = None) -> Message:
    twin = Message(reply.content, reply_to=reply)
    fields = twin.metadata.__dict__
    fields["_reply_to_message_id"] = target or reply.metadata.reply_to_message_id
    fields["_src_node_id"], fields["_forged"] = source, True
    return twin


def _other_message(reply: Message) -> str:
    number = int(reply.metadata.reply_to_message_id.rsplit("-", 1)[1])
    return f"inline-{number - 1}"


def _nan_twin(reply: Message) -> Message:
    content = RecordDict({"header": reply.content.config_records["header"]})
    content["payload"] = tensors_to_record({"u": torch.full((64,), torch.nan).double()})
    return Message(content, reply_to=reply)


def _message_cases() -> Iterable[Case]:
    node = FIRST_NODE + HOSTILE
    spoils: dict[str, Spoil] = {
        "no reply": silent,
        "an error of 1e6 letters": _error(2, "A\n\x1b[31m" * 10**5),
        "an error with an odd code": _error(-(10**9), ""),
        "signed by another node": lambda r: [_forged(r, source=node - 1)],
        "about another node's message": lambda r: [
            _forged(r, source=node, target=_other_message(r))
        ],
        "about no message": lambda r: [_forged(r, source=node, target="nonsense")],
    }
    for name, spoil in spoils.items():
        yield Case("messages", name, spoil)
    yield Case("messages", "a bad one, then a good one", lambda r: [_nan_twin(r), r], "harmless")
    yield Case("messages", "a good one, then a bad one", lambda r: [r, _nan_twin(r)], "harmless")


def _introduced(**changes: Any) -> Spoil:
    def spoil(reply: Message) -> Answers:
        plan = plan_of(experiment())
        record = ConfigRecord({"config-sha256": plan.config_sha256})
        record["code-sha256"] = code_sha256()
        record["partition-id"], record["num-examples"] = 0, plan.num_examples[0]
        for key, value in changes.items():
            name = key.replace("_", "-")
            if value is None:
                del record[name]
            else:
                record[name] = value
        return [Message(RecordDict({"header": record}), reply_to=reply)]

    return spoil


def _handshake_cases() -> Iterable[Case]:
    wrong: dict[str, Spoil] = {
        "partition-id a text": _introduced(partition_id="two; drop"),
        "partition-id negative": _introduced(partition_id=-1),
        "partition-id a bool": _introduced(partition_id=True),
        "partition-id a fraction": _introduced(partition_id=1.5),
        "partition-id a list": _introduced(partition_id=[2]),
        "partition-id of 2^63": _introduced(partition_id=2**63),
        "no partition-id": _introduced(partition_id=None),
        "a config of 1e6 letters": _introduced(config_sha256="\x07" * 10**6),
        "another size": _introduced(num_examples=10**9),
        "more fields": _introduced(more=1),
    }
    for name, spoil in wrong.items():
        yield Case("stranger", name, spoil, "harmless", "query", STRANGER)
    yield Case("stranger", "claims client 0 too", _introduced(), "harmless", "query", STRANGER)
    yield Case("stranger", "never answers", silent, "harmless", "query", STRANGER)
    for name in ("partition-id a text", "another size", "more fields"):
        yield Case("member", name, wrong[name], "refused at the handshake", "query")


def cases() -> tuple[Case, ...]:
    """All of them, in order."""
    groups = (
        _array_cases(),
        _shape_cases(),
        _value_cases(),
        _record_cases(),
        _header_cases(),
        _message_cases(),
        _handshake_cases(),
    )
    return tuple(case for group in groups for case in group)


def main() -> None:
    """Run all cases and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    out: Path = parser.parse_args().out
    began = time.perf_counter()
    found = [(case, verdict(case)) for case in cases()]
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()
    passed = sum(word == "ok" for _, word in found)
    lines = [
        "# Hostile replies",
        "",
        f"{datetime.now(UTC):%Y-%m-%d}, commit {commit}, {time.perf_counter() - began:.0f} s: "
        f"**{passed} of {len(found)}** end without a server crash, with a finite model, with the "
        "right client named, and with the model of a run in which that client is silent "
        "(`python -m tests.robustness.hostile_replies --out tests/robustness/results`).",
        "",
        "| family | what is sent | must be | result |",
        "|---|---|---|---|",
        *(
            f"| {case.family} | {case.name.replace('|', '/')} | {case.outcome} | {word} |"
            for case, word in found
        ),
    ]
    out.mkdir(parents=True, exist_ok=True)
    (out / "hostile_replies.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    if passed < len(found):
        raise SystemExit(
            f"{len(found) - passed} of {len(found)} hostile replies are not dealt with"
        )


if __name__ == "__main__":
    main()
