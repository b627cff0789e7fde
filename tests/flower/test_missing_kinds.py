"""What an answer that cannot be used is called, by what came."""

import pytest
import torch
from flwr.app import Error, Message, RecordDict
from flwr.common.constant import ErrorCode

from clients.local_training import app_of
from manifed.algorithms.payloads import Point
from manifed.algorithms.rsgd import RSGD
from manifed.federation.exchange import Asked, Header
from manifed.flower.grids import UNREADABLE_REPLY, InlineGrid
from manifed.flower.records import MessageTransport

ANSWERS = {
    "none": (None, "late", "no reply within 7 s"),
    "node gone": (ErrorCode.NODE_UNAVAILABLE, "unavailable", "error 5: said"),
    "process died": (ErrorCode.CLIENT_APP_CRASHED, "unavailable", "error 8: said"),
    "message lost": (ErrorCode.MESSAGE_UNAVAILABLE, "unavailable", "error 3: said"),
    "handler raised": (ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "absent", "error 2: said"),
    "a code of nobody's": (77, "absent", "error 77: said"),
    "unreadable": (UNREADABLE_REPLY, "unusable", f"error {UNREADABLE_REPLY}: said"),
    "no upload": (RecordDict(), "unusable", "Expected a 'header' record"),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_each_way_to_be_missing_has_its_kind(answer):
    said, kind, text = ANSWERS[answer]
    transport = MessageTransport(InlineGrid(app_of(lambda _: None), 1, {}), {0: 2}, 7.0)
    header = Header("c", 1, 0, "train", -1)
    phase = RSGD(step_size=0.1).phases[0]
    asked = Asked(header, phase, Point(torch.ones(3).double()), (0,), {})
    (message,) = transport.messages(asked)
    message.metadata.__dict__["_message_id"] = "named"
    content = Error(said, "said") if isinstance(said, int) else said
    answers = [] if said is None else [Message(content, reply_to=message)]
    found = transport.read(asked, [message], answers).failures[0]
    assert found.kind == kind
    assert found.text.startswith(text)
