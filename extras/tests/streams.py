"""The best linear attack on a run of DECOR with streams, from round 1 on.

A trial is the first rounds of one copy of the config's graph, whose nodes send messages as
`federation.client.run_update` makes them; no two trials share noise. The two datasets differ at
the worst node: its gradient is at the clip norm in every round, and of signs s_t that the attacker
chooses for where the noise is least over rounds. Noise and masks of the rounds have covariance
Sigma (rounds times honest nodes), so the best test is (s x e_i)^T Sigma^-1 y. It separates by
d' = 2 C sqrt((s x e_i)^T Sigma^-1 (s x e_i)), which is at most what is charged for the rounds.
Colluders draw the masks that they share, streams and all, and take them off.

Source: extras/docs/decor-beyond.md, Theorem 1.
"""

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from manifed.audit.attacks import messages
from manifed.audit.bound import Audited
from manifed.federation.client import ClientSetup
from manifed.graphs import EdgeList, Graph, Ring
from manifed.oracles.minibatch import Full
from manifed.oracles.noisy_oracle import Draws
from manifed.privacy import epsilon_bounds
from manifed.privacy.events import Release
from manifed.privacy.mechanism import Noise
from manifed.privacy.random_numbers import NoiseSource
from manifed.privacy.secldp import Correlated, MaskedMechanism
from manifed.problems.linear import LeastSquares
from manifed_extras import stationary
from manifed_extras.stationary import WHITE, StationaryNoise
from manifed_extras.stationary_decor import StationaryDecor, StreamSpec, hidden_by

MOST_NODES = 512
FREQUENCIES = 33
"""Of all copies that are run side by side; looked at for the signs."""


def covariance_of(noise, rounds):
    """Of the messages of all nodes in a round, round after round."""
    lags = np.abs(np.subtract.outer(np.arange(rounds), np.arange(rounds)))
    incidence = noise.graph.incidence
    return sum(
        np.kron(shape.autocovariance(lags), np.diag(own) + incidence * shared @ incidence.T)
        for shape, own, shared in zip(noise.shapes, noise.nodes.T, noise.edges.T, strict=True)
    )


@dataclass(frozen=True)
class StreamAttack:
    """One coalition against its worst victim over the first ``num_rounds`` of a run."""

    training: StationaryDecor
    """With the number of nodes; its graph, its streams and its clip rule are attacked."""
    mechanism: MaskedMechanism
    """What is charged, and the noise that is drawn."""
    source: NoiseSource
    coalition: tuple[int, ...] = ()
    num_rounds: int = 1
    algorithm: type[StationaryDecor] | None = None
    """Of a planted fault."""
    seen: StationaryNoise | None = None
    """The law that the attacker believes, where it is not the one that is said."""

    @cached_property
    def noise(self):
        """The law of the noise, if all is as it is said."""
        return self.training.noise(self._stddevs)

    @property
    def hidden(self):
        """The effective deviation that is charged against a coalition of this size."""
        hidden = self.mechanism.hidden
        by_size = {0: hidden.from_server, 1: hidden.from_one}
        return by_size.get(len(self.coalition), hidden.from_coalition)

    def claim(self, delta):
        """Epsilon of the rounds, as the ledger is charged for them."""
        moved = 2 * self._clip
        release = Release(
            unit="client",
            neighboring_relation="replace-one",
            noise_multiplier=self.hidden / moved,
            count=self.num_rounds,
        )
        return epsilon_bounds.epsilon([release], delta)

    @cached_property
    def separation(self):
        """The d' of the attack."""
        return 2 * self._clip * float(self._signs @ self._along @ self._signs) ** 0.5

    def scores(self, trials, *, is_present):
        """One score a trial."""
        found = [
            self._scores(f"{is_present} {run}", is_present=is_present)
            for run in range(-(-trials // self._copies))
        ]
        return np.concatenate(found)[:trials]

    # -- the best test -----------------------------------------------------------------------
    @cached_property
    def _law(self):
        return self.seen or self.noise

    @cached_property
    def _honest(self):
        return [i for i in range(self._graph.num_nodes) if i not in self.coalition]

    @cached_property
    def _victim(self):
        found = stationary.against(self._law, self.coalition).node
        assert found is not None
        return found

    @cached_property
    def _columns(self):
        """Sigma^-1 of (e_t x e_victim) for every round t, (rounds, honest, rounds)."""
        rest, left = self._law.without(self.coalition)
        unit = np.kron(np.eye(self.num_rounds), np.eye(len(left))[:, [left.index(self._victim)]])
        found = np.linalg.solve(covariance_of(rest, self.num_rounds), unit)
        return found.reshape(self.num_rounds, len(left), -1)

    @cached_property
    def _along(self):
        """What the signs are measured by, (rounds, rounds)."""
        return self._columns[:, self._honest.index(self._victim)]

    @cached_property
    def _signs(self):
        """Of the victim's gradient, (rounds,): a square wave where the noise is least."""
        times = np.arange(self.num_rounds) + 0.5
        waves = np.cos(np.outer(np.linspace(0, np.pi, FREQUENCIES), times))
        waves[-1] = np.cos(np.pi * np.arange(self.num_rounds))
        signs = np.where(waves < 0, -1.0, 1.0)
        return signs[np.einsum("ks,st,kt->k", signs, self._along, signs).argmax()]

    # -- the messages ------------------------------------------------------------------------
    @property
    def _clip(self):
        assert self.mechanism.l2_norm_clip is not None
        return self.mechanism.l2_norm_clip

    @property
    def _stddevs(self):
        return Correlated(self.mechanism.noise.stddev(1.0, 1), self.mechanism.mask_stddev)

    @property
    def _graph(self):
        return self.training.secret_graph

    @property
    def _copies(self):
        return max(1, MOST_NODES // self._graph.num_nodes)

    @cached_property
    def _copied(self):
        """The training of all copies, which share nothing."""
        n = self._graph.num_nodes
        edges = [(c * n + i, c * n + j) for c in range(self._copies) for i, j in self._graph.edges]
        said = {name: getattr(self.training, name) for name in type(self.training).model_fields}
        said |= {
            "graph": EdgeList(edges=tuple(edges)), "num_nodes": n * self._copies, "step_size": 1.0,
            "decay_rounds": None, "local_steps": 1, "minibatch": Full(), "pair_keys": "seeded",
            "pinned_keys": None, "signing_keys": None,
        }  # fmt: skip
        return (self.algorithm or type(self.training))(**said)

    def _scores(self, run, *, is_present):
        """Of every copy, (copies,)."""
        key = hashlib.sha256(self.source.key + run.encode()).digest()
        source = NoiseSource(key, origin="seed", precision=self.source.precision)
        n = self._graph.num_nodes
        copies = self._copies
        victims = [c * n + self._victim for c in range(copies)]
        blank = self._copied.initial_memory(torch.zeros(2, dtype=torch.float64))
        memory = type(blank).stack([blank] * n * copies)
        setup = ClientSetup(LeastSquares(), self._copied, self.mechanism)
        known = self._known(source)
        total = torch.zeros(copies, dtype=torch.float64)
        for t, sign in enumerate(self._signs):
            is_canary = is_present == bool(sign > 0)
            sent, memory = messages(setup, victims, t + 1, source, memory, is_present=is_canary)
            seen = (sent - known[t]).reshape(copies, n)[:, self._honest]
            total += seen @ torch.as_tensor(self._columns[t] @ self._signs)
        return total.numpy()

    def _known(self, source):
        """The masks of each node that the coalition shares, along the canary, (rounds, nodes)."""
        n = self._graph.num_nodes
        theirs = frozenset(c * n + j for c in range(self._copies) for j in self.coalition)
        known = torch.zeros(self.num_rounds, n * self._copies, dtype=torch.float64)

        def shared(server_round, step):
            draws = Draws(source, tuple(range(n * self._copies)), server_round)
            return self._copied.drawn((2,), None, draws, theirs, step)[:, 0]

        for j, stream in enumerate(self.training.streams):
            shape = stream.shape
            state = shared(0, j)
            for t in range(self.num_rounds):
                state, masks = shape.step(state, shared(t + 1, j))
                known[t] += self._stddevs.sigma_cor * stream.shared * masks
        return known


# -- what ships, and planted faults -----------------------------------------------------------
STREAMS = (
    StreamSpec(kind="slow", memory=0.8, shared=1.0),
    StreamSpec(kind="fast", memory=0.5, own=1.5),
)
ROUNDS = 8
TRIALS = 4000
FAULT_TRIALS = 2000


def _attack(
    source,
    graph,
    num_nodes,
    stddevs,
):
    training = StationaryDecor(graph=graph, num_nodes=num_nodes, step_size=1.0, streams=STREAMS)
    mechanism = MaskedMechanism(
        l2_norm_clip=1.0,
        neighboring_relation="replace-one",
        noise=Noise(value=stddevs.sigma_cdp),
        mask_stddev=stddevs.sigma_cor,
        hidden=training.hidden(stddevs, 2),
    )
    return StreamAttack(training, mechanism, source, num_rounds=ROUNDS)


def stream_mechanisms(source):
    """DECOR with streams as it ships."""
    ring = _attack(source, Ring(), 6, Correlated(2.0, 6.0))
    rows = [
        ("decor-streams-eavesdropper", ring, "every message of 8 rounds of a ring of 6"),
        ("decor-streams-one-node", replace(ring, coalition=(1,)), "a node takes its streams off"),
    ]
    return [Audited(name, one, TRIALS, how) for name, one, how in rows]


class OneEdgeBare(StationaryDecor):
    """A fault: on a line of three nodes the first edge has no masks at either end."""

    @property
    def secret_graph(self):
        """All edges but the one between nodes 0 and 1 of each copy."""
        return _bare(super().secret_graph)


def _bare(graph):
    return Graph(graph.num_nodes, tuple(e for e in graph.edges if e[0] % 3))


def stream_faults(source):
    """Broken twins; each audit must find a bound above the claim."""
    stddevs = Correlated(1.0, 3.0)
    ring = _attack(source, Ring(), 6, stddevs)
    fresh = replace(
        ring,
        mechanism=ring.mechanism.model_copy(
            update={"hidden": hidden_by(_as_if_fresh(ring.noise), 2)}
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
    return [Audited(name, one, FAULT_TRIALS, how) for name, one, how in rows]


def _as_if_fresh(noise):
    """Independent rounds of the variance that every node and edge has in one round."""
    return StationaryNoise(
        noise.graph, (WHITE,), noise.nodes.sum(1, keepdims=True), noise.edges.sum(1, keepdims=True)
    )
