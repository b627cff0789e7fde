r"""Predicts the gap of each method from public numbers, as the error of a linear system in noise.

A method is seen at the optimum of a landscape, where it is linear. Symbols: h_j the curvatures of f
by direction; s the standard deviation, in every coordinate, of the mean of one round that has the
whole budget; eta the step, beta the momentum, T the rounds; z_r proportional to the noise of round
r, which then has the deviation s z_r sqrt(sum_u z_u^-2); w_u the weights of the average, sum 1.

* Descent: x_r = x_{r-1} + d_r, d_r = beta d_{r-1} - eta (h x_{r-1} + noise_r). Of sum_u w_u x_u the
  share a_r of noise_r and the share of the start follow from the adjoint recursion, from T down:
  S_r = w_r + S_{r+1} - eta h D_{r+1}, D_r = S_r + beta D_{r+1}, a_r = eta D_r. So the variance is
  s^2 sum_r a_r^2 z_r^2 sum_r z_r^-2.
* `Flat` (linear models): f - f* = 1/2 sum_j h_j error_j^2.
* `Cloud` (a mean of points in each of K classes): f - f* = dist^2 summed over classes, over K. An
  iterate at root mean square distance r of its mean goes eta (2 / K) c(r) of the way, where
  c(r) = min(1, C / (2 sqrt(r^2 + q^2))) is what a clip of C leaves of the gradient of a point at
  distance q of the mean. A step of noise of variance v in each of n coordinates adds
  v (1 + (n - 1) ct r) to r^2: the Laplacian of dist^2 / 2 under the mean sectional curvature of the
  space, with ct r = r coth r at curvature -1. So r follows forwards, and the shares of noises and
  start backwards, with that eta h by round.
* `Spectrum` (principal components): l_1 >= ... >= l_d a spectrum, k components. For i <= k < j let
  g_ij = l_i - l_j and t_ij^2 the squared tangent of the angle by which direction j leaks into
  component i; then f - f* is proportional to sum_ij g_ij t_ij^2, and a component that is lost
  altogether counts as a typical direction beyond k. One noised second moment has t_ij = E_ij / g_ij
  to first order. sum_j t_ij^2 is the squared sine up to the noise at which the component drowns
  (the transition of a spiked matrix, Baik, Ben Arous, Peche 2005); with steps of noise it is
  the same: the overlap c obeys dc = eta h c (1 - c^2) - c L^2 / 2 for steps of noise of length L,
  whose rest is 1 - c^2 = L^2 / (2 eta h), what settles in the linear system. An average of
  iterates of overlap c leaks as if its noise were 1 / c times as large. The start decays as a
  power iteration, by 1 / (1 + eta h) a round; a random one has t_ij = z_j / z_i for independent
  normals, and the mean over z_i is taken, because the few starts that lie almost across the
  component decide it.

These are predictions of means. They are as good as the guess: docs/choosing.md has the measured
gaps beside them.
"""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from manifed.experiment.schema import Experiment
from manifed.manifolds.linalg import Shape
from manifed.problems.class_means import NearestMean
from manifed.problems.frechet import FrechetMean, name_of

Array = NDArray[np.float64]

_STARTS = np.array([NormalDist().inv_cdf(1 - (n + 0.5) / 100) for n in range(50)])
"""|z_i| of starts that are equally likely."""
_LOST = 1e100
"""Squared tangent where nothing settles; and squared distance beyond which none is told apart."""
_APART = 40
_TOGETHER = 24
"""Directions beyond the components that are followed one by one, and groups of all others."""


@dataclass(frozen=True)
class Descent:
    """The settings of a gradient descent whose error is predicted; steps of shape (n,)."""

    step_sizes: Array
    num_rounds: int
    momentum: float = 0.0
    noise_ratio: float = 1.0
    """z_r = ratio^r; iterates of an average are weighted by its inverse square."""
    from_round: int | None = None
    """The first iterate of the average; None: the last iterate is the model."""

    @property
    def weights(self) -> Array:
        """Returns the weights w_0, ..., w_T of the iterates in the average."""
        first = self.num_rounds if self.from_round is None else self.from_round
        found = np.zeros(self.num_rounds + 1)
        found[first:] = self.noise_ratio ** (-2.0 * np.arange(len(found) - first))
        return found / found.sum()

    @property
    def noise(self) -> Array:
        """Returns the noise's standard deviation in rounds 1, ..., T at s = 1."""
        z: Array = self.noise_ratio ** np.arange(1.0, self.num_rounds + 1)
        return z * math.sqrt((z**-2).sum())

    def settles(self, bend: Array) -> NDArray[np.bool_]:
        """Whether descent with this eta h converges."""
        return (bend > 0) & (bend < 2 * (1 + self.momentum))

    def errors(self, bend: Array, first: Array | float = 0.0) -> tuple[Array, Array]:
        """(variance at s = 1, share of the start squared) for one eta h (n, ...) in all rounds.

        ``first``: rounds before which all is forgotten, so that the start is there. Infinite where
        steps are so long that nothing converges.
        """
        bends = np.broadcast_to(bend, (self.num_rounds, *bend.shape))
        variance, start = self.backwards(bends, self.noise**2, first)
        variance = np.expand_dims(self.step_sizes, tuple(range(1, bend.ndim))) ** 2 * variance
        is_there = self.settles(bend)
        return np.where(is_there, variance, np.inf), np.where(is_there, start**2, np.inf)

    def backwards(
        self, bends: Array, noise: Array, first: Array | float = 0.0
    ) -> tuple[Array, Array]:
        """(sum_r noise_r D_r^2, S_first) for eta h and noise by round, each (T, n, ...)."""
        weights = self.weights
        total = 0.0
        velocity = 0.0
        start = position = np.full(bends.shape[1:], weights[-1])
        for r in range(self.num_rounds, 0, -1):
            velocity = position + self.momentum * velocity
            total = total + np.where(first < r, noise[r - 1], 0.0) * velocity**2
            position = weights[r - 1] + position - bends[r - 1] * velocity
            start = np.where(first < r, position, start)
        return np.asarray(total), start


@dataclass(frozen=True)
class Flat:
    """A guess of a problem: a quadratic minimum with curvatures (m,), distance and value."""

    curvature: Array
    away: Array
    """Squared distance of the start by direction, (m,)."""
    value: float
    """|f*|."""
    sharpest: float
    """The largest curvature; more where steps of one over it might exceed 2 over a sure bound.

    So no step is so long that descent is unstable where the guess is wrong.
    """

    @np.errstate(over="ignore")
    def descent_gaps(self, descent: Descent, stddev: float) -> Array:
        """Predicts the gap (f - f*) / |f*| of every step size."""
        variance, start = descent.errors(descent.step_sizes[:, None] * self.curvature)
        squares = stddev**2 * variance + start * self.away
        return 0.5 * (self.curvature * squares).sum(-1) / self.value


@dataclass(frozen=True)
class Cloud:
    """A guess of a problem of means: points around a mean in each class, seen from a start."""

    away: Array
    """Distance of the start from each mean, shape (m,)."""
    spread: Array
    """Root mean square distance of the points of a class from their mean, shape (m,)."""
    clip: float
    dim: int
    """The dimension of the space in which one class's mean lies."""
    classes: int
    mean_bow: float
    """Mean sectional curvature."""
    worst_bow: float
    """The one farthest from zero."""

    @property
    def sharpest(self) -> float:
        """Returns the largest curvature of f between start and mean, clip included."""
        r = np.linspace(0.0, self.away, 33)  # (33, m)
        turned = np.maximum(_cotangent(self.worst_bow, r), 1.0) * self._kept(r**2, self.spread)
        return 2 / self.classes * float(turned.max())

    def one_shot_gap(self, stddev: float) -> Array:
        """Predicts the gap of a mean with this deviation in every coordinate, shape (m,)."""
        return self.dim * (stddev / self.spread) ** 2

    @np.errstate(over="ignore", invalid="ignore")
    def descent_gaps(self, descent: Descent, stddev: float) -> Array:
        """Predicts (f - f*) / |f*| by guess and step size, (m, n); infinite if it diverges."""
        away = self.away[:, None]
        spread = self.spread[:, None]
        eta = descent.step_sizes
        beta = descent.momentum
        way = np.repeat(away, len(eta), axis=1)
        pace, place, both, speed = np.zeros((4, *way.shape))
        # of the noise: place squared, place times speed, speed squared
        farthest = way**2
        bends = list[Array]()
        pushed = list[Array]()
        for deviation in stddev * descent.noise:
            square = way**2 + place
            bend = eta * (2 / self.classes) * self._kept(square, spread)
            bent = _cotangent(self.mean_bow, np.sqrt(square))
            push = (eta * deviation) ** 2 * (1 + (self.dim - 1) * bent)
            bends.append(bend)
            pushed.append(push)
            pace = beta * pace - bend * way
            way = way + pace
            speed = beta**2 * speed - 2 * beta * bend * both + bend**2 * place + push
            both = beta * both - bend * place
            place = np.minimum(place + 2 * both + speed, _LOST)
            both = both + speed
            farthest = np.fmax(farthest, way**2 + place)
        variance, start = descent.backwards(np.stack(bends), np.stack(pushed))
        gaps = (variance + (away * start) ** 2) / spread**2
        is_lost = ~descent.settles(bends[0]) | np.isnan(gaps)
        if self.mean_bow:  # no average repairs what noise carries off in a bent space
            is_lost |= farthest > (1 + 1e-9) * np.maximum(away, self.clip / 2) ** 2
        return np.where(is_lost, np.inf, gaps)

    def _kept(self, square: Array, spread: Array) -> Array:
        """c(r) by r^2."""
        return np.minimum(1.0, self.clip / (2 * np.sqrt(square + spread**2)))


def _cotangent(bow: float, r: Array) -> Array:
    """Of ``bow`` < 0 b coth b, of ``bow`` > 0 b cot b, with b = sqrt|bow| r."""
    bent = math.sqrt(abs(bow)) * np.maximum(r, 1e-9)
    if bow == 0:
        return np.ones_like(r)
    if bow > 0:
        bent = np.minimum(bent, 1.4)  # below pi / 2, where a mean is looked for
        return bent / np.tan(bent)
    return bent / np.tanh(bent)


@dataclass(frozen=True)
class Components:
    """A guess of a principal component problem, by the spectrum of its matrix A."""

    values: Array
    """l_1 >= ... >= l_d."""
    components: int
    curvature: float
    """c: of f in the direction from component i to j, over l_i - l_j."""
    value: float
    """|f*|."""

    @cached_property
    def beyond(self) -> tuple[Array, Array]:
        """(eigenvalues l_j beyond the components, multiplicities): the last ones in groups."""
        near, rest = np.split(self.values[self.components :], [1])
        if len(rest) <= _APART + _TOGETHER:
            return np.append(near, rest), np.ones(len(rest) + 1)
        edges = np.unique(np.geomspace(_APART, len(rest), _TOGETHER + 1).round().astype(int))
        groups = [rest[a:b] for a, b in itertools.pairwise(edges)]
        values = np.concatenate([near, rest[:_APART], [group.mean() for group in groups]])
        return values, np.concatenate([np.ones(1 + _APART), list(map(len, groups))])

    @cached_property
    def gaps(self) -> Array:
        """l_i - l_j for i <= k < j, shape (k, groups)."""
        return self.values[: self.components, None] - self.beyond[0]

    @property
    def sharpest(self) -> float:
        """Returns the largest curvature."""
        return self.curvature * float(self.gaps.max())

    def one_shot_gap(self, stddev: float) -> Array:
        """Predicts the gap of leading eigenvectors of A + E, E of this deviation in Sym(d)."""
        return self._gap(stddev**2 / 2 / self.gaps**2)

    @np.errstate(over="ignore", invalid="ignore", divide="ignore")
    def descent_gaps(self, descent: Descent, stddev: float) -> Array:
        """Predicts (f - f*) / |f*| of every step size, shape (n,)."""
        bends = descent.step_sizes[:, None, None] * (self.curvature * self.gaps)
        drowned = self._settled(descent, bends, stddev)
        # iterates before the noise is small enough are as good as random ones
        is_drowned = drowned.max(-1) > 0.9  # a squared sine
        first = np.where(is_drowned.any(-1), descent.num_rounds - is_drowned[:, ::-1].argmax(-1), 0)
        first = np.minimum(first, descent.num_rounds - 1)[:, None, None]
        variance, _ = descent.errors(bends, first)
        _, start = descent.errors(bends / (1 + bends), first)
        leaks = stddev**2 * variance
        if descent.from_round is not None:  # of an average: its iterates overlap less
            from_first = drowned[:, max(descent.from_round, 1) - 1]
            leaks = leaks / np.maximum(1 - from_first, 1e-9)[..., None]
        return np.stack([self._gap(leaks + start / z**2) for z in _STARTS]).mean(0)

    def _settled(self, descent: Descent, bends: Array, stddev: float) -> Array:
        """sum_j t_ij^2 where noise of each round's size has settled, shape (n, T, k)."""
        beta = descent.momentum
        shape = (1 + beta) / ((1 - beta) * bends * (2 * (1 + beta) - bends))
        each = (self.beyond[1] * np.where(descent.settles(bends), shape, _LOST)).sum(-1)  # (n, k)
        length = (descent.step_sizes[:, None] * stddev * descent.noise) ** 2  # (n, T)
        return length[..., None] * each[:, None]

    def _gap(self, leaks: Array) -> Array:
        """By squared tangents (..., k, groups)."""
        counts = self.beyond[1]
        drowned = (counts * leaks).sum(-1, keepdims=True)
        inside = counts * self.gaps * leaks / np.maximum(drowned, 1.0)
        found = inside.sum((-2, -1)) * self.curvature / 2 / self.value
        return np.where(np.isnan(found), np.inf, found)


COMPLETION = "reproduction.matrix_completion:MatrixCompletion"
_SCORES = 1.5
"""Standard deviation of the scores a_j^T x of a logistic model that is worth fitting."""
_EXPLAINED = 0.5
"""Share of the variance of a target that least squares explains."""
_CURVATURE: Mapping[str, float] = {
    "spd": -0.5, "spd-log-euclidean": 0.0, "sphere": 1.0, "lorentz": -1.0, "poincare": -1.0,
}  # fmt: skip
"""The sectional curvature farthest from zero."""


def guess_of(
    config: Experiment, clip: float, shape: Shape, decay: float | None
) -> Components | Flat | Cloud | None:
    """Returns the guess for a problem with points of that shape; None if its kind has none."""
    kind = config.problem.kind
    if kind in ("principal-eigenvector", "kpca", COMPLETION):
        return _components(kind, clip, shape, decay or 2.0)
    if kind in ("frechet-mean", "nearest-mean"):
        return _mean(config, clip, shape)
    dimension = shape[0]
    fall = decay or 1.0
    if kind == "least-squares":
        values = _powers(dimension, fall, clip * dimension / (dimension + 1))
        variance = clip / (dimension + 1)
        away = np.full(dimension, _EXPLAINED * variance / values.sum())
        if config.problem.start.kind == "random":
            away += 1.0  # of every coordinate
        sharpest = max(float(values.max()), clip / 2)
        return Flat(values, away, (1 - _EXPLAINED) / 2 * variance, sharpest)
    if kind == "logistic":
        # the gradient at 0 is half as long as a row
        return _logistic(_powers(dimension, fall, (2.0 * clip) ** 2))
    return None


def _powers(count: int, decay: float, trace: float) -> Array:
    """A spectrum that falls as i^-decay, of this trace."""
    found = np.arange(1, count + 1, dtype=np.float64) ** -decay
    return trace * found / found.sum()


def _components(kind: str, clip: float, shape: Shape, decay: float) -> Components:
    k = shape[1] if len(shape) == 2 else 1
    values = _powers(shape[0], decay, 2 * clip if kind == COMPLETION else clip)
    best = float(values[:k].sum())
    if kind == COMPLETION:  # what is left over is the cost, and not what is found
        return Components(values, k, 1.0, (2 * clip - best) / 2)
    curvature = 1.0 if kind == "kpca" else 2.0
    return Components(values, k, curvature, curvature / 2 * best)


def _mean(config: Experiment, clip: float, shape: Shape) -> Cloud:
    """Means of points, for several starts and distances; a class has a share of the records.

    The mean sectional curvature of m x m matrices is -1 / (2 (m + 1)): that of X and Y is
    -|[X, Y]|^2 / 4 for orthonormal ones, and the mean over Y is -m / 4 in all m (m + 1) / 2
    directions together.
    """
    problem = config.problem
    classes = 1
    if isinstance(problem, NearestMean):
        place = problem.manifold
        classes = problem.num_classes
    else:
        assert isinstance(problem, FrechetMean)
        place = name_of(problem.manifold)
    worst = _CURVATURE[place]
    return Cloud(
        # of the start and of records from the mean, over the clip of gradients 2 dist, which is
        # exact up to C / 2: every pair is as likely (docs/choosing.md)
        away=clip * np.repeat((0.25, 0.5, 0.75, 1.0), 2),
        spread=clip * np.tile((0.25, 0.5), 4),
        clip=clip,
        dim=problem.build().manifold.dim(shape) // classes,
        classes=classes,
        mean_bow=worst if place != "spd" else -0.5 / (shape[-1] + 1),
        worst_bow=worst,
    )


def _logistic(values: Array) -> Flat:
    """Logistic regression whose scores are normal, and whose model is true."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(61)
    chance = 1 / (1 + np.exp(-_SCORES * nodes))
    weights = weights / weights.sum()
    bend = float((weights * chance * (1 - chance)).sum())
    surprise = -chance * np.log(chance) - (1 - chance) * np.log1p(-chance)
    total = float(values.sum())
    curvature = bend * values
    away = np.full(len(values), _SCORES**2 / total)
    sharpest = max(float(curvature.max()), total / 8)
    return Flat(curvature, away, float((weights * surprise).sum()), sharpest)
