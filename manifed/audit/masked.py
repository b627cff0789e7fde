"""The best linear attack on masks that cancel on a graph, through the code that the nodes run.

Nodes agree on their pair keys and send messages as `federation.client.run_update` makes them. An
eavesdropper (adversary I, a star's server) sees every message y_i = g_i + sum_j v_ij + own noise;
colluding nodes (II, III) hold the keys of the pairs they are in, draw those masks and take them
off. Of the rest the covariance is S = sigma_cdp^2 I + sigma_cor^2 L, L of the graph without them.
Two datasets that differ at node i move y_i by 2 C, so the best test is e_i^T S^-1 y: it separates
by d' = 2 C sqrt([S^-1]_ii), which is what the accountant charges (spec 004, H8).

Source: Allouah et al. (DECOR), the proofs of Theorems 1 and 6.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from manifed.algorithms.decor import Decor
from manifed.algorithms.interface import Memory
from manifed.algorithms.pair_masks import PairKeys
from manifed.algorithms.payloads import Payload, Point
from manifed.audit.attack import Audited
from manifed.federation.client import ClientSetup, Seat, run_update
from manifed.graphs.graph import Graph
from manifed.graphs.specs import EdgeList, GraphSource, Ring, Torus
from manifed.oracles.minibatch import Full
from manifed.oracles.oracle import Draws
from manifed.privacy.audit import Scores
from manifed.privacy.masked import Hidden, MaskedMechanism
from manifed.privacy.masks import masks
from manifed.privacy.mechanism import AbsoluteNoise
from manifed.privacy.noise import NoiseSource
from manifed.privacy.secldp import MOST_EXACT, Correlated, Rounds, Worst, against
from manifed.problems.base import Examples
from manifed.problems.least_squares import LeastSquares
from manifed.problems.linear import with_squared_norms

CLIP = 1.0
_LONG, _TILT = 1e6, 1e-3
"""A canary (s, s t) at (0, 1) has a gradient of length s^2 t = 1e9, clipped to nearly e_1."""


class Nodes:
    """The nodes of one run on several copies of a graph: least squares on R^2, one record each.

    One node of each copy holds the canary, in the first coordinate alone up to 1e-3; the other
    dataset is its mirror image, and all others hold zeros. Copies share nothing.
    """

    def __init__(
        self, training: Decor, mechanism: MaskedMechanism, victims: Sequence[int],
        source: NoiseSource,
    ) -> None:  # fmt: skip
        """Agree on the keys of all pairs, as before round 1, where they do not come from a seed."""
        self.training, self.graph = training, training.secret_graph
        self._victims = list(victims)
        self._setup = ClientSetup(LeastSquares(), training, mechanism)
        self._source = source
        self._everybody = tuple(range(self.graph.num_nodes))
        self._shards = {is_present: self._examples(is_present) for is_present in (True, False)}
        self.relayed: tuple[Payload, ...] = ()
        """All that the server carries before round 1."""
        self.memory: Memory | None = None
        self._pairs: dict[tuple[int, int], NoiseSource] = {}
        if training.pair_keys == "exchanged":
            self._agree()

    def messages(self, server_round: int, *, is_present: bool, is_reversed: bool) -> Tensor:
        """(x_i^(t) - x_i^(t+1/2)) / eta of every node, which all can compute, shape (n, 2)."""
        x = torch.tensor([0.0, -1.0 if is_reversed else 1.0], dtype=torch.float64)
        down = x.expand(len(self._everybody), 2)
        up = self._ask("mix", Point(down), self._shards[is_present], server_round)
        assert isinstance(up, Point)
        return (down - up.x) / self.training.step_size_in(server_round)

    def known_to(self, node: int, other: int, server_round: int) -> Tensor:
        """v_{other, node} of unit deviation, from the key that ``node`` holds, shape (2,)."""
        held = {other: self._held_by(node, other)}
        return -masks(held, node, (2,), server_round=server_round)

    def _held_by(self, node: int, other: int) -> NoiseSource:
        """The stream of a pair, from the memory of one end."""
        if (node, other) not in self._pairs:
            assert isinstance(self.memory, PairKeys)
            place = self.graph.neighbors[node].index(other)
            key = bytes(self.memory.pairs[node, place].tolist())
            source = NoiseSource(key, self._source.is_release, precision=self._source.precision)
            self._pairs[node, other] = source
        return self._pairs[node, other]

    def _agree(self) -> None:
        x = torch.zeros(len(self._everybody), 2, dtype=torch.float64)
        offers = self._ask("offer", Point(x), self._shards[True], 0)
        state = self.training.initial(x[0]).replace(**offers.tensors())
        down = self.training.down(state, "agree").rows
        self._ask("agree", down, self._shards[True], 0)
        self.relayed = (offers, down)

    def _ask(self, phase: str, down: Payload, examples: Examples, server_round: int) -> Payload:
        seat = Seat(self._everybody, server_round, 0, phase)
        sizes = [1] * len(self._everybody)
        memory = self.memory or self._blank()
        done = run_update(self._setup, seat, down, memory, examples, sizes, self._source)
        self.memory = done.memory or self.memory
        return done.up

    def _blank(self) -> Memory | None:
        one = self.training.initial_memory(torch.zeros(2, dtype=torch.float64))
        if one is None:
            return None
        return type(one).stack([one] * len(self._everybody))

    def _examples(self, is_present: bool) -> Examples:
        rows = torch.zeros(len(self._everybody), 1, 2, dtype=torch.float64)
        tilt = _TILT if is_present else -_TILT
        rows[self._victims, 0] = _LONG * torch.tensor([1.0, tilt], dtype=torch.float64)
        target = torch.zeros(len(self._everybody), 1, dtype=torch.float64)
        made = Examples({"feature": rows, "target": target}, {"feature": 1, "target": 0})
        return with_squared_norms(made, "feature")


@dataclass(frozen=True)
class MaskedAttack:
    """One coalition against its worst victim; a trial is ``pattern`` rounds of one copy."""

    graph: GraphSource
    num_nodes: int
    noise: Correlated
    """What is charged."""
    source: NoiseSource
    coalition: tuple[int, ...] = ()
    pattern: tuple[bool, ...] = (False,)
    """Of the rounds of one trial: whether the victim's gradient is reversed in it."""
    look: Literal["best", "own", "difference"] = "best"
    """The best test where all is as charged; the victim's messages alone; the difference of its
    first two, for masks that are used twice."""
    algorithm: type[Decor] = Decor
    drawn: Correlated | None = None
    """The noise that is really drawn, where it is not the one that is charged (planted faults)."""
    copies: int = 25

    @cached_property
    def worst(self) -> Worst:
        """The victim, and the accountant's precision of the noise on its messages."""
        return against(self._graph, self.noise, self.coalition)

    def claim(self, delta: float) -> float:
        """Epsilon of a trial's rounds against this coalition."""
        return Rounds(len(self.pattern), 2 * CLIP).epsilon(self.worst, delta)

    @property
    def separation(self) -> float:
        """The d' of one trial that is charged."""
        return 2 * CLIP * (len(self.pattern) * self.worst.precision) ** 0.5

    def scores(self, trials: int, *, is_present: bool) -> Scores:
        """One score a trial; no two share a round and a copy."""
        length, turns = len(self.pattern), -(-trials // self.copies)
        first = 1 if is_present else 1 + turns * length
        rounds = range(first, first + turns * length, length)
        found = [self._scores(r, is_present=is_present) for r in rounds]
        return torch.cat(found)[:trials].numpy()

    @cached_property
    def nodes(self) -> Nodes:
        """The nodes under attack."""
        n = self.num_nodes
        edges = [(c * n + i, c * n + j) for c in range(self.copies) for i, j in self._graph.edges]
        training = self.algorithm(
            graph=EdgeList(edges=tuple(edges)), num_nodes=n * self.copies, step_size=1.0,
            minibatch=Full(), pair_keys="exchanged",
        )  # fmt: skip
        drawn = self.drawn or self.noise
        mechanism = MaskedMechanism(
            l2_norm_clip=CLIP,
            neighboring_relation="replace-one",
            noise=AbsoluteNoise(value=drawn.sigma_cdp),
            mask_stddev=drawn.sigma_cor,
            hidden=Hidden.of(self._graph, drawn, len(self.coalition), self.coalition),
        )
        victims = [c * n + self._victim for c in range(self.copies)]
        return Nodes(training, mechanism, victims, self.source)

    @cached_property
    def _graph(self) -> Graph:
        return self.graph.build(self.num_nodes)

    @cached_property
    def _honest(self) -> list[int]:
        return [i for i in range(self.num_nodes) if i not in self.coalition]

    @property
    def _victim(self) -> int:
        if self.worst.node is None:
            raise ValueError(
                f"num_nodes: expected at most {MOST_EXACT}, of which the worst node is known, "
                f"got {self.num_nodes}"
            )
        return self.worst.node

    @cached_property
    def _filter(self) -> Tensor:
        """S^-1 e_victim over the honest nodes, or e_victim."""
        unit = np.eye(len(self._honest))[self._honest.index(self._victim)]
        if self.look != "best":
            return torch.tensor(unit)
        rest = self._graph.without(self.coalition)
        own = self.noise.sigma_cdp**2 * np.eye(rest.num_nodes)
        return torch.tensor(np.linalg.solve(own + self.noise.sigma_cor**2 * rest.laplacian, unit))

    def _scores(self, first: int, *, is_present: bool) -> Tensor:
        """Of every copy, (copies,)."""
        seen = [
            self._seen(first + k, is_present=is_present, is_reversed=is_reversed) @ self._filter
            for k, is_reversed in enumerate(self.pattern)
        ]
        if self.look == "difference":
            return seen[0] - seen[1]
        signs = [-1.0 if is_reversed else 1.0 for is_reversed in self.pattern]
        return torch.stack([s * y for s, y in zip(signs, seen, strict=True)]).sum(0)

    def _seen(self, server_round: int, *, is_present: bool, is_reversed: bool) -> Tensor:
        """The honest nodes' messages along the canary, less the masks that the coalition knows."""
        nodes, n = self.nodes, self.num_nodes
        sent = nodes.messages(server_round, is_present=is_present, is_reversed=is_reversed)[:, 0]
        sent = sent.reshape(self.copies, n).clone()
        for c in range(self.copies):
            for j in self.coalition:
                for i in set(self._graph.neighbors[j]) - set(self.coalition):
                    known = nodes.known_to(c * n + j, c * n + i, server_round)
                    sent[c, i] -= self.noise.sigma_cor * known[0]
        return sent[:, self._honest]


# -- what ships, and planted faults -----------------------------------------------------------
NOISE = Correlated(1.0, 2.0)
TRIALS = 4000
FAULT_TRIALS = 2000


def masked_mechanisms(source: NoiseSource) -> list[Audited]:
    """DECOR as it ships, against the adversaries I, II and III."""
    ring = MaskedAttack(Ring(), 8, NOISE, source)
    torus = MaskedAttack(Torus(), 9, NOISE, source)
    rows = [
        ("decor-eavesdropper", ring, "the server: every message of a ring of 8, best linear test"),
        ("decor-one-node", replace(ring, coalition=(0,)), "a node takes its own masks off"),
        ("decor-coalition", replace(torus, coalition=(0, 4)), "two nodes of a torus of 9 collude"),
        ("decor-surrounded", replace(ring, coalition=(1, 3)), "both neighbours of a node collude"),
    ]
    return [Audited(name, one, one.claim, TRIALS, how) for name, one, how in rows]


class MasksUsedTwice(Decor):
    """The fault of the paper's public code: masks drawn once, and used in every round."""

    def _of_pairs(
        self,
        node: int,
        pairs: Tensor,
        shape: tuple[int, ...],
        draws: Draws,
        dropped: frozenset[int] | None = None,
        step: int = 0,
    ) -> Tensor:
        always = replace(draws, server_round=1)
        return super()._of_pairs(node, pairs, shape, always, dropped, step)


def masked_faults(source: NoiseSource) -> list[Audited]:
    """Broken twins of the above; each audit must find a bound above the claim."""
    ring = MaskedAttack(Ring(), 8, Correlated(1.0, 4.0), source)
    twice = replace(ring, algorithm=MasksUsedTwice, pattern=(False, True), look="difference")
    known = replace(ring, coalition=(1, 3))
    bare = replace(ring, drawn=Correlated(1.0, 0.0), look="own")
    rows = [
        ("masks-used-twice", twice, twice.claim, "the difference of two messages"),
        ("masks-known-to-colluders", known, ring.claim, "charged as if nobody knew a mask"),
        ("masks-left-out", bare, ring.claim, "charged as masked, sent without masks"),
    ]
    return [Audited(name, one, claim, FAULT_TRIALS, how) for name, one, claim, how in rows]
