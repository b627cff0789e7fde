"""An attack on client updates: one client's shard with and without a canary as its last record.

The problem, its manifold, the point, the clip norm and the noise are those of a config. The canary
is searched for: of the records at hand, longer copies of them, rows along two axes, and far points
of the manifold, it is the one that moves the noise-free upload most (under replace-one: the pair).
The score is the upload along that move.

`worst_case` replaces problem and data: the point is the pole e_1 of a sphere, where the gradient of
every record but the canary is zero, and the canary's is as long as the clip norm allows. Steps are
so short that the sphere is flat for them: the upload is the sum of the noised gradients.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from manifed.algorithms.algorithm import ClientUpdate
from manifed.algorithms.one_shot import OneShot
from manifed.algorithms.payloads import Point
from manifed.audit.bound import Attack
from manifed.federation.client import ClientSetup, Seat, run_update
from manifed.oracles.minibatch import Full
from manifed.privacy import accountant
from manifed.privacy.mechanism import ExampleMechanism, Noise
from manifed.privacy.noise import NoiseSource
from manifed.problems.examples import Examples
from manifed.problems.frechet import HyperbolicPrediction, OnPoints
from manifed.problems.pca import PrincipalEigenvector
from manifed.problems.problem import Problem

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
        count, memory, found = len(partitions), None, list[Tensor]()
        x, stacked = self.x.expand(count, *self.x.shape), Examples.stack([examples] * count)
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
        absent, is_replaced = self.shard, self.mechanism.neighboring_relation == "replace-one"
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
        x, manifold = self.x, self.problem.manifold
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
        manifold, x = self.problem.manifold, self.x.expand_as(u)
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
