"""The masked mean: one model, and masks on any graph that vanish in the sum of all messages.

The central special case of DECOR (Allouah et al. 2024; W = 11^T / n, for which Lemma 8 needs no
edge of the graph), here on a manifold. Round t, at the broadcast point x:

    u_i = clip(grad f_i(x)) + N_x(0, noise_stddev^2) + mask_stddev sum_j v_ij,    v_ij = -v_ji,
    x' = Exp_x(-eta_t (1/n) sum_i u_i).

All masks are tangent at the one point x, images of the same coordinates under one isometry
R^dim -> T_xM, so that they cancel there to rounding; each node is priced as in
`manifed.privacy.secldp`, because an isometry keeps the law of the coordinates.

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
from typing import Any, Literal

import torch
from torch import Tensor

from manifed.algorithms.algorithm import Here, MappedSteps, Phase, There
from manifed.algorithms.pair_masks import SETUP, Masking
from manifed.algorithms.payloads import Displacement, Down, Payload, Point, State
from manifed.errors import RoundFailed
from manifed.fields import WholeNumber
from manifed.oracles.noisy_oracle import Oracle


class TooManySilent(RuntimeError):
    """Error: the server asks for masks with itself or with more nodes than this one allows."""


@dataclass(frozen=True)
class _Silent(Payload):
    """Down: 1 for every node that sent no message, behind the point of the round."""

    x: Tensor
    dropped: Tensor

    of_bytes = (("dropped", ()),)


class MaskedMean(Masking, MappedSteps):
    """Each node sends one masked gradient per round. Masks cancel in the sum."""

    kind: Literal["masked-mean"] = "masked-mean"
    mean_weights = "uniform"
    """Masks cancel in the plain sum."""
    max_dropped: WholeNumber | None = None
    """Most silent nodes per round whose masks are revealed. None: a third of the nodes."""

    @property
    def most_dropped(self) -> int:
        """The largest number of silent nodes whose masks a node reveals."""
        most = self.secret_graph.num_nodes // 3
        return most if self.max_dropped is None else self.max_dropped

    # -- the client --------------------------------------------------------------------------
    @property
    def phases(self) -> tuple[Phase, ...]:
        """The exchanges: masked gradients up; after a dropout, masks with silent nodes up."""
        down = _Silent.sized(self.secret_graph.num_nodes)
        return (
            Phase("send", Point, Displacement, uploads=("tangent",), aggregation="none"),
            Phase(
                "reveal", down, Displacement, ("point", "any"), ("tangent",), "none", needs_all=True
            ),
        )

    def client(self, x: Tensor, oracle: Oracle, here: Here) -> Any:
        """Returns the masked gradient u_i, or the masks that are to be taken off the sum.

        Raises:
            TooManySilent: asked for masks with more than ``max_dropped`` nodes, nobody, or itself.
        """
        if here.exchange in SETUP:
            return self.set_up(here)
        dropped = None
        if isinstance(here.came, _Silent):
            said = here.came.dropped
            at = here.draws.partition
            dropped = frozenset((said if said.dim() == 1 else said[0]).nonzero()[:, 0].tolist())
            me = {at} if isinstance(at, int) else set(at)
            if not 0 < len(dropped) <= self.most_dropped or me & dropped:
                raise TooManySilent(
                    f"Expected 1 to training.max_dropped = {self.most_dropped} silent nodes other "
                    f"than this one, got {sorted(dropped)[:10]}; no mask was revealed"
                )
        shape = here.manifold.coords_of(x)
        masks, after = self.masked_now(shape, here.memory, here.draws, dropped)
        if dropped is not None:
            return oracle.masking(x, masks).to(x.dtype), after
        return oracle.gradient(x, masks=masks), after

    # -- the server --------------------------------------------------------------------------
    @property
    def about_keys(self) -> str:
        """The statement's sentences on keys, and on who is trusted when masks are revealed."""
        trusted = (
            "; the server is trusted to say truly who is silent: one that lies learns as much of a "
            "node as everybody else together"
        )
        return super().about_keys + (trusted if self.most_dropped > 0 else "")

    def down(self, state: State, phase: str) -> Down:
        """Returns the point; before round 1 keys; after a dropout the list of silent nodes."""
        if phase == "reveal":
            return _Silent.sized(self.secret_graph.num_nodes)(state["x"], state["dropped"])
        return super().down(state, phase)

    def is_due(self, state: State, phase: str) -> bool:
        """Whether the exchange takes place; masks are revealed only after a dropout."""
        return phase != "reveal" or "dropped" in state

    def refused(
        self, state: State, phase: str, uploads: Payload, partitions: tuple[int, ...]
    ) -> Mapping[int, str]:
        """Refuses as `Masking.refused` does, and nodes that reveal masks which they do not have."""
        if phase != "reveal":
            return super().refused(state, phase, uploads, partitions)
        assert isinstance(uploads, Displacement)
        dropped = set(self.disclosed(state, phase))
        near = self.secret_graph.neighbors
        return {
            i: "Expected zeros of a node that has no mask with a silent node, got other numbers"
            for i, u in zip(partitions, uploads.u, strict=True)
            if not dropped & set(near[i]) and bool(u.any())
        }

    def disclosed(self, state: State, phase: str) -> tuple[int, ...]:
        """Lists the nodes whose masks the exchange discloses, which is charged before it."""
        if phase != "reveal" or "dropped" not in state:
            return ()
        return tuple(state["dropped"].nonzero()[:, 0].tolist())

    def server(self, state: State, mean: Tensor, here: There) -> State:
        """Returns the next model x', or the partial sum while masks of silent nodes are in it."""
        if here.exchange in SETUP:
            return super().server(state, mean, here)
        x = state["x"]
        seen = here.collected
        total = here.collected.rows.sum(0)
        dropped = torch.ones(seen.num_clients, dtype=torch.uint8)
        dropped[list(seen.partitions)] = 0
        if here.exchange == "reveal":
            total = state["total"] - total  # the sum of the survivors, without dangling masks
        elif int(dropped.sum()) > self.most_dropped:
            raise RoundFailed(
                f"Round {here.round}: expected at most training.max_dropped = "
                f"{self.most_dropped} silent nodes, got {int(dropped.sum())}; no mask was revealed"
            )
        elif bool(dropped.any()):
            return {"x": x, "total": total, "dropped": dropped}
        u = here.manifold.proju(x, total / len(seen.partitions))
        eta = self.step_size_in(here.round)
        return {"x": here.manifold.maps(self.maps).forward(x, -eta * u)}
