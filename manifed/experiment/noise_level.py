"""How much noise: from the config's rule to the mechanisms of both sides.

A target is met over the *whole run* and for the smallest shard, whose examples weigh most; the
search ends on the private side (manifed/privacy/calibration.py).
"""

import math
from collections.abc import Sequence

from manifed.errors import ConfigError
from manifed.experiment.pricing import price_client_level, price_external, price_server_a_priori
from manifed.experiment.schema import Experiment, Target
from manifed.privacy.accountant import NoValidBound
from manifed.privacy.calibration import noise_multiplier
from manifed.privacy.events import GaussianRelease
from manifed.privacy.mechanism import (
    ClientMechanism,
    ExampleMechanism,
    PublishedNoise,
    RelativeNoise,
)


def example_mechanism(config: Experiment, sizes: Sequence[int]) -> ExampleMechanism:
    """The clients' mechanism.

    Raises:
        ConfigError: when no noise meets the target, or nothing prices the combination.
    """
    privacy = config.privacy
    if privacy.kind == "client-level":
        return ExampleMechanism()
    clips = (privacy.l2_norm_clip, privacy.correction_l2_norm_clip)
    if privacy.kind == "none":
        return ExampleMechanism(l2_norm_clip=clips[0], correction_l2_norm_clip=clips[1])
    bare = ExampleMechanism(
        l2_norm_clip=clips[0],
        correction_l2_norm_clip=clips[1],
        neighboring_relation=privacy.neighboring_relation,
    )
    rule = privacy.noise
    if rule.kind == "multiplier":
        return bare.model_copy(update={"noise": RelativeNoise(multiplier=rule.noise_multiplier)})
    if rule.kind == "published":
        return bare.model_copy(update={"noise": PublishedNoise(coefficient=_published(config))})
    check_delta(rule.delta, sum(sizes), "privacy.noise.delta", "examples")
    multiplier = max(_calibrated(config, bare, size, rule) for size in sorted(set(sizes)))
    return bare.model_copy(update={"noise": RelativeNoise(multiplier=multiplier)})


def _published(config: Experiment) -> float:
    """Tau sqrt(o [m] K log(1/delta)) / epsilon (spec 000 §3.3)."""
    privacy, training = config.privacy, config.training
    assert privacy.kind == "example-level"
    rule = privacy.noise
    assert rule.kind == "published"
    steps = (
        training.local_steps
        if training.kind == "rsgd"
        else (training.epochs * training.inner_steps)
    )
    bound = max(privacy.l2_norm_clip, privacy.correction_l2_norm_clip or 0.0)
    root = math.sqrt(rule.constant * steps * math.log(1.0 / rule.local_delta))
    return bound * root / rule.local_epsilon


def _calibrated(config: Experiment, bare: ExampleMechanism, size: int, rule: Target) -> float:
    federation = config.federation
    rate = federation.cohort.rate(federation.num_clients)

    def releases(multiplier: float) -> tuple[GaussianRelease, ...]:
        mechanism = bare.model_copy(update={"noise": RelativeNoise(multiplier=multiplier)})
        return config.training.releases(mechanism, size)

    def price(turn: Sequence[GaussianRelease], delta: float) -> float:
        if rule.view == "external":
            return price_external(turn, rate, federation.num_rounds, delta)
        return price_server_a_priori(turn, rate, federation.num_rounds, delta)

    return _search(releases, price, rule)


def client_mechanism(config: Experiment) -> ClientMechanism | None:
    """The server's mechanism; None unless privacy is at client level.

    Raises:
        ConfigError: as `example_mechanism`.
    """
    privacy, federation = config.privacy, config.federation
    if privacy.kind != "client-level":
        return None
    bare = ClientMechanism(
        l2_norm_clip=privacy.l2_norm_clip,
        noise_multiplier=0.0,
        neighboring_relation=privacy.neighboring_relation,
        adaptive=privacy.adaptive,
    )
    rule = privacy.noise
    if rule.kind == "multiplier":
        return _checked(bare.model_copy(update={"noise_multiplier": rule.noise_multiplier}))
    check_delta(rule.delta, federation.num_clients, "privacy.noise.delta", "clients")
    sampling = federation.cohort.sampling(federation.num_clients)

    def releases(multiplier: float) -> tuple[GaussianRelease, ...]:
        mechanism = bare.model_copy(update={"noise_multiplier": multiplier})
        return (mechanism.release(count=federation.num_rounds, sampling=sampling),)

    found = _search(releases, price_client_level, rule)
    return _checked(bare.model_copy(update={"noise_multiplier": found}))


def _checked(mechanism: ClientMechanism) -> ClientMechanism:
    try:
        mechanism.upload_noise_multiplier  # noqa: B018  raises when the quantile costs too much
    except ValueError as error:
        raise ConfigError(f"privacy.adaptive.quantile_noise_multiplier: {error}") from None
    return mechanism


def _search(releases: object, price: object, rule: Target) -> float:
    try:
        return noise_multiplier(
            releases,  # type: ignore[arg-type]
            target_epsilon=rule.epsilon,
            target_delta=rule.delta,
            price=price,  # type: ignore[arg-type]
        )
    except NoValidBound as refusal:
        raise ConfigError(f"privacy: {refusal}") from None
    except ValueError as impossible:
        raise ConfigError(f"privacy.noise: {impossible}") from None


def check_delta(delta: float, count: int, field: str, units: str) -> None:
    """Refuse a delta of 1/n or more: it would allow publishing one unit of data outright.

    Raises:
        ConfigError: naming field, value and bound.
    """
    if delta >= 1.0 / count:
        raise ConfigError(
            f"{field}: expected delta < 1/n = {1.0 / count:.3g} ({count} {units}), got {delta:g}"
        )
