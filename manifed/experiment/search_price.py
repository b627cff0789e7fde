"""What the best of a random number of runs costs, and whom.

The bound of Papernot and Steinke (`manifed/privacy/tuning.py`) is for who sees the best run alone.
The server and the clients saw all runs: to them all of these compose.
"""

from collections.abc import Callable, Iterable, Sequence

from manifed.errors import ConfigError
from manifed.experiment.planning import public_numbers
from manifed.experiment.privacy import attempts_of, example_mechanism
from manifed.experiment.schema import Experiment
from manifed.federation.client import releases_in
from manifed.privacy import accountant, tuning
from manifed.privacy.composition import NoValidBound
from manifed.privacy.events import Event, repeated
from manifed.privacy.tuning import Search

Rounds = tuple[tuple[Event, ...], ...]
"""What one client releases in rounds 1, 2, ..."""


def law_of(mean: float, option: str) -> Search:
    """The law of that mean.

    Raises:
        ConfigError: naming the option.
    """
    try:
        return Search(mean=mean)
    except ValueError:
        raise ConfigError(f"{option}: expected a number from 1 to 10000, got {mean:g}") from None


def check_searched(configs: Sequence[Experiment]) -> None:
    """Refuse settings among which no search is priced.

    Raises:
        ConfigError: no noise, a score that nothing pays for, or settings that release differently.
    """
    for config in configs:
        privacy, held = config.privacy, config.evaluation
        if privacy.kind != "example-level" or privacy.noise.kind != "target":
            raise ConfigError(
                "privacy.kind: a search is priced for 'example-level' with a target, got "
                f"{privacy.kind!r}"
            )
        if held.kind == "oracle":
            raise ConfigError(
                "evaluation.kind: the best of several runs is chosen by a score that each run "
                "releases under noise, or takes of public records: expected 'private' or 'public', "
                f"got {held.kind!r}"
            )
    sides = {(source_of(c), c.evaluation.kind, delta_of(c)) for c in configs}
    found = {tuple(rounds_of(config).items()) for config in configs}
    if len(found) > 1 or len(sides) > 1:
        raise ConfigError(
            "--set: expected settings that release and score alike, got others; a search is priced "
            "over what changes no release: steps, averages, starts, clips"
        )


def delta_of(config: Experiment) -> float:
    """The delta at which a search of such configs is stated."""
    assert config.privacy.kind == "example-level"
    assert config.privacy.noise.kind == "target"
    return config.privacy.noise.delta


def source_of(config: Experiment) -> str:
    """Where the noise of a search of such configs comes from: "os" or "seed"."""
    assert config.privacy.kind == "example-level"
    return config.privacy.noise_source


def rounds_of(config: Experiment) -> dict[int, Rounds]:
    """What a client of each size releases in every round of one run."""
    sizes, _ = public_numbers(config)
    mechanism = example_mechanism(config, sizes)
    held = config.evaluation if config.evaluation.kind == "private" else None
    return {
        size: tuple(
            releases_in(r, config.training, held, mechanism, size)
            for r in range(1, config.federation.num_rounds + 1)
        )
        for size in sorted(set(sizes))
    }


def to_public(config: Experiment, search: Search, tries: Sequence[int] = ()) -> float:
    """Epsilon against who sees the best run alone, and not how many there were.

    ``tries``: how often each round is priced in every run; rounds beyond as often as the config
    announces. Errors as `to_server`.
    """
    return _dearest(config, tries, lambda run: tuning.epsilon(run, search, delta_of(config)))


def to_server(config: Experiment, tries: Sequence[int]) -> float:
    """Epsilon against who saw all runs; ``tries``: how often each round was charged in all.

    Raises:
        ConfigError: nothing prices such releases.
    """
    return _dearest(config, tries, lambda run: accountant.epsilon(run, delta_of(config)))


def _dearest(
    config: Experiment, tries: Sequence[int], price: Callable[[Iterable[Event]], float]
) -> float:
    """The price of the clients of whichever size pay most."""

    def charged(rounds: Rounds) -> Iterable[Event]:
        for r, releases in enumerate(rounds):
            yield from repeated(releases, tries[r] if r < len(tries) else attempts_of(config))

    try:
        return max(price(tuple(charged(rounds))) for rounds in rounds_of(config).values())
    except NoValidBound as refusal:
        raise ConfigError(f"privacy: {refusal}") from None
