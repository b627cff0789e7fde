r"""Projected federated learning with drift correction (Algorithm 1), and its form for cohorts.

Zhang, Hu, So, Johansson: Nonconvex Federated Learning on Compact Smooth Submanifolds With
Heterogeneous Data (2024).

Symbols: eta step_size, eta_g server_step_size, tau local_steps, x^r Point.x and state["x"]
(ambient, unprojected from round 2 on), P_M manifold.nearest, P_M(x^r) state["anchor"] and the
model, z-hat minus P_M(x) Displacement.u, g_{i,t} the oracle's gradient, c_i correction; weights are
1/n. Invariants: the corrections of all clients sum to zero; state["anchor"] = P_M(state["x"]) is on
the manifold, state["x"] within the tube.

One matrix up a round. The correction is rebuilt from the next broadcast, so it costs no message.
Line 9 is left out at t = tau - 1, where nobody reads z: tau projections a round.

Beyond the paper, ``ProjectedPartial`` serves clients that take part in some rounds only. A client
that missed rounds cannot rebuild its correction from the broadcast (several steps lie between), and
the corrections of those present do not sum to zero. So the server keeps control variates: the last
plain displacement D_i = -eta tau (1/tau) sum_t g_{i,t} of each client, state["displacements"] of
shape (n, *ambient), with state["is_known"] (n,). It broadcasts their mean over the known ones, and
-eta tau c_i = mean D - D_i, zero for a client without history, sums to zero over all clients,
whoever takes part. With everybody in every round it is Algorithm 1.
"""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from manifed.algorithms.algorithm import GradientSteps, Here, Phase, ServerUpdate, Space, There
from manifed.algorithms.payloads import Displacement, Payload, Point, PointAndDisplacement, State
from manifed.errors import RoundFailed
from manifed.fields import Positive
from manifed.manifolds.base import Manifold
from manifed.oracles.noisy_oracle import Oracle


class _Projecting(GradientSteps, ServerUpdate):
    """What both forms share: local steps, the mean's projection, and the tube it must stay in."""

    server_step_size: Positive = 1.0
    """Server step size."""
    tube_radius: Positive | None = None
    """Largest allowed |x - P_M(x)|. None: the reach of the manifold (Assumption 2.3 asks for half
    of it)."""

    space: ClassVar[Space] = "ambient"
    mean_weights = "uniform"

    # -- the client --------------------------------------------------------------------------
    def local(
        self, x: Tensor, correction: Tensor, oracle: Oracle, manifold: Manifold
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(P_M(x), z-hat_tau, (1/tau) sum_t g_t), all ambient, shape ``(..., *ambient)``."""
        z = manifold.nearest(x)
        z_hat = anchor = manifold.ambient(z)  # line 3
        total = torch.zeros_like(anchor)
        for t in range(self.local_steps):  # line 4
            tangent = oracle.gradient(z)  # lines 5-6
            gradient = manifold.ambient_vector(z, tangent)
            total.add_(gradient)
            z_hat = torch.sub(z_hat, gradient + correction, alpha=self.step_size)  # line 8
            if t + 1 < self.local_steps:
                z = manifold.nearest(z_hat)  # line 9
        return anchor, z_hat, total / self.local_steps

    def check(self, setting: Any) -> None:
        """Refuse a manifold without the projection."""
        super().check(setting)
        if setting.manifold.reach is None:
            raise ValueError(
                f"training.kind: {self.kind!r}: Expected a submanifold with the metric of its "
                "ambient space, such as the sphere or Stiefel(metric='euclidean'), got "
                f"{setting.manifold!r}; use 'rsgd' there"
            )

    # -- the server --------------------------------------------------------------------------
    def start(self, x: Tensor) -> State:
        """x^1 on the manifold, in ambient form."""
        return {"x": x, "anchor": x}

    def base(self, state: State, manifold: Manifold) -> Tensor:
        """P_M(x^r), ambient."""
        return state["anchor"]

    def model(self, state: State, manifold: Manifold) -> Tensor:
        """P_M(x^r) as a point of the manifold; the output is that of the last round."""  # line 19
        return manifold.from_ambient(state["anchor"])

    def server(self, state: State, mean: Tensor, here: There) -> State:
        """The next x and its projection.

        Raises:
            RoundFailed: when x has left the tube in which its projection is unique.
        """
        manifold = here.manifold
        x = state["anchor"] + self.server_step_size * mean  # line 13
        bound = manifold.reach if self.tube_radius is None else self.tube_radius
        assert bound is not None  # `check` refuses a manifold without one
        if not bool(torch.isfinite(x).all()):
            raise RoundFailed(
                f"Round {here.round}: expected a finite step, got nan or inf in x", is_computed=True
            )
        anchor = manifold.ambient(manifold.nearest(x))
        distance = float(torch.linalg.vector_norm(x - anchor))
        if not distance < bound:
            raise RoundFailed(
                f"Round {here.round}: expected |x - P(x)| < {bound:g} (training.tube_radius or "
                f"the reach of {manifold.name}), got {distance:.4g}; lower training.step_size, "
                "local_steps or server_step_size",
                is_computed=True,
            )
        return state | {"x": x, "anchor": anchor}


class Projected(_Projecting):
    """Projected federated learning (Algorithm 1). Every client takes part in every round."""

    kind: Literal["projected"] = "projected"
    upload: Literal["corrected", "plain"] = "corrected"
    """"corrected": line 11 of the paper. "plain": without the correction, as client-level privacy
    needs.

    A corrected upload is z-hat minus P(x), a plain one is -eta tau mean_t g_t. Both have one mean
    while the corrections sum to zero. When the server clips or noises its mean they do not:
    corrected uploads then carry the noise of each round into all later ones (the mean correction is
    a random walk), and plain uploads forget it after one round.
    """

    needs_everyone = True
    """Sum c_i = 0 holds only when all clients reply (section 6 of the paper)."""

    @property
    def phases(self) -> tuple[Phase, ...]:
        """One exchange; x^r goes down unprojected, as line 17 needs it."""  # line 14
        return (Phase("train", Point, Displacement, ("point-nearby",)),)

    def remember(self, x: Tensor) -> State:
        """Returns the memory that line 17 needs; ``has_history`` (..., 1) is 0 in round 1."""
        blank = {name: torch.zeros_like(x) for name in ("anchor", "mean_gradient")}  # c_i^1 = 0
        return blank | {"has_history": torch.zeros_like(x[..., :1])}

    def correction(self, x: Tensor, memory: Any) -> Tensor:
        """c_i^r from the broadcast x^r and the last round, ambient, shape ``(..., *ambient)``."""
        total = self.server_step_size * self.step_size * self.local_steps
        rebuilt = (memory["anchor"] - x) / total - memory["mean_gradient"]  # line 17
        return memory["has_history"] * rebuilt

    def client(self, x: Tensor, oracle: Oracle, here: Here) -> tuple[Tensor, State]:
        """Takes the local steps of lines 3 to 11, after the correction of line 17."""
        c = self.correction(x, here.memory)
        anchor, end, mean = self.local(x, c, oracle, here.manifold)
        u = end - anchor  # line 11
        if self.upload == "plain":
            u = -self.step_size * self.local_steps * mean
        seen = torch.ones_like(x[..., :1])
        return u, {"anchor": anchor, "mean_gradient": mean, "has_history": seen}

    def check(self, setting: Any) -> None:
        """Refuse corrected uploads under a server's noise, which would go into all later rounds."""
        super().check(setting)
        if setting.privacy.kind == "client-level" and self.upload != "plain":
            raise ValueError(
                "training.upload: expected 'plain' with privacy.kind = 'client-level', got "
                f"{self.upload!r}, which would add the noise of each round to all later ones"
            )


class ProjectedPartial(_Projecting):
    """Projected federated learning for cohorts. The server keeps control variates."""

    kind: Literal["projected-partial"] = "projected-partial"

    without_client_level = (
        "its server broadcasts a mean of control variates, which are un-noised uploads"
    )

    @property
    def phases(self) -> tuple[Phase, ...]:
        """One exchange, in which two matrices go down."""
        places = ("point-nearby", "ambient")
        return (Phase("train", PointAndDisplacement, Displacement, places),)

    def remember(self, x: Tensor) -> State:
        """Returns the client's last uncorrected displacement D_i, which is zero at first."""
        return {"u": torch.zeros_like(x), "has_history": torch.zeros_like(x[..., :1])}

    def correction(self, mean_displacement: Tensor, memory: Any) -> Tensor:
        """Returns the correction c_i, ambient; 0 without history."""
        undone = -self.step_size * self.local_steps
        return memory["has_history"] * (mean_displacement - memory["u"]) / undone

    def client(self, x: Tensor, oracle: Oracle, here: Here) -> tuple[Tensor, State]:
        """Takes corrected steps and uploads the uncorrected displacement, so nothing drifts."""
        assert isinstance(here.came, PointAndDisplacement)
        c = self.correction(here.came.u, here.memory)
        _, _, mean = self.local(x, c, oracle, here.manifold)
        u = -self.step_size * self.local_steps * mean
        return u, {"u": u, "has_history": torch.ones_like(x[..., :1])}

    def start(self, x: Tensor) -> State:
        """Returns the state without control variates; the first step gives them their rows."""
        unknown = {"displacements": x.new_zeros(0, *x.shape), "is_known": x.new_zeros(0)}
        return super().start(x) | {"mean_displacement": torch.zeros_like(x)} | unknown

    def down(self, state: State, phase: str) -> Payload:
        """Returns x^r and the mean D of the known displacements."""
        return PointAndDisplacement(state["x"], state["mean_displacement"])

    def server(self, state: State, mean: Tensor, here: There) -> State:
        """Takes the step of line 13 with the corrections, then updates the control variates."""
        x = state["x"]
        seen = here.collected
        u = seen.rows
        rows = list(seen.partitions)
        displacements = state["displacements"].clone()
        is_known = state["is_known"].clone()
        if len(is_known) != seen.num_clients:  # before the first round
            displacements = x.new_zeros(seen.num_clients, *x.shape)
            is_known = x.new_zeros(seen.num_clients)
        known = is_known[rows].reshape(-1, *[1] * x.dim())
        before = known * (state["mean_displacement"] - displacements[rows])  # -eta tau c_i
        moved = super().server(state, (u + before).mean(0), here)
        displacements[rows], is_known[rows] = u, torch.ones_like(is_known[rows])
        return moved | {
            "displacements": displacements,
            "is_known": is_known,
            "mean_displacement": displacements.sum(0) / is_known.sum(),
        }
