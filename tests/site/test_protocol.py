"""Frames: what a stranger sends is one of ours or refused, whatever it is."""

import json
import random
import socket
import threading
import time
from contextlib import suppress

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from manifed.federation.exchange import Header
from manifed.site import protocol
from manifed.site.protocol import (
    MAGIC,
    BadFrame,
    Incoming,
    Question,
    Refusal,
    Silent,
    frame_of,
    read_question,
    read_reply,
    read_tensors,
)
from tests.site.sites import parts_of, receive

HEADER = Header("a" * 64, 3, 1, "train", 0, 2)
QUESTION = Question("a" * 64, '{"name":"tiny"}', "7", HEADER)


def head(**changed):
    whole = json.loads(parts_of(frame_of(QUESTION, {}))[0])
    own = Header(*whole["header"])._asdict()
    whole["header"] = list((own | {k: changed.pop(k) for k in list(changed) if k in own}).values())
    return json.dumps(whole | changed).encode()


BAD_HEADERS = {
    "a list": b"[]",
    "not JSON": b"\x80\x04.",
    "deep": b"[" * 100_000,
    "one field more": head(path="/etc/passwd"),
    "another kind": head(kind="update"),
    "a number for a name": head(run=7),
    "true for a number": head(server_round=True),
    "a fraction": head(server_round=1.0),
    "not a number": head(attempt=float("nan")),
    "a long phase": head(phase="7" * 1000),
    "a field of a header more": head(header=[*HEADER, 1]),
    "half a letter": head(config="\ud800"),
    "an experiment that is too long": head(config=" " * (protocol.MOST_CONFIG + 1)),
    "a long name": head(run="7" * 1000),
    "no header where there must be": head(header=[]),
}


@pytest.mark.parametrize("what", BAD_HEADERS)
def test_a_header_has_exactly_its_fields(what):
    with pytest.raises(BadFrame):
        read_question(BAD_HEADERS[what])


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 2**32 - 1))
def test_whatever_bytes_come_are_a_question_or_refused(noise, seed):
    rng = random.Random(seed)
    parts = parts_of(frame_of(QUESTION, {"x": torch.ones(4)}))
    for part, read in zip(parts, (read_question, read_tensors), strict=True):
        place = rng.randrange(len(part))
        with suppress(BadFrame):
            found = read(part[:place] + noise + part[place + len(noise) :])
            assert isinstance(found, Question | dict)


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        yield ours, theirs


@pytest.mark.parametrize(
    "start",
    [
        b"GET / HTTP/1.1\r\nHost: site\r\n\r\n" * 2,
        MAGIC + protocol._LENGTHS.pack(1 << 31, 0),
        MAGIC + protocol._LENGTHS.pack(2, 1 << 62),
    ],
)
def test_a_frame_that_is_none_or_too_long_is_refused_at_its_start(start, pair):
    ours, theirs = pair
    theirs.sendall(start)
    with pytest.raises(BadFrame):
        receive(ours, 5.0)


def test_a_body_beyond_what_is_expected_is_refused_unread_and_its_sender_learns_why(pair):
    ours, theirs = pair
    whole = frame_of(QUESTION, {"x": torch.zeros(1 << 20)})
    told = []

    def asks():
        with suppress(Silent):
            protocol.send(theirs, whole, 5.0)
        told.append(receive(theirs, 5.0))

    asking = threading.Thread(target=asks)
    asking.start()
    frame = Incoming(ours, 5.0)
    assert read_question(frame.header()) == QUESTION
    with pytest.raises(BadFrame, match="at most 4128 bytes of body"):
        frame.body(protocol.most_bytes([((2, 2), torch.float64)]))
    protocol.send(ours, frame_of(Refusal("too long"), {}), 5.0)
    ours.close()
    asking.join()
    assert read_reply(told[0])[0] == Refusal("too long")


def test_a_slow_peer_has_one_deadline_for_a_whole_frame(pair):
    ours, theirs = pair
    frame = frame_of(QUESTION, {})

    def drip():
        with suppress(OSError):
            for i in range(len(frame)):
                theirs.sendall(frame[i : i + 1])
                time.sleep(0.02)

    slow = threading.Thread(target=drip)
    slow.start()
    began = time.monotonic()
    with pytest.raises(Silent):
        receive(ours, 0.2)
    assert time.monotonic() - began < 2
    ours.close()
    slow.join()


def test_a_peer_that_leaves_in_the_middle_is_silent_and_one_that_never_began_is_nobody(pair):
    ours, theirs = pair
    theirs.sendall(MAGIC)
    theirs.close()
    with pytest.raises(Silent, match="closed"):
        receive(ours, 5.0)
    assert receive(ours, 5.0) is None


def test_a_reply_of_no_known_kind_is_refused():
    own, body = parts_of(frame_of(Refusal("no"), {}))
    assert read_reply((own, body))[0] == Refusal("no")
    with pytest.raises(BadFrame):
        read_reply((own.replace(b"refusal", b"pickle"), body))
