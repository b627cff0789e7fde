"""What a message belongs to, and why a client's reply is not used; readable without torch."""

from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal["late", "unavailable", "absent", "unusable"]
"""What `Failure` says of each."""
KINDS: tuple[Kind, ...] = get_args(Kind)


class BadMessage(ValueError):
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

    def continues(self, server_round: int, attempt: int) -> bool:
        """Whether memory that was written then is the one to go on with.

        It is when it was written in this attempt, or in the last round that the server accepted
        from this client; else the client starts from its initial memory.
        """
        is_this_attempt = (server_round, attempt) == (self.server_round, self.attempt)
        return is_this_attempt or server_round == self.last_accepted_round


@dataclass(frozen=True)
class Failure:
    """Why a client's reply is not used.

    "late": none came in time; "unavailable": its node is not there, or died; "absent": its node
    answered with an error (its own log says why); "unusable": what came is no upload of the phase.
    """

    kind: Kind
    text: str
    """One line; a client or a node may have chosen it."""


def plain(text: object) -> str:
    """A client's text in at most 200 printable characters, without line breaks."""
    start = str(text)[:200]
    return "".join(character if character.isprintable() else " " for character in start).strip()
