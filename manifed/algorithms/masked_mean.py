"""The masked mean: one model, and masks on any graph that vanish in the sum of all messages.

The central special case of DECOR (Allouah et al. 2024; W = 11^T / n, for which Lemma 8 needs no
edge of the graph), here on a manifold. Round t, at the broadcast point x:

    u_i = clip(grad f_i(x)) + N_x(0, noise_stddev^2) + mask_stddev sum_j v_ij,    v_ij = -v_ji,
    x' = Exp_x(-eta_t (1/n) sum_i u_i).

All masks are tangent at the one point x, images of the same coordinates under one isometry
R^dim -> T_xM, so that they cancel there to rounding; each node is priced as in
`manifed.privacy.masked`, because an isometry keeps the law of the coordinates.

**Dropouts** (not in the paper). If nodes D are silent after masks were fixed, the sum of the others
keeps their masks with D. A second exchange, "reveal", asks every survivor for the sum of its masks
with D, and the server takes it off. What that discloses is charged before it is asked: the masks of
D hide nobody any more, so survivors are priced on the graph without D, and a node of D, whose late
message nobody needs, by its own noise alone. A survivor reveals once a round and attempt, never
its masks with one that it is not told is silent, and at most with ``max_dropped`` nodes. The server
is trusted to say truly who is silent (honest but curious).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from manifed.algorithms.interface import Collected, Memory, Phase, ServerState, Work
from manifed.algorithms.key_offers import OfferedKey
from manifed.algorithms.pair_masks import SETUP, Masking
from manifed.algorithms.payloads import Displacement, Down, Layout, Payload, PerClient, Point
from manifed.algorithms.tangent_mean import AtPoint
from manifed.errors import RoundFailed
from manifed.manifolds.base import Manifold, MapChoice
from manifed.oracles.oracle import Draws, Oracle

REVEAL = "reveal"


class TooManySilent(RuntimeError):
    """A question for masks with more nodes than this one agreed to, or with itself."""


@dataclass(frozen=True)
class Silent(Payload):
    """Down: 1 for every node that sent no message, behind the point of the round."""

    num_nodes: ClassVar[int] = 0
    x: Tensor
    dropped: Tensor

    @classmethod
    def layout(cls, shape: tuple[int, ...], dtype: torch.dtype) -> dict[str, Layout]:
        """A byte a node."""
        return {"x": (shape, dtype), "dropped": ((cls.num_nodes,), torch.uint8)}


@cache
def silent(num_nodes: int) -> type[Silent]:
    """The payload for so many nodes."""
    return type(f"Silent{num_nodes}", (Silent,), {"num_nodes": num_nodes})


class MaskedMean(Masking, AtPoint):
    """One masked gradient a node and round, and their mean."""

    kind: Literal["masked-mean"] = "masked-mean"
    maps: MapChoice = "exact"
    """Exponential map and logarithm, or the retraction and its inverse."""
    max_dropped: int | None = Field(default=None, ge=0)
    """With how many nodes at once masks are revealed; None: a third of them."""

    @model_validator(mode="after")
    def _takes_one_step(self) -> "MaskedMean":
        if self.local_steps != 1:
            raise ValueError(
                f"training.local_steps: expected 1 with 'masked-mean', whose one gradient a round "
                f"is masked, got {self.local_steps}"
            )
        return self

    @property
    def most_dropped(self) -> int:
        """The bound in force."""
        most = self.secret_graph.num_nodes // 3
        return most if self.max_dropped is None else self.max_dropped

    # -- the client --------------------------------------------------------------------------
    @property
    def phases(self) -> tuple[Phase, ...]:
        """A masked gradient up; where somebody was silent, the masks with them."""
        down = silent(self.secret_graph.num_nodes)
        return (
            Phase("send", Point, Displacement, uploads=("tangent",), aggregation="none"),
            Phase(
                REVEAL, down, Displacement, ("point", "any"), ("tangent",), "none", needs_all=True
            ),
        )

    @property
    def client_work(self) -> Work:
        """One gradient."""
        return Work(gradients=1)

    def update(
        self,
        phase: str,
        down: Payload,
        memory: Memory | None,
        oracle: Oracle,
        manifold: Manifold,
        draws: Draws,
    ) -> tuple[Payload, Memory | None]:
        """u_i, or what is to be taken off the sum."""
        if phase in SETUP:
            return self.set_up(phase, down, memory, draws)
        assert isinstance(down, Point | Silent)
        x = down.x.detach()
        shape = manifold.coords_shape(tuple(x.shape[x.dim() - manifold.ndim :]))
        if isinstance(down, Silent):
            masks, after = self.masked_now(shape, memory, draws, self._silent(down, draws))
            return Displacement(oracle.masking(x, masks)), after
        masks, after = self.masked_now(shape, memory, draws)
        return Displacement(oracle.gradient(x, masks=masks)), after

    def _silent(self, down: Silent, draws: Draws) -> frozenset[int]:
        """Who is said to be silent, if this node may reveal its masks with them.

        Raises:
            TooManySilent: more than ``max_dropped``, nobody, or this node itself.
        """
        said = down.dropped if down.dropped.dim() == 1 else down.dropped[0]
        dropped = frozenset(said.nonzero()[:, 0].tolist())
        me = {draws.partition} if isinstance(draws.partition, int) else set(draws.partition)
        if not 0 < len(dropped) <= self.most_dropped or me & dropped:
            raise TooManySilent(
                f"Expected 1 to training.max_dropped = {self.most_dropped} silent nodes other than "
                f"this one, got {sorted(dropped)[:10]}; no mask was revealed"
            )
        return dropped

    # -- the server --------------------------------------------------------------------------
    @property
    def weights(self) -> Literal["uniform"]:
        """1/n: masks cancel in the plain sum."""
        return "uniform"

    @property
    def needs_everyone(self) -> bool:
        """Silent nodes are made up for, as far as the reply policy and ``max_dropped`` allow."""
        return False

    @property
    def server_work(self) -> Work:
        """One move."""
        return Work.of_moves(self.maps, 1, 0)

    def down(self, state: ServerState, phase: str) -> Down:
        """The point; before round 1 keys; after a dropout who is silent."""
        x = state["x"]
        if phase == "agree":
            spread = x.expand(len(state["public"]), *x.shape)
            return PerClient(self.keys_of_neighbours(spread, state["public"], state["signature"]))
        if phase == REVEAL:
            return silent(self.secret_graph.num_nodes)(x, state["dropped"])
        return Point(x)

    def is_due(self, state: ServerState, phase: str) -> bool:
        """Whether an exchange takes place: masks are revealed only where somebody was silent."""
        return phase != REVEAL or "dropped" in state.tensors

    def refused(
        self, state: ServerState, phase: str, uploads: Payload, partitions: tuple[int, ...]
    ) -> Mapping[int, str]:
        """As `Masking.refused`; also who reveals masks though it has none with a silent node."""
        if phase != REVEAL:
            return super().refused(state, phase, uploads, partitions)
        assert isinstance(uploads, Displacement)
        dropped, near = set(self.disclosed(state, phase)), self.secret_graph.neighbors
        return {
            i: "Expected zeros of a node that has no mask with a silent node, got other numbers"
            for i, u in zip(partitions, uploads.u, strict=True)
            if not dropped & set(near[i]) and bool(u.any())
        }

    def disclosed(self, state: ServerState, phase: str) -> tuple[int, ...]:
        """Whose masks an exchange discloses, which is charged before it."""
        if phase != REVEAL or "dropped" not in state.tensors:
            return ()
        return tuple(state["dropped"].nonzero()[:, 0].tolist())

    def step(
        self,
        state: ServerState,
        phase: str,
        collected: Collected,
        server_round: int,
        manifold: Manifold,
    ) -> ServerState:
        """x', or the sum so far while masks of silent nodes are in it."""
        if phase == "offer":
            assert isinstance(collected.uploads, OfferedKey)
            return state.replace(**collected.uploads.tensors())
        if phase == "agree":
            return ServerState({"x": state["x"]})
        assert isinstance(collected.uploads, Displacement)
        total = collected.uploads.u.sum(0)
        if phase == REVEAL:
            whole = state["total"] - total  # the sum of the survivors, without dangling masks
            return self._moved(state["x"], whole, len(collected.partitions), server_round, manifold)
        if len(collected.partitions) == collected.num_clients:
            return self._moved(state["x"], total, collected.num_clients, server_round, manifold)
        dropped = torch.ones(collected.num_clients, dtype=torch.uint8)
        dropped[list(collected.partitions)] = 0
        if int(dropped.sum()) > self.most_dropped:
            raise RoundFailed(
                f"Round {server_round}: expected at most training.max_dropped = "
                f"{self.most_dropped} silent nodes, got {int(dropped.sum())}; no mask was revealed"
            )
        return state.replace(total=total, dropped=dropped)

    def _moved(
        self, x: Tensor, total: Tensor, count: int, server_round: int, manifold: Manifold
    ) -> ServerState:
        u = manifold.proju(x, total / count)
        eta = self.step_size_in(server_round)
        return ServerState({"x": manifold.maps(self.maps).forward(x, -eta * u)})
