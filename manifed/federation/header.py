"""What a message belongs to."""

from dataclasses import dataclass


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
