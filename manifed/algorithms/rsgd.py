"""Riemannian SGD: the client update of PriRFed with Algorithm 2 (RGD, RSGD, DP-RGD, DP-RSGD).

Huang, Huang, Jawanpuria, Mishra: Federated Learning on Riemannian Manifolds with Differential
Privacy, Algorithm 2; Han, Mishra, Jawanpuria, Gao: Differentially private Riemannian optimization
(2024), Algorithm 1. Server update: manifed/algorithms/tangent_mean.py.

Symbols: x^(t) Point.x, K local_steps, alpha step_size, b_i minibatch, eta_k the oracle's gradient
(tau l2_norm_clip and sigma_i live in its mechanism), Exp manifold.expmap.
Invariant: every iterate is on the manifold; what leaves is tangent at the broadcast point.
"""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from manifed.algorithms.algorithm import Here, MappedSteps, Phase
from manifed.algorithms.payloads import Displacement, DisplacementAndIterate, Payload, Point
from manifed.manifolds.base import MapChoice
from manifed.oracles.minibatch import Minibatch, Poisson, Query
from manifed.oracles.oracle import Oracle
from manifed.privacy.mechanism import ExampleMechanism
from manifed.schedules.schedule import AnySchedule, factor_of

Option = Literal["last-iterate", "random-iterate", "random-output"]
"""Option 1; Option 2 as printed; Option 2 as its proof needs it (spec 000 §7.2.4)."""


class Output:
    """What Options 1 and 2 send, as tangent vectors at the broadcast point x.

    The index of Option 2 is drawn first, independently for each client of a cohort, out of
    ``count`` iterates without the last one, and only the iterate at that index is kept.
    """

    def __init__(self, option: Option, x: Tensor, count: int, here: Here) -> None:
        self.option, self.x, self._kept = option, x, x
        self._index: Tensor | None = None
        if option != "last-iterate":
            index = here.draws.index(count)
            self._index = index.reshape(*index.shape, *[1] * here.manifold.ndim)

    def see(self, k: int, x: Tensor) -> None:
        """Keep the iterate x number k = 0, 1, ..., count - 1 where it is the drawn one."""
        if self._index is not None:
            self._kept = torch.where(self._index == k, x, self._kept)

    def payload(self, last: Tensor, logmap: Callable[[Tensor, Tensor], Tensor]) -> Payload:
        """The upload; log is taken here and not at the server, whose mean is of tangent vectors."""
        if self.option == "last-iterate":
            return Displacement(logmap(self.x, last))
        drawn = logmap(self.x, self._kept)
        if self.option == "random-iterate":
            return Displacement(drawn)
        return DisplacementAndIterate(logmap(self.x, last), drawn)


def one_exchange(option: Option) -> Phase:
    """The point down, and up what an option sends: one tangent vector, or two."""
    up = DisplacementAndIterate if option == "random-output" else Displacement
    return Phase("train", Point, up, uploads=("tangent",) * len(up.names()))


def check_option(option: Option, setting: Any) -> None:
    """Refuse Option 2 as its proof needs it where only one vector goes up, or none is drawn."""
    if option != "random-output":
        return
    rule = getattr(setting.server_update, "output_rule", "uniform")
    if rule != "uniform":
        raise ValueError(
            "training.output: 'random-output' (Option 2 as its proof needs it) goes with "
            f"strategy.output_rule = 'uniform', got {rule!r}"
        )
    if setting.privacy.kind == "client-level":
        raise ValueError(
            "training.output: client-level privacy noises one upload a client, got "
            "'random-output', which uploads two"
        )


class RSGD(MappedSteps):
    """K steps of Riemannian stochastic gradient descent."""

    kind: Literal["rsgd"] = "rsgd"
    minibatch: Minibatch = Poisson(batch_size=32)
    """The examples of one step."""
    output: Option = "last-iterate"
    """What of its local iterates a client sends."""

    @property
    def phases(self) -> tuple[Phase, ...]:
        """One exchange."""
        return (one_exchange(self.output),)

    @property
    def server_maps(self) -> MapChoice | None:
        """The maps of the steps, whose end the upload's logarithm tells."""
        return self.maps

    @property
    def published_steps(self) -> int | None:
        """K."""
        return self.local_steps

    def check(self, setting: Any) -> None:
        """Refuse an option that the server's part does not go with."""
        super().check(setting)
        check_option(self.output, setting)

    def client(self, x: Tensor, oracle: Oracle, here: Here) -> Payload:
        """Algorithm 2 from the broadcast point."""  # line 1
        maps, output = here.manifold.maps(self.maps), Output(self.output, x, self.local_steps, here)
        for k in range(self.local_steps):  # line 2
            output.see(k, x)
            eta = oracle.gradient(x)  # lines 3-4
            x = maps.forward(x, -self.step_size * eta)  # line 5
        return output.payload(x, maps.inverse)  # lines 7-8


class ScheduledRSGD(RSGD):
    r"""RSGD whose noise multiplier changes with the round, z in round 1 times a public factor z_r.

    Every round is charged as its own release: without sampling that is one Gaussian release of
    mu^2 = sum_r 1 / (z z_r)^2 (Dong, Roth, Su 2022, Corollary 3.3), so a target fixes z, and a
    budget with a given z the number of rounds. The error of the last iterate of
    x <- x - s (h (x - x*) + noise) is sum_r a_r noise_r, a_r = s (1 - s h)^(T - r); by Cauchy and
    Schwarz sum_r a_r^2 z_r^2 sum_r z_r^-2 >= (sum_r |a_r|)^2, with equality for z_r proportional to
    |a_r|^(-1/2): geometric noise of ratio (1 - s h)^(1/2) is best.
    """

    kind: Literal["scheduled-rsgd"] = "scheduled-rsgd"  # pyright: ignore[reportIncompatibleVariableOverride]
    noise_multipliers: AnySchedule
    """z_r as a schedule of k = r - 1."""

    def in_round(self, server_round: int) -> "ScheduledRSGD":
        """Algorithm 2 as it is run, and charged, in a round."""
        return self.with_round(server_round)

    def queries(self, mechanism: ExampleMechanism, num_examples: int) -> tuple[Query, ...]:
        """``local_steps`` gradients, drawn and charged with the noise of this round.

        Raises:
            ValueError: for a factor beyond 1e9, or below one over it.
        """
        factor = factor_of("training.noise_multipliers", self.noise_multipliers, self._round)
        return super().queries(mechanism.scaled(factor), num_examples)

    def check(self, setting: Any) -> None:
        """Refuse noise of clients where the server adds it, and factors that no round can have."""
        for server_round in (1, setting.federation.num_rounds):  # every schedule is monotone
            factor_of("training.noise_multipliers", self.noise_multipliers, server_round)
        super().check(setting)
        if setting.privacy.kind == "client-level":
            raise ValueError(
                "training.noise_multipliers: scales the noise of clients, and with privacy.kind = "
                "'client-level' the server adds it; use training.kind = 'rsgd', or 'example-level'"
            )
