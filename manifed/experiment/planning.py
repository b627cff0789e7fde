"""Which method to take for a budget, from public numbers alone; nothing is opened or accounted.

``training = { kind = "auto" }`` is resolved here, when a config is read: every method that serves
the problem (`options.py`) is predicted at its best settings (`predictions.py`), and the one of the
least gap is written into the config in its place. Where there are several guesses, it is the least
geometric mean of the gaps. What is hashed, approved and run is that resolved config.

Public are the dimension, the clients, their N_i, the clip and the budget; what the problem looks
like is a guess, one a problem kind for all data sets (`guesses.py`). Who knows better says so in
``training.decay``. Where there is no guess a safe default is taken (`options.safe`).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field, ValidationError

from manifed.errors import ConfigError
from manifed.experiment.guesses import guess_of
from manifed.experiment.options import Option, descents, releases
from manifed.experiment.privacy import Sizes
from manifed.experiment.schema import Experiment
from manifed.privacy.events import Frozen
from manifed.problems.dataset import SiteData
from manifed.problems.federation import data_folder, shards
from manifed.problems.problem_specs import NUM_EXAMPLES

MOST_ROUNDS = 100
"""Uploads of a client that a plan may ask for; ``federation.num_rounds`` says another number."""
_TIE = 1.05
"""Ratio of predicted gaps that tells nothing."""


class Auto(Frozen):
    """``training.kind = "auto"``: what the planner takes for granted."""

    kind: Literal["auto"] = "auto"
    decay: float | None = Field(default=None, ge=1e-3, le=20)
    """Public guess: eigenvalues of the second moment fall as i^-decay; None: by problem kind."""
    numbers_up: int | None = Field(default=None, ge=1)
    """Most numbers that a client may upload over the run; None: any."""


def is_auto(table: Mapping[str, Any]) -> bool:
    """Whether a table leaves the method to the planner."""
    training = table.get("training")
    return isinstance(training, Mapping) and training.get("kind") == "auto"


def stand_in(table: Mapping[str, Any]) -> dict[str, Any]:
    """The table with a method in place of "auto" that fits wherever one of the plan's does."""
    kept = {key: value for key, value in table.items() if key != "strategy"} | {
        "training": {
            "kind": "rsgd", "step_size": 1.0, "minibatch": {"kind": "full"}, "maps": "retraction",
        }
    }  # fmt: skip
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
    """The table with a method, its rounds, its clip and its own server update."""
    federation = {**table["federation"], "num_rounds": option.num_rounds}
    privacy = {**table["privacy"], "l2_norm_clip": option.clip}
    kept = {key: value for key, value in table.items() if key != "strategy"}
    kept |= {"training": option.settings(), "federation": federation, "privacy": privacy}
    strategy = option.strategy()
    return kept if strategy is None else {**kept, "strategy": strategy}


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

    Where no guess is made for the problem: the safe default alone. Of several principal components
    the release comes first where it may be sent: how fast a descent parts them rests on the spacing
    of the spectrum, which no public guess knows.

    Raises:
        ConfigError: for a privacy or cohort that nothing is predicted for, or an upload of which
            ``auto.numbers_up`` allows none.
    """
    _check(config)
    sizes, shape = public_numbers(config)
    privacy = config.privacy
    assert privacy.kind == "example-level"
    _check_shape(config, shape)
    most = min(rounds, (auto.numbers_up or math.inf) // math.prod(shape))
    guess = guess_of(config, privacy.l2_norm_clip, shape, auto.decay)
    found = dict[str, list[Option]]()
    for option in [*releases(config, guess, sizes, shape), *descents(
        config, guess, sizes, shape, int(most)
    )]:  # fmt: skip
        if auto.numbers_up is None or option.numbers_up <= auto.numbers_up:
            found.setdefault(option.name, []).append(option)
    if not found:
        raise ConfigError(
            f"training.numbers_up: expected at least {math.prod(shape)}, one upload of a model's "
            f"size, got {auto.numbers_up}"
        )
    each = [_best(options) for options in found.values()]
    trusted = [option for option in each if option.training.kind == "second-moment"]
    if config.problem.kind != "kpca" or shape[1] == 1:
        trusted = []  # of one component all predictions are; of several, that of the release alone
    best = _best(trusted or each)
    return [best, *sorted((o for o in each if o is not best), key=_gap)]


def _gap(option: Option) -> float:
    return math.inf if option.gap is None else option.gap


def _best(options: Sequence[Option]) -> Option:
    """The one of the least gap; of those that are as good but for rounding, what sends least."""
    least = min(map(_gap, options))
    good = [option for option in options if _gap(option) <= _TIE * least]
    return min(good, key=lambda option: (option.numbers_up, _gap(option)))


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


def _check_shape(config: Experiment, shape: tuple[int, ...]) -> None:
    """Refuse a problem whose every point is an optimum."""
    if config.problem.build().manifold.dim(shape) < 1:
        raise ConfigError(
            f"training.kind: 'auto' plans where there is something to find, got points of shape "
            f"{shape} on a manifold of dimension 0"
        )
    fields = {"kpca": "num_components", "matrix-completion": "rank"}
    if config.problem.kind in fields and shape[1] >= shape[0]:
        raise ConfigError(
            f"problem.{fields[config.problem.kind]}: a plan needs fewer than the {shape[0]} "
            f"columns, got {shape[1]}"
        )


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
