"""A wire tap between a SuperNode and its site: what passes, and nothing else, is written down."""

import socket
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass

from torch import Tensor

from manifed.federation.exchange import Header
from manifed.site.protocol import (
    MAGIC,
    BadFrame,
    Silent,
    Update,
    read_question,
    read_reply,
    read_tensors,
    send,
)
from tests.site.sites import receive

SECONDS = 120.0


@dataclass(frozen=True)
class Answer:
    """One client update as the site let it out."""

    run: str
    header: Header
    down: dict[str, Tensor]
    up: dict[str, Tensor]


class Tap:
    """Listens at ``path`` and hands each frame on to the site at ``site``, and its reply back."""

    def __init__(self, path, site):
        self.path, self.answers = path, list[Answer]()
        self.bytes = bytearray()
        """All that the site sent."""
        self._site = site
        path.parent.mkdir(mode=0o700)
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(str(path))
        self._door.listen(16)
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self):
        """Answer nobody any more."""
        with suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()

    def _serve(self):
        with suppress(OSError):
            while True:
                peer, _ = self._door.accept()
                threading.Thread(target=self._pass, args=(peer,), daemon=True).start()

    def _pass(self, peer):
        with suppress(OSError, BadFrame, Silent), peer, socket.socket(socket.AF_UNIX) as site:
            asked = receive(peer, SECONDS)
            if asked is None:
                return
            site.connect(str(self._site))
            send(site, _frame(asked), SECONDS)
            came = receive(site, SECONDS)
            if came is None:
                return
            self._note(asked, came)
            send(peer, _frame(came), SECONDS)

    def _note(self, asked, came):
        self.bytes += b"".join(came)
        told, up = read_reply(came)
        if isinstance(told, Update):
            question = read_question(asked[0])
            assert question.header is not None
            self.answers.append(Answer(question.run, question.header, read_tensors(asked[1]), up))


def _frame(parts):
    return MAGIC + struct.pack(">IQ", *map(len, parts)) + b"".join(parts)
