"""What a server loop needs and what it reports: frozen data and two small interfaces."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from manifed.algorithms.interface import ServerState, ServerUpdate
from manifed.algorithms.payloads import Payload
from manifed.federation.cohorts import Cohort
from manifed.federation.header import Header
from manifed.federation.replies import Replies, ReplyPolicy
from manifed.manifolds.base import Manifold
from manifed.privacy.mechanism import ClientMechanism
from manifed.privacy.noise import NoiseSource


@runtime_checkable
class StackedGrid(Protocol):
    """A grid that can run a whole cohort as one stacked call instead of one message a client."""

    def exchange_cohort(
        self,
        header: Header,
        down: Payload,
        partitions: tuple[int, ...],
        last_accepted: Mapping[int, int],
    ) -> Replies:
        """The uploads of ``partitions``, stacked."""
        ...


class Treasurer(Protocol):
    """Charges a round before it happens."""

    def charge(self, server_round: int, attempt: int, partitions: tuple[int, ...]) -> None:
        """Write the charge to disk; raise `BudgetExhausted` when the run may not pay it."""
        ...


@dataclass(frozen=True)
class Exchange:
    """One phase as both halves see it: name, what goes down, what comes up."""

    name: str
    up: type[Payload]


@dataclass(frozen=True)
class Plan:
    """All that a server loop needs, frozen."""

    half: ServerUpdate
    manifold: Manifold
    exchanges: tuple[Exchange, ...]
    cohort: Cohort
    policy: ReplyPolicy
    source: NoiseSource
    num_examples: tuple[int, ...]
    config_sha256: str
    mechanism: ClientMechanism | None = None
    needs_everyone: bool = False
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.mechanism is not None:
            self.policy.check_client_level()

    @property
    def num_clients(self) -> int:
        """Number of partitions."""
        return len(self.num_examples)

    @property
    def matrices_up(self) -> int:
        """Number of arrays of the model's shape that a client sends in one round."""
        return sum(len(exchange.up.names()) for exchange in self.exchanges)


@dataclass(frozen=True)
class RoundReport:
    """What a round did, all its attempts together, for metrics and checkpoints.

    ``participants`` are the clients whose replies were used; ``failures`` has a reason for each
    that was asked and dropped.
    """

    server_round: int
    state: ServerState
    participants: tuple[int, ...]
    failures: Mapping[int, str] = field(default_factory=dict[int, str])
    bytes_down: int = 0
    bytes_up: int = 0
    noise_origins: frozenset[str] = frozenset()
    """Where the keys of all noise came from: the clients' (as they say), and the server's own."""
