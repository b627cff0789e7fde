"""The audit of one config: its halves and its lenses on the worst-case worlds."""

from app.assembly import lens_of, load_shards, server_lens_of
from app.audit.mechanisms import Audited, price
from app.audit.server_worlds import ClientWorlds
from app.audit.worlds import SHORT_STEP, ExampleWorlds
from configs.load import ConfigError
from configs.schema import Experiment
from privacy.noise import NoiseSource

DELTA = 0.02
"""A claim holds at every delta; at this one a few thousand runs can contradict it."""


def audited_of(config: Experiment, trials: int) -> Audited:
    """One turn of a client (or one round of the server) of ``config`` under attack.

    The half, the minibatch, the clip norm and the noise are the config's; problem and data are
    replaced by the worst case (app/audit/worlds.py), steps by ones too short for curvature.

    Raises:
        ConfigError: when nothing is private, or the training keeps a memory between rounds.
    """
    source = NoiseSource.from_seed(config.federation.seed)
    if config.privacy.kind == "none":
        raise ConfigError("privacy.kind: nothing to audit, got 'none'")
    if config.privacy.kind == "client-level":
        return _of_server(config, source, trials)
    lens, size = lens_of(config), min(load_shards(config).sizes)
    if len(config.training.phases) > 1:
        raise ConfigError(
            f"training.kind: expected one upload a round, got {config.training.kind!r}, which has "
            f"{len(config.training.phases)}"
        )
    training = config.training.model_copy(update={"step_size": SHORT_STEP})
    assert lens.l2_norm_clip is not None
    mirrored = -1.0 if lens.neighboring_relation == "replace-one" else None
    worlds = ExampleWorlds(training, lens, size, 10 * lens.l2_norm_clip, mirrored, source)
    return Audited(
        config.name,
        lambda n, is_present: worlds.scores(n, is_present=is_present),
        price(worlds),
        DELTA,
        trials,
        "canary gradient at the clip norm in the smallest shard; one turn",
    )


def _of_server(config: Experiment, source: NoiseSource, trials: int) -> Audited:
    lens, cohort = server_lens_of(config), config.federation.cohort
    assert lens is not None
    if cohort.kind == "fixed-size":
        raise ConfigError(
            "federation.cohort.kind: the audit attacks 'all' and 'poisson', got 'fixed-size'"
        )
    rate = None if cohort.kind == "all" else cohort.rate(config.federation.num_clients)
    worlds = ClientWorlds(source, lens.noise_multiplier, rate)
    return Audited(
        config.name,
        lambda n, is_present: worlds.scores(n, is_present=is_present),
        worlds.claim,
        DELTA,
        trials,
        "canary upload ten times the clip norm; one round",
    )
