"""The plan that a round needs, its random draws, and the report that it returns."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from manifed.algorithms.algorithm import ClientUpdate, Phase, ServerUpdate
from manifed.algorithms.payloads import State
from manifed.errors import BudgetExhausted
from manifed.federation.cohorts import Cohort
from manifed.federation.exchange import Failure, ReplyPolicy
from manifed.federation.held_out import PrivateEvaluation
from manifed.manifolds.base import Manifold
from manifed.privacy.charging import Account
from manifed.privacy.mechanism import ClientMechanism, ExampleMechanism
from manifed.privacy.random_numbers import NoiseSource, Stream
from manifed.privacy.statement import Promise


@dataclass(frozen=True)
class Plan:
    """All that the server loop of a run needs, as frozen data."""

    training: ClientUpdate
    """What clients run."""
    server_update: ServerUpdate
    manifold: Manifold
    phases: tuple[Phase, ...]
    cohort: Cohort
    policy: ReplyPolicy
    source: NoiseSource
    num_examples: tuple[int, ...]
    config_sha256: str
    client_mechanism: ExampleMechanism
    """What clients apply, each by its own reading of the setting."""
    client_source: NoiseSource
    """What `NoiseSource.fresh` makes of it is the source of one client update."""
    promise: Promise
    """What is charged, what the budget pays, and whom the statement names."""
    mechanism: ClientMechanism | None = None
    """What the server applies to a cohort's uploads; None leaves it to the clients."""
    needs_everyone: bool = False
    device: str = "cpu"
    setup_phases: tuple[Phase, ...] = ()
    """Exchanges of all clients before round 1."""
    evaluation: PrivateEvaluation | None = None
    """What is asked of hold-outs at the end of some rounds."""
    last_priced: int | None = None
    """The last round that the promise prices, where rounds cost different amounts; None: any."""

    @cached_property
    def weights(self) -> Tensor:
        """The weights of all clients in a mean: N_i, or ones."""
        if self.server_update.weighting == "uniform":
            return torch.ones(self.num_clients, dtype=torch.float64, device=self.device)
        return torch.tensor(self.num_examples, dtype=torch.float64, device=self.device)

    @cached_property
    def num_clients(self) -> int:
        """The number of partitions."""
        return len(self.num_examples)

    def charge_rest(self, account: Account, done: int, last: int) -> None:
        """Charges the rounds that a run which ends early does not make, as if it had gone on.

        When it ends depends on what was released, so every planned round is paid for, by the cohort
        that would have made it: draws depend on no release.
        """
        with suppress(BudgetExhausted):
            for r in range(done + 1, last + 1):
                attempt = account.attempts(r)
                cohort = self.cohort.draw(self.num_clients, r, attempt, self.source)
                account.charge(r, attempt, cohort)
                if self.promise.realised is not None:
                    account.charge(r, attempt, cohort, len(cohort))

    @property
    def is_summed(self) -> bool:
        """Whether the server needs nothing of the uploads but their weighted mean."""
        update = self.server_update
        is_plain = not (self.mechanism or update.reads_uploads or update.judges_uploads)
        return is_plain and all(one.aggregation == "mean" for one in self.phases)

    @property
    def matrices_up(self) -> int:
        """The number of arrays of the model's shape that a client sends in one round."""
        return sum(len(phase.up.names()) for phase in self.phases)


class ServerDraws(NamedTuple):
    """The server's addressed randomness in one exchange."""

    source: NoiseSource
    server_round: int
    attempt: int
    phase_index: int = 0

    def normals(self, shape: tuple[int, ...], step: int) -> Tensor:
        """Standard normals of the server's noise stream."""
        return self.source.normals(
            shape,
            stream=Stream.SERVER_NOISE,
            partition=0,
            server_round=self.server_round,
            attempt=self.attempt,
            step=self.phase_index * 16 + step,
        )

    def uniform(self) -> float:
        """Draws the one uniform that Option 2's choice needs."""
        (drawn,) = self.source.uniforms(
            (1,),
            stream=Stream.ITERATE_CHOICE,
            partition=0,
            server_round=self.server_round,
            attempt=self.attempt,
            step=(1 << 24) - 1,
        )
        return float(drawn)


class RoundReport(NamedTuple):
    """The outcome of a round over all its attempts, for metrics and checkpoints.

    ``participants`` are the clients whose replies were used; ``failures`` has a reason for each
    that was asked and dropped.
    """

    server_round: int
    state: State
    participants: tuple[int, ...]
    failures: Mapping[int, Failure] = {}  # a proxy of it could not be pickled
    bytes_down: int = 0
    bytes_up: int = 0
    noise_origins: frozenset[str] = frozenset()
    """Where the keys of all noise came from: the clients' (as they say), and the server's own."""
    held_out: tuple[Tensor, int] | None = None
    """What hold-outs said of this state: the sum (3,) of what so many clients sent."""
