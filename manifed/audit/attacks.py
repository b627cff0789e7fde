"""The attacks on our own mechanisms: on a client's examples, on masks, and on the server.

An attack on client updates: one client's shard with and without a canary as its last record.

The problem, its manifold, the point, the clip norm and the noise are those of a config. The canary
is searched for: of the records at hand, longer copies of them, rows along two axes, and far points
of the manifold, it is the one that moves the noise-free upload most (under replace-one: the pair).
The score is the upload along that move.

`worst_case` replaces problem and data: the point is the pole e_1 of a sphere, where the gradient of
every record but the canary is zero, and the canary's is as long as the clip norm allows. Steps are
so short that the sphere is flat for them: the upload is the sum of the noised gradients.

The best linear attack on masks that cancel on a graph, through the code that the nodes run.

Nodes send messages as `federation.client.run_update` makes them. An eavesdropper (adversary I, a
star's server) sees every message y_i = g_i + sum_j v_ij + own noise; colluding nodes (II, III) know
the masks of the pairs they are in and take them off. Of the rest the covariance is S = sigma_cdp^2
I + sigma_cor^2 L, L of the graph without them. Two datasets that differ at node i move y_i by 2 C,
so the best test is e_i^T S^-1 y: it separates by d' = 2 C sqrt([S^-1]_ii), which is what the
accountant charges (spec 004, H8).

Source: Allouah et al. (DECOR), the proofs of Theorems 1 and 6.

An attack on the server's noised mean: a client that takes part or is absent.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from manifed.algorithms.algorithm import ClientUpdate, Memory, Space
from manifed.algorithms.decor import Decor
from manifed.algorithms.one_shot import OneShot
from manifed.algorithms.payloads import Point
from manifed.audit.bound import Attack
from manifed.federation.client import ClientSetup, Seat, run_update
from manifed.federation.cohorts import PoissonCohort
from manifed.federation.rounds import ServerDraws
from manifed.graphs import EdgeList, Graph, GraphSource
from manifed.manifolds.base import Manifold
from manifed.oracles.minibatch import Full
from manifed.privacy import accountant
from manifed.privacy.events import PoissonSampled, Unsampled
from manifed.privacy.masks import seeded_pairs
from manifed.privacy.mechanism import ClientMechanism, ExampleMechanism, Noise
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
from manifed.problems.frechet import HyperbolicPrediction, OnPoints
from manifed.problems.linear import LeastSquares
from manifed.problems.pca import PrincipalEigenvector
from manifed.problems.problem import Problem

# -- a client's examples ---------------------------------------------------------------------
_Record = Mapping[str, Tensor]
"""The tensors of one example, without a leading dimension."""

SHORT_STEP = 1e-6
"""Step size of a worst case: curvature moves a score by less than 1e-5 of its noise."""
_MOST_HELD = 1_000_000
"""Numbers of records that are held at once."""
_AT_HAND = 4


@dataclass(frozen=True, eq=False)
class ExampleAttack(Attack):
    """Updates of a client at one point in several rounds, with and without a canary."""

    problem: Problem
    training: ClientUpdate
    mechanism: ExampleMechanism
    shard: Examples
    """A shard of the public size; the canary takes the place of its last record."""
    x: Tensor
    source: NoiseSource
    num_rounds: int = 1
    canaries: tuple[_Record, ...] = ()
    """What stands there, or is replaced by; none: they are searched for."""

    def claim(self, delta: float) -> float:
        """Epsilon that the accountant charges for all rounds."""
        releases = self.training.releases(self.mechanism, len(self.shard))
        scaled = [r.model_copy(update={"count": r.count * self.num_rounds}) for r in releases]
        return accountant.epsilon(scaled, delta)

    @property
    def at_once(self) -> int:
        """Clients whose records are held at once."""
        return max(1, _MOST_HELD // sum(t.numel() for t in self.shard.tensors.values()))

    def run(self, trials: tuple[int, ...], *, is_present: bool) -> Tensor:
        """One score a client."""
        present, absent, _ = self.neighbours
        return self.score(self.uploads(present if is_present else absent, trials))

    def score(self, uploads: list[Tensor]) -> Tensor:
        """Sums the uploads of all rounds, (clients, *upload) each, along the canary's direction."""
        return self._inner(torch.stack(uploads).sum(0), self.neighbours[2])

    def uploads(self, examples: Examples, partitions: tuple[int, ...]) -> list[Tensor]:
        """What these clients upload in each round, (clients, *upload)."""
        setup = ClientSetup(self.problem, self.training, self.mechanism)
        count = len(partitions)
        memory = None
        found = list[Tensor]()
        x = self.x.expand(count, *self.x.shape)
        stacked = Examples.stack([examples] * count)
        sizes = [len(self.shard)] * count
        for server_round in range(1, self.num_rounds + 1):
            seat = Seat(partitions, server_round, 0, self.training.phases[0].name)
            done = run_update(setup, seat, Point(x), memory, stacked, sizes, self.source)
            memory = done.memory
            found.append(done.up.tensors()["u"])
        return found

    @cached_property
    def neighbours(self) -> tuple[Examples, Examples, Tensor]:
        """(the shard with the canary, the one without, the noise-free move between the uploads)."""
        silent = self.mechanism.model_copy(update={"noise": Noise(multiplier=0.0)})
        whole = {"minibatch": Full()} if "minibatch" in type(self.training).model_fields else {}
        training = self.training.model_copy(update=whole)
        quiet = replace(self, training=training, mechanism=silent, num_rounds=1)
        absent = self.shard
        is_replaced = self.mechanism.neighboring_relation == "replace-one"
        if not is_replaced:
            absent = absent.take(torch.arange(len(self.shard) - 1))
        (base,) = quiet.uploads(absent, (0,))
        tried = [self._with(canary) for canary in self.canaries or self._found()]
        moves = [(shard, quiet.uploads(shard, (0,))[0] - base) for shard in tried]
        present, move = max(moves, key=lambda found: float(self._inner(found[1], found[1])))
        if is_replaced:
            gaps = [(shard, move - other) for shard, other in moves]
            absent, move = max(gaps, key=lambda found: float(self._inner(found[1], found[1])))
        return present, absent, move[0]

    def _found(self) -> Iterator[_Record]:
        """The records at hand that pull most, and larger ones that pull as they do."""
        norms = self.problem.gradients(self.x, self.shard).norms
        norms = norms.reshape(-1, norms.shape[-1]).amax(0)  # of the longest of a record's groups
        for row in norms.argsort(descending=True)[:_AT_HAND].tolist():
            record = {key: tensor[row] for key, tensor in self.shard.tensors.items()}
            yield record
            for key, value in record.items():
                yield from (record | {key: one} for one in self._further(value))

    def _further(self, value: Tensor) -> list[Tensor]:
        """Values that lie further away than one of a record."""
        x = self.x
        manifold = self.problem.manifold
        if isinstance(self.problem, OnPoints | HyperbolicPrediction):
            if value.shape != x.shape:
                return []
            u = manifold.logmap(x, value)
            u = u * min(2 * (self.mechanism.l2_norm_clip or 1.0), 3.0) / manifold.norm(x, u)
            return [manifold.expmap(x, u), manifold.expmap(x, -u)]
        if value.dim() != 1:
            return []
        # the second moments of the first and the last axis are as far apart as any two
        axes = torch.eye(len(value)).to(value)[[0, -1]]
        return [-value, 30.0 * value, 1e3 * value, *(1e3 * axes)]

    def _with(self, canary: _Record) -> Examples:
        """The shard with a canary in the place of its last record."""
        tensors = {key: tensor.clone() for key, tensor in self.shard.tensors.items()}
        for key, value in canary.items():
            tensors[key][-1] = value
        return Examples(tensors, self.shard.feature_ndim)

    def _inner(self, u: Tensor, v: Tensor) -> Tensor:
        """<u_j, v> of uploads (clients, *upload), shape (clients,)."""
        if isinstance(self.training, OneShot):  # a statistic is no vector at x
            return (u * v).flatten(1).sum(-1)
        manifold = self.problem.manifold
        x = self.x.expand_as(u)
        return manifold.inner(x, manifold.proju(x, u), manifold.proju(x, v.expand_as(u)))


def worst_case(
    training: ClientUpdate,
    mechanism: ExampleMechanism,
    size: int,
    source: NoiseSource,
    num_rounds: int = 1,
) -> ExampleAttack:
    """A canary whose gradient is ten clip norms long (or its mirror image) among zero gradients.

    At the pole x a row z has the gradient -2 (z.x)(z - (z.x) x), that of (e_1 + e_2) c along e_2.
    """
    assert mechanism.l2_norm_clip is not None
    pole, pull = torch.eye(4, dtype=torch.float64)[:2]
    side = (5.0 * mechanism.l2_norm_clip) ** 0.5
    return ExampleAttack(
        PrincipalEigenvector(),
        training.model_copy(update={"step_size": SHORT_STEP}),
        mechanism,
        Examples({"z": pole.repeat(size, 1)}, {"z": 1}),
        pole,
        source,
        num_rounds,
        tuple({"z": side * (pole + sign * pull)} for sign in (1.0, -1.0)),
    )


# -- masks ---------------------------------------------------------------------------------------
_LONG = 1e6
_TILT = 1e-3
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
        self.training = training
        self.memory = memory
        self._victims = list(victims)
        self._source = source
        self._setup = ClientSetup(LeastSquares(), training, mechanism)

    def messages(self, server_round: int, *, is_present: bool) -> Tensor:
        """(x_i^(t) - x_i^(t+1/2)) / eta of every node along the canary, shape (n,)."""
        n = self.training.secret_graph.num_nodes
        rows = torch.zeros(n, 1, 2)
        target = torch.zeros(n, 1)
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
        graph = self.training.secret_graph
        edges = tuple(e for e in graph.edges if e[0] in nodes or e[1] in nodes)
        known = torch.zeros(graph.num_nodes, dtype=torch.float64)
        if not edges:
            return known
        drawn = seeded_pairs(self._source).normals(
            (2,), stream=EdgeStream.PAIR_NOISE, edge=edges, server_round=server_round, step=step
        )[:, 0]
        first, second = torch.tensor(edges).T
        return known.index_add(0, first, drawn).index_add(0, second, drawn, alpha=-1)


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
        n = self.num_nodes
        edges = self._graph.edges
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


# -- the server ----------------------------------------------------------------------------------
@dataclass(frozen=True)
class ClientAttack(Attack):
    """The server's noised mean, with a canary client that uploads ten times the clip norm.

    Everybody else uploads nothing; under replace-one the canary is replaced by its mirror image.
    The clip norm of the next round, where it adapts, is seen as well.
    """

    source: NoiseSource
    mechanism: ClientMechanism
    rate: float
    """The rate of a Poisson cohort; 1: everybody is asked."""
    manifold: Manifold
    base: Tensor
    space: Space = "tangent"
    num_clients: int = 8

    @property
    def _expected(self) -> float:
        return self.rate * self.num_clients

    def claim(self, delta: float) -> float:
        """Epsilon of one round at client level."""
        sampled = PoissonSampled(sampling_probability=self.rate) if self.rate < 1 else Unsampled()
        return accountant.epsilon([self.mechanism.release(sampling=sampled)], delta)

    def run(self, trials: tuple[int, ...], *, is_present: bool) -> Tensor:
        """The log likelihood ratio of the mean along the canary and of the clip's move.

        A trial is a round. Both are Gaussian around 0 or their sensitivity, given that the canary
        takes part; the sum of their log ratios is monotone in the likelihood ratio of a cohort
        that is drawn as well.
        """
        server_round = 1 + trials[0]
        clip = self.mechanism.l2_norm_clip
        is_removed = self.mechanism.neighboring_relation == "add-or-remove"
        sign = 1.0 if is_present else 0.0 if is_removed else -1.0
        cohort = PoissonCohort(sampling_probability=self.rate)
        drawn = cohort.draw(self.num_clients, server_round, 0, self.source)
        asked = [client for client in drawn if client or sign]
        uploads = torch.zeros(len(asked), *self.base.shape, dtype=torch.float64)
        if 0 in asked:
            uploads[0] = 10.0 * clip * sign * self._along
        done = self.mechanism.noised_mean(
            uploads, self.base, self.manifold, ServerDraws(self.source, server_round, 0).normals,
            expected_cohort=self._expected, is_tangent=self.space == "tangent",
        )  # fmt: skip
        shift_over_variance = clip / self._expected / self.mechanism.stddev(self._expected) ** 2
        score = shift_over_variance * self._inner(done.mean, self._along)
        return (score + self._of_clip(done.next_clip, len(asked) - (0 in asked))).reshape(1)

    @cached_property
    def _along(self) -> Tensor:
        """The direction of the canary's upload, of unit length."""
        along = self.manifold.tangent_gaussian(self.base, 1.0, torch.Generator().manual_seed(0))
        return along / self._inner(along, along).sqrt()

    def _inner(self, u: Tensor, v: Tensor) -> Tensor:
        """In the space that the uploads live in."""
        return (u * v).sum() if self.space == "ambient" else self.manifold.inner(self.base, u, v)

    def _of_clip(self, next_clip: float, others: int) -> float:
        """The log likelihood ratio of the noised count inside the clip norm: the canary's is not.

        Uploads of zero are inside; the coins of the others hide nobody else, and are taken off.
        """
        rule = self.mechanism.adaptive
        expected = self._expected
        if rule is None:
            return 0.0
        moved = math.log(next_clip / self.mechanism.l2_norm_clip) / -rule.learning_rate
        seen = (moved + rule.target_quantile - 0.5) * expected - 0.5 * others
        stddev = self.mechanism.quantile_stddev(expected) * expected
        return -0.5 * seen / stddev**2
