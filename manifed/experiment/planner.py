"""The planner: chooses method, clip, steps and rounds for a budget; it reads no record.

``training = { kind = "auto" }`` is resolved here, when a config is read: a method is written into
the config in its place. What is hashed, approved and run is that resolved config.

A plan depends on public numbers: the problem's kind, the dimension, the clients, their N_i, the
budget, and ``privacy.l2_norm_clip``, a bound that holds for every possible gradient and may be
loose. What data look like is not guessed. Instead the clip, and the length of steps, follow from
noised uploads while the run goes on (`adaptive_clip.py`, `measured_steps.py`). How a kind of
problem is best served was measured (docs/choosing.md); `_RULES` holds the result.

All rules are in terms of one number,

    kappa = |noise of a mean with the whole budget| / clip,

and of a count: a clip that lets a share 1 - q of gradients be cut costs a bias of at most 1 - q
clips, and one that is larger by a clip costs kappa more noise, so q = 1 - 4 kappa (means: 8) within
limits (after Amin, Kulesza, Munoz Medina, Vassilvitskii: Bounding User Contributions, 2019).

Batches are full. A Poisson batch of a share q under the same budget has no less noise a round (the
Gaussian limit has the deviation of the full batch's), and the batch's own on top: batches that grow
save computing time, which is not what a budget pays for.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from pydantic import ValidationError

from manifed.algorithms.adaptive_clip import LEAST
from manifed.algorithms.averaging import GeodesicAverage, ProjectorAverage
from manifed.algorithms.measured_steps import MeasuredSteps
from manifed.algorithms.one_shot import LogEuclidean, OneShot, SecondMoment
from manifed.algorithms.rsgd import RSGD, ScheduledRSGD
from manifed.errors import ConfigError
from manifed.experiment.assembly import Facts, facts_of
from manifed.experiment.paths import fault, part
from manifed.experiment.schema import Experiment
from manifed.fields import Document, Frozen, Positive, PositiveCount, Values
from manifed.manifolds.grassmann import Grassmann
from manifed.manifolds.spd import SPD
from manifed.manifolds.sphere import Sphere
from manifed.manifolds.stiefel import Stiefel
from manifed.oracles.minibatch import Full
from manifed.plan import client_mechanism, example_mechanism, mean_noise
from manifed.privacy.mechanism import RisingClip
from manifed.schedules import Geometric

COMPLETION = "reproduction.matrix_completion:MatrixCompletion"
_FEWEST, _PER_NOISE = 25, 0.2
"""Rounds that noise does not make useless: at least 25, and a fifth of kappa^-2, at which the noise
of one round is half as long as its clip."""
_LATE = 0.15
"""Above this kappa most rounds go by before the start is forgotten. Then at most the last quarter
of the iterates is averaged."""
_OF_CLIP = 12.0
"""Where the clip settles before the first step, a distance is so many times that of the rule, times
the share of the bound that the clip has then: 0.6 of the rule's for a clip that stayed at 0.05."""
_QUIET = 0.02
"""Up to this kappa noise is short beside most gradients."""
_STEP = 0.01
"""Length of a client's step over the largest that a gradient moves it: no retraction bends it."""


class _Auto(Frozen):
    """``training.kind = "auto"``: what the planner takes for granted."""

    kind: Literal["auto"] = "auto"
    residuals: Literal["symmetric"] | None = None
    """Public statement that residuals of least squares are symmetric about 0, so that a shorter
    clip costs no bias. None: nothing is said."""
    typical_norm: Positive | None = None
    """Public guess of a typical gradient's norm, where the clip starts. None: a twentieth of
    ``privacy.l2_norm_clip``. It bounds nothing."""
    numbers_up: PositiveCount | None = None
    """Most numbers that a client may upload over the run; None: any."""


@dataclass(frozen=True)
class _Rule:
    """How a kind of problem is descended."""

    quantile: float | None = 0.97
    """The largest share of gradients that are not clipped; None: all are, to their direction."""
    rounds: int = 100
    fall: float = 0.3
    """Noise of the last round over that of the first."""
    least_fall: float = 10.0
    """It is at least so many kappa, since long noise leaves little to average out."""
    tail: float = 0.5
    """Share of the rounds whose iterates are averaged; 0: the last one is the model."""
    factor: float = 1.0
    """Of steps by distance."""
    momentum: float | None = None
    """Momentum of steps by distance: a steady direction moves ``factor / (1 - momentum)`` steps."""
    distance: Callable[[float], float] | None = None
    """Of the minimum from the start, by the bound of a gradient; None: by manifold."""
    settles: int = 0
    """Rounds before the first step where noise falls to 0.1 in 100 rounds, so that the adaptive
    clip settles. Ten of them cost half a percent of the budget. ``distance`` then goes by that
    clip."""
    curvature: float | None = None
    """The known curvature of the cost; None: steps go by distance."""
    pace: float = 0.3
    """The learning rate of the clip where noise does not slow it."""
    fixed: float = 0.25
    """The clip of a secure sum, whose integers have one, over the bound of a gradient."""
    caution: float = 4.0
    """The target of a clip is the quantile 1 - ``caution`` kappa."""
    ease: float = math.inf
    """That target may grow to 1 - ``ease`` kappa, at most 0.95, where noise is short. Momentum then
    grows to 0.9 - 30 kappa, from 0.5 to 0.7, by which steps go on along a flat valley."""
    by_matrix: float | None = None
    """Factor of the distance where steps are divided by a matrix of squares, which they are where
    noise is short and directions are few. None: they never are. Rows that lie far from 0 make some
    directions much flatter than others."""


_SPANS = _Rule(rounds=45, fall=0.12, least_fall=0.0, factor=1.3, caution=16.0, fixed=0.05)
_MEANS = _Rule(
    rounds=30, fall=0.5, least_fall=0.0, tail=0.0, curvature=2.0, pace=0.5, caution=8.0, fixed=0.3
)
_RULES: Mapping[str, _Rule] = {
    "principal-eigenvector": _SPANS,
    "kpca": _SPANS,
    COMPLETION: _Rule(
        quantile=None,
        fall=0.2,
        least_fall=0.0,
        tail=0.3,
        factor=0.2,
        momentum=0.5,
        distance=lambda _: 1.0,
    ),
    # scores of about 12 tell classes apart, and a row is at most as long as its gradient may be
    "logistic": _Rule(
        fall=0.4,
        tail=0.2,
        factor=0.5,
        momentum=0.5,
        distance=lambda bound: 12 / bound,
        fixed=0.5,
        by_matrix=0.25,
    ),
    # in the unit of the target, as the bound of a gradient is; steps grow where it is too small
    "least-squares": _Rule(
        quantile=0.6,
        fall=0.15,
        factor=0.5,
        momentum=0.5,
        distance=lambda bound: bound / 40,
        settles=10,
        pace=0.6,
        fixed=0.03,
        caution=20.0,
        ease=45.0,
        by_matrix=1.0,
    ),
    "frechet-mean": _MEANS,
    "nearest-mean": _MEANS,
    "geometric-median": _Rule(quantile=None, least_fall=0.0),  # all gradients have norm 1
}


@dataclass(frozen=True)
class _Option:
    """A method with all its numbers."""

    training: SecondMoment | LogEuclidean | RSGD
    num_rounds: int
    clip: float
    """``privacy.l2_norm_clip`` of the resolved config."""
    noise_multiplier: float
    """The noise multiplier of the first round."""
    numbers_up: int
    """How many numbers one client uploads over the run."""
    relative_noise: float
    """Length of the noise of a mean that takes the whole budget, over the clip."""
    strategy: MeasuredSteps | None = None
    adaptive: RisingClip | None = None

    @property
    def name(self) -> str:
        """The method, in a few words."""
        if self.strategy is None:
            return self.training.kind
        return "descent, adaptive clip" if self.adaptive else "descent, fixed clip"


# -- the table -------------------------------------------------------------------------------
def stand_in(table: Values) -> Document:
    """Returns the table with a method in place of "auto" that fits wherever a planned one does.

    Its ``federation.num_rounds`` is the most that a plan may take; left out: 100.
    """
    return {
        **table, "strategy": None, "federation": {"num_rounds": 100, **part(table, "federation")},
        "training": {
            "kind": "rsgd", "step_size": 1.0, "minibatch": {"kind": "full"}, "maps": "retraction",
        },
    }  # fmt: skip


def with_option(table: Values, option: _Option) -> Document:
    """Returns the table with a method, its rounds, its clip and its own server update."""
    training, server, adaptive = (
        one and one.model_dump(mode="json", exclude_none=True)
        for one in (option.training, option.strategy, option.adaptive)
    )
    problem = table["problem"]
    if problem.get("kind") == "least-squares":  # random weights are far from any that are sought
        problem = {"start": {"kind": "origin"}, **problem}
    return {
        **table, "problem": problem, "training": training, "strategy": server,
        "privacy": {**table["privacy"], "l2_norm_clip": option.clip, "adaptive": adaptive},
        "federation": {**table["federation"], "num_rounds": option.num_rounds},
    }  # fmt: skip


# -- the choice ------------------------------------------------------------------------------
def planned(table: Values, parse: Callable[[Document], Experiment]) -> list[_Option]:
    """Lists the methods for a config's problem and budget, the one to take first.

    ``parse`` reads a table that names a method. Of several principal components the one-shot
    release comes first, which was measured to be better than any descent; for everything else the
    descent does.

    Raises:
        ConfigError: for what "auto" does not take, a privacy or cohort that nothing is planned
            for, or an upload of which ``numbers_up`` allows none.
    """
    training = part(table, "training")
    try:  # its own keys first; a config that names a method has none
        auto = _Auto.model_validate(training if training.get("kind") == "auto" else {})
    except ValidationError as error:
        raise ConfigError(f"training.{fault(error, _Auto)}") from None
    config = parse(stand_in(table))
    facts = public_numbers(config)
    size = math.prod(facts.point_shape)
    most = auto.numbers_up or math.inf
    if auto.residuals is not None and config.problem.kind != "least-squares":
        raise ConfigError(
            "training.residuals: 'symmetric' is a statement about problem.kind = 'least-squares', "
            f"got {config.problem.kind!r}; remove it"
        )
    rounds = int(min(config.federation.num_rounds, most // size))
    releases = [one for one in _releases(config, facts) if one.numbers_up <= most]
    descent = _descent(config, facts, auto, rounds, most)
    comes_first = config.problem.kind == "kpca" and facts.point_shape[1] > 1
    found = [*releases, *descent] if comes_first else [*descent, *releases]
    if not found:
        raise ConfigError(
            f"training.numbers_up: expected at least {size}, one upload of a model's size, got "
            f"{auto.numbers_up}"
        )
    return found


def public_numbers(config: Experiment) -> Facts:
    """Returns N_i, a point's shape and the problem, from the named data set or as declared.

    Raises:
        ConfigError: nothing is planned for the config, its data set is not there, or sites have
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


def with_clip(table: Values, parse: Callable[[Document], Experiment]) -> Document:
    """Returns the table of a named method with an adaptive clip in place of "auto".

    Raises:
        ConfigError: as `public_numbers`.
    """
    fixed = {**table, "privacy": {**table["privacy"], "adaptive": None}}
    config = parse(fixed)
    facts = public_numbers(config)
    rule = _RULES.get(config.problem.kind, _Rule())
    rule = replace(rule, quantile=rule.quantile or _Rule().quantile)
    bound = config.privacy.l2_norm_clip or 1.0
    _, spread, kappa = _descent_noise(config, facts, bound)
    rising = _rising(rule, kappa, spread, config.federation.num_rounds, None, bound)
    return {**fixed, "privacy": {**fixed["privacy"], "adaptive": rising.model_dump(mode="json")}}


_ASKED = {
    None: "nothing: each client noises its own uploads",
    "secure-sum": "that the server and one client do not collude, and that most clients stay",
    "client-level": "a server that is trusted with uploads; all records of a client are protected",
}
"""What each trust asks of the parties."""


def trusts(table: Values, parse: Callable[[Document], Experiment]) -> list[Document]:
    """Lists, for each trust, the method that a plan would take and how long its noise is.

    It changes no config: another trust is another promise. What cannot be planned says why.
    """
    rows = list[Document]()
    for trust, asks in _ASKED.items():
        method, noise = "local steps, clipped uploads", None
        try:
            if trust == "client-level":
                noise = _client_level_noise(table, parse)
            else:
                first, *_ = planned(
                    {**table, "privacy": {**table["privacy"], "trust": trust}}, parse
                )
                method, noise = first.name, first.relative_noise
        except ConfigError as refused:
            method = str(refused)
        row = {"trust": trust or "each client", "method": method, "relative_noise": noise}
        rows.append({**row, "asks": asks})
    return rows


def _client_level_noise(table: Values, parse: Callable[[Document], Experiment]) -> float:
    """Kappa of the mean of all clients' uploads, which the server noises once."""
    once = stand_in(table)
    facts = public_numbers(parse(once))
    own = ("adaptive", "trust", "unit", "sites_per_person")  # of examples or persons alone
    privacy = {k: v for k, v in table["privacy"].items() if k not in own}
    noise = {**privacy["noise"], "adversary": "client-level"}
    made = parse(
        {
            **once,
            "federation": {**table["federation"], "num_rounds": 1},
            "privacy": {**privacy, "kind": "client-level", "noise": noise},
        }
    )
    mechanism = client_mechanism(made.setting)
    assert mechanism is not None
    spread = mechanism.stddev(made.federation.num_clients) / mechanism.l2_norm_clip
    return spread * math.sqrt(facts.problem.manifold.dim(facts.point_shape))


# -- every method ----------------------------------------------------------------------------
def _releases(config: Experiment, facts: Facts) -> Iterator[_Option]:
    """The one-shot releases that the problem has a statistic for."""
    clip = config.privacy.l2_norm_clip or 1.0
    for training in (SecondMoment(), LogEuclidean()):
        if not isinstance(facts.problem.of_rows.sufficient_statistic, training.takes):
            continue
        # of log z, and not of the gradient -2 log z at the identity
        cut = clip / 2 if training.kind == "log-euclidean" else clip
        price, stddev = _noise(config, training, facts, cut)
        shape, _ = training.up.layout(facts.point_shape, torch.float64)["u"]
        size = math.prod(shape)
        yield _Option(training, 1, cut, price, size, stddev * math.sqrt(size) / cut)


def _descent(
    config: Experiment, facts: Facts, auto: _Auto, rounds: int, most: float
) -> Iterator[_Option]:
    """Full-batch descent by the rule of the problem's kind; nothing where no round is allowed."""
    manifold, shape = facts.problem.manifold, facts.point_shape
    bound = config.privacy.l2_norm_clip or 1.0
    rule = _RULES.get(config.problem.kind, _Rule())
    price, spread, kappa = _descent_noise(config, facts, bound)
    if kappa > _LATE:
        rule = replace(rule, tail=min(rule.tail, 0.25))
    if config.privacy.trust is None:
        if rule.ease < math.inf:
            rule = replace(rule, momentum=round(min(0.7, max(0.9 - 30 * kappa, 0.5)), 4))
        elif rule is _SPANS and kappa <= _QUIET:
            rule = replace(rule, momentum=0.5)  # steps that turn back and forth cancel
        elif rule.curvature is not None and isinstance(manifold, SPD) and kappa <= _LATE:
            # curvature grows with distance, so what early rounds estimate is far off
            rule = replace(rule, rounds=100, fall=0.3, caution=5.0)
    if auto.residuals is not None:
        rule = replace(rule, quantile=0.5, ease=math.inf)
    # a hundred rounds say little of more directions, and long noise little of any
    if kappa > _QUIET or math.prod(shape) > 25:
        rule = replace(rule, by_matrix=None)
    fall = min(1.0, max(rule.fall, rule.least_fall * kappa))
    share = LEAST if rule.quantile is None else 1.0
    if config.privacy.trust is not None and rule.quantile is not None:
        # integers of a sum have one clip, and what it cuts of a curvature is not counted
        distance = rule.distance if rule.curvature is None else lambda bound: bound / 60
        rule = replace(rule, quantile=None, curvature=None, distance=distance, settles=0)
        share = rule.fixed
    # exact logarithms of frames do not converge where the noise of a step is long
    is_exact = manifold.has_logmap and not isinstance(manifold, Stiefel | Grassmann)
    keys: Document = {"minibatch": Full(), "maps": "exact" if is_exact else "retraction"}
    count = min(rounds, rule.rounds, max(_FEWEST, math.ceil(_PER_NOISE / kappa**2)))
    is_counted = rule.quantile is not None and count > 1
    size = math.prod(shape) + is_counted
    count = int(min(count, most // size))
    if count < 1:
        return
    ratio = float(f"{fall ** (1 / max(count - 1, 1)):.4g}")
    adaptive = None
    if is_counted:
        adaptive = _rising(rule, kappa, spread, count, auto.typical_norm, bound)
    rule = replace(rule, settles=round(rule.settles * math.log10(1 / fall) * count / 100))
    clip = float(f"{share * bound:.6g}")
    step = float(f"{_STEP / clip:.3g}")
    training = RSGD(step_size=step, **keys)
    if count > 1:
        falling = Geometric(scale=1.0, ratio=ratio)
        training = ScheduledRSGD(step_size=step, noise_multipliers=falling, **keys)
    strategy = _steps(config, facts, rule, bound, step, count, ratio)
    scale = math.sqrt(sum(ratio ** (-2 * r) for r in range(count)))
    yield _Option(training, count, clip, scale * price, count * size, kappa, strategy, adaptive)


def _steps(
    config: Experiment,
    facts: Facts,
    rule: _Rule,
    bound: float,
    step: float,
    count: int,
    ratio: float,
) -> MeasuredSteps:
    """The server's part: how long its steps are, and which iterates it averages."""
    shape = facts.point_shape
    is_spanned = isinstance(facts.problem.manifold, Sphere | Stiefel | Grassmann)
    average = None
    if rule.tail and count > 1:
        kind = ProjectorAverage if is_spanned else GeodesicAverage
        first = max(1, math.ceil((1 - rule.tail) * count))
        average = kind(from_round=first, noise_ratio=ratio)
    if rule.curvature is not None:
        classes = getattr(config.problem, "num_classes", 1)
        curvature = rule.curvature * step / classes
        # The bound of a gradient is the curvature times that of a distance. A short clip cuts most
        # gradients and bounds no distance: it gets four times as much, but no more than 6.
        far = bound / rule.curvature
        radius = max(far, min(4 * far, 6.0)) * math.sqrt(classes)
        return MeasuredSteps(
            curvature=float(f"{curvature:.6g}"),
            radius=float(f"{radius:.6g}"),
            noise_ratio=ratio,
            average=average,
        )
    distance = 0.1
    if rule.distance is not None:
        distance = rule.distance(bound)
    elif is_spanned:  # a right angle for every vector of a frame
        distance = math.pi / 2 * math.sqrt(shape[1] if len(shape) == 2 else 1)
    if rule.settles:
        distance *= _OF_CLIP
    distance *= rule.by_matrix or 1.0
    return MeasuredSteps(
        distance=float(f"{distance:.6g}"),
        settles=rule.settles,
        factor=rule.factor,
        scaling="norm" if rule.by_matrix is None else "matrix",
        momentum=rule.momentum,
        average=average,
    )


def _rising(
    rule: _Rule, kappa: float, spread: float, count: int, typical: float | None, bound: float
) -> RisingClip:
    """The adaptive clip: its target by the noise, and its pace by that of the noised count."""
    # a clip that has few rounds to rise starts higher
    start = 0.05 ** min(1.0, (count - 1) / 14) if typical is None else min(typical / bound, 0.99)
    share = RisingClip.model_fields["budget_share"].default
    deviation = spread * math.sqrt(count) / (2 * math.sqrt(share))
    assert rule.quantile is not None
    most = max(rule.quantile, min(1 - rule.ease * kappa, 0.95))
    return RisingClip(
        start=float(f"{start:.4g}"),
        target_quantile=float(f"{min(max(1 - rule.caution * kappa, 0.3), most):.4g}"),
        learning_rate=float(f"{rule.pace / max(1.0, 4 * deviation):.4g}"),
    )


def _descent_noise(config: Experiment, facts: Facts, bound: float) -> tuple[float, float, float]:
    """(multiplier, deviation over the clip, kappa) of one round that takes the whole budget."""
    price, stddev = _noise(config, RSGD(step_size=1.0, minibatch=Full()), facts, bound)
    spread = stddev / bound
    return price, spread, spread * math.sqrt(facts.problem.manifold.dim(facts.point_shape))


def _noise(
    config: Experiment, training: OneShot | RSGD, facts: Facts, clip: float
) -> tuple[float, float]:
    """(multiplier, deviation in every coordinate of the weighted mean) of one full-batch round."""
    sizes = facts.sizes
    privacy = config.privacy.model_copy(update={"l2_norm_clip": clip, "adaptive": None})
    once = replace(
        config.setting,
        training=training,
        federation=config.federation.model_copy(update={"num_rounds": 1}),
        privacy=privacy,
    )
    (release,) = training.releases(example_mechanism(once, sizes), sizes[0])
    return release.noise_multiplier, mean_noise(once, sizes)
