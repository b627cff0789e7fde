"""The planner: predicts from public numbers which method suits a budget; reads no record.

``training = { kind = "auto" }`` is resolved here, when a config is read: every method that serves
the problem is predicted at its best settings (`predictions.py`), and the one of the least gap is
written into the config in its place. Where there are several guesses, it is the least geometric
mean of the gaps. What is hashed, approved and run is that resolved config.

Public are the dimension, the clients, their N_i, the clip and the budget; what the problem looks
like is a guess, one a problem kind for all data sets (`predictions.py`). Who knows better says so
in ``training.decay``. Where there is no guess a safe default is taken (`_safe`).

Batches are full. A Poisson batch of a share q under the same budget has no less noise a round (the
Gaussian limit has the deviation of the full batch's), and the batch's own on top: batches that grow
save computing time, which is not what a budget pays for.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field, ValidationError

from manifed.algorithms.averaging import GeodesicAverage, ProjectorAverage
from manifed.algorithms.one_shot import LogEuclidean, OneShot, SecondMoment
from manifed.algorithms.rsgd import RSGD, ScheduledRSGD
from manifed.algorithms.tangent_mean import TangentMean
from manifed.errors import ConfigError
from manifed.experiment.assembly import Facts, facts_of
from manifed.experiment.paths import fault, part
from manifed.experiment.predictions import (
    COMPLETION,
    Array,
    Cloud,
    Components,
    Descent,
    Flat,
    guess_of,
)
from manifed.experiment.schema import Experiment
from manifed.fields import Frozen, PositiveCount
from manifed.manifolds.grassmann import Grassmann
from manifed.manifolds.sphere import Sphere
from manifed.manifolds.stiefel import Stiefel
from manifed.oracles.minibatch import Full
from manifed.plan import example_mechanism, summed
from manifed.schedules import Geometric


class _Auto(Frozen):
    """``training.kind = "auto"``: what the planner takes for granted."""

    kind: Literal["auto"] = "auto"
    decay: float | None = Field(default=None, ge=1e-3, le=20)
    """Public guess: eigenvalues of the second moment fall as i^-decay; None: by problem kind."""
    numbers_up: PositiveCount | None = None
    """Most numbers that a client may upload over the run; None: any."""


@dataclass(frozen=True)
class _Option:
    """A method at its best settings, and what it is predicted to give."""

    training: SecondMoment | LogEuclidean | RSGD
    num_rounds: int
    clip: float
    """``privacy.l2_norm_clip`` of the resolved config."""
    noise_multiplier: float
    """The noise multiplier of the first round."""
    numbers_up: int
    """How many numbers one client uploads over the run."""
    gap: float | None
    """Predicted (f(x) - f*) / |f*|, the geometric mean over the guesses; None: nothing is
    predicted, the safe default."""

    strategy: TangentMean | None = None
    """The server's part of a descent with momentum or an average; None: the plain tangent mean."""

    @property
    def name(self) -> str:
        """The method, in a few words."""
        if self.gap is None:
            return "rsgd, safe default"
        used = (k for k in ("momentum", "average") if getattr(self.strategy, k, None) is not None)
        return ", ".join((self.training.kind, *used))


# -- the table -------------------------------------------------------------------------------
def stand_in(table: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the table with a method in place of "auto" that fits wherever a planned one does.

    Its ``federation.num_rounds`` is the most that a plan may take; left out: 100.
    """
    return {
        **table, "strategy": None, "federation": {"num_rounds": 100, **part(table, "federation")},
        "training": {
            "kind": "rsgd", "step_size": 1.0, "minibatch": {"kind": "full"}, "maps": "retraction",
        },
    }  # fmt: skip


def with_option(table: Mapping[str, Any], option: _Option) -> dict[str, Any]:
    """Returns the table with a method, its rounds, its clip and its own server update."""
    training, server = (
        one and one.model_dump(mode="json", exclude_none=True)
        for one in (option.training, option.strategy)
    )
    return {
        **table, "training": training, "strategy": server,
        "privacy": {**table["privacy"], "l2_norm_clip": option.clip},
        "federation": {**table["federation"], "num_rounds": option.num_rounds},
    }  # fmt: skip


# -- the choice ------------------------------------------------------------------------------
def planned(
    table: Mapping[str, Any], parse: Callable[[dict[str, Any]], Experiment]
) -> list[_Option]:
    """Lists the best settings of every method for a config's problem and budget, best first.

    ``parse`` reads a table that names a method. Where no guess is made for the problem: the safe
    default alone. Of several principal components the release comes first where it may be sent: how
    fast a descent parts them rests on the spacing of the spectrum, which no public guess knows.

    Raises:
        ConfigError: for what "auto" does not take, a privacy or cohort that nothing is predicted
            for, or an upload of which ``numbers_up`` allows none.
    """
    training = part(table, "training")
    try:  # its own keys first; a config that names a method has none
        auto = _Auto.model_validate(training if training.get("kind") == "auto" else {})
    except ValidationError as error:
        raise ConfigError(f"training.{fault(error, _Auto)}") from None
    config = parse(stand_in(table))
    facts = public_numbers(config)
    found = dict[str, list[_Option]]()
    shape = facts.point_shape
    most = auto.numbers_up or math.inf
    size = math.prod(shape)
    clip = config.privacy.l2_norm_clip or 0.0
    guess = guess_of(config, clip, shape, auto.decay)
    for option in (
        *_releases(config, facts, guess, clip),
        *_descents(
            config, facts, guess, clip, int(min(config.federation.num_rounds, most // size))
        ),
    ):
        if option.numbers_up <= most:
            found.setdefault(option.name, []).append(option)
    if not found:
        raise ConfigError(
            f"training.numbers_up: expected at least {size}, one upload of a model's size, got "
            f"{auto.numbers_up}"
        )
    each = [_best(options) for options in found.values()]
    trusted = [option for option in each if option.training.kind == "second-moment"]
    if config.problem.kind != "kpca" or shape[1] == 1:
        trusted = []  # of one component all predictions are; of several, that of the release alone
    best = _best(trusted or each)
    return [best, *sorted((o for o in each if o is not best), key=_gap)]


def _gap(option: _Option) -> float:
    return math.inf if option.gap is None else option.gap


def _best(options: Sequence[_Option]) -> _Option:
    """The one of the least gap; of those within 5 %, which tells nothing, what sends least."""
    most = 1.05 * min(map(_gap, options))
    good = (option for option in options if _gap(option) <= most)
    return min(good, key=lambda option: (option.numbers_up, _gap(option)))


def public_numbers(config: Experiment) -> Facts:
    """Returns N_i, a point's shape and the problem, from the named data set or as declared.

    Raises:
        ConfigError: nothing is predicted for the config, its data set is not there, or sites have
            not declared their sizes.
    """
    for field, wanted, got in (
        ("privacy.kind", "example-level", config.privacy.kind),
        ("privacy.noise.kind", "target", config.privacy.noise.kind),
        ("federation.cohort.kind", "all", config.federation.cohort.kind),
    ):
        if got != wanted:
            raise ConfigError(
                f"training.kind: 'auto' plans for {field} = {wanted!r}, got {got!r}; name a method"
            )
    if config.setting.is_at_sites and config.federation.num_examples is None:
        raise ConfigError(
            "federation.num_examples: required for a plan, which depends on every N_i; list them"
        )
    facts = facts_of(config)
    shape = facts.point_shape
    if facts.problem.manifold.dim(shape) < 1:
        raise ConfigError(
            f"training.kind: 'auto' needs a manifold of dimension >= 1, got points of shape "
            f"{shape} on one of dimension 0"
        )
    field = {"kpca": "num_components", COMPLETION: "rank"}.get(config.problem.kind)
    if field is not None and shape[1] >= shape[0]:
        raise ConfigError(
            f"problem.{field}: a plan needs fewer than the {shape[0]} columns, got {shape[1]}"
        )
    return facts


# -- every method ----------------------------------------------------------------------------
_Guess = Components | Flat | Cloud | None


def _releases(config: Experiment, facts: Facts, guess: _Guess, clip: float) -> Iterator[_Option]:
    """The one-shot releases that the problem has a statistic for."""
    for training in (SecondMoment(), LogEuclidean()):
        if guess is None or not isinstance(facts.problem.sufficient_statistic, training.takes):
            continue
        assert not isinstance(guess, Flat)
        # of log z, and not of the gradient -2 log z at the identity
        cut = clip / 2 if training.kind == "log-euclidean" else clip
        price, stddev = _noise(config, training, facts, cut)
        shape, _ = training.up.layout(facts.point_shape, torch.float64)["u"]
        gap = float(_typical(np.atleast_1d(guess.one_shot_gap(stddev))))
        yield _Option(training, 1, cut, price, math.prod(shape), gap)


def _descents(
    config: Experiment, facts: Facts, guess: _Guess, clip: float, rounds: int
) -> Iterator[_Option]:
    """Full-batch descent for every setting that is tried; the safe default where none is known."""
    if rounds < 1:
        return
    manifold = facts.problem.manifold
    shape = facts.point_shape
    is_frame = isinstance(manifold, Stiefel | Grassmann)
    is_spanned = is_frame or isinstance(manifold, Sphere)
    if guess is not None and config.problem.kind in ("kpca", "least-squares"):
        clip *= 0.5  # a gradient needs no more of the config's clip
    keys: dict[str, Any] = {
        "minibatch": Full(),
        # exact logarithms of frames do not converge where the noise of a step is long
        "maps": "exact" if manifold.has_logmap and not is_frame else "retraction",
    }
    price, stddev = _noise(config, RSGD(step_size=1.0, **keys), facts, clip)
    found = [] if guess is None else list(_predicted(guess, stddev, rounds))
    if not found:
        distance = 1.0
        if is_spanned:  # a right angle for every vector of a frame
            distance = math.pi / 2 * math.sqrt(shape[1] if len(shape) == 2 else 1)
        found = [(*_safe(clip, stddev**2 * manifold.dim(shape), distance, rounds), None)]
    for tried, step, gap in found:
        ratio = tried.noise_ratio
        count = tried.num_rounds
        average = None
        strategy = None
        training = RSGD(step_size=step, **keys)
        if ratio != 1.0:
            falling = Geometric(scale=1.0, ratio=ratio)
            training = ScheduledRSGD(step_size=step, noise_multipliers=falling, **keys)
        if tried.from_round is not None:
            kind = ProjectorAverage if is_spanned else GeodesicAverage
            average = kind(from_round=tried.from_round, noise_ratio=ratio)
        if tried.momentum or average:
            strategy = TangentMean(momentum=tried.momentum or None, average=average)
        scale = math.sqrt(sum(ratio ** (-2 * r) for r in range(count)))
        up = count * math.prod(shape)
        yield _Option(training, count, clip, scale * price, up, gap, strategy)


def _predicted(
    guess: Components | Flat | Cloud, stddev: float, rounds: int
) -> Iterator[tuple[Descent, float, float]]:
    """(descent, its best step, predicted gap) of all settings that are tried and not lost."""
    shares = (0.05, 0.07, 0.1, 0.14, 0.2, 0.28, 0.4, 0.56, 0.75, 1.0)
    counts = (1, 2, 3, 4, 6, 8, 11, 15, 22, 30, 45, 60, 100, 200, 400)
    if isinstance(guess, Components):  # its directions are followed one by one: it is slow
        shares = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)
        counts = (1, 3, 8, 15, 30, 60, 100, 200, 400)
    steps = np.array([float(f"{share / guess.sharpest:.3g}") for share in shares])
    found = [
        (tried, np.atleast_2d(guess.descent_gaps(tried, stddev)))
        for tried in _tried(steps, sorted({min(count, rounds) for count in counts}))
    ]
    # a guess by which every setting is lost says nothing of which to take
    is_told = np.isfinite([gaps.min(-1) for _, gaps in found]).any(0)
    for tried, gaps in found if is_told.any() else []:
        typical = _typical(gaps[is_told])
        best = int(typical.argmin())
        if math.isfinite(typical[best]):
            yield tried, float(steps[best]), float(typical[best])


def _safe(clip: float, spread: float, distance: float, rounds: int) -> tuple[Descent, float]:
    """What is taken where nothing is predicted: averaged descent with the step of the worst case.

    For gradients of a root mean square G and a start at distance D, the average of T steps of size
    D / (G sqrt T) of convex cost is off by at most D G / sqrt T (Nemirovski, Juditsky, Lan,
    Shapiro 2009). Here G^2 = C^2 + T s^2 dim for the clip C and the deviation s of one round, so
    T ends where the noise is all there is. D: a right angle for every vector of a frame; 1
    elsewhere.
    """
    rounds = min(rounds, max(1, math.ceil(clip**2 / spread)))
    step = distance / math.sqrt(rounds * clip**2 + rounds**2 * spread)
    first = None if rounds == 1 else max(1, rounds // 4)
    return Descent(np.ones(1), rounds, from_round=first), float(f"{step:.3g}")


def _typical(gaps: Array) -> Array:
    """The geometric mean over guesses, the first axis: no guess counts more for its large gaps."""
    with np.errstate(divide="ignore"):
        found: Array = gaps[0] if len(gaps) == 1 else np.exp(np.log(gaps).mean(0))
    return found


def _tried(steps: Array, counts: Sequence[int]) -> Iterator[Descent]:
    """Numbers of rounds, averages that begin at a share of them, falling noise and momentum."""
    for count in counts:
        if count == 1:
            yield Descent(steps, 1)
            continue
        for first in {None, *(max(1, int(share * count)) for share in (0.25, 0.5))}:
            for fall in (1.0, 0.5, 0.2, 0.05):  # noise of the last round over that of the first
                ratio = float(f"{fall ** (1 / (count - 1)):.4g}")
                yield Descent(steps, count, noise_ratio=ratio, from_round=first)
            yield Descent(steps, count, momentum=0.5, from_round=first)


def _noise(
    config: Experiment, training: OneShot | RSGD, facts: Facts, clip: float
) -> tuple[float, float]:
    """(multiplier, deviation in every coordinate of the weighted mean) of one full-batch round."""
    sizes = facts.sizes
    once = replace(
        config.setting,
        training=training,
        federation=config.federation.model_copy(update={"num_rounds": 1}),
        privacy=config.privacy.model_copy(update={"l2_norm_clip": clip}),
    )
    mechanism = example_mechanism(once, sizes)
    (release,) = training.releases(mechanism, sizes[0])
    total = sum(sizes)
    each = [size / total * training.queries(mechanism, size)[0].stddev for size in sizes]
    spread = math.sqrt(sum(one**2 for one in each))
    if once.privacy.trust is not None:  # each client adds a share of one noise
        inside: Any = summed(once, sizes).training
        spread /= math.sqrt(inside.numbers.honest(len(sizes)))
    return release.noise_multiplier, spread
