"""The audit of one config: its halves and its lenses, on its own problem and in the worst case."""

from collections.abc import Callable

from app.assembly import initial_point, lens_of, load_shards, plan_of, server_lens_of
from app.audit.mechanisms import Audited, price
from app.audit.own_worlds import OwnWorlds
from app.audit.server_worlds import ClientWorlds
from app.audit.worlds import SHORT_STEP, ExampleWorlds, Scores
from configs.load import ConfigError
from configs.schema import Experiment
from privacy.noise import NoiseSource

LONG_STEPS = 10.0
"""An adversarial step is so many times the config's own."""


def attacks_of(config: Experiment, trials: int) -> list[Audited]:
    """Attacks on one turn of a client (or one round of the server) of ``config``.

    Half, minibatch, clip norms, relation and noise are the config's. The first attacks take its
    problem, manifold, starting point and smallest shard too, at its own step size, a shorter and a
    longer one; the last replaces problem and data by the worst case (app/audit/worlds.py).

    Raises:
        ConfigError: when nothing is private, or a round has more than one upload.
    """
    source = NoiseSource.from_seed(config.federation.seed)
    if config.privacy.kind == "none":
        raise ConfigError("privacy.kind: nothing to audit, got 'none'")
    if config.privacy.kind == "client-level":
        return [_of_server(config, source, trials)]
    lens, found = lens_of(config), load_shards(config)
    if len(config.training.phases) > 1:
        raise ConfigError(
            f"training.kind: expected one upload a round, got {config.training.kind!r}, which has "
            f"{len(config.training.phases)}"
        )
    assert lens.l2_norm_clip is not None
    smallest = min(found.examples, key=len)
    own = OwnWorlds(found.problem, config.training, lens, smallest, initial_point(config), source)
    mirrored = -1.0 if lens.neighboring_relation == "replace-one" else None
    short = config.training.model_copy(update={"step_size": SHORT_STEP})
    worst = ExampleWorlds(short, lens, len(smallest), 10 * lens.l2_norm_clip, mirrored, source)
    claim = price(worst)

    def attack(how: str, scores: Callable[[int, bool], Scores]) -> Audited:
        return Audited(config.name, scores, claim, trials, how)

    step = config.training.step_size
    steps = {"its": step, "a short": SHORT_STEP * step, "a long": LONG_STEPS * step}
    return [
        *(
            attack(
                f"own problem, the record that moves the upload most, {name} step size {size:g}",
                lambda n, p, w=own.with_step(size): w.scores(n, is_present=p),
            )
            for name, size in steps.items()
        ),
        attack(
            "worst case: canary gradient at the clip norm, all others zero",
            lambda n, p: worst.scores(n, is_present=p),
        ),
    ]


def _of_server(config: Experiment, source: NoiseSource, trials: int) -> Audited:
    lens, cohort = server_lens_of(config), config.federation.cohort
    assert lens is not None
    if cohort.kind == "fixed-size":
        raise ConfigError(
            "federation.cohort.kind: the audit attacks 'all' and 'poisson', got 'fixed-size'"
        )
    clients = config.federation.num_clients
    rate = None if cohort.kind == "all" else cohort.rate(clients)
    plan, x = plan_of(config), initial_point(config)
    worlds = ClientWorlds(source, lens, rate, plan.manifold, x, plan.half.space, clients)
    return Audited(
        config.name,
        lambda n, is_present: worlds.scores(n, is_present=is_present),
        worlds.claim,
        trials,
        "own manifold and clip rule: canary upload ten times the clip norm; one round",
    )
