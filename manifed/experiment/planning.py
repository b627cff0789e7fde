"""Which method to take for a budget, from public numbers alone; nothing is opened or accounted.

``training = { kind = "auto" }`` is resolved here, when a config is read: every method that serves
the problem is predicted at its best settings (`predictions.py`), and the one of the least gap is
written into the config in its place. What is hashed, approved and run is that resolved config.

Public are the dimension, the clients, their N_i, the clip and the budget; the spectrum is a guess,
one for all data sets: rows as long as the clip allows, eigenvalues falling as i^-2. Who knows
better says so in ``training.decay``.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, ValidationError

from manifed.algorithms.rsgd import RSGD
from manifed.algorithms.second_moment import SecondMoment
from manifed.errors import ConfigError
from manifed.experiment.predictions import Spectrum, descent_gap, one_shot_gap
from manifed.experiment.privacy import Sizes, example_mechanism
from manifed.experiment.schema import Experiment
from manifed.manifolds.base import MapChoice
from manifed.manifolds.symmetric import packed_size
from manifed.oracles.minibatch import Full
from manifed.privacy.events import Frozen
from manifed.problems.dataset import SiteData
from manifed.problems.federation import data_folder, shards
from manifed.problems.problem_specs import NUM_EXAMPLES

MOST_ROUNDS = 100
"""Uploads of a client that a plan may ask for; ``federation.num_rounds`` says another number."""
_ROUNDS = (1, 2, 3, 5, 8, 12, 20, 30, 50, 80, 120, 200, 300, 500)
_STEPS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)
"""In units of one over the largest curvature of the guess."""
CURVATURE = {"principal-eigenvector": 2.0, "kpca": 1.0}
"""Of f in the direction from component i to j, over l_i - l_j."""


class Auto(Frozen):
    """``training.kind = "auto"``: what the planner takes for granted."""

    kind: Literal["auto"] = "auto"
    decay: float = Field(default=2.0, gt=0, le=20)
    """Public guess: eigenvalues of the second moment fall as i^-decay."""


@dataclass(frozen=True)
class Option:
    """A method at its best settings, and what it is predicted to give."""

    training: SecondMoment | RSGD
    num_rounds: int
    noise_multiplier: float
    numbers_up: int
    """Of one client, over the run."""
    gap: float
    """Predicted (f(x) - f*) / |f*|."""

    def settings(self) -> dict[str, Any]:
        """The table ``training`` that runs it."""
        if isinstance(self.training, SecondMoment):
            return {"kind": self.training.kind}
        step = self.training.step_size
        table = {"kind": "rsgd", "step_size": step, "minibatch": {"kind": "full"}}
        return table if self.training.maps == "exact" else {**table, "maps": self.training.maps}


def is_auto(table: Mapping[str, Any]) -> bool:
    """Whether a table leaves the method to the planner."""
    training = table.get("training")
    return isinstance(training, Mapping) and training.get("kind") == "auto"


def stand_in(table: Mapping[str, Any]) -> dict[str, Any]:
    """The table with a method in place of "auto" that fits wherever one of the plan's does."""
    kept = {key: value for key, value in table.items() if key != "strategy"} | {
        "training": {"kind": "rsgd", "step_size": 1.0, "minibatch": {"kind": "full"}}
    }
    federation = table.get("federation")
    if isinstance(federation, Mapping):
        kept["federation"] = {**federation, "num_rounds": 1}
    return kept


def resolved(table: Mapping[str, Any], config: Experiment) -> dict[str, Any]:
    """The table with the best method in place of "auto"; ``config`` is that of `stand_in`.

    Raises:
        ConfigError: for what no method is predicted for, in one line.
    """
    return with_option(table, plan(config, auto_of(table), most_rounds(table))[0])


def with_option(table: Mapping[str, Any], option: Option) -> dict[str, Any]:
    """The table with a method and its rounds, without a server update of another method."""
    federation = {**table["federation"], "num_rounds": option.num_rounds}
    kept = {key: value for key, value in table.items() if key != "strategy"}
    return {**kept, "training": option.settings(), "federation": federation}


def auto_of(table: Mapping[str, Any]) -> Auto:
    """What ``training`` says to the planner; the defaults where it names a method.

    Raises:
        ConfigError: naming the key, its value and what is expected.
    """
    if not is_auto(table):
        return Auto()
    try:
        return Auto.model_validate(table["training"])
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        got = "" if first["type"] == "extra_forbidden" else f", got {first.get('input')!r}"
        raise ConfigError(f"training.{where}: {first['msg']}{got}") from None


def most_rounds(table: Mapping[str, Any]) -> int:
    """How many uploads a client may make.

    Raises:
        ConfigError: it is no number of rounds.
    """
    federation = table.get("federation")
    named = federation.get("num_rounds", MOST_ROUNDS) if isinstance(federation, Mapping) else 1
    if not isinstance(named, int) or isinstance(named, bool) or named < 1:
        raise ConfigError(
            f"federation.num_rounds: expected the most rounds that a plan may take, a whole number "
            f"of at least 1, got {named!r}"
        )
    return named


def plan(config: Experiment, auto: Auto, rounds: int) -> list[Option]:
    """The best settings of every method for the problem and budget of ``config``, best first.

    Raises:
        ConfigError: for a problem, privacy or cohort that nothing is predicted for.
    """
    _check(config)
    sizes, shape = public_numbers(config)
    privacy = config.privacy
    assert privacy.kind == "example-level"
    components = shape[1] if len(shape) == 2 else 1
    if components >= shape[0]:
        raise ConfigError(
            f"problem.num_components: a plan needs fewer than the {shape[0]} columns, got "
            f"{components}"
        )
    spectrum = Spectrum(shape[0], components, privacy.l2_norm_clip, auto.decay)
    once = config.model_copy(update={"training": SecondMoment()})
    price, stddev = _noise(once, sizes)
    found = [
        Option(SecondMoment(), 1, price, packed_size(shape[0]), one_shot_gap(spectrum, stddev)),
        min(_descents(config, spectrum, sizes, shape, rounds), key=lambda option: option.gap),
    ]
    return sorted(found, key=lambda option: option.gap)


def _descents(
    config: Experiment, spectrum: Spectrum, sizes: Sizes, shape: tuple[int, ...], rounds: int
) -> Iterator[Option]:
    """Full-batch descent for every number of rounds and step size that is tried."""
    curvature = CURVATURE[config.problem.kind]
    sharpest = curvature * float(spectrum.gaps.max())
    one = config.model_copy(update={"training": RSGD(step_size=1.0, minibatch=Full())})
    price, stddev = _noise(one, sizes)
    # exact logarithms of frames do not converge where the noise of a step is long
    maps: MapChoice = "exact" if len(shape) == 1 else "retraction"
    for count in sorted({min(count, rounds) for count in _ROUNDS}):
        root = math.sqrt(count)  # T full-batch Gaussians of multiplier m sqrt(T) are one of m
        for share in _STEPS:
            step = float(f"{share / sharpest:.3g}")
            gap = descent_gap(spectrum, root * stddev, step, count, curvature)
            training = RSGD(step_size=step, minibatch=Full(), maps=maps)
            yield Option(training, count, root * price, count * math.prod(shape), gap)


def _noise(config: Experiment, sizes: Sizes) -> tuple[float, float]:
    """(multiplier, deviation in every coordinate of the weighted mean) of one full-batch round."""
    once = config.federation.model_copy(update={"num_rounds": 1})
    config = config.model_copy(update={"federation": once})
    mechanism = example_mechanism(config, sizes)
    total = sum(sizes)
    variance = sum(
        (size / total * config.training.queries(mechanism, size)[0].stddev) ** 2 for size in sizes
    )
    (release,) = config.training.releases(mechanism, sizes[0])
    return release.noise_multiplier, math.sqrt(variance)


def public_numbers(config: Experiment) -> tuple[Sizes, tuple[int, ...]]:
    """(N_i, shape of a point): of a data set that the config names, or as it declares them.

    Raises:
        ConfigError: the data set is not there, or sites have not declared their sizes.
    """
    federation, problem, data = config.federation, config.problem, config.data
    try:
        if not isinstance(data, SiteData):
            parts = shards(
                problem, data, federation.partition, federation.num_clients, federation.seed,
                data_folder(),
            )  # fmt: skip
            sizes = tuple(len(part) for part in parts)
            return sizes, problem.build().point_shape(parts[0])
        if federation.num_examples is None:
            raise ConfigError(
                "federation.num_examples: required for a plan, which depends on every N_i; list "
                "them"
            )
        sizes = federation.num_examples
        blank = problem.prepare(data.blank(), {**data.meta, NUM_EXAMPLES: sizes[0]})
        return sizes, problem.build().point_shape(blank)
    except (OSError, ValueError, RuntimeError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"data.kind: {data.kind!r}: {error}") from None


def _check(config: Experiment) -> None:
    """Refuse what nothing is predicted for."""
    privacy, cohort = config.privacy, config.federation.cohort
    if privacy.kind != "example-level" or privacy.noise.kind != "target":
        noise = "" if privacy.kind != "example-level" else f" with noise {privacy.noise.kind!r}"
        raise ConfigError(
            "training.kind: 'auto' plans for privacy.kind = 'example-level' with "
            f"privacy.noise.kind = 'target', got {privacy.kind!r}{noise}; name a method"
        )
    if cohort.kind != "all":
        raise ConfigError(
            f"training.kind: 'auto' plans for federation.cohort.kind = 'all', got {cohort.kind!r}; "
            "name a method"
        )
    if config.problem.kind not in CURVATURE:
        raise ConfigError(
            f"training.kind: 'auto' plans for problem.kind = {' or '.join(map(repr, CURVATURE))}, "
            f"got {config.problem.kind!r}; name a method"
        )
