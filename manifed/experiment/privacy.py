"""From a config to what it promises: mechanisms, terms, budget, adversaries.

All that follows is mathematics over data in `manifed.privacy`. A target is met over the *whole run*
and for the smallest shard, whose examples weigh most; the search ends on the private side.
"""

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, Final

from manifed.algorithms.correlated import CorrelatedRSGD
from manifed.algorithms.growing_samples import GrowingSamples
from manifed.algorithms.interface import ClientUpdate, Scheduled
from manifed.algorithms.masked_mean import MaskedMean
from manifed.algorithms.one_shot import OneShot
from manifed.algorithms.pair_masks import Masking
from manifed.algorithms.rsgd import RSGD
from manifed.algorithms.rsvrg import RSVRG
from manifed.algorithms.stationary_decor import StationaryDecor
from manifed.algorithms.tangent_mean import TangentMean
from manifed.errors import ConfigError
from manifed.experiment.evaluation import oracle_is_on
from manifed.experiment.schema import CorrelatedNoise, ExampleLevel, MaskTarget, Target
from manifed.experiment.setting import Setting
from manifed.federation.client import releases_in
from manifed.graphs.graph import Graph
from manifed.privacy import accountant
from manifed.privacy.accountant import NoValidBound
from manifed.privacy.adversaries import (
    CLIENT_LEVEL,
    EXTERNAL,
    OF_MASKS,
    SERVER,
    Adversary,
    named,
)
from manifed.privacy.blocks import Block, blocks
from manifed.privacy.calibration import least_multiplier
from manifed.privacy.charges import ClientReleases, Terms
from manifed.privacy.events import Event, MaskedRelease, PrivacyUnit, repeated
from manifed.privacy.filter import Budget, Calibration, Draw, Filter, Schedule, a_priori
from manifed.privacy.label import NOT_PRIVATE, label_of
from manifed.privacy.masked import Hidden, MaskedMechanism
from manifed.privacy.mechanism import (
    AbsoluteNoise,
    ClientMechanism,
    ExampleMechanism,
    PublishedNoise,
    RelativeNoise,
)
from manifed.privacy.published import Claim
from manifed.privacy.secldp import Correlated, calibrate_masks
from manifed.privacy.statement import Promise

Sizes = tuple[int, ...]
FLOATING_POINT: Final = {
    "single": "float64 normals, one a draw",
    "summed": "float64 normals, four summed a draw",
}
RELEASED: Final = {
    "example-level": "every upload (to the server) and every broadcast model",
    "client-level": "every broadcast model; the server sees uploads in clear and is trusted",
    "correlated": "every message of every node (to the server, who carries them) and every model",
}
_SHOWN: Final = 10
_REMEDY: Final = "privacy.max_epsilon may allow more"


# -- mechanisms ------------------------------------------------------------------------------
@lru_cache(maxsize=4)
def example_mechanism(config: Setting, sizes: Sizes) -> ExampleMechanism:
    """The clients' mechanism, with calibrated noise, for shards of these sizes.

    Raises:
        ConfigError: when no noise meets the target, or nothing prices the combination.
    """
    privacy = config.privacy
    if privacy.kind == "client-level":
        return ExampleMechanism()
    if privacy.kind == "correlated":
        return _masked_mechanism(config, privacy, sizes)
    clips = (privacy.l2_norm_clip, privacy.correction_l2_norm_clip)
    if privacy.kind == "none":
        return ExampleMechanism(l2_norm_clip=clips[0], correction_l2_norm_clip=clips[1])
    bare = ExampleMechanism(
        l2_norm_clip=clips[0],
        correction_l2_norm_clip=clips[1],
        l1_norm_clip=privacy.l1_norm_clip,
        neighboring_relation=privacy.neighboring_relation,
    )
    rule = privacy.noise
    if rule.kind == "published":
        noise = PublishedNoise(coefficient=_published(config, privacy))
        return bare.model_copy(update={"noise": noise})
    if rule.kind == "target":
        _check_delta(rule.delta, sum(sizes), "privacy.noise.delta", "examples")
    multiplier = rule.noise_multiplier
    if rule.kind == "target" and multiplier is None:
        multiplier = max(_calibrated(config, bare, size, sizes, rule) for size in set(sizes))
    assert multiplier is not None
    return bare.model_copy(update={"noise": RelativeNoise(multiplier=multiplier)})


def _masked_mechanism(config: Setting, privacy: CorrelatedNoise, sizes: Sizes) -> MaskedMechanism:
    """The nodes' mechanism: clip, own noise, masks, and what they hide from whom on the graph."""
    training = config.training
    assert isinstance(training, Masking)
    graph, rule = training.secret_graph, privacy.noise
    if rule.kind == "target":
        of_clients = privacy.unit == "client"
        count = config.federation.num_clients if of_clients else sum(sizes)
        _check_delta(rule.delta, count, "privacy.target.delta", f"{privacy.unit}s")
        noise = _found_masks(config, privacy, rule, graph, min(sizes))
    else:
        assert privacy.noise_stddev is not None
        assert privacy.mask_stddev is not None
        noise = Correlated(privacy.noise_stddev, privacy.mask_stddev)
    return MaskedMechanism(
        l2_norm_clip=privacy.l2_norm_clip,
        neighboring_relation=privacy.neighboring_relation,
        noise=AbsoluteNoise(value=noise.sigma_cdp),
        unit=privacy.unit,
        mask_stddev=noise.sigma_cor,
        hidden=training.hidden(noise, privacy.collusion, privacy.coalition)
        if isinstance(training, StationaryDecor)
        else Hidden.of(graph, noise, privacy.collusion, privacy.coalition),
    )


def _found_masks(
    config: Setting, privacy: CorrelatedNoise, rule: MaskTarget, graph: Graph, size: int
) -> Correlated:
    """Own noise a ratio above the least that any masks complete, and the least masks with it.

    Raises:
        ConfigError: when no masks on this graph meet the target.
    """
    rounds, unmasked = (
        planned_draws(config),
        Hidden(from_server=1.0, from_one=1.0, from_coalition=1.0, from_all=1.0),
    )
    bare = MaskedMechanism(
        l2_norm_clip=privacy.l2_norm_clip,
        neighboring_relation=privacy.neighboring_relation,
        noise=AbsoluteNoise(value=1.0),
        unit=privacy.unit,
        hidden=unmasked,
    )

    def cost(stddev: float) -> float:
        """Epsilon of all rounds of a node whose messages carry so much effective noise."""
        if stddev == 0:
            return math.inf
        mechanism = bare.model_copy(update={"noise": AbsoluteNoise(value=stddev),
                                            "hidden": unmasked.model_copy(
                                                update={"from_all": stddev})})  # fmt: skip
        released = config.training.releases(mechanism, size)
        return accountant.epsilon(repeated(released, rounds), rule.delta)

    colluding = {"server": 0, "one-node": 1, "coalition": len(privacy.coalition)
                 or privacy.collusion}[rule.adversary]  # fmt: skip
    colluding = min(colluding, graph.num_nodes - 1)
    try:
        local = least_multiplier(cost, rule.epsilon)  # without any masks: LDP
        own = min(rule.noise_ratio * local / math.sqrt(graph.num_nodes - colluding), local)
        return calibrate_masks(graph, own, colluding, lambda found: found.stddev >= local)
    except NoValidBound as refusal:
        raise ConfigError(f"privacy: {refusal}") from None
    except ValueError as impossible:
        raise ConfigError(f"privacy.target: {impossible}") from None


@lru_cache(maxsize=4)
def client_mechanism(config: Setting) -> ClientMechanism | None:
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
    if rule.kind == "target":
        _check_delta(rule.delta, federation.num_clients, "privacy.noise.delta", "clients")
    if rule.noise_multiplier is not None:
        return _checked(bare.model_copy(update={"noise_multiplier": rule.noise_multiplier}))
    sampling = federation.cohort.sampling(federation.num_clients)
    rate = federation.cohort.rate(federation.num_clients)

    def draw(multiplier: float) -> Draw:
        mechanism = bare.model_copy(update={"noise_multiplier": multiplier})
        return Draw(rate, aggregate=(mechanism.release(sampling=sampling),))

    found = _search(draw, CLIENT_LEVEL, federation.num_rounds, rule)
    return _checked(bare.model_copy(update={"noise_multiplier": found}))


def _published(config: Setting, privacy: ExampleLevel) -> float:
    """Tau sqrt(o [m] K log(1/delta)) / epsilon (spec 000 §3.3)."""
    training, rule = config.training, privacy.noise
    assert rule.kind == "published"
    assert isinstance(training, RSGD | RSVRG)  # the schema admits no other with this noise
    is_plain = isinstance(training, RSGD)
    steps = training.local_steps if is_plain else training.epochs * training.inner_steps
    bound = max(privacy.l2_norm_clip, privacy.correction_l2_norm_clip or 0.0)
    root = math.sqrt(rule.constant * steps * math.log(1.0 / rule.local_delta))
    return bound * root / rule.local_epsilon


def _calibrated(
    config: Setting, bare: ExampleMechanism, size: int, sizes: Sizes, rule: Target
) -> float:
    federation = config.federation
    rate = federation.cohort.rate(federation.num_clients)

    def draw(multiplier: float) -> Draw | Schedule:
        mechanism = bare.model_copy(update={"noise": RelativeNoise(multiplier=multiplier)})
        if is_scheduled(config):
            lines = blocks_of(config, tuple(sorted(set(sizes))))
            run = tuple(_charged(config, mechanism, size, block) for block in lines)
            return Schedule(
                frozenset({run}),
                rate,
                attempts_of(config),
                lengths_of(config, lines),
                is_drawn=min(federation.cohort.probabilities, default=rate) < 1,
            )
        return Draw(rate, frozenset({_releases(config, mechanism, size, 1)}))

    return _search(draw, named(rule.adversary), federation.num_rounds, rule)


def _search(
    draw: Callable[[float], Draw | Schedule], adversary: Adversary, draws: int, rule: Target
) -> float:
    def cost(multiplier: float) -> float:
        return a_priori(draw(multiplier), adversary, draws, rule.delta)

    try:
        return least_multiplier(cost, rule.epsilon)
    except NoValidBound as refusal:
        raise ConfigError(f"privacy: {refusal}") from None
    except ValueError as impossible:
        raise ConfigError(f"privacy.noise: {impossible}") from None


def _checked(mechanism: ClientMechanism) -> ClientMechanism:
    try:
        mechanism.upload_noise_multiplier  # noqa: B018  raises when the quantile costs too much
    except ValueError as error:
        raise ConfigError(f"privacy.adaptive.quantile_noise_multiplier: {error}") from None
    return mechanism


def _check_delta(delta: float, count: int, field: str, units: str) -> None:
    """Refuse a delta of 1/n or more: it would allow publishing one unit of data outright.

    Raises:
        ConfigError: naming field, value and bound.
    """
    if delta >= 1.0 / count:
        raise ConfigError(
            f"{field}: expected delta < 1/n = {1.0 / count:.3g} ({count} {units}), got {delta:g}"
        )


# -- the promise -----------------------------------------------------------------------------
def promise_of(config: Setting, sizes: Sizes) -> Promise:
    """What a run of ``config`` promises, with shards of these sizes.

    Raises:
        ConfigError: for a delta that is no guarantee, or a combination that nothing prices.
    """
    federation, privacy = config.federation, config.privacy
    delta = reporting_delta(config)
    if privacy.kind == "none":
        terms = Terms(population=federation.num_clients)
        facts = {"kind": "none", "noise_source": None}
        return Promise(terms, Filter(Draw.of(terms), planned_draws(config)), facts=facts)
    schedule, lengths = _schedule(config, sizes)
    terms = schedule[0] if schedule else _terms(config, sizes)
    _check_reporting_delta(config, sizes)
    promise = Promise(
        terms,
        filter_of(config, terms, schedule, lengths),
        _adversaries(config),
        delta,
        {
            "kind": privacy.kind,
            "noise_source": privacy.noise_source,
            "unit": unit_of(config),
            "neighboring_relation": privacy.neighboring_relation,
            "released": RELEASED[privacy.kind]
            + _held_out_text(config)
            + _average_text(config)
            + _declared_text(config, sizes),
            "mechanism": _mechanism_text(config, terms, is_scheduled=bool(schedule)),
            "floating_point": FLOATING_POINT[privacy.noise_precision],
            **_kept_noise(config),
        },
        has_oracle=oracle_is_on(config),
        claim=_claim(config),
        schedule=schedule,
        lengths=lengths,
        attempts=attempts_of(config),
        after_dropout=partial(_after_dropout, config, sizes)
        if isinstance(config.training, MaskedMean)
        else None,
    )
    try:
        promise.planned(1)
        return promise.for_draws(promise.filter.planned_draws)
    except NoValidBound as refusal:
        raise ConfigError(f"privacy: {refusal}") from None


def _adversaries(config: Setting) -> tuple[Adversary, ...]:
    """Whom the statement names, the headline first."""
    privacy = config.privacy
    if privacy.kind == "correlated":
        return OF_MASKS
    return (CLIENT_LEVEL,) if privacy.kind == "client-level" else (SERVER, EXTERNAL)


def unit_of(config: Setting) -> PrivacyUnit:
    """Whose data a guarantee is about."""
    privacy = config.privacy
    if privacy.kind == "correlated":
        return privacy.unit
    return "client" if privacy.kind == "client-level" else "example"


def _schedule(config: Setting, sizes: Sizes) -> tuple[tuple[Terms, ...], tuple[int, ...]]:
    """The terms of every block of rounds where releases depend on the round, and its length."""
    if config.privacy.kind != "example-level" or not is_scheduled(config):
        return (), ()
    blocks = blocks_of(config, tuple(sorted(set(sizes))))
    return tuple(_terms(config, sizes, block) for block in blocks), lengths_of(config, blocks)


def lengths_of(config: Setting, blocks: tuple[Block, ...]) -> tuple[int, ...]:
    """How many rounds each block has; () where rounds are reserved one by one."""
    if not may_reserve(config):
        return ()
    return tuple(block.last - block.first + 1 for block in blocks)


def may_reserve(config: Setting) -> bool:
    """Whether rounds that cost different amounts are reserved together: with everybody in each."""
    federation = config.federation
    cohort = federation.cohort
    least = min(cohort.probabilities, default=cohort.rate(federation.num_clients))
    return (federation.reserve_rounds or 1) > 1 and least >= 1


@lru_cache(maxsize=16)
def blocks_of(config: Setting, sizes: Sizes) -> tuple[Block, ...]:
    """The rounds that one line of the ledger pays for, of clients of these sizes.

    Each is charged as its dearest round. Which that is does not depend on how much noise there is:
    it is a multiple of every round's sensitivity.
    """
    rounds = config.federation.num_rounds
    if not may_reserve(config):
        return tuple(Block(r, r, {}) for r in range(1, rounds + 1))
    assert config.privacy.kind == "example-level"
    unit = ExampleMechanism(
        l2_norm_clip=config.privacy.l2_norm_clip,
        correction_l2_norm_clip=config.privacy.correction_l2_norm_clip,
        l1_norm_clip=config.privacy.l1_norm_clip,
        neighboring_relation=config.privacy.neighboring_relation,
        noise=RelativeNoise(multiplier=1.0),
    )
    each = (
        {size: _releases(config, unit, size, r) for size in sizes} for r in range(1, rounds + 1)
    )
    return tuple(blocks(each, config.federation.reserve_rounds or 1))


def _charged(
    config: Setting, mechanism: ExampleMechanism, size: int, block: Block
) -> tuple[Event, ...]:
    """What a client with so many examples is charged in every round of a block."""
    return block.charged(size, lambda r: _releases(config, mechanism, size, r))


def is_scheduled(config: Setting) -> bool:
    """Whether what a client releases depends on the round."""
    held = config.evaluation
    return isinstance(config.training, Scheduled) or (held.kind == "private" and held.every > 1)


def _releases(
    config: Setting, mechanism: ExampleMechanism, size: int, server_round: int
) -> tuple[Event, ...]:
    """What a client with so many examples releases in a round."""
    held = config.evaluation if config.evaluation.kind == "private" else None
    return releases_in(server_round, config.training, held, mechanism, size)


def _terms(config: Setting, sizes: Sizes, block: Block | None = None) -> Terms:
    """Who releases what, and how cohorts are drawn; clients that release alike stand together."""
    federation, mechanism = config.federation, example_mechanism(config, sizes)
    by_size: dict[int, list[int]] = {}
    for i, size in enumerate(sizes):
        by_size.setdefault(size, []).append(i)
    clients = (
        ClientReleases(
            partitions=tuple(owners),
            releases=_charged(config, mechanism, size, block or Block(1, 1, {})),
        )
        for size, owners in by_size.items()
    )
    server = client_mechanism(config)
    sampling = federation.cohort.sampling(federation.num_clients)
    return Terms(
        population=federation.num_clients,
        updates=tuple(client for client in clients if client.releases),
        sampling=sampling,
        aggregate=() if server is None else (server.release(sampling=sampling),),
        num_examples=sizes if config.is_at_sites else (),
        probabilities=federation.cohort.probabilities,
    )


def _after_dropout(config: Setting, sizes: Sizes, dropped: tuple[int, ...]) -> Terms:
    """What a round releases besides when survivors reveal their masks with silent nodes.

    Survivors are worth what they are on the graph without those nodes, and the silent ones, whose
    messages may lie somewhere, their own noise. Squares of mu add up, so what was charged for the
    round already is taken off; a sampled release is charged whole once more.
    """
    mechanism = example_mechanism(config, sizes)
    assert isinstance(config.privacy, CorrelatedNoise)
    assert isinstance(config.training, Masking)
    assert isinstance(mechanism, MaskedMechanism)
    graph, privacy = config.training.secret_graph, config.privacy
    assert isinstance(mechanism.noise, AbsoluteNoise)
    noise = Correlated(mechanism.noise.value, mechanism.mask_stddev)
    left = [i for i in range(graph.num_nodes) if i not in dropped]
    coalition = [left.index(i) for i in privacy.coalition if i in left]
    collusion = privacy.collusion if not privacy.coalition else 0
    survivors = Hidden.of(graph.without(dropped), noise, collusion, coalition)
    alone = Hidden.uniform(noise.sigma_cdp)
    updates: list[ClientReleases] = []
    for who, after in ((left, survivors), (list(dropped), alone)):
        by_size: dict[int, list[int]] = {}
        for i in who:
            by_size.setdefault(sizes[i], []).append(i)
        for size, owners in by_size.items():
            more = mechanism.disclosing(after)
            released = config.training.releases(more, size)
            if any(r.sampling.kind != "unsampled" for r in released):
                more = mechanism.model_copy(update={"hidden": after})
                released = config.training.releases(more, size)
            updates.append(ClientReleases(partitions=tuple(owners), releases=released))
    return Terms(population=graph.num_nodes, updates=tuple(updates))


def filter_of(
    config: Setting,
    terms: Terms,
    schedule: tuple[Terms, ...] = (),
    lengths: tuple[int, ...] = (),
) -> Filter:
    """The filter of a config over what its ledger's terms say is released."""
    target = _target(config)
    calibration = None if target is None else Calibration(target, _calibrated_draws(config))
    if not schedule:
        most, draw = planned_draws(config), Draw.of(terms)
    else:
        most, draw = (
            config.federation.num_rounds,
            Schedule.of(schedule, attempts_of(config), lengths),
        )
    return Filter(draw, most, budget_of(config), calibration)


def kept_multiplier(config: Setting, sizes: Sizes) -> float | None:
    """What a target's noise was found to be; None where the config says the noise."""
    privacy = config.privacy
    if privacy.kind == "none" or privacy.noise.kind != "target":
        return None
    if (server := client_mechanism(config)) is not None:
        return server.noise_multiplier
    noise = example_mechanism(config, sizes).noise
    return noise.multiplier if isinstance(noise, RelativeNoise) else None


def _calibrated_draws(config: Setting) -> int:
    """For how many draws a target's noise was found; 0 where it was kept from fewer rounds."""
    privacy = config.privacy
    assert privacy.kind != "none"
    is_kept = privacy.noise.kind == "target" and privacy.noise.noise_multiplier is not None
    return 0 if is_kept else config.federation.num_rounds


def _target(config: Setting) -> Budget | None:
    """The target that the noise was calibrated for; None without one."""
    privacy = config.privacy
    if privacy.kind == "none" or privacy.noise.kind != "target":
        return None
    rule = privacy.noise
    adversary = CLIENT_LEVEL if privacy.kind == "client-level" else named(rule.adversary)
    if privacy.kind == "correlated":
        return Budget(rule.epsilon, rule.delta, adversary, "privacy.target.epsilon", _REMEDY)
    return Budget(rule.epsilon, rule.delta, adversary, "privacy.noise.epsilon", _REMEDY)


def budget_of(config: Setting) -> Budget | None:
    """``privacy.max_epsilon``, else the target; None when the config has neither."""
    target = _target(config)
    privacy, delta = config.privacy, reporting_delta(config)
    if privacy.kind == "none" or privacy.max_epsilon is None:
        return target
    assert delta is not None
    own = CLIENT_LEVEL if privacy.kind == "client-level" else SERVER
    adversary = own if target is None else target.adversary
    return Budget(privacy.max_epsilon, delta, adversary, "privacy.max_epsilon", _REMEDY)


def planned_draws(config: Setting) -> int:
    """The most draws that the rounds of a config can need, retries included, no crash counted.

    A client-level run has no retries (manifed/experiment/schema.py).
    """
    return config.federation.num_rounds * attempts_of(config)


def attempts_of(config: Setting) -> int:
    """The most attempts of one round, no crash counted."""
    replies = config.federation.replies
    return replies.max_attempts if replies.on_failure == "retry" else 1


def reporting_delta(config: Setting) -> float | None:
    """At which delta epsilon is reported; None without privacy.

    Raises:
        ConfigError: when the config names none.
    """
    privacy = config.privacy
    if privacy.kind == "none":
        return None
    if privacy.delta is not None:
        return privacy.delta
    if privacy.noise.kind == "target":
        return privacy.noise.delta
    if privacy.noise.kind == "published":
        return privacy.noise.local_delta
    raise ConfigError(
        "privacy.delta: required with privacy.noise.kind = 'multiplier', but not given; epsilon is "
        "reported at this delta"
    )


def _check_reporting_delta(config: Setting, sizes: Sizes) -> None:
    """Delta < 1/n, except for the papers' own settings, which break it and are labelled."""
    privacy = config.privacy
    delta = reporting_delta(config)
    if privacy.kind == "none" or delta is None or privacy.noise.kind == "published":
        return
    if unit_of(config) == "client":
        _check_delta(delta, len(sizes), "privacy.delta", "clients")
    else:
        _check_delta(delta, sum(sizes), "privacy.delta", "examples")


def _mechanism_text(config: Setting, terms: Terms, *, is_scheduled: bool) -> str:
    mechanism = client_mechanism(config)
    if mechanism is not None:
        return (
            f"{config.server_update.space} Gaussian at the server, "
            f"noise multiplier {mechanism.noise_multiplier:.5g}, "
            f"l2_norm_clip {mechanism.l2_norm_clip:g}"
        )
    shown = {
        f"{r.label}: {r.count} a client update, multiplier {r.noise_multiplier:.5g}, "
        f"{r.sampling.kind}"
        for client in terms.updates
        for r in client.releases
    }
    when = " (of round 1; they depend on the round)" if is_scheduled else ""
    if isinstance(config.training, Masking):
        return _masked_text(config.training, terms)
    space = "Gaussian on the statistic of" if isinstance(config.training, OneShot) else None
    if any(r.kind == "laplace" for client in terms.updates for r in client.releases):
        space = "Laplace in every coordinate, gradients clipped in L1, at"
    premise = _premise_text(config.training)
    return (
        f"{space or 'tangent Gaussian at'} each client; {'; '.join(sorted(shown))}{when}{premise}"
    )


def _premise_text(training: ClientUpdate) -> str:
    """What a client does to its records beside the clip."""
    if not isinstance(training, GrowingSamples) or training.lipschitz is None:
        return ""
    return (
        "; records whose gradient is not Lipschitz with constant "
        f"{training.lipschitz:g} count as zero"
    )


def _masked_text(training: Masking, terms: Terms) -> str:
    """Noise, masks, and where the secrets of pairs come from."""
    releases = [r for one in terms.updates for r in one.releases]
    shown = {
        f"{r.label}: {r.count} a round, multipliers {r.to_server:.5g} to the server, "
        f"{r.to_one:.5g} to one node, {r.to_coalition:.5g} to the coalition, "
        f"{r.noise_multiplier:.5g} to everybody else"
        for r in releases
        if isinstance(r, MaskedRelease)
    }
    graph, kind = training.secret_graph, training.graph.kind
    if training.pair_keys == "seeded":
        keys = "masks are computed from the seed, a stand-in for exchanged keys that hides nothing"
    elif training.pinned_keys is None:
        keys = (
            "pair keys were exchanged through the server without signatures: they hold against a "
            "server that only reads, not against one that changes messages"
        )
    else:
        keys = "pair keys were exchanged through the server, signed by keys that every node pinned"
    trusted = ""
    if isinstance(training, MaskedMean) and training.most_dropped > 0:
        trusted = (
            "; the server is trusted to say truly who is silent: one that lies learns as much of a "
            "node as everybody else together"
        )
    return (
        f"Gaussian at each of {graph.num_nodes} nodes and on each of {len(graph.edges)} edges "
        f"({kind}); {'; '.join(sorted(shown))}; {keys}{trusted}"
    )


def _held_out_text(config: Setting) -> str:
    held = config.evaluation
    if held.kind != "private":
        return ""
    return f"; every {held.every} rounds the noised totals of each client's hold-out"


def _kept_noise(config: Setting) -> dict[str, str | None]:
    """What a client keeps of its noise, for the statement; nothing where draws are forgotten."""
    training = config.training
    if isinstance(training, StationaryDecor):
        return {"kept_noise": "the states of its streams, on which the next round's noise depends"}
    if not isinstance(training, CorrelatedRSGD):
        return {}
    last = training.correlation.bands - 1
    return {"kept_noise": f"the noise of its last {last} rounds, on which that of the next depends"}


def _average_text(config: Setting) -> str:
    server = config.server_update
    if not isinstance(server, TangentMean) or server.average is None:
        return ""
    return "; the model is an average of broadcast ones: post-processing, at no price"


def _declared_text(config: Setting, sizes: Sizes) -> str:
    """What is released beside updates: the sizes that sites declare."""
    if not config.is_at_sites or config.federation.num_examples is not None:
        return ""
    shown = ", ".join(map(str, sizes[:_SHOWN])) + (", ..." if len(sizes) > _SHOWN else "")
    return f"; N_i as every site declares it ({shown})"


def _claim(config: Setting) -> Claim | None:
    privacy, federation = config.privacy, config.federation
    if privacy.kind != "example-level" or privacy.noise.kind != "published":
        return None
    rule = privacy.noise
    cohort = max(1, round(federation.cohort.expected_size(federation.num_clients)))
    return Claim(
        rule.local_epsilon, rule.local_delta, federation.num_clients, cohort, rule.slack_delta
    )


# -- plans -----------------------------------------------------------------------------------
def planned_statement(config: Setting, sizes: Sizes) -> dict[str, Any]:
    """The statement of a whole run in which every client is invited as often as can be."""
    return promise_of(config, sizes).planned(config.federation.num_rounds)


def plan_label(config: Setting) -> str:
    """The word before every epsilon of a config that nothing was run of."""
    privacy = config.privacy
    if privacy.kind == "none":
        return NOT_PRIVATE
    return label_of(privacy.noise_source, (), is_charged=False)


def planned_curve(config: Setting, sizes: Sizes, points: int = 20) -> list[dict[str, Any]]:
    """Epsilon against every adversary after some rounds of a run that invites everybody it can."""
    if config.privacy.kind == "none":
        raise ConfigError("privacy.kind: there is no curve to draw, got 'none'")
    promise, last = promise_of(config, sizes), config.federation.num_rounds
    picks = sorted({max(1, round(last * k / points)) for k in range(1, points + 1)})
    rows: list[dict[str, Any]] = []
    for rounds in picks:
        found = promise.planned(rounds)["adversaries"]
        rows.append({"round": rounds} | {one["name"]: one["epsilon"] for one in found})
    return rows
