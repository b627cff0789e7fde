"""The best linear attack on masks that cancel on a graph, through the code that the nodes run.

Nodes send messages as `federation.client.run_update` makes them. An eavesdropper (adversary I, a
star's server) sees every message y_i = g_i + sum_j v_ij + own noise; colluding nodes (II, III) know
the masks of the pairs they are in and take them off. Of the rest the covariance is S = sigma_cdp^2
I + sigma_cor^2 L, L of the graph without them. Two datasets that differ at node i move y_i by 2 C,
so the best test is e_i^T S^-1 y: it separates by d' = 2 C sqrt([S^-1]_ii), which is what the
accountant charges (spec 004, H8).

Source: Allouah et al. (DECOR), the proofs of Theorems 1 and 6.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from manifed.algorithms.algorithm import Memory
from manifed.algorithms.decor import Decor
from manifed.algorithms.payloads import Point
from manifed.audit.bound import Attack
from manifed.federation.client import ClientSetup, Seat, run_update
from manifed.graphs.graph import Graph
from manifed.graphs.specs import EdgeList, GraphSource
from manifed.oracles.minibatch import Full
from manifed.privacy.masks import seeded_pairs
from manifed.privacy.mechanism import Noise
from manifed.privacy.noise import EdgeStream, NoiseSource
from manifed.privacy.secldp import (
    MOST_EXACT,
    Correlated,
    Hidden,
    MaskedMechanism,
    Rounds,
    Worst,
    against,
)
from manifed.problems.examples import Examples
from manifed.problems.linear import LeastSquares

_LONG, _TILT = 1e6, 1e-3
"""A canary (s, s t) at (0, 1) has a gradient of length s^2 t = 1e9, clipped to nearly e_1."""


class Nodes:
    """The nodes of one run on several copies of a graph: least squares on R^2, one record each.

    The victim of each copy holds the canary, whose gradient is along the first coordinate up to
    1e-3; the other dataset is its mirror image, and all others hold zeros. Copies share nothing.
    """

    def __init__(
        self, training: Decor, mechanism: MaskedMechanism, victims: Sequence[int],
        source: NoiseSource, memory: Memory | None = None,
    ) -> None:  # fmt: skip
        """``memory`` is what the nodes of a stateful algorithm hold before round 1."""
        self.training, self.memory = training, memory
        self._victims, self._source = list(victims), source
        self._setup = ClientSetup(LeastSquares(), training, mechanism)

    def messages(self, server_round: int, *, is_present: bool) -> Tensor:
        """(x_i^(t) - x_i^(t+1/2)) / eta of every node along the canary, shape (n,)."""
        n = self._graph.num_nodes
        rows, target = torch.zeros(n, 1, 2), torch.zeros(n, 1)
        tilt = _TILT if is_present else -_TILT
        rows[self._victims, 0] = _LONG * torch.tensor([1.0, tilt])
        held = Examples({"feature": rows, "target": target}, {"feature": 1, "target": 0})
        down = torch.tensor([0.0, 1.0], dtype=torch.float64).expand(n, 2)
        seat = Seat(tuple(range(n)), server_round, 0, "mix")
        done = run_update(
            self._setup, seat, Point(down), self.memory, held.to(torch.float64), [1] * n,
            self._source,
        )  # fmt: skip
        self.memory = done.memory
        assert isinstance(done.up, Point)
        return (down - done.up.x)[:, 0] / self.training.step_size_in(server_round)

    def shared(self, nodes: Sequence[int], server_round: int, step: int = 0) -> Tensor:
        """Each node's masks of pairs with one of ``nodes``, of unit deviation, shape (n,)."""
        edges = tuple(e for e in self._graph.edges if e[0] in nodes or e[1] in nodes)
        known = torch.zeros(self._graph.num_nodes, dtype=torch.float64)
        if not edges:
            return known
        drawn = seeded_pairs(self._source).normals(
            (2,), stream=EdgeStream.PAIR_NOISE, edge=edges, server_round=server_round, step=step
        )[:, 0]
        first, second = torch.tensor(edges).T
        return known.index_add(0, first, drawn).index_add(0, second, drawn, alpha=-1)

    @property
    def _graph(self) -> Graph:
        return self.training.secret_graph


@dataclass(frozen=True)
class MaskedAttack(Attack):
    """One coalition against its worst victim; a trial is some rounds of one copy of the graph."""

    graph: GraphSource
    num_nodes: int
    noise: Correlated
    """What is charged."""
    source: NoiseSource
    coalition: tuple[int, ...] = ()
    num_rounds: int = 1
    copies: int = 25
    clip: float = 1.0
    """The bound of the norm of a node's gradient."""

    algorithm: ClassVar[type[Decor]] = Decor

    @property
    def drawn(self) -> Correlated:
        """The noise that the nodes really draw."""
        return self.noise

    @cached_property
    def worst(self) -> Worst:
        """The victim, and the accountant's precision of the noise on its messages."""
        return against(self._graph, self.noise, self.coalition)

    def claim(self, delta: float) -> float:
        """Epsilon of a trial's rounds against this coalition."""
        return Rounds(self.num_rounds, 2 * self.clip).epsilon(self.worst, delta)

    @property
    def at_once(self) -> int:
        """Every copy of the graph is a trial."""
        return self.copies

    def run(self, trials: tuple[int, ...], *, is_present: bool) -> Tensor:
        """One score a trial; no two share a round and a copy."""
        first = 1 + trials[0] * self.num_rounds
        return self.score_of(first, is_present=is_present)[: len(trials)]

    def score_of(self, first: int, *, is_present: bool) -> Tensor:
        """The best linear test summed over the rounds from ``first`` on, (copies,)."""
        rounds = range(first, first + self.num_rounds)
        seen = [self.seen(r, is_present=is_present) @ self.filter for r in rounds]
        return torch.stack(seen).sum(0)

    def seen(self, server_round: int, *, is_present: bool) -> Tensor:
        """The honest nodes' messages, less the masks that the coalition knows, (copies, honest)."""
        colluding = [c * self.num_nodes + j for c in range(self.copies) for j in self.coalition]
        left = self.nodes.messages(server_round, is_present=is_present)
        left = left - self.noise.sigma_cor * self.nodes.shared(colluding, server_round)
        return left.reshape(self.copies, -1)[:, self.honest]

    @cached_property
    def nodes(self) -> Nodes:
        """The nodes under attack."""
        n, edges = self.num_nodes, self._graph.edges
        copied = tuple((c * n + i, c * n + j) for c in range(self.copies) for i, j in edges)
        training = self.algorithm(
            graph=EdgeList(edges=copied), num_nodes=n * self.copies, step_size=1.0, minibatch=Full()
        )
        mechanism = MaskedMechanism(
            l2_norm_clip=self.clip,
            neighboring_relation="replace-one",
            noise=Noise(value=self.drawn.sigma_cdp),
            mask_stddev=self.drawn.sigma_cor,
            hidden=Hidden.of(self._graph, self.drawn, len(self.coalition), self.coalition),
        )
        return Nodes(
            training, mechanism, [c * n + self.victim for c in range(self.copies)], self.source
        )

    @property
    def victim(self) -> int:
        """The node whose messages the noise hides least."""
        assert self.worst.node is not None, f"more than {MOST_EXACT} nodes"
        return self.worst.node

    @cached_property
    def honest(self) -> list[int]:
        """Who is not in the coalition."""
        return [i for i in range(self.num_nodes) if i not in self.coalition]

    @cached_property
    def filter(self) -> Tensor:
        """S^-1 e_victim over the honest nodes."""
        rest = self._graph.without(self.coalition)
        covariance = self.noise.sigma_cdp**2 * np.eye(rest.num_nodes)
        covariance += self.noise.sigma_cor**2 * rest.laplacian
        unit = np.eye(rest.num_nodes)[self.honest.index(self.victim)]
        return torch.tensor(np.linalg.solve(covariance, unit))

    @cached_property
    def _graph(self) -> Graph:
        return self.graph.build(self.num_nodes)
