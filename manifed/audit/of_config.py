"""The audit of one config: its mechanisms, on its own problem and in the worst case."""

from collections.abc import Callable
from dataclasses import replace

from manifed.audit.mechanisms import Audited, price
from manifed.audit.own_worlds import OwnWorlds
from manifed.audit.server_worlds import ClientWorlds
from manifed.audit.worlds import SHORT_STEP, ExampleWorlds, Scores
from manifed.errors import ConfigError
from manifed.experiment.assembly import (
    initial_point,
    load_shards,
    mechanism_of,
    plan_of,
    server_mechanism_of,
)
from manifed.experiment.schema import Experiment
from manifed.privacy.noise import NoiseSource

SEEN_AT, ENOUGH = 0.05, 1.0
"""So many turns are attacked together that epsilon = 1 is claimed at this delta, or all there are:
a claim of nearly nothing cannot be told from nothing by a few thousand runs."""
LONG_STEPS = 10.0
"""An adversarial step is so many times the config's own."""


def attacks_of(config: Experiment, trials: int) -> list[Audited]:
    """Attacks on some turns of a client (or one round of the server) of ``config``.

    Half, minibatch, clip norms, relation and noise are the config's. The first attacks take its
    problem, manifold, starting point and smallest shard too, at its own step size, a shorter and a
    longer one; the last replaces problem and data by the worst case (manifed/audit/worlds.py).

    Raises:
        ConfigError: when nothing is private, or a round has more than one upload.
    """
    source = NoiseSource.from_seed(config.federation.seed)
    if config.privacy.kind == "none":
        raise ConfigError("privacy.kind: nothing to audit, got 'none'")
    if config.privacy.kind == "client-level":
        return [_of_server(config, source, trials)]
    mechanism, found = mechanism_of(config), load_shards(config)
    if len(config.training.phases) > 1:
        raise ConfigError(
            f"training.kind: expected one upload a round, got {config.training.kind!r}, which has "
            f"{len(config.training.phases)}"
        )
    assert mechanism.l2_norm_clip is not None
    smallest = min(found.examples, key=len)
    mirrored = -1.0 if mechanism.neighboring_relation == "replace-one" else None
    short = config.training.model_copy(update={"step_size": SHORT_STEP})
    worst = ExampleWorlds(
        short, mechanism, len(smallest), 10 * mechanism.l2_norm_clip, mirrored, source
    )
    turns = 1
    while turns < config.federation.num_rounds and price(worst, turns)(SEEN_AT) < ENOUGH:
        turns = min(2 * turns, config.federation.num_rounds)
    worst, x = replace(worst, turns=turns), initial_point(config)
    own = OwnWorlds(found.problem, config.training, mechanism, smallest, x, source, turns)
    claim = price(worst)

    def attack(how: str, scores: Callable[[int, bool], Scores]) -> Audited:
        return Audited(config.name, scores, claim, trials, how)

    step = config.training.step_size
    attacks: list[Audited] = []
    for name, size in (("own", step), ("short", SHORT_STEP * step), ("long", LONG_STEPS * step)):
        worlds = own.with_step(size)
        attacks.append(
            attack(
                f"own problem, {name} step size {size:g}: the record that moves the upload most",
                lambda n, p, w=worlds: w.scores(n, is_present=p),
            )
        )
    return [
        *attacks,
        attack(
            "worst case: canary gradient at the clip norm, all others zero",
            lambda n, p: worst.scores(n, is_present=p),
        ),
    ]


def _of_server(config: Experiment, source: NoiseSource, trials: int) -> Audited:
    mechanism, cohort = server_mechanism_of(config), config.federation.cohort
    assert mechanism is not None
    if cohort.kind == "fixed-size":
        raise ConfigError(
            "federation.cohort.kind: the audit attacks 'all' and 'poisson', got 'fixed-size'"
        )
    clients = config.federation.num_clients
    rate = None if cohort.kind == "all" else cohort.rate(clients)
    plan, x = plan_of(config), initial_point(config)
    worlds = ClientWorlds(
        source, mechanism, rate, plan.manifold, x, plan.server_update.space, clients
    )
    return Audited(
        config.name,
        lambda n, is_present: worlds.scores(n, is_present=is_present),
        worlds.claim,
        trials,
        "own manifold and clip rule: canary upload ten times the clip norm; one round",
    )
