"""From a setting to the mechanisms of both sides, with the noise that its privacy asks for.

A target is met over the *whole run* and for the smallest shard, whose examples weigh most; the
search ends on the private side.
"""

import math
from collections.abc import Callable
from functools import lru_cache

from manifed.errors import ConfigError
from manifed.federation.client import releases_in
from manifed.privacy.accountant import NoValidBound
from manifed.privacy.calibration import least_multiplier
from manifed.privacy.events import CLIENT_LEVEL, Adversary, Release, named
from manifed.privacy.mechanism import ClientMechanism, ExampleMechanism, Noise
from manifed.privacy.tariff import Block, ClientReleases, Tariff, Terms, blocks
from manifed.setting import ExampleLevel, Setting, Target

Sizes = tuple[int, ...]
"""N_i of every client, public."""


@lru_cache(maxsize=4)
def example_mechanism(setting: Setting, sizes: Sizes) -> ExampleMechanism:
    """The clients' mechanism, with calibrated noise, for shards of these sizes.

    Raises:
        ConfigError: when no noise meets the target, or nothing prices the combination.
    """
    privacy = setting.privacy
    if privacy.kind == "client-level":
        return ExampleMechanism()
    if privacy.kind == "correlated":
        from manifed.masked_plan import masked_mechanism

        if privacy.target is not None:
            of_clients = privacy.unit == "client"
            count = setting.federation.num_clients if of_clients else sum(sizes)
            check_delta(privacy.target.delta, count, "privacy.target.delta", f"{privacy.unit}s")
        return masked_mechanism(setting, min(sizes), planned_draws(setting))
    if privacy.kind == "none":
        return ExampleMechanism(
            l2_norm_clip=privacy.l2_norm_clip,
            correction_l2_norm_clip=privacy.correction_l2_norm_clip,
        )
    bare, rule = _bare(privacy), privacy.noise
    if rule.kind == "published":
        noise = Noise(coefficient=_published(setting, privacy))
        return bare.model_copy(update={"noise": noise})
    if rule.kind == "target":
        check_delta(rule.delta, sum(sizes), "privacy.noise.delta", "examples")
    multiplier = rule.noise_multiplier
    if rule.kind == "target" and multiplier is None:
        multiplier = max(_calibrated(setting, bare, size, sizes, rule) for size in set(sizes))
    assert multiplier is not None
    return bare.model_copy(update={"noise": Noise(multiplier=multiplier)})


@lru_cache(maxsize=4)
def client_mechanism(setting: Setting) -> ClientMechanism | None:
    """The server's mechanism; None unless privacy is at client level.

    Raises:
        ConfigError: as `example_mechanism`.
    """
    privacy, federation = setting.privacy, setting.federation
    if privacy.kind != "client-level":
        return None
    bare = ClientMechanism(
        l2_norm_clip=privacy.l2_norm_clip,
        noise_multiplier=0.0,
        neighboring_relation=privacy.neighboring_relation,
        adaptive=privacy.adaptive,
    )
    rule = privacy.noise
    if rule.kind == "target":
        check_delta(rule.delta, federation.num_clients, "privacy.noise.delta", "clients")
    multiplier = rule.noise_multiplier
    if multiplier is None:
        sampling = federation.cohort.sampling(federation.num_clients)

        def tariff(multiplier: float) -> Tariff:
            mechanism = bare.model_copy(update={"noise_multiplier": multiplier})
            released = (mechanism.release(sampling=sampling),)
            return Tariff((Terms(population=1, sampling=sampling, aggregate=released),))

        assert rule.kind == "target"
        multiplier = _search(tariff, CLIENT_LEVEL, federation.num_rounds, rule)
    found = bare.model_copy(update={"noise_multiplier": multiplier})
    try:
        found.upload_noise_multiplier  # noqa: B018  raises when the quantile costs too much
    except ValueError as error:
        raise ConfigError(f"privacy.adaptive.quantile_noise_multiplier: {error}") from None
    return found


def _bare(privacy: ExampleLevel) -> ExampleMechanism:
    """The clips of a client, before any noise."""
    return ExampleMechanism(
        l2_norm_clip=privacy.l2_norm_clip,
        correction_l2_norm_clip=privacy.correction_l2_norm_clip,
        l1_norm_clip=privacy.l1_norm_clip,
        neighboring_relation=privacy.neighboring_relation,
    )


def _published(setting: Setting, privacy: ExampleLevel) -> float:
    """Tau sqrt(o [m] K log(1/delta)) / epsilon (spec 000 §3.3)."""
    rule, steps = privacy.noise, setting.training.published_steps
    assert rule.kind == "published"
    assert steps is not None  # a setting admits no other training with this noise
    bound = max(privacy.l2_norm_clip, privacy.correction_l2_norm_clip or 0.0)
    root = math.sqrt(rule.constant * steps * math.log(1.0 / rule.local_delta))
    return bound * root / rule.local_epsilon


def _calibrated(
    setting: Setting, bare: ExampleMechanism, size: int, sizes: Sizes, rule: Target
) -> float:
    federation = setting.federation

    def tariff(multiplier: float) -> Tariff:
        mechanism = bare.model_copy(update={"noise": Noise(multiplier=multiplier)})
        alike = (size,) * (len(federation.cohort.probabilities) or 1)
        return tariff_of(setting, alike, mechanism, None, tuple(sorted(set(sizes))))

    return _search(tariff, named(rule.adversary), federation.num_rounds, rule)


def _search(
    tariff: Callable[[float], Tariff], adversary: Adversary, draws: int, rule: Target
) -> float:
    def cost(multiplier: float) -> float:
        found = tariff(multiplier)
        return found.ahead(adversary, found.counted([(1, draws, 1)]), rule.delta)

    try:
        return least_multiplier(cost, rule.epsilon)
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


# -- what clients release, round by round ----------------------------------------------------
def releases(
    setting: Setting, mechanism: ExampleMechanism, size: int, server_round: int
) -> tuple[Release, ...]:
    """What a client with so many examples releases in a round."""
    return releases_in(server_round, setting.training, setting.held_out, mechanism, size)


def is_scheduled(setting: Setting) -> bool:
    """Whether what a client releases depends on the round."""
    held = setting.held_out
    return setting.training.is_scheduled or (held is not None and held.every > 1)


def attempts_of(setting: Setting) -> int:
    """The most attempts of one round, no crash counted."""
    replies = setting.federation.replies
    return replies.max_attempts if replies.on_failure == "retry" else 1


def planned_draws(setting: Setting) -> int:
    """The most draws that the rounds can need, retries included, no crash counted."""
    return setting.federation.num_rounds * attempts_of(setting)


@lru_cache(maxsize=16)
def blocks_of(setting: Setting, sizes: Sizes) -> tuple[Block, ...]:
    """The rounds that one line of the ledger pays for, of clients of these sizes.

    Each is charged as its dearest round. Which that is does not depend on how much noise there is:
    it is a multiple of every round's sensitivity.
    """
    rounds = setting.federation.num_rounds
    if not _may_reserve(setting):
        return tuple(Block(r, r, {}) for r in range(1, rounds + 1))
    assert setting.privacy.kind == "example-level"
    noise = {"noise": Noise(multiplier=1.0)}
    unit = _bare(setting.privacy).model_copy(update=noise)
    each = (
        {size: releases(setting, unit, size, r) for size in sizes} for r in range(1, rounds + 1)
    )
    return tuple(blocks(each, setting.federation.reserve_rounds or 1))


def tariff_of(
    setting: Setting,
    sizes: Sizes,
    client: ExampleMechanism,
    server: ClientMechanism | None,
    cut: Sizes = (),
) -> Tariff:
    """Who releases what in every round: one line where rounds are alike, else one a block.

    Blocks are ``cut`` for clients of these sizes; (): of their own.
    """
    lines = (Block(1, 1, {}),)
    if setting.privacy.kind != "example-level" or not is_scheduled(setting):
        return Tariff((_terms(setting, sizes, client, server, lines[0]),))
    lines = blocks_of(setting, cut or tuple(sorted(set(sizes))))
    lengths = tuple(one.last - one.first + 1 for one in lines) if _may_reserve(setting) else ()
    terms = tuple(_terms(setting, sizes, client, server, line) for line in lines)
    return Tariff(terms, lengths, attempts_of(setting))


def _terms(
    setting: Setting,
    sizes: Sizes,
    client: ExampleMechanism,
    server: ClientMechanism | None,
    line: Block,
) -> Terms:
    """Who releases what, and how cohorts are drawn; clients that release alike stand together."""
    federation, by_size = setting.federation, dict[int, list[int]]()
    for i, size in enumerate(sizes):
        by_size.setdefault(size, []).append(i)
    clients = tuple(
        ClientReleases(
            partitions=tuple(owners),
            releases=line.charged(size, lambda r, n=size: releases(setting, client, n, r)),
        )
        for size, owners in by_size.items()
    )
    sampling = federation.cohort.sampling(federation.num_clients)
    return Terms(
        population=len(sizes),
        updates=clients if any(one.releases for one in clients) else (),
        sampling=sampling,
        aggregate=() if server is None else (server.release(sampling=sampling),),
        num_examples=sizes if setting.is_at_sites else (),
        probabilities=federation.cohort.probabilities,
    )


def _may_reserve(setting: Setting) -> bool:
    """Whether rounds that cost different amounts are reserved together: with everybody in each."""
    federation = setting.federation
    cohort = federation.cohort
    least = min(cohort.probabilities, default=cohort.rate(federation.num_clients))
    return (federation.reserve_rounds or 1) > 1 and least >= 1
