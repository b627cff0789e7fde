"""What a message belongs to."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Header:
    """Which config, round, attempt and phase a payload belongs to, and whose it is."""

    config_sha256: str
    server_round: int
    attempt: int
    phase: str
    partition_id: int
    last_accepted_round: int = 0
