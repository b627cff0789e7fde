"""A part of tests/robustness/hostile_replies.py, and faults that it must catch."""

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, RecordDict

from manifed.algorithms.payloads import Displacement, Expectation
from manifed.federation.exchange import Failure, Replies
from manifed.flower import handshake
from manifed.flower.records import tensors_from_record
from manifed.manifolds import Sphere
from tests.flower.test_inline import delivered
from tests.robustness.hostile_replies import HOSTILE, cases, run, verdict
from tests.tensors import float64

ALL = {f"{case.family}: {case.name}": case for case in cases()}
HERE = [
    "dtype: float32",
    "dtype: says 'object'",
    "npy: 1e12 numbers",
    "npy: a pickled array",
    "npy: a structured array",
    "npy: raw numbers",
    "npy: version 2",
    "npy: 10 MB more",
    "shape: 65",
    "values: one nan",
    "values: honest times 1e+308",
    "values: a normal part of 1e-3",
    "records: no message",
    "records: payload of metrics",
    "records: metrics beside it",
    "header: partition-id = '1'",
    "header: config-sha256 = 'x\\n\\x1b[2Jx\\n\\x1b[2J'",
    "messages: an error of 1e6 letters",
    "messages: about another node's message",
    "messages: a good one, then a bad one",
    "stranger: partition-id a text",
    "stranger: claims client 0 too",
    "stranger: never answers",
]


def test_there_are_128_different_ones():
    assert len(ALL) == len([*cases()]) == 128


@pytest.mark.parametrize("name", HERE)
def test_a_hostile_reply_is_its_senders_failure_and_nobody_elses(name):
    assert verdict(ALL[name]) == "ok"


def test_a_member_that_answers_the_handshake_with_a_text_is_named(monkeypatch):
    monkeypatch.setattr(handshake.meet, "__defaults__", (0.1,))
    assert verdict(ALL["member: partition-id a text"]) == "ok"


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("kind", ["f4", "f8", "i8", "?"])
def test_an_honest_array_of_any_order_and_type_comes_through(order, kind):
    array = np.asarray(np.arange(24).reshape(2, 3, 4) % 5, dtype=kind, order=order)
    record = ArrayRecord()
    record["u"] = Array(array)
    assert np.array_equal(tensors_from_record(record)["u"].numpy(), array)


def test_a_row_that_breaks_the_check_of_the_stack_is_bad_alone():
    class Brittle(Sphere):
        def tangency_defect(self, x, u):
            if not bool(torch.isfinite(u).all()):
                raise torch.linalg.LinAlgError("no factor\n" + "x" * 10**6)
            return super().tangency_defect(x, u)

    base = float64([1.0, 0.0, 0.0])
    u = float64([[0, 1, 0], [0, torch.nan, 0], [0, 0, 2]])
    expected = Expectation(base, {"u": "tangent"}, Brittle())
    replies = Replies((3, 5, 8), Displacement(u), {1: Failure("late", "a\nb")})
    left = replies.without(expected.flaws(replies.uploads, replies.partitions)).told()
    assert left.partitions == (3, 8)
    assert set(left.failures) == {1, 5}
    assert left.uploads.u.tolist() == [[0, 1, 0], [0, 0, 2]]
    assert left.failures[1] == Failure("late", "a b")
    assert left.failures[5].kind == "unusable"
    assert all(f.text.isprintable() and len(f.text) <= 200 for f in left.failures.values())


@pytest.mark.parametrize("answer", [None, "text", SystemExit(0)])
def test_a_client_app_that_returns_no_message_or_exits_is_an_error_of_that_node(answer):
    def train(message, context):
        if isinstance(answer, SystemExit):
            raise answer
        return answer

    reply, _, _ = delivered(RecordDict(), train)
    assert reply.has_error()
    assert reply.metadata.src_node_id == 2


def test_one_line_says_which_client_was_dropped_when_and_why(caplog):
    run(ALL["values: one nan"])
    assert [r.getMessage() for r in caplog.records if "is dropped" in r.getMessage()] == [
        f"Round {r}, attempt 0, phase train: client {HOSTILE} is dropped (unusable): Expected "
        "finite entries in u, got 1 of 64 not so (node 4)"
        for r in (1, 2)
    ]


def test_a_text_of_a_client_is_one_short_printable_line():
    failure = Failure("absent", "\nb\x1b[2J\u202ec" * 10**6)
    text = Replies((), None, {0: failure}).told().failures[0].text
    assert text.startswith(r"b\x1b[2J\u202ec b")
    assert len(text) <= 200
