"""The protocol of a site's Unix socket: frames of a JSON header and safetensors.

A frame is ``MAGIC``, the lengths of header and body (4 and 8 bytes, big-endian), header, body. The
other side is never trusted: lengths are bounded before anything is read, a question's body by what
its header asks for, memory grows with what has come and not with what was promised, a frame has one
deadline as a whole, headers have exactly the fields and types below, and nothing is unpickled. A
header never holds a tensor, an error that is sent never holds data.
"""

import math
import socket
import struct
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, StringConstraints, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from manifed.errors import described
from manifed.experiment.schema import Experiment, canonical, sha256
from manifed.federation.exchange import Header
from manifed.fields import BY_KIND
from manifed.manifolds.linalg import Tensors

MAGIC = b"manifed-site-2\n"
MOST_CONFIG = 1 << 16
"""Characters of an experiment."""
_MOST_HEADER = 3 << 16
"""Bytes; an experiment is the longest part, each of its quotation marks escaped."""
_MOST_BODY = 1 << 27
"""Bytes of any body; that of a question has at most those of its tensors and `_NAMES` more."""
_NAMES = 1 << 12
"""Bytes of the names, types and shapes of tensors."""
_LENGTHS = struct.Struct(">IQ")
_EXACTLY = ConfigDict(strict=True, extra="forbid", str_max_length=500)
"""How the fields of a header are read, also those of the message's own header inside."""


class BadFrame(ValueError):
    """Error: bytes are no frame of this protocol; the text quotes nothing of them."""


class Silent(OSError):
    """Error: the other side did not send or take a whole frame in time, or went away."""


@dataclass(frozen=True, config=_EXACTLY)
class Question:
    """A question to a site: who it is (no header), or one client update."""

    config_sha256: str
    """The experiment meant."""
    config: Annotated[str, StringConstraints(max_length=MOST_CONFIG)]
    """The experiment in full (`canonical`); a site that has its own copy does not read it."""
    run: str = ""
    """What the SuperLink calls the run."""
    header: Header | None = None
    """The header of the message that is forwarded."""
    kind: Literal["question"] = "question"


def about(config: Experiment, run: str = "", header: Header | None = None) -> Question:
    """Makes the question about an experiment, without its text if that is too long to be sent."""
    text = canonical(config)
    return Question(sha256(config), text if len(text) <= MOST_CONFIG else "", run, header)


@dataclass(frozen=True, config=_EXACTLY)
class Introduction:
    """A site's public facts."""

    config_sha256: str
    code_sha256: str
    partition: int
    num_examples: int
    kind: Literal["introduction"] = "introduction"


@dataclass(frozen=True, config=_EXACTLY)
class Update:
    """The head of an answered client update; the body is the noised payload."""

    noise_origin: str
    kind: Literal["update"] = "update"


@dataclass(frozen=True, config=_EXACTLY)
class Refusal:
    """A reply without an answer; its reason depends on no record."""

    reason: str
    kind: Literal["refusal"] = "refusal"


_Reply = Introduction | Update | Refusal
_HEADER = TypeAdapter[Question | _Reply](Annotated[Question | _Reply, BY_KIND])


# -- bytes ---------------------------------------------------------------------------------------
def frame_of(header: Question | _Reply, tensors: Tensors) -> bytes:
    """Makes the frame of a question with its downlink, or of a reply with its uplink."""
    head = _HEADER.dump_json(header)
    body = save({name: t.detach().cpu().contiguous() for name, t in tensors.items()})
    if len(head) > _MOST_HEADER or len(body) > _MOST_BODY:
        raise ValueError(
            f"Expected a header of at most {_MOST_HEADER} bytes and a body of at most "
            f"{_MOST_BODY}, got {len(head)} and {len(body)}"
        )
    return MAGIC + _LENGTHS.pack(len(head), len(body)) + head + body


def read_question(data: bytes) -> Question:
    """Reads the question in the header of a frame.

    Raises:
        BadFrame: for anything else.
    """
    if not isinstance(found := _read(data), Question):
        raise BadFrame("expected a question, got a reply")
    return found


def read_reply(frame: tuple[bytes, bytes]) -> tuple[_Reply, dict[str, Tensor]]:
    """Reads the reply in a frame; errors as `read_question`."""
    if isinstance(found := _read(frame[0]), Question):
        raise BadFrame("expected a reply, got a question")
    return found, read_tensors(frame[1])


def _read(data: bytes) -> Question | _Reply:
    try:
        return _HEADER.validate_json(data)
    except ValidationError:
        raise BadFrame(
            "expected JSON with exactly the fields of a question or reply, each of its type and "
            "no longer than it may be"
        ) from None


def most_bytes(layouts: Iterable[Any]) -> int:
    """Returns the largest body of a question with tensors of these shapes and types."""
    return min(
        sum(math.prod(shape) * dtype.itemsize for shape, dtype in layouts) + _NAMES, _MOST_BODY
    )


def read_tensors(body: bytes) -> dict[str, Tensor]:
    """Reads the tensors in the body of a frame; errors as `read_question`."""
    try:
        return load(body)
    except (SafetensorError, ValueError, TypeError, KeyError, AttributeError, RuntimeError):
        raise BadFrame("expected tensors in safetensors' format as a body") from None


# -- the socket ----------------------------------------------------------------------------------
def send(peer: socket.socket, frame: bytes, seconds: float) -> None:
    """Sends a whole frame.

    Raises:
        Silent: not taken in time.
    """
    peer.settimeout(seconds)  # of the whole of `sendall`, not of a part of the frame
    try:
        peer.sendall(frame)
    except OSError as error:
        raise Silent(described(error)) from None


class Incoming:
    """An incoming frame: its header, then its body once its largest length is known.

    The other side has ``seconds`` for all of it; what happens between the two parts does not count.
    """

    def __init__(self, peer: socket.socket, seconds: float) -> None:
        self._peer = peer
        self._seconds = seconds
        self._length = 0

    def header(self) -> bytes | None:
        """Reads the next frame's header; None where the other side has closed before one began.

        Raises:
            BadFrame: these are no frame, or one that is too long.
            Silent: it did not come whole in time.
        """
        start = self._exactly(len(MAGIC) + _LENGTHS.size, may_end=True)
        if not start:
            return None
        if not start.startswith(MAGIC):
            raise BadFrame("expected a frame of this protocol")
        length, self._length = _LENGTHS.unpack(start[len(MAGIC) :])
        if length > _MOST_HEADER or self._length > _MOST_BODY:
            raise BadFrame(
                f"expected at most {_MOST_HEADER} bytes of header and {_MOST_BODY} of body"
            )
        return self._exactly(length)

    def body(self, most: int = _MOST_BODY) -> bytes:
        """Reads the body, unless it is longer than ``most``; errors as `header`."""
        if self._length > most:
            raise BadFrame(f"expected at most {most} bytes of body")
        return self._exactly(self._length)

    def _exactly(self, count: int, *, may_end: bool = False) -> bytes:
        """So many bytes; b"" where the other side has closed before the first and ``may_end``."""
        found = bytearray()
        began = time.monotonic()
        while len(found) < count:
            if (left := began + self._seconds - time.monotonic()) <= 0:
                raise Silent("a whole frame did not pass in time")
            self._peer.settimeout(left)
            try:
                part = self._peer.recv(min(1 << 20, count - len(found)))
            except OSError as error:
                raise Silent(described(error)) from None
            if not part:
                if may_end and not found:
                    return b""
                raise Silent("the other side closed in the middle of a frame")
            found += part
        self._seconds -= time.monotonic() - began
        return bytes(found)


def ask(
    path: Path, question: Question, tensors: Tensors, seconds: float
) -> tuple[_Reply, dict[str, Tensor]]:
    """Asks the site at a socket once, on a new connection.

    Raises:
        OSError: nobody listens there, or no whole reply came in time. BadFrame: as `read_reply`.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(seconds)
        peer.connect(str(path))
        with suppress(Silent):  # a site that refuses says so, and does not take the rest
            send(peer, frame_of(question, tensors), seconds)
        frame = Incoming(peer, seconds)
        header = frame.header()
        if header is None:
            raise Silent("the site closed the connection")
        return read_reply((header, frame.body()))
