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

from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from manifed.algorithms.gradient_steps import GradientSteps
from manifed.algorithms.interface import Collected, Memory, Phase, ServerState, Space, Work
from manifed.algorithms.payloads import Displacement, Payload, Point, PointAndDisplacement
from manifed.errors import RoundFailed
from manifed.manifolds.base import Manifold
from manifed.oracles.oracle import Draws, Oracle


@dataclass(frozen=True)
class Drift(Memory):
    """What line 17 needs of the last round; ``has_history`` (..., 1) is 0 before the first."""

    anchor: Tensor
    mean_gradient: Tensor
    has_history: Tensor


@dataclass(frozen=True)
class LastDisplacement(Memory):
    """The uncorrected displacement D_i of the last round; ``has_history`` as in `Drift`."""

    u: Tensor
    has_history: Tensor


def reach(manifold: Manifold) -> float:
    """P_M is single valued at smaller distances; infinite where nothing is checked.

    Raises:
        ValueError: for a manifold that is not a submanifold with the ambient metric.
    """
    if manifold.reach is None:
        raise ValueError(
            "Expected a submanifold with the metric of its ambient space (Stiefel with "
            "metric='euclidean', Grassmann, sphere, oblique, rotations, fixed rank, flat), got "
            f"{manifold!r}; use training.kind = 'rsgd' there"
        )
    return manifold.reach


class Projecting(GradientSteps):
    """What both forms share: local steps, the mean's projection, and the tube it must stay in."""

    server_step_size: float = Field(default=1.0, gt=0)
    """eta_g, of the server's step; line 17 undoes it at the clients."""
    tube_radius: float | None = Field(default=None, gt=0)
    """Largest |x - P_M(x)|; None: the reach of the manifold, beyond which P_M is not unique (the
    theory asks for half of it, Assumption 2.3)."""

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

    @property
    def client_work(self) -> Work:
        """Tau gradients and projections (table of spec 001, section 5)."""
        return Work(gradients=self.local_steps, projections=self.local_steps)

    # -- the server --------------------------------------------------------------------------
    @property
    def space(self) -> Space:
        """Uploads are ambient vectors."""
        return "ambient"

    @property
    def weights(self) -> Literal["uniform"]:
        """1/n, as in the paper."""
        return "uniform"

    @property
    def server_work(self) -> Work:
        """One projection."""
        return Work(projections=1)

    def base(self, state: ServerState, manifold: Manifold) -> Tensor:
        """P_M(x^r), ambient."""
        return state["anchor"]

    def model(self, state: ServerState, manifold: Manifold) -> Tensor:
        """P_M(x^r) as a point of the manifold."""
        return manifold.from_ambient(state["anchor"])

    def output(self, state: ServerState, manifold: Manifold) -> Tensor:
        """P_M(x^{R+1})."""  # line 19
        return self.model(state, manifold)

    def moved(
        self, state: ServerState, mean: Tensor, server_round: int, manifold: Manifold
    ) -> ServerState:
        """The state with the next x and its projection.

        Raises:
            RoundFailed: when x has left the tube in which its projection is unique.
        """
        x = projection_mean(state["anchor"], mean, self.server_step_size)  # line 13
        bound = reach(manifold) if self.tube_radius is None else self.tube_radius
        if not bool(torch.isfinite(x).all()):
            raise RoundFailed(
                f"Round {server_round}: expected a finite step, got nan or inf in x",
                is_computed=True,
            )
        anchor = manifold.ambient(manifold.nearest(x))
        distance = float(torch.linalg.vector_norm(x - anchor))
        if not distance < bound:
            raise RoundFailed(
                f"Round {server_round}: expected |x - P(x)| < {bound:g} (training.tube_radius or "
                f"the reach of {manifold.name}), got {distance:.4g}: the projection need not be "
                "unique there; lower training.step_size, local_steps or training.server_step_size",
                is_computed=True,
            )
        return state.replace(x=x, anchor=anchor)


class Projected(Projecting):
    """Algorithm 1; everybody takes part in every round."""

    kind: Literal["projected"] = "projected"
    upload: Literal["corrected", "plain"] = "corrected"
    """"corrected": z-hat minus P(x), line 11. "plain": -eta tau mean_t g_t, without the correction.

    Both have one mean while the corrections sum to zero. When the server clips or noises its mean
    they do not, and corrected uploads carry the noise of each round into all later ones (the mean
    correction becomes a random walk); plain uploads forget it after one round.
    """

    @property
    def phases(self) -> tuple[Phase, ...]:
        """One exchange."""
        return (Phase("train", Point, Displacement, ("point-nearby",)),)

    def initial_memory(self, x: Tensor) -> Memory | None:
        """c_i^1 = 0."""
        return Drift(torch.zeros_like(x), torch.zeros_like(x), torch.zeros_like(x[..., :1]))

    def correction(self, x: Tensor, memory: Drift) -> Tensor:
        """c_i^r from the broadcast x^r and the last round, ambient, shape ``(..., *ambient)``."""
        total = self.server_step_size * self.step_size * self.local_steps
        rebuilt = (memory.anchor - x) / total - memory.mean_gradient  # line 17
        return memory.has_history * rebuilt

    def update(
        self,
        phase: str,
        down: Payload,
        memory: Memory | None,
        oracle: Oracle,
        manifold: Manifold,
        draws: Draws,
    ) -> tuple[Payload, Memory | None]:
        """Lines 3-11, after line 17 of the round before."""
        assert isinstance(down, Point)
        assert isinstance(memory, Drift)
        c = self.correction(down.x, memory)
        anchor, end, mean = self.local(down.x, c, oracle, manifold)
        u = end - anchor  # line 11
        if self.upload == "plain":
            u = -self.step_size * self.local_steps * mean
        return Displacement(u), Drift(anchor, mean, torch.ones_like(memory.has_history))

    @property
    def needs_everyone(self) -> bool:
        """Sum c_i = 0 holds only when all clients reply (section 6 of the paper)."""
        return True

    def initial(self, x: Tensor) -> ServerState:
        """x^1 on the manifold, in ambient form."""
        return ServerState({"x": x, "anchor": x})

    def down(self, state: ServerState, phase: str) -> Payload:
        """x^r, unprojected: line 17 needs it as it is."""
        return Point(state["x"])  # line 14

    def step(
        self,
        state: ServerState,
        phase: str,
        collected: Collected,
        server_round: int,
        manifold: Manifold,
    ) -> ServerState:
        """Line 13."""
        return self.moved(state, collected.mean["u"], server_round, manifold)


class ProjectedPartial(Projecting):
    """Algorithm 1 for cohorts, by control variates that the server keeps of every client."""

    kind: Literal["projected-partial"] = "projected-partial"

    @property
    def phases(self) -> tuple[Phase, ...]:
        """One exchange, two matrices down."""
        places = ("point-nearby", "ambient")
        return (Phase("train", PointAndDisplacement, Displacement, places),)

    def initial_memory(self, x: Tensor) -> Memory | None:
        """No displacement yet."""
        return LastDisplacement(torch.zeros_like(x), torch.zeros_like(x[..., :1]))

    def correction(self, mean_displacement: Tensor, memory: LastDisplacement) -> Tensor:
        """c_i, ambient; 0 without history."""
        undone = -self.step_size * self.local_steps
        return memory.has_history * (mean_displacement - memory.u) / undone

    def update(
        self,
        phase: str,
        down: Payload,
        memory: Memory | None,
        oracle: Oracle,
        manifold: Manifold,
        draws: Draws,
    ) -> tuple[Payload, Memory | None]:
        """Corrected steps; what goes up is uncorrected, so the control variates cannot drift."""
        assert isinstance(down, PointAndDisplacement)
        assert isinstance(memory, LastDisplacement)
        c = self.correction(down.u, memory)
        _, _, mean = self.local(down.x, c, oracle, manifold)
        u = -self.step_size * self.local_steps * mean
        return Displacement(u), LastDisplacement(u, torch.ones_like(memory.has_history))

    @property
    def needs_everyone(self) -> bool:
        """Any cohort will do."""
        return False

    def initial(self, x: Tensor) -> ServerState:
        """Nothing is known of anybody; the control variates get their rows in the first step."""
        unknown = {"displacements": x.new_zeros(0, *x.shape), "is_known": x.new_zeros(0)}
        mean = torch.zeros_like(x)
        return ServerState({"x": x, "anchor": x, "mean_displacement": mean, **unknown})

    def down(self, state: ServerState, phase: str) -> Payload:
        """x^r and the mean D of the known displacements."""
        return PointAndDisplacement(state["x"], state["mean_displacement"])

    def step(
        self,
        state: ServerState,
        phase: str,
        collected: Collected,
        server_round: int,
        manifold: Manifold,
    ) -> ServerState:
        """Line 13 with the corrections from the control variates, then the control variates."""
        rows = torch.tensor(collected.partitions, device=state["x"].device)
        displacements, is_known = _control_variates(state, collected.num_clients)
        assert collected.uploads is not None  # never under client-level privacy
        u = collected.uploads.tensors()["u"]
        before = corrections(state["mean_displacement"], displacements[rows], is_known[rows])
        moved = self.moved(state, (u + before).mean(0), server_round, manifold)
        displacements, is_known = displacements.clone(), is_known.clone()
        displacements[rows], is_known[rows] = u, torch.ones_like(is_known[rows])
        return moved.replace(
            displacements=displacements,
            is_known=is_known,
            mean_displacement=displacements.sum(0) / is_known.sum(),
        )


def projection_mean(anchor: Tensor, mean: Tensor, server_step_size: float) -> Tensor:
    """The broadcast x^{r+1} = P_M(x^r) + eta_g mean_i u_i, ambient, shape ``(*ambient)``."""
    return anchor + server_step_size * mean  # line 13


def corrections(mean_displacement: Tensor, displacements: Tensor, is_known: Tensor) -> Tensor:
    """-eta tau c_i of the clients of ``displacements`` (c, *ambient): mean D - D_i, 0: unknown."""
    known = is_known.reshape(-1, *[1] * mean_displacement.dim())
    return known * (mean_displacement - displacements)


def _control_variates(state: ServerState, num_clients: int) -> tuple[Tensor, Tensor]:
    """The displacements (n, *ambient) and flags (n,), zero before the first round."""
    if state["is_known"].shape[0] == num_clients:
        return state["displacements"], state["is_known"]
    x = state["x"]
    return x.new_zeros(num_clients, *x.shape), x.new_zeros(num_clients)
