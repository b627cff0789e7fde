"""Makes a `Plan` of a `Setting`: what each side does and releases, and what that costs.

All that is promised is data of `manifed.privacy`. Nothing else makes a `Plan`.
"""

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from manifed.errors import ConfigError, named_by
from manifed.federation.client import releases_in
from manifed.federation.plan import Plan
from manifed.fields import Document
from manifed.privacy.composition import NoValidBound
from manifed.privacy.epsilon_bounds import Claim, least_multiplier
from manifed.privacy.events import (
    CLIENT_LEVEL,
    COALITION,
    EXTERNAL,
    OF_MASKS,
    SERVER,
    Adversary,
    named,
)
from manifed.privacy.mechanism import ClientMechanism, ExampleMechanism, Noise
from manifed.privacy.random_numbers import NoiseSource
from manifed.privacy.statement import Budget, Promise
from manifed.privacy.tariff import Block, ClientReleases, Tariff, Terms, blocks
from manifed.setting import ClientLevel, ExampleLevel, NoPrivacy, Setting, Target

Sizes = tuple[int, ...]
"""N_i of every client, public."""


def summed(setting: Setting, sizes: Sizes) -> Setting:
    """Returns a setting as both sides run it: with its algorithm in a secure sum, if it is to be.

    Raises:
        ConfigError: as `example_mechanism`.
    """
    if setting.privacy.trust is None:
        return setting
    from manifed.secure_plan import sealed

    made = sealed(setting, sizes)
    mechanism = example_mechanism(made, sizes)
    training = made.training.model_copy(update={"mechanism": mechanism})
    return replace(made, training=training)


@lru_cache(maxsize=4)
def example_mechanism(setting: Setting, sizes: Sizes) -> ExampleMechanism:
    """Makes the clients' mechanism, with calibrated noise, for shards of these sizes.

    Raises:
        ConfigError: when no noise meets the target, or nothing prices the combination.
    """
    privacy = setting.privacy
    if privacy.trust is not None:
        from manifed.secure_plan import sealed

        setting = sealed(setting, sizes)
    elif privacy.kind == "client-level":
        return ExampleMechanism()
    if privacy.kind == "correlated":
        from manifed.masked_plan import masked_mechanism

        if privacy.target is not None:
            _check_delta(setting, privacy.target.delta, sizes, "privacy.target.delta")
        return masked_mechanism(setting.training, privacy, min(sizes), _planned_draws(setting))
    if privacy.kind == "none":
        return _noised(privacy)
    rule = privacy.noise
    if rule.kind == "published":
        assert privacy.kind == "example-level"
        return _noised(privacy, coefficient=_published(setting, privacy))
    if rule.kind == "multiplier":
        return _noised(privacy, multiplier=rule.noise_multiplier)
    _check_delta(setting, rule.delta, sizes, "privacy.noise.delta")
    each = tuple(sorted(set(sizes)))
    each = each[:1] if privacy.unit == "client" else each

    def tariff(size: int, multiplier: float) -> Tariff:
        alike = (size,) * (len(setting.federation.cohort.probabilities) or 1)
        return _tariff_of(setting, alike, _noised(privacy, multiplier=multiplier), None, each)

    adversary = _against(setting)
    found = max(_search(setting, rule, partial(tariff, n), adversary) for n in each)
    return _noised(privacy, multiplier=found)


def mean_noise(setting: Setting, sizes: Sizes) -> float:
    """Standard deviation of the noise in each coordinate of the mean of one round's uploads.

    The first query of the algorithm counts, and clients are weighted by their numbers of examples.
    """
    mechanism = example_mechanism(setting, sizes)
    total = sum(sizes)
    each = [size / total * setting.training.queries(mechanism, size)[0].stddev for size in sizes]
    spread = math.sqrt(sum(one**2 for one in each))
    if setting.privacy.trust is not None:  # each client adds a share of one noise
        inside: Any = summed(setting, sizes).training
        spread /= math.sqrt(inside.numbers.honest(len(sizes)))
    return spread


@lru_cache(maxsize=4)
def client_mechanism(setting: Setting) -> ClientMechanism | None:
    """Makes the server's mechanism; None unless privacy is at client level.

    Raises:
        ConfigError: as `example_mechanism`.
    """
    privacy = setting.privacy
    federation = setting.federation
    if privacy.kind != "client-level" or privacy.trust is not None:
        return None

    def noised(multiplier: float) -> ClientMechanism:
        return ClientMechanism(
            l2_norm_clip=privacy.l2_norm_clip,
            noise_multiplier=multiplier,
            neighboring_relation=privacy.neighboring_relation,
            adaptive=privacy.adaptive,
        )

    def tariff(multiplier: float) -> Tariff:
        released = (noised(multiplier).release(sampling),)
        return Tariff((Terms(population=1, sampling=sampling, aggregate=released),))

    rule = privacy.noise
    if rule.kind == "target":
        _check_delta(setting, rule.delta, (), "privacy.noise.delta")
        sampling = federation.cohort.sampling(federation.num_clients)
        found = noised(_search(setting, rule, tariff, CLIENT_LEVEL))
    else:
        found = noised(rule.noise_multiplier)
    with named_by("privacy.adaptive.quantile_noise_multiplier", ValueError):
        found.upload_noise_multiplier  # noqa: B018  raises when the quantile costs too much
    return found


def _noised(privacy: NoPrivacy | ExampleLevel | ClientLevel, **noise: float) -> ExampleMechanism:
    """The clips of a client, with this noise."""
    clips = privacy.model_dump(include=set(ExampleMechanism.model_fields) - {"noise"})
    return ExampleMechanism(**clips, noise=Noise(**noise))


def _published(setting: Setting, privacy: ExampleLevel) -> float:
    """Tau sqrt(o [m] K log(1/delta)) / epsilon."""
    rule = privacy.noise
    steps = setting.training.published_steps
    assert rule.kind == "published"
    assert steps is not None  # a setting admits no other training with this noise
    bound = max(privacy.l2_norm_clip, privacy.correction_l2_norm_clip or 0.0)
    root = math.sqrt(rule.constant * steps * math.log(1.0 / rule.local_delta))
    return bound * root / rule.local_epsilon


def _search(
    setting: Setting, rule: Target, tariff: Callable[[float], Tariff], adversary: Adversary
) -> float:
    """The least noise multiplier with which all rounds cost at most the target."""

    def cost(multiplier: float) -> float:
        found = tariff(multiplier)
        return found.ahead(adversary, found.once(setting.federation.num_rounds), rule.delta)

    try:
        return least_multiplier(cost, rule.epsilon)
    except NoValidBound as refusal:
        raise ConfigError(f"privacy: {refusal}") from None
    except ValueError as impossible:
        raise ConfigError(f"privacy.noise: {impossible}") from None


def _check_delta(setting: Setting, delta: float, sizes: Sizes, field: str) -> None:
    """Refuse a delta of 1/n or more: it would allow publishing one unit of data outright.

    Raises:
        ConfigError: naming field, value and bound.
    """
    unit = setting.privacy.unit
    count = setting.federation.num_clients if unit == "client" else sum(sizes)
    if delta >= 1.0 / count:
        raise ConfigError(
            f"{field}: expected delta < 1/n = {1.0 / count:.3g} ({count} {unit}s), got {delta:g}"
        )


# -- what clients release, round by round ----------------------------------------------------
def _planned_draws(setting: Setting) -> int:
    """The most draws that the rounds can need, retries included, no crash counted."""
    return setting.federation.num_rounds * setting.federation.replies.attempts


@lru_cache(maxsize=16)
def _blocks_of(setting: Setting, sizes: Sizes) -> tuple[Block, ...]:
    """The rounds that one line of the ledger pays for, of clients of these sizes.

    Each is charged as its dearest round. Which that is does not depend on how much noise there is:
    it is a multiple of every round's sensitivity.
    """
    rounds = setting.federation.num_rounds
    if not _may_reserve(setting):
        return tuple(Block(r, r, {}) for r in range(1, rounds + 1))
    assert setting.privacy.kind == "example-level"
    unit = _noised(setting.privacy, multiplier=1.0)
    each = (
        {size: releases_in(r, setting.training, setting.held_out, unit, size) for size in sizes}
        for r in range(1, rounds + 1)
    )
    return tuple(blocks(each, setting.federation.reserve_rounds or 1))


def _tariff_of(
    setting: Setting,
    sizes: Sizes,
    client: ExampleMechanism,
    server: ClientMechanism | None,
    cut: Sizes = (),
) -> Tariff:
    """Who releases what in every round: one line where rounds are alike, else one a block.

    Blocks are ``cut`` for clients of these sizes; (): of their own.
    """
    if setting.privacy.kind != "example-level" or not setting.is_scheduled:
        return Tariff((_terms(setting, sizes, client, server, Block(1, 1, {})),))
    lines = _blocks_of(setting, cut or tuple(sorted(set(sizes))))
    lengths = tuple(one.last - one.first + 1 for one in lines) if _may_reserve(setting) else ()
    terms = tuple(_terms(setting, sizes, client, server, line) for line in lines)
    return Tariff(terms, lengths, setting.federation.replies.attempts)


def _terms(
    setting: Setting,
    sizes: Sizes,
    client: ExampleMechanism,
    server: ClientMechanism | None,
    line: Block,
) -> Terms:
    """Who releases what, and how cohorts are drawn; clients that release alike stand together."""
    federation = setting.federation
    by_size = dict[int, list[int]]()
    for i, size in enumerate(sizes):
        by_size.setdefault(size, []).append(i)
    clients = tuple(
        ClientReleases(
            partitions=tuple(owners),
            releases=line.charged(
                size,
                lambda r, n=size: releases_in(r, setting.training, setting.held_out, client, n),
            ),
        )
        for size, owners in by_size.items()
    )
    sampling = federation.cohort.sampling(federation.num_clients)
    return Terms(
        population=len(sizes),
        updates=clients if any(one.releases for one in clients) else (),
        sampling=sampling,
        aggregate=() if server is None else (server.release(sampling),),
        num_examples=sizes if setting.is_at_sites else (),
        probabilities=federation.cohort.probabilities,
    )


def _may_reserve(setting: Setting) -> bool:
    """Whether rounds that cost different amounts are reserved together: with everybody in each."""
    federation = setting.federation
    cohort = federation.cohort
    least = min(cohort.probabilities, default=cohort.rate(federation.num_clients))
    return (federation.reserve_rounds or 1) > 1 and least >= 1


_FLOATING_POINT = {
    "single": "float64 normals, one a draw",
    "summed": "float64 normals, four summed a draw",
    "exact": "none from the clip on: integers, discrete Gaussian noise (beside 1e-18), their sum",
}
_RELEASED = {
    "example-level": "every upload (to the server) and every broadcast model",
    "client-level": "every broadcast model; the server sees uploads in clear and is trusted",
    "correlated": "every message of every node (to the server, who carries them) and every model",
    "secure-sum": "every sum of a round's uploads, and every model; no upload is seen by anybody",
}


def plan(
    setting: Setting,
    sizes: Sizes,
    *,
    config_sha256: str | None = None,
    source: NoiseSource | None = None,
) -> Plan:
    """Checks and prices a setting for shards of these public sizes, and makes its plan.

    ``config_sha256`` is what both sides compare; None: the `digest` of what they must agree on.
    ``source`` is the server's, and a seeded one in tests; None: as the setting says.

    Raises:
        ConfigError: for parts that do not go together, or a price that nothing bounds.
    """
    setting.check()
    setting.check_sizes(sizes)
    setting = summed(setting, sizes)
    training = setting.training
    server = setting.server_update
    federation = setting.federation
    client = example_mechanism(setting, sizes)
    return Plan(
        training=training,
        server_update=server,
        manifold=setting.manifold,
        phases=training.phases,
        setup_phases=training.setup_phases,
        cohort=federation.cohort,
        policy=federation.replies,
        source=source or setting.source(),
        client_source=setting.source(),
        num_examples=sizes,
        config_sha256=config_sha256 or digest(setting, client),
        mechanism=client_mechanism(setting),
        client_mechanism=client,
        promise=promise_of(setting, sizes),
        needs_everyone=server.needs_everyone,
        device=setting.engine.server_device,
        evaluation=setting.held_out,
        last_priced=federation.num_rounds
        if setting.privacy.kind != "none" and setting.is_scheduled
        else None,
    )


def digest(setting: Setting, client: ExampleMechanism) -> str:
    """Hashes what decides guarantee and meaning of the messages; each side computes its own.

    It holds the manifold, the exchanges, the mechanism and what a client update releases; step
    sizes and shards are not in it.
    """
    training = setting.training
    server = client_mechanism(setting)
    exchanges = [
        (p.name, p.down.__name__, p.up.__name__, p.places, p.uploads, p.aggregation)
        for p in (*training.setup_phases, *training.phases)
    ]
    said: list[object] = [setting.manifold.name, exchanges]
    if setting.privacy.kind != "none":
        said += [type(setting.privacy).__name__, (server or client).model_dump(mode="json")]
        said += [
            [r.model_dump(mode="json") for r in training.releases(client, size)]
            for size in (1_000, 1_000_000)
        ]
    if training.is_scheduled:
        said.append(repr(training))
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


# -- the promise -----------------------------------------------------------------------------
def promise_of(setting: Setting, sizes: Sizes) -> Promise:
    """Makes the promise of a run with shards of these sizes.

    Raises:
        ConfigError: for a delta that is no guarantee, or a combination that nothing prices.
    """
    federation = setting.federation
    privacy = setting.privacy
    if privacy.kind == "none":
        tariff = Tariff((Terms(population=federation.num_clients),))
        return Promise(
            tariff, _planned_draws(setting), facts={"kind": "none", "noise_source": None}
        )
    setting = summed(setting, sizes)
    delta = setting.reporting_delta
    client = example_mechanism(setting, sizes)
    tariff = _tariff_of(setting, sizes, client, client_mechanism(setting))
    if privacy.noise.kind != "published" and delta is not None:  # the papers' own settings break it
        _check_delta(setting, delta, sizes, "privacy.delta")
    kept = setting.training.kept_noise
    adversaries = (SERVER, EXTERNAL)
    if privacy.trust is not None:
        from manifed.secure_plan import OF_SUM

        adversaries = (*OF_SUM, EXTERNAL) if tariff.is_drawn else OF_SUM
    elif privacy.kind != "example-level":
        adversaries = OF_MASKS if privacy.kind == "correlated" else (CLIENT_LEVEL,)
    realised = None if privacy.trust is None else partial(_realised, setting, sizes, client)
    promise = Promise(
        tariff,
        federation.num_rounds if tariff.is_by_round else _planned_draws(setting),
        adversaries,
        delta,
        budget_of(setting),
        _target_of(setting),
        federation.num_rounds,
        {
            "kind": privacy.kind,
            "noise_source": privacy.noise_source,
            "unit": privacy.unit,
            "neighboring_relation": privacy.neighboring_relation,
            "released": _released_text(setting, sizes),
            "mechanism": _mechanism_text(setting, tariff.lines[0]),
            "floating_point": _FLOATING_POINT[
                "exact" if privacy.trust else privacy.noise_precision
            ],
            **({} if kept is None else {"kept_noise": kept}),
        },
        has_oracle=setting.has_oracle(),
        claim=_claim(setting),
        realised=realised,
    )
    with named_by("privacy", NoValidBound):
        promise.planned(1)
        return promise.for_draws(promise.planned_draws)


def _realised(
    setting: Setting,
    sizes: Sizes,
    client: ExampleMechanism,
    server_round: int,
    counts: tuple[int, int],
) -> Terms:
    """What a round of a secure sum releases when so many nodes offered, and so many sent."""
    training = setting.training.model_copy(update={"counts": counts})
    counted = replace(setting, training=training)
    return _terms(counted, sizes, client, None, Block(server_round, server_round, {}))


def _claim(setting: Setting) -> Claim | None:
    privacy = setting.privacy
    federation = setting.federation
    if privacy.kind != "example-level" or privacy.noise.kind != "published":
        return None
    rule = privacy.noise
    cohort = max(1, round(federation.cohort.expected_size(federation.num_clients)))
    return Claim(
        rule.local_epsilon, rule.local_delta, federation.num_clients, cohort, rule.slack_delta
    )


# -- the budget ------------------------------------------------------------------------------
_REMEDY = "privacy.max_epsilon may allow more"


def _against(setting: Setting) -> Adversary:
    """Against whom a target or a budget holds."""
    privacy = setting.privacy
    if privacy.trust is not None:
        return COALITION
    if privacy.kind == "client-level":
        return CLIENT_LEVEL
    return named(privacy.noise.adversary) if privacy.noise.kind == "target" else SERVER


def _target_of(setting: Setting) -> Budget | None:
    """What the noise was calibrated for, whatever may be spent; None: no target."""
    privacy = setting.privacy
    rule = privacy.noise
    if rule.kind != "target":
        return None
    adversary = _against(setting)
    field = f"privacy.{'target' if privacy.kind == 'correlated' else 'noise'}.epsilon"
    return Budget(rule.epsilon, rule.delta, adversary, field, _REMEDY)


def budget_of(setting: Setting) -> Budget | None:
    """Returns ``privacy.max_epsilon``, else the target; None when the setting has neither."""
    target = _target_of(setting)
    delta = setting.reporting_delta
    privacy = setting.privacy
    if privacy.kind == "none" or privacy.max_epsilon is None or delta is None:
        return target
    adversary = target.adversary if target else _against(setting)
    return Budget(privacy.max_epsilon, delta, adversary, "privacy.max_epsilon", _REMEDY)


# -- what a statement says in words ----------------------------------------------------------
def _released_text(setting: Setting, sizes: Sizes) -> str:
    """What is released: updates, hold-outs, averages, and the sizes that sites declare."""
    trust = setting.privacy.trust
    said = _RELEASED[setting.privacy.kind if trust is None else trust.kind]
    held = setting.held_out
    if held is not None:
        said += f"; every {held.every} rounds the noised totals of each client's hold-out"
    if setting.server_update.is_average:
        said += "; the model is an average of broadcast ones: post-processing, at no price"
    if setting.is_at_sites and setting.federation.num_examples is None:
        shown = ", ".join(map(str, sizes[:10])) + (", ..." if len(sizes) > 10 else "")
        said += f"; N_i as every site declares it ({shown})"
    return said


def _mechanism_text(setting: Setting, terms: Terms) -> str:
    mechanism = client_mechanism(setting)
    training = setting.training
    if setting.privacy.trust is not None:
        from manifed.secure_plan import summed_text

        return summed_text(training)
    if mechanism is not None:
        return (
            f"{setting.server_update.space} Gaussian at the server, "
            f"noise multiplier {mechanism.noise_multiplier:.5g}, "
            f"l2_norm_clip {mechanism.l2_norm_clip:g}"
        )
    if training.has_masks:
        from manifed.masked_plan import masked_text

        return masked_text(training, terms)
    releases = [r for client in terms.updates for r in client.releases]
    shown = {
        f"{r.label}: {r.count} a client update, multiplier {r.noise_multiplier:.5g}, "
        f"{r.sampling.kind}"
        for r in releases
    }
    said = training.noise_is
    if any(r.kind == "laplace" for r in releases):
        said = "Laplace in every coordinate, gradients clipped in L1, at"
    said += f" each client; {'; '.join(sorted(shown))}"
    if setting.is_scheduled:
        said += " (of round 1; they depend on the round)"
    return said + training.premise


# -- what was not run yet --------------------------------------------------------------------
def planned_statement(setting: Setting, sizes: Sizes) -> Document:
    """Returns the statement of a whole run in which every client is invited as often as can be."""
    return promise_of(setting, sizes).planned(setting.federation.num_rounds)


def planned_curve(setting: Setting, sizes: Sizes) -> list[Document]:
    """Returns epsilon against every adversary at 20 rounds of a run that invites everybody."""
    if setting.privacy.kind == "none":
        raise ConfigError("privacy.kind: there is no curve to draw, got 'none'")
    promise = promise_of(setting, sizes)
    last = setting.federation.num_rounds
    return [
        {"round": rounds}
        | {one["name"]: one["epsilon"] for one in promise.planned(rounds)["adversaries"]}
        for rounds in sorted({max(1, round(last * k / 20)) for k in range(1, 21)})
    ]
