"""Attacks on the mechanisms of clients, of masked messages, and of the server.

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
accountant charges.

Source: Allouah et al. (DECOR), the proofs of Theorems 1 and 6.

An attack on the server's noised mean: a client that takes part or is absent.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from manifed.algorithms.algorithm import ClientUpdate, Space
from manifed.algorithms.decor import Decor
from manifed.algorithms.one_shot import OneShot
from manifed.algorithms.payloads import Point
from manifed.audit.bound import Attack
from manifed.federation.client import ClientSetup, Seat, run_update
from manifed.federation.cohorts import Cohort
from manifed.federation.plan import ServerDraws
from manifed.graphs import EdgeList, Graph
from manifed.manifolds.base import Manifold
from manifed.oracles.minibatch import Full
from manifed.oracles.noisy_oracle import Draws
from manifed.privacy import epsilon_bounds
from manifed.privacy.events import Release
from manifed.privacy.mechanism import ClientMechanism, ExampleMechanism, Noise
from manifed.privacy.random_numbers import NoiseSource
from manifed.privacy.secldp import (
    MOST_EXACT,
    Correlated,
    Hidden,
    MaskedMechanism,
    Worst,
    against,
)
from manifed.problems.examples import PERSON, SHARE, Examples
from manifed.problems.frechet import HyperbolicPrediction, OnPoints
from manifed.problems.linear import LeastSquares
from manifed.problems.pca import PrincipalEigenvector
from manifed.problems.problem import Problem

# -- a client's examples ---------------------------------------------------------------------
_Record = Mapping[str, Tensor]
"""The tensors of one example, without a leading dimension."""

SHORT_STEP = 1e-6
"""Step size of a worst case: curvature moves a score by less than 1e-5 of its noise."""


@dataclass(frozen=True, eq=False)
class ExampleAttack(Attack):
    """Attack on a client's updates at one point in several rounds, with and without a canary."""

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
    order: tuple[int, ...] = ()
    """The rounds of a run where they differ, of which the first are attacked; none: 1, 2, ..."""

    @property
    def rounds(self) -> tuple[int, ...]:
        """The rounds that are attacked."""
        return (self.order or tuple(range(1, self.num_rounds + 1)))[: self.num_rounds]

    @cached_property
    def _charged(self) -> list[tuple[Release, ...]]:
        """What each attacked round is charged for."""
        made = [self.training.in_round(r) for r in self.rounds]
        return [one.releases(self.mechanism, len(self.shard)) for one in made]

    def claim(self, delta: float) -> float:
        """The epsilon that the accountant charges for all attacked rounds."""
        return epsilon_bounds.epsilon(tuple(chain.from_iterable(self._charged)), delta)

    @property
    def at_once(self) -> int:
        """The number of clients whose records together have a million numbers."""
        return max(1, 1_000_000 // sum(t.numel() for t in self.shard.tensors.values()))

    def run(self, trials: tuple[int, ...], *, is_present: bool) -> Tensor:
        """Sums the scores of all clients at which the person may be, each with the same canary."""
        present, absent, _ = self.neighbours
        sites = self.mechanism.sites_per_person
        clients = tuple(sites * trial + k for trial in trials for k in range(sites))
        scores = self.score(self.uploads(present if is_present else absent, clients))
        return scores.unflatten(0, (-1, sites)).sum(1)

    def score(self, uploads: list[Tensor]) -> Tensor:
        """Sums the uploads of all rounds, (clients, *upload) each, along the canary's direction.

        Rounds count by the inverse of their variance.
        """
        noise = [one[0].noise_multiplier for one in self._charged]
        weighted = [u * (noise[0] / z) ** 2 for u, z in zip(uploads, noise, strict=True)]
        return self._inner(torch.stack(weighted).sum(0), self.neighbours[2])

    def uploads(self, examples: Examples, partitions: tuple[int, ...]) -> list[Tensor]:
        """Returns what these clients upload in each round, (clients, *upload)."""
        setup = ClientSetup(self.problem, self.training, self.mechanism)
        count = len(partitions)
        found = []
        x = self.x.expand(count, *self.x.shape)
        memory = self.training.initial_memory(x)
        phase = self.training.phases[0]
        down = phase.down(*[x, 0 * x][: len(phase.down.names())])
        stacked = Examples.stack([examples] * count)
        for server_round in self.rounds:
            seat = Seat(partitions, server_round, 0, phase.name)
            done = run_update(
                setup, seat, down, memory, stacked, [len(self.shard)] * count, self.source
            )
            memory = done.memory
            found.append(done.up.tensors()["u"])
        return found

    @cached_property
    def neighbours(self) -> tuple[Examples, Examples, Tensor]:
        """(the shard with the canary, the one without, the noise-free move between the uploads)."""
        silent = self.mechanism.scaled(0.0)
        whole = self.training.model_copy(update={"minibatch": Full()})
        quiet = replace(self, training=whole, mechanism=silent, num_rounds=1)
        held = self.shard.tensors
        shards = [
            Examples(
                {key: torch.cat([t[:-1], one[key][None]]) for key, t in held.items()},
                self.shard.feature_ndim,
            )
            for one in self.canaries or self._found()
        ]
        others = tried = [(one, quiet.uploads(one, (0,))[0]) for one in shards]
        if self.mechanism.neighboring_relation == "add-or-remove":
            less = self.shard.take(torch.arange(len(self.shard) - 1))
            others = [(less, quiet.uploads(less, (0,))[0])]
        pairs = [(one, other, u - v) for one, u in tried for other, v in others]
        present, absent, move = max(pairs, key=lambda pair: float(self._inner(pair[2], pair[2])))
        return present, absent, move[0]

    def _found(self) -> Iterator[_Record]:
        """The records at hand that pull most, and larger ones that pull as they do."""
        norms = self.problem.gradients(self.x, self.shard).norms
        for row in norms.argsort(descending=True)[:4].tolist():
            record = {key: tensor[row] for key, tensor in self.shard.tensors.items()}
            yield record
            own = self.problem.of_rows
            for key, value in record.items():
                if own is self.problem:
                    yield from (record | {key: one} for one in self._further(value))
                elif key not in (SHARE, PERSON):  # all rows of a person are one row
                    further = self._further(value[0])
                    yield from (record | {key: one.expand_as(value)} for one in further)

    def _further(self, value: Tensor) -> list[Tensor]:
        """Values that lie further away than one of a record."""
        x = self.x
        manifold = self.problem.manifold
        if isinstance(self.problem.of_rows, OnPoints | HyperbolicPrediction):
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
    order: tuple[int, ...] = (),
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
        order,
    )


# -- masks ---------------------------------------------------------------------------------------
def messages(
    setup: ClientSetup,
    victims: list[int],
    server_round: int,
    source: NoiseSource,
    *,
    is_present: bool,
) -> Tensor:
    """(x_i^(t) - x_i^(t+1/2)) / eta of every node along the canary, shape (n,).

    The nodes are of several copies of a graph that share nothing: least squares on R^2, one record
    each. The victim of each copy holds the canary; the other dataset is its mirror image, and all
    others hold zeros. The canary (s, s t) at (0, 1) has a gradient of length s^2 t = 1e9, which is
    clipped to one along the first coordinate up to 1e-3.
    """
    training = setup.training
    assert isinstance(training, Decor)
    n = training.secret_graph.num_nodes
    rows = torch.zeros(n, 1, 2)
    rows[victims, 0] = 1e6 * torch.tensor([1.0, 1e-3 if is_present else -1e-3])
    held = Examples({"feature": rows, "target": torch.zeros(n, 1)}, {"feature": 1, "target": 0}).to(
        torch.float64
    )
    down = torch.tensor([0.0, 1.0], dtype=torch.float64).expand(n, 2)
    seat = Seat(tuple(range(n)), server_round, 0, "mix")
    up, _, _ = run_update(setup, seat, Point(down), None, held, [1] * n, source)
    return (down - up.point)[:, 0] / training.step_size_in(server_round)


@dataclass(frozen=True)
class MaskedAttack(Attack):
    """Attack of one coalition on its worst victim's masked messages.

    A trial is some rounds of one copy of the graph.
    """

    graph: Graph
    noise: Correlated
    """What is charged."""
    source: NoiseSource
    coalition: tuple[int, ...] = ()
    num_rounds: int = 1
    copies: int = 25
    clip: float = 1.0
    """The bound of the norm of a node's gradient."""

    algorithm = Decor

    @cached_property
    def worst(self) -> Worst:
        """The victim, with the accountant's precision of the noise on its messages."""
        return against(self.graph, self.noise, self.coalition)

    def claim(self, delta: float) -> float:
        """The epsilon of a trial's rounds against this coalition."""
        return self.worst.epsilon(delta, self.num_rounds, 2 * self.clip)

    @property
    def at_once(self) -> int:
        """The number of copies of the graph, each of which is a trial."""
        return self.copies

    def run(self, trials: tuple[int, ...], *, is_present: bool) -> Tensor:
        """Scores trials by the best linear test; no two share a round and a copy of the graph."""
        first = 1 + trials[0] * self.num_rounds
        rounds = range(first, first + self.num_rounds)
        seen = torch.stack([self.seen(r, is_present=is_present) for r in rounds])
        return (seen.sum(0) @ self.filter)[: len(trials)]

    def seen(self, server_round: int, *, is_present: bool) -> Tensor:
        """Returns all messages less the masks that the coalition knows, (copies, nodes)."""
        starts = range(0, self.copies * self.graph.num_nodes, self.graph.num_nodes)
        victims = [first + self.victim for first in starts]
        sent = messages(self.setup, victims, server_round, self.source, is_present=is_present)
        colluding = frozenset(first + node for first in starts for node in self.coalition)
        draws = Draws(self.source, tuple(range(len(sent))), server_round)
        known = self.training.drawn((2,), None, draws, colluding)[:, 0]
        return (sent - self.noise.sigma_cor * known).reshape(self.copies, -1)

    @cached_property
    def training(self) -> Decor:
        """The client update that the nodes of all copies run."""
        n = self.graph.num_nodes
        starts = range(0, n * self.copies, n)
        edges = tuple((c + i, c + j) for c in starts for i, j in self.graph.edges)
        return self.algorithm(graph=EdgeList(edges=edges), num_nodes=starts.stop, step_size=1.0)

    @cached_property
    def setup(self) -> ClientSetup:
        """The client setup of all copies: training with its mechanism."""
        mechanism = MaskedMechanism(
            l2_norm_clip=self.clip,
            noise=Noise(value=self.noise.sigma_cdp),
            mask_stddev=self.noise.sigma_cor,
            hidden=Hidden.uniform(1.0),  # `claim` says what these messages cost
        )
        return ClientSetup(LeastSquares(), self.training, mechanism)

    @property
    def victim(self) -> int:
        """The node whose messages the noise hides least."""
        assert self.worst.node is not None, f"more than {MOST_EXACT} nodes"
        return self.worst.node

    @cached_property
    def filter(self) -> Tensor:
        """The best linear filter S^-1 e_victim, which is 0 for the coalition."""
        n = self.graph.num_nodes
        left = tuple(edge for edge in self.graph.edges if not {*edge} & {*self.coalition})
        covariance = self.noise.sigma_cdp**2 * np.eye(n)
        covariance += self.noise.sigma_cor**2 * Graph(n, left).laplacian
        return torch.tensor(np.linalg.solve(covariance, np.eye(n)[self.victim]))


# -- the server ----------------------------------------------------------------------------------
@dataclass(frozen=True)
class ClientAttack(Attack):
    """Attack on the server's noised mean, with a canary client that uploads ten clip norms.

    Everybody else uploads nothing; under replace-one the canary is replaced by its mirror image.
    The clip norm of the next round, where it adapts, is seen as well.
    """

    source: NoiseSource
    mechanism: ClientMechanism
    cohort: Cohort
    manifold: Manifold
    base: Tensor
    space: Space = "tangent"
    num_clients: int = 8

    def claim(self, delta: float) -> float:
        """The epsilon of one round at client level."""
        sampling = self.cohort.sampling(self.num_clients)
        return epsilon_bounds.epsilon([self.mechanism.release(sampling)], delta)

    def run(self, trials: tuple[int, ...], *, is_present: bool) -> Tensor:
        """Scores a round by the log likelihood ratio of its mean (along the canary) and clip.

        A trial is a round. Both are Gaussian around 0 or their sensitivity, given that the canary
        takes part; the sum of their log ratios is monotone in the likelihood ratio of a cohort
        that is drawn as well.
        """
        server_round = 1 + trials[0]
        clip = self.mechanism.l2_norm_clip
        expected = self.cohort.expected_size(self.num_clients)
        absent = 0.0 if self.mechanism.neighboring_relation == "add-or-remove" else -1.0
        sign = 1.0 if is_present else absent
        drawn = self.cohort.draw(self.num_clients, server_round, 0, self.source)
        asked = [client for client in drawn if client or sign]
        uploads = torch.zeros(len(asked), *self.base.shape, dtype=torch.float64)
        if 0 in asked:
            uploads[0] = 10.0 * clip * sign * self._along
        mean, next_clip = self.mechanism.noised_mean(
            uploads, self.base, self.manifold, ServerDraws(self.source, server_round, 0).normals,
            expected_cohort=expected, is_tangent=self.space == "tangent",
        )  # fmt: skip
        score = self._inner(mean, self._along) * clip / expected
        score = score / self.mechanism.stddev(expected) ** 2
        rule = self.mechanism.adaptive
        if rule is not None:
            # The noised count inside the clip norm: the canary's upload is not inside, those of
            # zero are; the coins of the others hide nobody else, and are taken off.
            moved = math.log(next_clip / clip) / -rule.learning_rate
            inside = 0.5 * (len(asked) - (0 in asked))
            seen = (moved + rule.target_quantile - 0.5) * expected - inside
            stddev = self.mechanism.quantile_stddev(expected) * expected
            score = score - 0.5 * seen / stddev**2
        return score.reshape(1)

    @cached_property
    def _along(self) -> Tensor:
        """The direction of the canary's upload, of unit length."""
        along = self.manifold.tangent_gaussian(self.base, 1.0, torch.Generator().manual_seed(0))
        return along / self._inner(along, along).sqrt()

    def _inner(self, u: Tensor, v: Tensor) -> Tensor:
        """In the space that the uploads live in."""
        return (u * v).sum() if self.space == "ambient" else self.manifold.inner(self.base, u, v)
