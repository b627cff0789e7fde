"""The methods that a planner compares: what each is at every setting that is tried.

Batches are full. A Poisson batch of a share q under the same budget has no less noise a round (the
Gaussian limit has the deviation of the full batch's), and the batch's own on top: batches that grow
save computing time, which is not what a budget pays for.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from manifed.algorithms.averaging import Average, GeodesicAverage, ProjectorAverage
from manifed.algorithms.log_euclidean import LogEuclidean
from manifed.algorithms.noisy_gram import NoisyGram
from manifed.algorithms.one_shot import OneShot
from manifed.algorithms.rsgd import RSGD
from manifed.algorithms.scheduled import ScheduledRSGD
from manifed.algorithms.second_moment import SecondMoment
from manifed.algorithms.tangent_mean import TangentMean
from manifed.experiment.guesses import Guess
from manifed.experiment.predictions import Array, Cloud, Components, Descent
from manifed.experiment.privacy import Sizes, example_mechanism
from manifed.experiment.schema import Experiment
from manifed.manifolds.base import Manifold, MapChoice
from manifed.manifolds.grassmann import Grassmann
from manifed.manifolds.sphere import Sphere
from manifed.manifolds.stiefel import Stiefel
from manifed.oracles.minibatch import Full
from manifed.problems.problem_specs import LeastSquaresSpec
from manifed.schedules.schedule import Geometric

_ROUNDS = (1, 2, 3, 4, 6, 8, 11, 15, 22, 30, 45, 60, 100, 200, 400)
_STEPS = (0.05, 0.07, 0.1, 0.14, 0.2, 0.28, 0.4, 0.56, 0.75, 1.0)
"""In units of one over the largest curvature of the guess."""
_FEWER_ROUNDS, _FEWER_STEPS = (
    (1, 3, 8, 15, 30, 60, 100, 200, 400),
    (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0),
)
"""Of principal components, which are followed by pairs of directions: that takes longer."""
_FIRST = (0.25, 0.5)
"""Where an average begins, as a share of the rounds."""
_FALLS = (0.5, 0.2, 0.05)
"""Noise of the last round over that of the first, where it falls."""
_MOMENTUM = 0.5


@dataclass(frozen=True)
class Option:
    """A method at its best settings, and what it is predicted to give."""

    training: SecondMoment | LogEuclidean | NoisyGram | RSGD
    num_rounds: int
    clip: float
    """``privacy.l2_norm_clip`` of the resolved config."""
    noise_multiplier: float
    """Of the first round."""
    numbers_up: int
    """Of one client, over the run."""
    gap: float | None
    """Predicted (f(x) - f*) / |f*|, the geometric mean over the guesses; None: nothing is
    predicted, the safe default."""
    momentum: float | None = None
    average: Average | None = None

    @property
    def name(self) -> str:
        """The method, in a few words."""
        if self.gap is None:
            return "rsgd, safe default"
        parts = [self.training.kind]
        parts += [] if self.momentum is None else ["momentum"]
        return ", ".join(parts if self.average is None else [*parts, "average"])

    def settings(self) -> dict[str, Any]:
        """The table ``training`` that runs it."""
        return self.training.model_dump(mode="json", exclude_none=True)

    def strategy(self) -> dict[str, Any] | None:
        """The table ``strategy`` that runs it, if it takes one."""
        if self.momentum is None and self.average is None:
            return None
        mean = TangentMean(momentum=self.momentum, average=self.average)
        return mean.model_dump(mode="json", exclude_none=True)


def releases(
    config: Experiment, guess: Guess | None, sizes: Sizes, shape: tuple[int, ...]
) -> Iterator[Option]:
    """The one-shot releases that the problem has a statistic for."""
    statistic = config.problem.build().sufficient_statistic
    kinds = (SecondMoment, LogEuclidean, NoisyGram)
    for kind in kinds:
        if guess is None or not isinstance(statistic, kind.takes):
            continue
        privacy = config.privacy
        assert privacy.kind == "example-level"
        clip = privacy.l2_norm_clip
        training, landscape = kind(), guess.landscape
        if isinstance(training, LogEuclidean):
            clip = clip / 2  # of log z, and not of the gradient -2 log z at the identity
        price, stddev = _noise(config, training, sizes, clip)
        if isinstance(landscape, Components):
            gap = landscape.one_shot_gap(stddev)
        elif isinstance(landscape, Cloud):
            gap = float(_typical(landscape.shifted_gap(stddev)))
        else:
            # the largest eigenvalue of the noise, by the semicircle law
            floor = float(f"{stddev * math.sqrt(2 * shape[0]):.3g}")
            assert isinstance(config.problem, LeastSquaresSpec)
            training = NoisyGram(eigenvalue_floor=max(floor, 1e-9), ridge=config.problem.ridge)
            gap = landscape.solved_gap(stddev, floor)
        up = math.prod(training.up.layout(shape, torch.float64)["u"][0])
        yield Option(training, 1, clip, price, up, gap)


def descents(
    config: Experiment, guess: Guess | None, sizes: Sizes, shape: tuple[int, ...], rounds: int
) -> Iterator[Option]:
    """Full-batch descent for every setting that is tried; the safe default where none is known."""
    privacy = config.privacy
    assert privacy.kind == "example-level"
    if rounds < 1:
        return
    manifold = config.problem.build().manifold
    # exact logarithms of frames do not converge where the noise of a step is long
    is_frame = isinstance(manifold, Stiefel | Grassmann) or not manifold.has_logmap
    maps: MapChoice = "retraction" if is_frame else "exact"
    clip = privacy.l2_norm_clip * (1.0 if guess is None else guess.clip_share)
    price, stddev = _noise(config, RSGD(step_size=1.0, minibatch=Full()), sizes, clip)
    spans = isinstance(manifold, Sphere | Stiefel | Grassmann)
    kind = ProjectorAverage if spans else GeodesicAverage

    def option(tried: Descent, step: float, gap: float | None) -> Option:
        ratio = tried.noise_ratio
        training = RSGD(step_size=step, minibatch=Full(), maps=maps)
        if ratio != 1.0:
            falls = Geometric(scale=1.0, ratio=ratio)
            training = ScheduledRSGD(
                step_size=step, minibatch=Full(), maps=maps, noise_multipliers=falls
            )
        average = None
        if tried.from_round is not None:
            average = kind(from_round=tried.from_round, noise_ratio=ratio)
        count = tried.num_rounds
        scale = math.sqrt(sum(ratio ** (-2 * r) for r in range(count)))
        return Option(
            training, count, clip, scale * price, count * math.prod(shape), gap,
            tried.momentum or None, average,
        )  # fmt: skip

    refuge = safe(option, manifold, shape, (clip, stddev), rounds)
    if guess is None:
        yield refuge
        return
    landscape = guess.landscape
    has_pairs = isinstance(landscape, Components)
    shares = _FEWER_STEPS if has_pairs else _STEPS
    steps = np.array([float(f"{share / landscape.sharpest:.3g}") for share in shares])
    counts = {min(count, rounds) for count in (_FEWER_ROUNDS if has_pairs else _ROUNDS)}
    found = [
        (tried, np.atleast_2d(landscape.descent_gaps(tried, stddev)))
        for tried in _tried(steps, sorted(counts))
    ]
    # a guess by which every setting is lost says nothing of which to take
    is_told = np.isfinite([gaps.min(-1) for _, gaps in found]).any(0)
    is_known = False
    for tried, gaps in found if is_told.any() else []:
        typical = _typical(gaps[is_told])
        best = int(typical.argmin())
        if math.isfinite(typical[best]):
            is_known = True
            yield option(tried, float(steps[best]), float(typical[best]))
    if not is_known:
        yield refuge


def _typical(gaps: Array) -> Array:
    """The geometric mean over guesses, the first axis: no guess counts more for its large gaps."""
    if len(gaps) == 1:
        return gaps[0]
    with np.errstate(divide="ignore"):
        found: Array = np.exp(np.log(gaps).mean(0))
    return found


def safe(
    option: Callable[[Descent, float, None], Option],
    manifold: Manifold,
    shape: tuple[int, ...],
    noise: tuple[float, float],
    rounds: int,
) -> Option:
    """What is taken where nothing is predicted: averaged descent with the step of the worst case.

    For gradients of a root mean square G and a start at distance D, the average of T steps of size
    D / (G sqrt T) of convex cost is off by at most D G / sqrt T (Nemirovski, Juditsky, Lan,
    Shapiro 2009). Here G^2 = C^2 + T s^2 dim for the clip C and the deviation s of one round, so
    T ends where the noise is all there is. D: a right angle for every vector of a frame; 1
    elsewhere.
    """
    clip, stddev = noise
    spread = stddev**2 * manifold.dim(shape)
    rounds = min(rounds, max(1, math.ceil(clip**2 / spread)))
    distance = 1.0
    if isinstance(manifold, Sphere | Stiefel | Grassmann):
        distance = math.pi / 2 * math.sqrt(shape[1] if len(shape) == 2 else 1)
    step = distance / math.sqrt(rounds * clip**2 + rounds**2 * spread)
    first = None if rounds == 1 else max(1, rounds // 4)
    return option(Descent(np.ones(1), rounds, from_round=first), float(f"{step:.3g}"), None)


def _tried(steps: Array, counts: Sequence[int]) -> Iterator[Descent]:
    """Numbers of rounds, averages, falling noise and momentum."""
    for count in counts:
        tails = () if count == 1 else tuple(max(1, int(share * count)) for share in _FIRST)
        firsts: set[int | None] = {None, *tails}
        for first in firsts:
            yield Descent(steps, count, from_round=first)
            if count == 1:
                continue
            for fall in _FALLS:
                ratio = float(f"{fall ** (1 / (count - 1)):.4g}")
                yield Descent(steps, count, noise_ratio=ratio, from_round=first)
            yield Descent(steps, count, momentum=_MOMENTUM, from_round=first)


def _noise(
    config: Experiment, training: OneShot | RSGD, sizes: Sizes, clip: float
) -> tuple[float, float]:
    """(multiplier, deviation in every coordinate of the weighted mean) of one full-batch round."""
    assert config.privacy.kind == "example-level"
    once = config.model_copy(
        update={
            "federation": config.federation.model_copy(update={"num_rounds": 1}),
            "privacy": config.privacy.model_copy(update={"l2_norm_clip": clip}),
            "training": training,
        }
    )
    mechanism = example_mechanism(once, sizes)
    total = sum(sizes)
    variance = sum(
        (size / total * training.queries(mechanism, size)[0].stddev) ** 2 for size in sizes
    )
    (release,) = training.releases(mechanism, sizes[0])
    return release.noise_multiplier, math.sqrt(variance)
