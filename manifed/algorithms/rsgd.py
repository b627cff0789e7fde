"""Riemannian SGD: the client update of PriRFed with Algorithm 2 (RGD, RSGD, DP-RGD, DP-RSGD).

Huang, Huang, Jawanpuria, Mishra: Federated Learning on Riemannian Manifolds with Differential
Privacy, Algorithm 2; Han, Mishra, Jawanpuria, Gao: Differentially private Riemannian optimization
(2024), Algorithm 1. Server update: manifed/algorithms/tangent_mean.py.

Symbols: x^(t) Point.x, K local_steps, alpha step_size, b_i minibatch, eta_k the oracle's gradient
(tau l2_norm_clip and sigma_i live in its mechanism), Exp manifold.expmap.
Invariant: every iterate is on the manifold; what leaves is tangent at the broadcast point.
"""

from typing import Any, Literal

import torch
from torch import Tensor

from manifed.algorithms.algorithm import Here, MappedSteps
from manifed.oracles.fused import RESPONSES
from manifed.oracles.minibatch import Minibatch, Poisson, Query
from manifed.oracles.noisy_oracle import Oracle
from manifed.privacy.mechanism import ExampleMechanism
from manifed.schedules import AnySchedule, factor_of

Option = Literal["last-iterate", "random-iterate"]
"""Options 1 and 2 of Algorithms 2 and 3."""


class Output:
    """The iterate that a client sends: the last one (Option 1) or a drawn one (Option 2).

    The index of Option 2 is drawn first, independently for each client of a cohort, out of
    ``count`` iterates without the last one, and only the iterate at that index is kept.
    """

    def __init__(self, option: Option, x: Tensor, count: int, here: Here) -> None:
        self._kept = x
        self._index = None
        if option == "random-iterate":
            self._index = here.manifold.expand_scalar(here.draws.place(count))

    def see(self, k: int, x: Tensor) -> None:
        """Keeps iterate x number k = 0, 1, ..., count - 1 if it is the drawn one."""
        if self._index is not None:
            self._kept = torch.where(self._index == k, x, self._kept)

    def chosen(self, last: Tensor) -> Tensor:
        """The last iterate, or the drawn one."""
        return last if self._index is None else self._kept


class RSGD(MappedSteps):
    """Riemannian stochastic gradient descent at the clients (PriRFed, Algorithm 2)."""

    kind: Literal["rsgd"] = "rsgd"
    minibatch: Minibatch = Poisson(batch_size=32)
    """The examples of one step."""
    output: Option = "last-iterate"
    """Which local iterate a client sends."""

    @property
    def published_steps(self) -> int | None:
        """The number of steps K, as in the paper's noise formula."""
        return self.local_steps

    def client(self, x: Tensor, oracle: Oracle, here: Here) -> Tensor:
        """Runs Algorithm 2 from the broadcast point and uploads a tangent vector there."""
        maps, start = here.manifold.maps(self.maps), x  # line 1
        is_plain = type(oracle) is Oracle  # others answer by a rule of their own
        if is_plain and self.output == "last-iterate" and type(oracle.problem) in RESPONSES:
            end = oracle.descent(x, self.local_steps, self.step_size)
            if end is not None:
                return maps.inverse(start, end)
        output = Output(self.output, x, self.local_steps, here)
        for k in range(self.local_steps):  # line 2
            output.see(k, x)
            eta = oracle.gradient(x)  # lines 3-4
            x = maps.forward(x, -self.step_size * eta)  # line 5
        return maps.inverse(start, output.chosen(x))  # lines 7-8


class ScheduledRSGD(RSGD):
    r"""``rsgd`` whose noise multiplier in round r is scaled by a public factor z_r.

    Every round is charged as its own release: without sampling that is one Gaussian release of
    mu^2 = sum_r 1 / (z z_r)^2 (Dong, Roth, Su 2022, Corollary 3.3), so a target fixes z, and a
    budget with a given z the number of rounds. The error of the last iterate of
    x <- x - s (h (x - x*) + noise) is sum_r a_r noise_r, a_r = s (1 - s h)^(T - r); by Cauchy and
    Schwarz sum_r a_r^2 z_r^2 sum_r z_r^-2 >= (sum_r |a_r|)^2, with equality for z_r proportional to
    |a_r|^(-1/2): geometric noise of ratio (1 - s h)^(1/2) is best.
    """

    kind: Literal["scheduled-rsgd"] = "scheduled-rsgd"  # pyright: ignore[reportIncompatibleVariableOverride]
    noise_multipliers: AnySchedule
    """The factor z_r, as a schedule of k = r - 1."""

    def in_round(self, server_round: int) -> "ScheduledRSGD":
        """Returns Algorithm 2 as it is run, and charged, in one round."""
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
