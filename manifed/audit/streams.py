"""The best linear attack on a run of DECOR, with fresh masks or with streams, from round 1 on.

A trial is the first rounds of one copy of the config's graph, whose nodes send messages as
`federation.client.run_update` makes them; no two trials share noise. The two datasets differ at
the worst node: its gradient is at the clip norm in every round, and of signs s_t that the attacker
chooses for where the noise is least over rounds. Noise and masks of the rounds have covariance
Sigma (rounds times honest nodes), so the best test is (s x e_i)^T Sigma^-1 y. It separates by
d' = 2 C sqrt((s x e_i)^T Sigma^-1 (s x e_i)), which is at most what is charged for the rounds.
Colluders draw the masks that they share, streams and all, and take them off.

Source: docs/decor-beyond.md, Theorem 1; for fresh noise Allouah et al. (DECOR), Theorem 6.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manifed.algorithms.decor import Decor
from manifed.algorithms.stationary_decor import StationaryDecor, StreamSpec
from manifed.audit.attack import Audited
from manifed.audit.masked import Nodes
from manifed.graphs.graph import Graph
from manifed.graphs.specs import EdgeList, GraphSpec, Ring
from manifed.oracles.minibatch import Full
from manifed.privacy import accountant, stationary
from manifed.privacy.audit import Scores
from manifed.privacy.masked import Hidden, MaskedMechanism
from manifed.privacy.masks import seeded_pairs
from manifed.privacy.mechanism import AbsoluteNoise
from manifed.privacy.noise import EdgeStream, NoiseSource
from manifed.privacy.secldp import Correlated, Rounds
from manifed.privacy.stationary import WHITE, StationaryNoise

MOST_ROUNDS, MOST_NODES, FREQUENCIES = 16, 512, 33
"""Of a trial; of all copies that are run side by side; looked at for the signs."""


@dataclass(frozen=True)
class StreamAttack:
    """One coalition against its worst victim over the first ``num_rounds`` of a run."""

    training: Decor
    """With the number of nodes; its graph, its streams and its clip rule are attacked."""
    mechanism: MaskedMechanism
    """What is charged, and the noise that is drawn."""
    source: NoiseSource
    coalition: tuple[int, ...] = ()
    num_rounds: int = 1
    algorithm: type[Decor] | None = None
    """Of a planted fault."""
    seen: StationaryNoise | None = None
    """The law that the attacker believes, where it is not the one that is said."""

    @cached_property
    def noise(self) -> StationaryNoise:
        """The law of the noise, if all is as it is said."""
        said, graph = self._stddevs, self._graph
        if isinstance(self.training, StationaryDecor):
            return self.training.noise(said)
        nodes = np.full((graph.num_nodes, 1), said.sigma_cdp**2)
        return StationaryNoise(
            graph, (WHITE,), nodes, np.full((len(graph.edges), 1), said.sigma_cor**2)
        )

    @property
    def hidden(self) -> float:
        """The effective deviation that is charged against a coalition of this size."""
        hidden = self.mechanism.hidden
        by_size = {0: hidden.from_server, 1: hidden.from_one}
        return by_size.get(len(self.coalition), hidden.from_coalition)

    def claim(self, delta: float) -> float:
        """Epsilon of the rounds, as the ledger is charged for them."""
        moved = 2 * self._clip
        release = Rounds(self.num_rounds, moved).release(self.hidden / moved)
        return accountant.epsilon([release], delta)

    @cached_property
    def separation(self) -> float:
        """The d' of the attack."""
        return 2 * self._clip * float(self._signs @ self._along @ self._signs) ** 0.5

    def scores(self, trials: int, *, is_present: bool) -> Scores:
        """One score a trial."""
        found = [
            self._scores(f"{is_present} {run}", is_present=is_present)
            for run in range(-(-trials // self._copies))
        ]
        return np.concatenate(found)[:trials]

    # -- the best test -----------------------------------------------------------------------
    @property
    def _law(self) -> StationaryNoise:
        return self.seen or self.noise

    @cached_property
    def _honest(self) -> list[int]:
        return [i for i in range(self._graph.num_nodes) if i not in self.coalition]

    @cached_property
    def _victim(self) -> int:
        found = stationary.against(self._law, self.coalition).node
        assert found is not None
        return found

    @cached_property
    def _columns(self) -> Any:
        """Sigma^-1 of (e_t x e_victim) for every round t, (rounds, honest, rounds)."""
        rest, left = self._law.without(self.coalition)
        lags = np.abs(np.subtract.outer(np.arange(self.num_rounds), np.arange(self.num_rounds)))
        incidence, size = rest.graph.incidence, self.num_rounds * len(left)
        covariance = np.zeros((size, size))
        for j, shape in enumerate(rest.shapes):
            masks = (incidence * rest.edges[:, j]) @ incidence.T
            covariance += np.kron(shape.autocovariance(lags), np.diag(rest.nodes[:, j]) + masks)
        unit = np.kron(np.eye(self.num_rounds), np.eye(len(left))[:, [left.index(self._victim)]])
        return np.linalg.solve(covariance, unit).reshape(self.num_rounds, len(left), -1)

    @cached_property
    def _along(self) -> Any:
        """What the signs are measured by, (rounds, rounds)."""
        return self._columns[:, self._honest.index(self._victim)]

    @cached_property
    def _signs(self) -> Any:
        """Of the victim's gradient, (rounds,): a square wave where the noise is least."""
        times = np.arange(self.num_rounds) + 0.5
        waves = np.cos(np.outer(np.linspace(0, np.pi, FREQUENCIES), times))
        waves[-1] = np.cos(np.pi * np.arange(self.num_rounds))
        signs = np.where(waves < 0, -1.0, 1.0)
        return signs[np.einsum("ks,st,kt->k", signs, self._along, signs).argmax()]

    # -- the messages ------------------------------------------------------------------------
    @property
    def _clip(self) -> float:
        assert self.mechanism.l2_norm_clip is not None
        return self.mechanism.l2_norm_clip

    @property
    def _stddevs(self) -> Correlated:
        return Correlated(self.mechanism.noise.stddev(1.0, 1), self.mechanism.mask_stddev)

    @property
    def _graph(self) -> Graph:
        return self.training.secret_graph

    @property
    def _copies(self) -> int:
        return max(1, MOST_NODES // self._graph.num_nodes)

    @cached_property
    def _copied(self) -> Decor:
        """The training of all copies, which share nothing."""
        n = self._graph.num_nodes
        edges = [(c * n + i, c * n + j) for c in range(self._copies) for i, j in self._graph.edges]
        said = {name: getattr(self.training, name) for name in type(self.training).model_fields}
        said |= {
            "graph": EdgeList(edges=tuple(edges)), "num_nodes": n * self._copies, "step_size": 1.0,
            "decay_rounds": None, "local_steps": 1, "minibatch": Full(), "pair_keys": "seeded",
            "pinned_keys": None, "signing_keys": None, "mixing": "server",
        }  # fmt: skip
        return (self.algorithm or type(self.training))(**said)

    def _scores(self, run: str, *, is_present: bool) -> Scores:
        """Of every copy, (copies,)."""
        key = hashlib.sha256(self.source.key + run.encode()).digest()
        source = NoiseSource(key, is_release=False, precision=self.source.precision)
        n, copies = self._graph.num_nodes, self._copies
        victims = [c * n + self._victim for c in range(copies)]
        nodes = Nodes(self._copied, self.mechanism, victims, source)
        known, total = self._known(source), torch.zeros(copies, dtype=torch.float64)
        for t, sign in enumerate(self._signs):
            sent = nodes.messages(t + 1, is_present=is_present, is_reversed=bool(sign < 0))[:, 0]
            seen = (sent - known[t]).reshape(copies, n)[:, self._honest]
            total += seen @ torch.as_tensor(self._columns[t] @ self._signs)
        return total.numpy()

    def _known(self, source: NoiseSource) -> Tensor:
        """The masks of each node that the coalition shares, along the canary, (rounds, nodes)."""
        n, edges = self._graph.num_nodes, self._copied.secret_graph.edges
        theirs = tuple(e for e in edges if e[0] % n in self.coalition or e[1] % n in self.coalition)
        known = torch.zeros(self.num_rounds, n * self._copies, dtype=torch.float64)
        if not theirs:
            return known
        pairs, ends = seeded_pairs(source), torch.tensor(theirs)

        def drawn(server_round: int, step: int) -> Tensor:
            return pairs.edge_normals(
                (2,), stream=EdgeStream.PAIR_NOISE, edge=theirs, server_round=server_round,
                step=step,
            )[:, 0]  # fmt: skip

        streams = [(WHITE, 1.0)]
        if isinstance(self.training, StationaryDecor):
            streams = [(s.shape, s.shared) for s in self.training.streams]
        for j, (shape, share) in enumerate(streams):
            state = drawn(0, j)
            for t in range(self.num_rounds):
                state, masks = shape.step(state, drawn(t + 1, j))
                masks = self._stddevs.sigma_cor * share * masks
                known[t].index_add_(0, ends[:, 0], masks).index_add_(0, ends[:, 1], masks, alpha=-1)
        return known


def enough_rounds(attack: StreamAttack, most: int, delta: float, epsilon: float) -> StreamAttack:
    """The attack on as many rounds as cost that much, on ``most`` at most."""
    rounds = 1
    while rounds < min(most, MOST_ROUNDS) and attack.claim(delta) < epsilon:
        rounds = min(2 * rounds, most, MOST_ROUNDS)
        attack = replace(attack, num_rounds=rounds)
    return attack


def colluders(
    noise: StationaryNoise, collusion: int, named: Sequence[int] = ()
) -> list[tuple[tuple[int, ...], str]]:
    """The adversaries I, II and III of a graph in words; III where it can be enumerated."""
    found: list[tuple[tuple[int, ...], str]] = [((), "the server: every message, best linear test")]
    one = stationary.worst(noise, 1).coalition if noise.graph.num_nodes > 1 else None
    if one:
        found.append((one, f"node {one[0]} takes the masks off that it shares"))
    three = tuple(sorted(named))
    if not three and 2 <= collusion < noise.graph.num_nodes:
        try:
            three = stationary.worst(noise, collusion).coalition or ()
        except ValueError:  # more of them than are looked at
            three = ()
    if len(three) > 1:
        found.append((three, f"nodes {', '.join(map(str, three))} collude"))
    return found


# -- what ships, and planted faults -----------------------------------------------------------
STREAMS = (
    StreamSpec(kind="slow", memory=0.8, shared=1.0),
    StreamSpec(kind="fast", memory=0.5, own=1.5),
)
ROUNDS, TRIALS, FAULT_TRIALS = 8, 4000, 2000


def _attack(
    source: NoiseSource,
    graph: GraphSpec,
    num_nodes: int,
    stddevs: Correlated,
) -> StreamAttack:
    training = StationaryDecor(graph=graph, num_nodes=num_nodes, step_size=1.0, streams=STREAMS)
    mechanism = MaskedMechanism(
        l2_norm_clip=1.0,
        neighboring_relation="replace-one",
        noise=AbsoluteNoise(value=stddevs.sigma_cdp),
        mask_stddev=stddevs.sigma_cor,
        hidden=training.hidden(stddevs, 2),
    )
    return StreamAttack(training, mechanism, source, num_rounds=ROUNDS)


def stream_mechanisms(source: NoiseSource) -> list[Audited]:
    """DECOR with streams as it ships."""
    ring = _attack(source, Ring(), 6, Correlated(2.0, 6.0))
    rows = [
        ("decor-streams-eavesdropper", ring, "every message of 8 rounds of a ring of 6"),
        ("decor-streams-one-node", replace(ring, coalition=(1,)), "a node takes its streams off"),
    ]
    return [Audited(name, one, one.claim, TRIALS, how) for name, one, how in rows]


class OneEdgeBare(StationaryDecor):
    """A fault: on a line of three nodes the first edge has no masks at either end."""

    @property
    def secret_graph(self) -> Graph:
        """All edges but the one between nodes 0 and 1 of each copy."""
        return _bare(super().secret_graph)


def _bare(graph: Graph) -> Graph:
    return Graph(graph.num_nodes, tuple(e for e in graph.edges if e[0] % 3))


def stream_faults(source: NoiseSource) -> list[Audited]:
    """Broken twins; each audit must find a bound above the claim."""
    stddevs = Correlated(1.0, 3.0)
    ring = _attack(source, Ring(), 6, stddevs)
    fresh = replace(
        ring,
        mechanism=ring.mechanism.model_copy(
            update={"hidden": Hidden.of_streams(_as_if_fresh(ring.noise), 2)}
        ),
    )
    line = _attack(source, EdgeList(edges=((0, 1), (1, 2))), 3, Correlated(2.0, 20.0))
    law = line.noise
    left = StationaryNoise(_bare(law.graph), law.shapes, law.nodes, law.edges[1:])
    bare = replace(line, algorithm=OneEdgeBare, seen=left)
    rows = [
        ("streams-charged-as-fresh", fresh, "charged as independent rounds of their variance"),
        ("streams-missing-on-one-edge", bare, "one edge of a line of three is left out"),
    ]
    return [Audited(name, one, one.claim, FAULT_TRIALS, how) for name, one, how in rows]


def _as_if_fresh(noise: StationaryNoise) -> StationaryNoise:
    """Independent rounds of the variance that every node and edge has in one round."""
    return StationaryNoise(
        noise.graph, (WHITE,), noise.nodes.sum(1, keepdims=True), noise.edges.sum(1, keepdims=True)
    )
