r"""The projection of the mean: the server half of Algorithm 1.

Zhang, Hu, So, Johansson: Nonconvex Federated Learning on Compact Smooth Submanifolds With
Heterogeneous Data (2024). Client half: manifed/algorithms/projected.py.

Symbols: x^r state["x"], ambient and unprojected from round 2 on; P_M(x^r) state["anchor"] and the
model; eta_g server_step_size; z-hat_i - P_M(x^r) Displacement.u; weights are 1/n.
Invariant: state["anchor"] = P_M(state["x"]) is on the manifold, state["x"] within the tube.

Beyond the paper, ``ProjectionMeanPartial`` serves cohorts: state["displacements"] (n, *ambient) are
the last uncorrected displacements D_i, state["is_known"] (n, 1, ...) says which exist. With
mean D over the known, the corrections -eta tau c_i = mean D - D_i (0 if unknown) sum to zero over
all clients, whoever takes part; with everybody in every round it is Algorithm 1.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from manifed.algorithms.interface import Collected, ServerState, Space
from manifed.algorithms.payloads import Payload, Point, PointAndDisplacement
from manifed.errors import RoundFailed
from manifed.manifolds.ambient import ambient_point, nearest, point_of, reach
from manifed.manifolds.base import Manifold
from manifed.privacy.events import Frozen


def projection_mean(anchor: Tensor, mean: Tensor, server_step_size: float) -> Tensor:
    """The broadcast x^{r+1} = P_M(x^r) + eta_g mean_i u_i, ambient, shape ``(*ambient)``."""
    return anchor + server_step_size * mean  # line 13


class _Projecting(Frozen):
    """What both server halves share: the step, and the tube it must stay in."""

    server_step_size: float = Field(default=1.0, gt=0)
    weights: Literal["uniform"] = "uniform"
    tube_radius: float | None = Field(default=None, gt=0)
    """Largest |x - P_M(x)|; None: the reach of the manifold, beyond which P_M is not unique (the
    theory asks for half of it, Assumption 2.3)."""

    @property
    def space(self) -> Space:
        """Uploads are ambient vectors."""
        return "ambient"

    def base(self, state: ServerState, manifold: Manifold) -> Tensor:
        """P_M(x^r), ambient."""
        return state["anchor"]

    def model(self, state: ServerState, manifold: Manifold) -> Tensor:
        """P_M(x^r) as a point of the manifold."""
        return point_of(manifold, state["anchor"])

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
            raise RoundFailed(f"Round {server_round}: expected a finite step, got nan or inf in x")
        anchor = ambient_point(manifold, nearest(manifold, x))
        distance = float(torch.linalg.vector_norm(x - anchor))
        if not distance < bound:
            raise RoundFailed(
                f"Round {server_round}: expected |x - P(x)| < {bound:g} (strategy.tube_radius or "
                f"the reach of {manifold.name}), got {distance:.4g}: the projection need not be "
                "unique there; lower training.step_size, local_steps or strategy.server_step_size"
            )
        return state.replace(x=x, anchor=anchor)


class ProjectionMean(_Projecting):
    """Algorithm 1; everybody takes part in every round."""

    kind: Literal["projection-mean"] = "projection-mean"

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


class ProjectionMeanPartial(_Projecting):
    """Algorithm 1 for cohorts, with the server's books of every client's last displacement."""

    kind: Literal["projection-mean-partial"] = "projection-mean-partial"

    @property
    def needs_everyone(self) -> bool:
        """Any cohort will do."""
        return False

    def initial(self, x: Tensor) -> ServerState:
        """Nothing is known of anybody; the books are opened in the first step."""
        books = {"displacements": x.new_zeros(0, *x.shape), "is_known": x.new_zeros(0)}
        return ServerState({"x": x, "anchor": x, "mean_displacement": torch.zeros_like(x), **books})

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
        """Line 13 with the corrections from the books, then the books."""
        rows = torch.tensor(collected.partitions, device=state["x"].device)
        books, is_known = _opened(state, collected.num_clients)
        u = collected.uploads.tensors()["u"]
        before = corrections(state["mean_displacement"], books[rows], is_known[rows])
        moved = self.moved(state, (u + before).mean(0), server_round, manifold)
        books, is_known = books.clone(), is_known.clone()
        books[rows], is_known[rows] = u, torch.ones_like(is_known[rows])
        return moved.replace(
            displacements=books,
            is_known=is_known,
            mean_displacement=books.sum(0) / is_known.sum(),
        )


def corrections(mean_displacement: Tensor, books: Tensor, is_known: Tensor) -> Tensor:
    """-eta tau c_i of the clients in ``books`` (..., *ambient): mean D - D_i, 0 if unknown."""
    known = is_known.reshape(-1, *[1] * mean_displacement.dim())
    return known * (mean_displacement - books)


def _opened(state: ServerState, num_clients: int) -> tuple[Tensor, Tensor]:
    """The books (n, *ambient) and flags (n,), zero before the first round."""
    if state["is_known"].shape[0] == num_clients:
        return state["displacements"], state["is_known"]
    x = state["x"]
    return x.new_zeros(num_clients, *x.shape), x.new_zeros(num_clients)
