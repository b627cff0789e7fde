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
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from operator import methodcaller
from pathlib import Path
from typing import Literal

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

from benchmarks.common.stopwatch import circumstances, table
from manifed.experiment.assembly import initial_point, plan_of
from manifed.experiment.load import load
from manifed.flower.client import client_app_of
from manifed.flower.grids import InlineGrid
from manifed.flower.handshake import HandshakeFailed
from manifed.flower.records import tensors_to_record
from manifed.runs.manifest import code_sha256
from tests.robustness.crash_points import Free

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
def experiment():
    """The federation that is attacked."""
    return load(
        QUICKSTART,
        [f"federation.num_clients={CLIENTS}", "training.local_steps=1", "privacy={kind='none'}"],
    )


class HostileGrid(InlineGrid):
    """The inline engine with one node that sends what ``spoil`` makes of its honest reply."""

    def __init__(self, case, config=None):
        config = config or experiment()
        super().__init__(client_app_of(lambda _: config), config.federation.num_clients, {})
        self._case = case
        if case is not None and case.node == STRANGER:
            self._contexts[STRANGER] = Context(1, STRANGER, {"partition-id": 0}, RecordDict(), {})

    def pull_messages(self, message_ids):
        """The replies, those of the hostile node spoiled."""
        for reply in super().pull_messages(message_ids):
            case = self._case
            honest = reply.metadata
            sender = honest.src_node_id, honest.message_type
            if case is None or sender != (case.node, case.message_type):
                yield reply
                continue
            for sent in case.spoil(reply):
                fields = vars(sent.metadata)
                if sent is not reply and not fields.setdefault("_forged", False):
                    fields["_reply_to_message_id"] = honest.reply_to_message_id
                    fields["_src_node_id"] = honest.src_node_id
                yield sent

    def send_and_receive(self, messages, *, timeout=None):
        """All replies at once; what a hostile node does not send stays away."""
        return list(self.pull_messages(self.push_messages(list(messages))))


def run(case):
    """The model and the rounds of the federation under one case."""
    config = experiment()
    plan = plan_of(config)
    loop = Free.of_plan(plan)
    loop.go_on_at(1, plan.server_update.start(initial_point(config)), {}, lambda _: 0)
    reports = list(loop.rounds(HostileGrid(case), ROUNDS))
    return loop.state["x"], reports


def silent(_):
    """No reply at all."""
    return []


@lru_cache
def expected_models():
    """The model when client 2 is silent, and when everybody is honest."""
    return {"named": run(Case("", "", silent))[0], "harmless": run(None)[0]}


def verdict(case):
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
def _npy(array, save=np.save):
    buffer = io.BytesIO()
    save(buffer, array)
    return buffer.getvalue()


def _header(text, body=b"", version=b"\x01\x00"):
    line = text.encode("latin1") + b"\n"
    return (
        b"\x93NUMPY"
        + version
        + len(line).to_bytes(2 if version == b"\x01\x00" else 4, "little")
        + line
        + body
    )


def _sent_array(make):
    def spoil(reply):
        if reply.has_content():
            record = ArrayRecord()
            record["u"] = make(reply.content.array_records["payload"]["u"].numpy().copy())
            reply.content["payload"] = record
        return [reply]

    return spoil


def _bytes(make, **declared):
    def array(u):
        made = Array(np.zeros(1))
        said = {"dtype": "float64", "shape": u.shape, "stype": "numpy.ndarray", "data": make(u)}
        vars(made).update(said | declared)
        return made

    return _sent_array(array)


def _value(change):
    return _sent_array(lambda u: Array(np.asarray(change(u))))


def _normal(share):
    """A part along the base point, which is normal to the sphere in both rounds (x is a unit)."""
    return _value(lambda u: u + share * np.ones_like(u))


_TRUE = "{'descr': '<f8', 'fortran_order': False, 'shape': (64,), }"
_HEADERS = {
    "1e12 numbers": _TRUE.replace("64", "1000000000000"),
    "1e12 x 1e12": _TRUE.replace("64,", "10**12, 10**12"),
    "a negative size": _TRUE.replace("64", "-64"),
    "a void of 1e12 bytes": _TRUE.replace("<f8", "|V1000000000000").replace("64", "1"),
    "an object dtype": _TRUE.replace("<f8", "|O"),
    "code": "__import__('os').getpid()",
    "another key": _TRUE.replace("}", "'more': 1}"),
    "a missing key": "{'descr': '<f8', 'shape': (64,), }",
    "800 brackets": "(" * 800,
    "big-endian": _TRUE.replace("<", ">"),
    "bool sizes": _TRUE.replace("64", "True"),
}
_WRITTEN = {
    "no bytes": lambda u: b"",
    "raw numbers": lambda u: u.tobytes(),
    "a header alone": lambda u: _npy(u)[:128],
    "one byte short": lambda u: _npy(u)[:-1],
    "one byte more": lambda u: _npy(u) + b"\0",
    "10 MB more": lambda u: _npy(u) + bytes(10**7),
    "version 2": lambda u: _header(_TRUE, u.tobytes(), b"\x02\x00"),
    "a header of 64 kB": lambda u: b"\x93NUMPY\x01\x00\xff\xff" + u.tobytes(),
    "a pickled array": lambda u: _npy(np.array([{"a": 1}] * u.size, dtype=object)),
    "a pickle": pickle.dumps,
    "a structured array": lambda u: _npy(np.zeros(u.shape, dtype=[("a", "f4"), ("b", "f4")])),
    "an npz": lambda u: _npy(u, np.savez),
    "text for bytes": lambda u: "text",
}
_SHAPES = {
    "63": lambda u: u[:63],
    "65": lambda u: np.append(u, 0.0),
    "1 x 64": lambda u: u[None],
    "8 x 8": lambda u: u.reshape(8, 8),
    "none": lambda u: u[0],
    "0": lambda u: u[:0],
}


def _arrays():
    """Family, name and change of everything that is wrong with an array alone."""
    for kind in ("f2", "f4", "c16", "i1", "i4", "i8", "u1", "?"):
        yield "dtype", str(np.dtype(kind)), _value(methodcaller("astype", kind))
    for said in ("float32", "object", "", ">f8", "float128", "x" * 10**6):
        yield "dtype", f"says {said[:12]!r}", _bytes(_npy, dtype=said)
    for name, text in _HEADERS.items():
        yield "npy", name, _bytes(lambda u, text=text: _header(text, u.tobytes()))
    for name, make in _WRITTEN.items():
        yield "npy", name, _bytes(make)
    for name, change in _SHAPES.items():
        yield "shape", name, _value(change)
    for shape in ((10**12,), (-64,), (True,), ("64",), (1,) * 200, (64.0,)):
        yield "shape", f"says {str(shape)[:20]}", _bytes(_npy, shape=shape)
    for stype in ("", "pickle", "numpy.ndarray.npz"):
        yield "shape", f"stored as {stype!r}", _bytes(_npy, stype=stype)
    for number in (np.nan, np.inf, -np.inf):
        yield (
            "values",
            f"one {number}",
            _value(lambda u, n=number: np.where(np.arange(u.size) == 0, n, u)),
        )
        yield "values", f"all {number}", _value(partial(np.full_like, fill_value=number))
    for size in (1e308, 1e200, 1e160):
        yield "values", f"all {size:g}", _value(partial(np.full_like, fill_value=size))
        yield "values", f"honest times {size:g}", _value(lambda u, s=size: u / abs(u).max() * s)
    for share, name in ((1.0, "1"), (1e-3, "1e-3")):
        yield "values", f"a normal part of {name}", _normal(share)


# -- records, headers, messages --------------------------------------------------------------
def _content(change):
    def spoil(reply):
        change(reply.content)
        return [reply]

    return spoil


def _rearranged(*gone, **records):
    def change(content):
        content.update(records)
        for key in gone:
            del content[key]

    return _content(change)


def _records():
    config = ConfigRecord({"a": 1})
    metric = MetricRecord({"loss": 0.5})
    other = Array(np.zeros(64))
    return {
        "no message": _rearranged("header"),
        "no payload": _rearranged("payload"),
        "nothing": _rearranged("header", "payload"),
        "message of metrics": _rearranged(header=metric),
        "payload of settings": _rearranged(payload=config),
        "payload of metrics": _rearranged(payload=metric),
        "empty payload": _rearranged(payload=ArrayRecord()),
        "metrics beside it": _rearranged(metrics=metric),
        "settings beside it": _rearranged(settings=config),
        "200 records beside it": _rearranged(**{f"r{i}": config for i in range(200)}),
        "another name": _rearranged(payload=ArrayRecord({"v": other})),
        "two arrays": _content(lambda content: content.array_records["payload"].update(v=other)),
    }


def _headers():
    wrong = {
        "config-sha256": (1, "another", "x\n\x1b[2J" * 10**5),
        "server-round": ("1", True, 99, 2**62),
        "attempt": ("0", False, 7),
        "phase": (b"train", "gradient", "\x00\u202e"),
        "partition-id": ("2", 2.0, [2], 1, -1),
        "last-accepted-round": ("0",),
    }

    def said(more):
        return _content(lambda content: content.config_records["header"].update(more))

    for key, values in wrong.items():
        for value in values:
            yield f"{key} = {str(value)[:12]!r}", said({key: value})
        yield (
            f"no {key}",
            _content(lambda content, key=key: content.config_records["header"].pop(key)),
        )
    yield "1000 fields more", said({f"k{i}": i for i in range(1000)})


def _error(code, reason):
    return lambda reply: [Message(Error(code, reason), reply_to=reply)]


def _forged(source, target=str):
    """A reply that another node seems to send, or to another message."""

    def spoil(reply):
        twin = Message(reply.content, reply_to=reply)
        forged = {
            "_reply_to_message_id": target(reply.metadata.reply_to_message_id),
            "_src_node_id": source,
            "_forged": True,
        }
        vars(twin.metadata).update(forged)
        return [twin]

    return spoil


def _nan_twin(reply):
    content = RecordDict({"header": reply.content.config_records["header"]})
    content["payload"] = tensors_to_record({"u": torch.full((64,), torch.nan).double()})
    return Message(content, reply_to=reply)


_NODE = FIRST_NODE + HOSTILE
_MESSAGES = {
    "no reply": silent,
    "an error of 1e6 letters": _error(2, "A\n\x1b[31m" * 10**5),
    "an error with an odd code": _error(-(10**9), ""),
    "signed by another node": _forged(_NODE - 1),
    "about another node's message": _forged(_NODE, lambda own: f"inline-{int(own[7:]) - 1}"),
    "about no message": _forged(_NODE, lambda own: "nonsense"),
}


def _introduced(*gone, **changes):
    def spoil(reply):
        plan = plan_of(experiment())
        said = {"config_sha256": plan.config_sha256, "code_sha256": code_sha256(),
                "partition_id": 0, "num_examples": plan.num_examples[0], **changes}  # fmt: skip
        kept = {key.replace("_", "-"): value for key, value in said.items() if key not in gone}
        return [Message(RecordDict({"header": ConfigRecord(kept)}), reply_to=reply)]

    return spoil


_STRANGERS = {
    "partition-id a text": _introduced(partition_id="two; drop"),
    "partition-id negative": _introduced(partition_id=-1),
    "partition-id a bool": _introduced(partition_id=True),
    "partition-id a fraction": _introduced(partition_id=1.5),
    "partition-id a list": _introduced(partition_id=[2]),
    "partition-id of 2^63": _introduced(partition_id=2**63),
    "no partition-id": _introduced("partition_id"),
    "a config of 1e6 letters": _introduced(config_sha256="\x07" * 10**6),
    "another size": _introduced(num_examples=10**9),
    "more fields": _introduced(more=1),
    "claims client 0 too": _introduced(),
    "never answers": silent,
}


def cases():
    """All of them, in order."""
    for family, name, spoil in _arrays():
        yield Case(family, name, spoil)
    for name, spoil in _records().items():
        yield Case("records", name, spoil)
    for name, spoil in _headers():
        yield Case("header", name, spoil)
    for name, spoil in _MESSAGES.items():
        yield Case("messages", name, spoil)
    yield Case("messages", "a bad one, then a good one", lambda r: [_nan_twin(r), r], "harmless")
    yield Case("messages", "a good one, then a bad one", lambda r: [r, _nan_twin(r)], "harmless")
    for name, spoil in _STRANGERS.items():
        yield Case("stranger", name, spoil, "harmless", "query", STRANGER)
    for name in ("partition-id a text", "another size", "more fields"):
        yield Case("member", name, _STRANGERS[name], "refused at the handshake", "query")


def main():
    """Run all cases and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    began = time.perf_counter()
    found = [(case, verdict(case)) for case in cases()]
    passed = sum(word == "ok" for _, word in found)
    rows = [[case.family, case.name.replace("|", "/"), case.outcome, word] for case, word in found]
    lines = [
        "# Hostile replies\n",
        f"{circumstances()}\n",
        f"{time.perf_counter() - began:.0f} s: **{passed} of {len(found)}** end without a server",
        "crash, with a finite model, with the right client named, and with the model of a run in",
        "which that client is silent",
        "(`python -m tests.robustness.hostile_replies --out tests/robustness/results`).\n",
        table(["family", "what is sent", "must be", "result"], rows),
    ]
    out.mkdir(parents=True, exist_ok=True)
    (out / "hostile_replies.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    if passed < len(found):
        raise SystemExit(
            f"{len(found) - passed} of {len(found)} hostile replies are not dealt with"
        )


if __name__ == "__main__":
    main()
