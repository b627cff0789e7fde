r"""What a planner takes a problem to be before any data: one public guess a problem kind.

No guess was fitted to a data set: eigenvalues fall by a power law, and records are as long as the
clip allows. ``privacy.l2_norm_clip`` = C says how long that is:

=============================  ============  ================================================
problem.kind                   C bounds      the guess
=============================  ============  ================================================
principal-eigenvector, kpca    |z|^2         second moment of trace C, eigenvalues i^-2
matrix completion              a gradient    as kpca of columns with |a|^2 = 2 C
frechet-mean, nearest-mean     a gradient    records at C / 4 or C / 2 from their mean; the start
                                             at C / 4, C / 2, 3 C / 4 or C
least-squares                  |a|^2 + b^2   second moment of trace C d / (d + 1), eigenvalues
                                             i^-1; half of the variance of b is explained; no
                                             step beyond 2 / C, which bounds every curvature
logistic                       a gradient    |a| = 2 C, so that the clip just bites at the start;
                                             eigenvalues i^-1; scores of deviation 1.5, labels as
                                             likely as a true model says; no step beyond
                                             2 / smoothness, which is C^2 for these rows
=============================  ============  ================================================

A gradient of a row of squared length C is at most C / 2 long where f_j = -1/2 |x^T z|^2 (two
orthogonal parts of z are multiplied), and about that for least squares (|a| |b| at the origin):
there a descent gets that clip, and half of the noise.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np

from manifed.experiment.predictions import Array, Cloud, Components, Flat, Spectrum
from manifed.experiment.schema import Experiment
from manifed.problems.class_means import NearestMean
from manifed.problems.frechet import FrechetMean, name_of

COMPLETION = "reproduction.matrix_completion:MatrixCompletion"
SCORES = 1.5
"""Standard deviation of the scores a_j^T x of a logistic model that is worth fitting."""
_EXPLAINED = 0.5
"""Share of the variance of a target that least squares explains."""
_CURVATURE: Mapping[str, float] = {
    "spd": -0.5, "spd-log-euclidean": 0.0, "spd-log-cholesky": 0.0, "sphere": 1.0,
    "lorentz": -1.0, "poincare": -1.0,
}  # fmt: skip
"""The sectional curvature farthest from zero."""
_DECAY: Mapping[str, float] = {
    "principal-eigenvector": 2.0, "kpca": 2.0, COMPLETION: 2.0, "least-squares": 1.0,
    "logistic": 1.0,
}  # fmt: skip


@dataclass(frozen=True)
class Guess:
    """A landscape, and what of the config's clip a gradient of it needs."""

    landscape: Components | Flat | Cloud
    clip_share: float = 1.0
    """A descent's clip over the config's."""


def guess_of(
    config: Experiment, clip: float, shape: tuple[int, ...], decay: float | None
) -> Guess | None:
    """The guess for a problem whose points have that shape; None: no kind that one is made for."""
    kind = config.problem.kind
    fall = decay or _DECAY.get(kind, 1.0)
    if kind in ("principal-eigenvector", "kpca", COMPLETION):
        return _components(kind, clip, shape, fall)
    if kind in ("frechet-mean", "nearest-mean"):
        return _mean(config, clip, shape)
    if kind == "least-squares":
        values = _powers(shape[0], fall, clip * shape[0] / (shape[0] + 1))
        variance = clip / (shape[0] + 1)
        start = 1.0 if config.problem.start.kind == "random" else 0.0  # of every coordinate
        away = np.full(shape[0], _EXPLAINED * variance / values.sum() + start)
        return Guess(Flat(values, away, (1 - _EXPLAINED) / 2 * variance, smoothness=clip), 0.5)
    if kind == "logistic":
        # the gradient at 0 is half as long as a row
        return Guess(_logistic(_powers(shape[0], fall, (2.0 * clip) ** 2)))
    return None


def _components(kind: str, clip: float, shape: tuple[int, ...], decay: float) -> Guess:
    k = shape[1] if len(shape) == 2 else 1
    if kind == COMPLETION:  # what is left over is the cost, and not what is found
        spectrum = Spectrum(shape[0], k, 2 * clip, decay)
        return Guess(Components(spectrum, 1.0, (spectrum.trace - spectrum.best) / 2))
    spectrum = Spectrum(shape[0], k, clip, decay)
    if kind == "kpca":
        return Guess(Components(spectrum, 1.0, spectrum.best / 2), 0.5)
    return Guess(Components(spectrum, 2.0, spectrum.best))


def _mean(config: Experiment, clip: float, shape: tuple[int, ...]) -> Guess | None:
    """Means of points, for several starts and distances; a class has a share of the records.

    The mean sectional curvature of m x m matrices is -1 / (2 (m + 1)): that of X and Y is
    -|[X, Y]|^2 / 4 for orthonormal ones, and the mean over Y is -m / 4 in all m (m + 1) / 2
    directions together.
    """
    problem = config.problem
    assert isinstance(problem, FrechetMean | NearestMean)
    if isinstance(problem, NearestMean) and problem.center == "median":
        return None
    classes = problem.num_classes if isinstance(problem, NearestMean) else 1
    place = problem.manifold if isinstance(problem, NearestMean) else name_of(problem.manifold)
    worst = _CURVATURE[place]
    mean = worst if place != "spd" else -0.5 / (shape[-1] + 1)
    dim = problem.build().manifold.dim(shape) // classes
    # of the start and of records from the mean, over the clip of gradients 2 dist, which is exact
    # up to C / 2: every pair is as likely (docs/choosing.md)
    pairs = product((0.25, 0.5, 0.75, 1.0), (0.25, 0.5))
    away, spread = (clip * np.array(each) for each in zip(*pairs, strict=True))
    return Guess(Cloud(away, spread, clip, dim, classes, mean, worst))


def _powers(count: int, decay: float, trace: float) -> Array:
    found = np.arange(1, count + 1, dtype=np.float64) ** -decay
    return trace * found / found.sum()


def _logistic(values: Array) -> Flat:
    """Logistic regression whose scores are normal, and whose model is true."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(61)
    chance = 1 / (1 + np.exp(-SCORES * nodes))
    weights = weights / weights.sum()
    bend = float((weights * chance * (1 - chance)).sum())
    surprise = -chance * np.log(chance) - (1 - chance) * np.log1p(-chance)
    away = np.full(len(values), SCORES**2 / values.sum())
    found = float((weights * surprise).sum())
    return Flat(bend * values, away, found, smoothness=float(values.sum()) / 4)
