"""Rivals: descent whose every number is tuned, and one-shot releases, on all records at once.

With full batches and means weighted by N_i, the mean of what m clients upload is the mean of all
clipped gradients plus N(0, (sigma C sqrt(m) / N)^2) in every coordinate, whatever the shards are.
So a rival needs no client, and many are run side by side, in one tensor.

A rival chooses clip, length of a move, rounds, falling noise, tail and momentum, by seeds that
nobody reports. Its tuning is not charged: what it reaches is a bound that no honest method need
reach. Stages: every clip, move and number of rounds on two seeds; moves beside the best four
of every number of rounds on ten; the other choices around the best four on two, and the best 24 of
those on ten; then neighbours of the best in every number on ten, until none is better.
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from scipy.optimize import brentq
from scipy.stats import norm
from torch import Tensor

from benchmarks.leaderboard.tasks import DELTA, MOST_UPLOADS, Task
from manifed.experiment.assembly import initial_point, load_shards
from manifed.experiment.load import parse
from manifed.experiment.schema import Experiment
from manifed.manifolds import SPD, Grassmann, Sphere, Stiefel
from manifed.problems.examples import Examples
from manifed.problems.linear import LinearModel
from manifed.problems.pca import KPCA, PrincipalEigenvector
from manifed.problems.problem import pool

TUNING, CHOOSING = (1000, 1001), tuple(range(2000, 2010))
_AT_ONCE = 8_000_000
"""Numbers of one tensor of gradients."""
_LOST = 1e3
_FARTHEST = 30.0
"""Of a minimum at infinity, as that of classes that a line parts, moves are fractions of this."""
_ROUNDS, _CLIMBS = (1, 3, 10, 30, 100), 8
"""Of the first grid; and how often the best is left for a neighbour at most."""


@lru_cache
def sigma(epsilon: float) -> float:
    """Noise multiplier of one Gaussian release of (epsilon, 1e-5), by its exact curve."""

    def excess(mu: float) -> float:
        inside = norm.cdf(mu / 2 - epsilon / mu)
        return inside - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu) - DELTA

    return 1 / float(brentq(excess, 1e-9, 100))


def plain(task: Task, seed: int, clients: int) -> Experiment:
    """A config of the same data and start, which nothing is planned for."""
    rsgd = {"kind": "rsgd", "step_size": 1.0, "minibatch": {"kind": "full"}, "maps": task.maps}
    table = task.table(1.0, seed, clients)
    return parse({**table, "privacy": {"kind": "none"}, "training": rsgd})


class Pooled:
    """All records of a task at a seed, and what is measured on them."""

    def __init__(self, task: Task, seed: int, clients: int) -> None:
        config = plain(task, seed, clients)
        data = load_shards(config)
        self.clients = clients
        self.problem = data.problem
        self.manifold = data.problem.manifold
        self.maps = self.manifold.maps(task.maps)
        pooled: Any = pool(data.examples)
        self.examples: Examples = pooled[0] if isinstance(pooled, tuple) else pooled
        self.count = len(self.examples)
        self.start = initial_point(config)
        self.shape = tuple(self.start.shape)
        best = data.problem.optimum(data.examples)
        self.best, self.lowest = best.x, best.value
        self.highest = float(data.problem.objective(self.start, data.examples))
        self.is_spanned = isinstance(self.manifold, Sphere | Stiefel | Grassmann)
        self.dim = self.manifold.dim(self.shape)
        self.has_components = isinstance(self.problem, PrincipalEigenvector | KPCA)
        self._rows = next(iter(self.examples.tensors.values()))
        tensors = {key: t.unsqueeze(0) for key, t in self.examples.tensors.items()}
        self._stack = Examples(tensors, self.examples.feature_ndim)

    def started_at(self, x: Tensor) -> "Pooled":
        """The same records with another start."""
        made = copy(self)
        made.start = x
        made.highest = float(self.problem.losses(x, self.examples).mean())
        return made

    def _pieces(self, x: Tensor) -> Iterable[Tensor]:
        is_linear = isinstance(self.problem, LinearModel)
        columns = self.shape[1] if len(self.shape) == 2 else 1
        is_linear = is_linear or (self.has_components and columns == 1)
        size = self.count * (1 if is_linear else math.prod(self.shape))
        return x.split(max(1, _AT_ONCE // size))

    def gradients(self, x: Tensor, clip: Tensor) -> Tensor:
        """Mean of clipped gradients at points (R, *point), for clips (R,)."""
        found = list[Tensor]()
        clips = iter(clip.split([len(one) for one in self._pieces(x)]))
        for points in self._pieces(x):
            length = next(clips).unsqueeze(-1)
            if isinstance(self.problem, LinearModel):
                rows = self.examples["feature"]
                slopes = self.problem.slopes(points, self._stack)
                sizes = slopes.abs() * rows.norm(dim=-1)
                weights = slopes * (length / sizes.clamp_min(1e-300)).clamp_max(1.0)
                found.append(weights @ rows / self.count)
                continue
            each = self.problem.gradients(points, self._stack)
            factors = (length / each.norms.clamp_min(1e-300)).clamp_max(1.0)
            found.append(each.sum(torch.nan_to_num(factors) / self.count))
        return torch.cat(found)

    def norms(self, x: Tensor) -> Tensor:
        """Norms of all gradients at one point, (n,)."""
        return self.problem.gradients(x, self.examples).norms

    def shares(self, x: Tensor) -> Tensor:
        """What is left of the start's gap at points (R, *point)."""
        losses = [self.problem.losses(one, self._stack).mean(-1) for one in self._pieces(x)]
        found = (torch.cat(losses) - self.lowest) / (self.highest - self.lowest)
        return torch.where(torch.isfinite(found), found, _LOST).clamp(0, _LOST)

    def noise(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Standard normals at points (R, *point)."""
        coords = (len(x), *self.manifold.coords_shape(self.shape))
        drawn = torch.randn(coords, generator=generator, dtype=torch.float64)
        return self.manifold.from_coords(x, drawn)

    def deviation(self, epsilon: float) -> float:
        """Of a mean that takes the whole budget, over its clip."""
        return sigma(epsilon) * math.sqrt(self.clients) / self.count

    def _wide(self, values: Tensor, lead: int = 1) -> Tensor:
        return values.reshape(*values.shape[:lead], *[1] * len(self.shape))


@dataclass(frozen=True)
class Setting:
    """All numbers of a rival."""

    clip: float
    move: float
    """Length of a move along a mean as long as the clip."""
    rounds: int
    fall: float = 0.2
    """Noise of the last round over that of the first."""
    tail: float = 0.5
    momentum: float = 0.0


def run(data: Pooled, epsilon: float, settings: Sequence[Setting], seed: int) -> Tensor:
    """The share that each of some settings, of one number of rounds, reaches at a seed."""
    generator = torch.Generator().manual_seed(seed)
    (rounds,) = {one.rounds for one in settings}
    columns = {
        key: torch.tensor([asdict(one)[key] for one in settings], dtype=torch.float64)
        for key in ("clip", "move", "fall", "tail", "momentum")
    }
    wide = data._wide
    x = data.start.expand(len(settings), *data.shape).clone()
    velocity = torch.zeros_like(x)
    ratio = columns["fall"] ** (1 / max(rounds - 1, 1))
    z = torch.stack([ratio**t for t in range(rounds)])
    z = z * (z**-2).sum(0).sqrt()
    first = ((1 - columns["tail"]) * rounds).clamp_max(rounds - 1)
    total, mean = torch.zeros(len(settings), dtype=torch.float64), None
    for t in range(rounds):
        ahead = data.gradients(x, columns["clip"]) / wide(columns["clip"])
        # the same noise for every setting, which is compared with others and not with itself
        ahead = ahead + wide(data.deviation(epsilon) * z[t]) * data.noise(x[:1], generator)
        if data.shape != tuple(data.manifold.coords_shape(data.shape)):
            ahead = data.manifold.proju(x, ahead)
        velocity = wide(columns["momentum"]) * velocity - wide(columns["move"]) * ahead
        try:
            after = data.maps.forward(x, velocity)
        except torch.linalg.LinAlgError:
            after = x
        is_there = torch.isfinite(after).flatten(1).all(-1) & (after.flatten(1).norm(dim=1) < 1e8)
        if isinstance(data.manifold, SPD):
            values = torch.linalg.eigvalsh(torch.where(wide(is_there), after, x))
            is_there &= values[..., 0] > 1e-8 * values[..., -1]
        after = torch.where(wide(is_there), after, x)
        if bool((columns["momentum"] > 0).any()):
            velocity = data.maps.transport(x, after, velocity)
        x = after
        weight = torch.where(t >= first.floor(), z[t] ** -2, 0.0)
        mean, total = _averaged(data, mean, total, x, weight)
    is_last = columns["tail"] == 0
    assert mean is not None
    if data.is_spanned:
        frames = x.reshape(len(x), data.shape[0], -1)
        top = torch.linalg.eigh(mean)[1][..., -frames.shape[-1] :]
        mean = top.reshape(x.shape)
    return data.shares(torch.where(wide(is_last), x, mean))


def _averaged(
    data: Pooled, mean: Tensor | None, total: Tensor, x: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """The average with one iterate more: of projectors, or along geodesics."""
    after = total + weight
    share = torch.where(after > 0, weight / after.clamp_min(1e-300), 0.0)
    if data.is_spanned:
        frames = x.reshape(len(x), data.shape[0], -1)
        own = frames @ frames.mT
        mean = torch.zeros_like(own) if mean is None else mean
        return mean + share[:, None, None] * (own - mean), after
    if mean is None:
        return x.clone(), after
    moved = data.manifold.expmap(mean, data._wide(share) * data.manifold.logmap(mean, x))
    return torch.where(data._wide(share > 0), moved, mean), after


# -- tuning --------------------------------------------------------------------------------------
def _all(data: Pooled, epsilon: float, settings: Sequence[Setting], seed: int) -> list[float]:
    """Shares at one seed, those of one number of rounds together."""
    found = dict[Setting, float]()
    for rounds in sorted({one.rounds for one in settings}):
        alike = [one for one in settings if one.rounds == rounds]
        found |= zip(alike, run(data, epsilon, alike, seed).tolist(), strict=True)
    return [found[one] for one in settings]


def _mean(data: Any, epsilon: float, settings: Sequence[Setting], seeds: Sequence[int]) -> Any:
    return np.mean([_all(data(s), epsilon, settings, s) for s in seeds], axis=0)


def _best(settings: Sequence[Setting], shares: Any, count: int) -> list[Setting]:
    return [settings[i] for i in np.argsort(shares, kind="stable")[:count]]


def tuned(data: Any, epsilon: float) -> Setting:
    """The rival of a task; ``data`` gives a `Pooled` by seed."""
    first = data(TUNING[0])
    sizes = torch.cat([first.norms(first.start), first.norms(first.best)])
    quantiles = torch.tensor([0.02, 0.2, 0.5, 0.8, 1.0], dtype=torch.float64)
    clips = [1e-6, *torch.quantile(sizes, quantiles).clamp_min(1e-6).tolist()]
    if first.manifold.has_logmap:
        away = float(first.manifold.dist(first.start, first.best))
    else:
        away = float((first.start - first.best).norm())
    moves = [min(away, _FARTHEST) * float(f) for f in np.geomspace(0.01, 8.0, 8)]

    def best_of(settings: Iterable[Setting], seeds: Sequence[int], count: int) -> list[Setting]:
        listed = sorted({*settings}, key=lambda one: tuple(asdict(one).values()))
        return _best(listed, _mean(data, epsilon, listed, seeds), count)

    pairs = itertools.product(_ROUNDS, clips)
    grid = [Setting(clip, move, rounds) for rounds, clip in pairs for move in moves]
    shares = dict(zip(grid, _mean(data, epsilon, grid, TUNING), strict=True))
    likely = [  # some of every number of rounds, since two seeds may have a bad draw
        one
        for rounds in _ROUNDS
        for one in sorted((g for g in grid if g.rounds == rounds), key=shares.__getitem__)[:4]
    ]
    best = best_of(
        (replace(one, move=f * one.move) for one in likely for f in (0.7, 1, 1.5)), CHOOSING, 4
    )
    around = [
        replace(one, move=factor * one.move, fall=fall, tail=tail, momentum=momentum)
        for one in best
        for factor, fall, tail, momentum in itertools.product(
            (0.6, 1.0, 1.6), (1.0, 0.2), (0.0, 0.2, 0.5), (0.0, 0.5)
        )
    ]
    (found,) = best_of(best_of(around, TUNING, 24) + best, CHOOSING, 1)
    for _ in range(_CLIMBS):  # beyond every edge
        beside = {
            "clip": [f * found.clip for f in (0.6, 1.6)],
            "move": [f * found.move for f in (0.4, 0.7, 1.4, 2.5)],
            "rounds": [n for n in (found.rounds // 2, 2 * found.rounds) if 1 <= n <= MOST_UPLOADS],
            "fall": [0.05, 0.2, 0.5, 1.0],
            "tail": [0.0, 0.2, 0.5, 0.8],
            "momentum": [0.0, 0.5, 0.8],
        }
        near = [replace(found, **{key: one}) for key, all_ in beside.items() for one in all_]
        (after,) = best_of([found, *near], CHOOSING, 1)
        if after == found:
            break
        found = after
    return found


# -- one-shot releases ---------------------------------------------------------------------------
def analyze_gauss(data: Pooled, epsilon: float, quantile: float, seed: int) -> float:
    """Leading eigenvectors of the noised second moment (Dwork, Talwar, Thakurta, Zhang 2014)."""
    rows = data._rows
    squares = rows.square().sum(-1)
    clip = float(torch.quantile(squares, quantile))
    kept = rows * (clip / squares.clamp_min(1e-300)).clamp_max(1.0).sqrt().unsqueeze(-1)
    noised = _symmetric(kept.mT @ kept / data.count, clip, data, epsilon, seed)
    top = torch.linalg.eigh(noised)[1][:, -(data.shape[1] if len(data.shape) == 2 else 1) :]
    return float(data.shares(top.reshape(1, *data.shape)))


def noisy_gram(data: Pooled, epsilon: float, ridge: float, quantile: float, seed: int) -> float:
    """Sufficient statistics with a ridge (AdaSSP's, Wang 2018, whose ridge is tuned here)."""
    rows = torch.cat([data.examples["feature"], data.examples["target"].unsqueeze(-1)], -1)
    squares = rows.square().sum(-1)
    clip = float(torch.quantile(squares, quantile))
    kept = rows * (clip / squares.clamp_min(1e-300)).clamp_max(1.0).sqrt().unsqueeze(-1)
    noised = _symmetric(kept.mT @ kept / data.count, clip, data, epsilon, seed)
    d = len(noised) - 1
    added = ridge * clip * data.deviation(epsilon) * math.sqrt(d) * torch.eye(d).double()
    x = torch.linalg.lstsq(noised[:d, :d] + added, noised[:d, d:]).solution[:, 0]
    return float(data.shares(x.unsqueeze(0)))


def _symmetric(matrix: Tensor, clip: float, data: Pooled, epsilon: float, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(matrix.shape, generator=generator, dtype=torch.float64)
    lower = torch.tril(drawn, -1) / math.sqrt(2)
    noise = lower + lower.mT + torch.diag(drawn.diagonal())
    return matrix + clip * data.deviation(epsilon) * noise


def one_shots(data: Pooled) -> dict[str, Any]:
    """The releases that a problem admits, by what they are called with their numbers."""
    if data.has_components:
        return {
            f"Analyze Gauss, clip at quantile {q:g}": (analyze_gauss, (q,)) for q in (0.5, 0.9, 1.0)
        }
    if "target" in data.examples.tensors and isinstance(data.problem, LinearModel):
        return {
            f"noisy Gram, ridge {r:g}, clip at quantile {q:g}": (noisy_gram, (r, q))
            for r in (0.1, 0.5, 1.0, 3.0)
            for q in (0.5, 0.9, 1.0)
        }
    return {}
