"""The audit of one config: its mechanisms, on its own problem and in the worst case."""

from dataclasses import replace

from manifed.algorithms.decor import Decor
from manifed.algorithms.growing_samples import GrowingSamples
from manifed.algorithms.interface import ClientUpdate, Scheduled, in_round
from manifed.algorithms.one_shot import OneShot
from manifed.algorithms.second_moment import SecondMoment
from manifed.audit.attack import Attack, Audited
from manifed.audit.client_attacks import SHORT_STEP, ExampleAttack
from manifed.audit.coupled_attacks import audited_coupling
from manifed.audit.mechanisms import price
from manifed.audit.own_problem import OwnProblemAttack
from manifed.audit.server_attacks import ClientAttack
from manifed.audit.statistic_attacks import MomentAttack
from manifed.audit.streams import StreamAttack, colluders, enough_rounds
from manifed.errors import ConfigError
from manifed.experiment.assembly import (
    facts_of,
    initial_point,
    load_shards,
    made_up_examples,
    plan_of,
)
from manifed.experiment.plugins import is_plugin
from manifed.experiment.privacy import client_mechanism, example_mechanism
from manifed.experiment.schema import Experiment
from manifed.privacy import accountant
from manifed.privacy.masked import MaskedMechanism
from manifed.privacy.mechanism import ExampleMechanism
from manifed.privacy.noise import NoiseSource
from manifed.privacy.secldp import MOST_EXACT
from manifed.problems.base import Examples
from manifed.problems.dataset import SiteData

SEEN_AT, ENOUGH = 0.05, 1.0
"""So many rounds are attacked together that epsilon = 1 is claimed at this delta, or all there are:
a claim of nearly nothing cannot be told from nothing by a few thousand runs."""
LONG_STEPS = 10.0
"""An adversarial step is so many times the config's own."""


def costliest_round(
    training: ClientUpdate, mechanism: ExampleMechanism, num_examples: int, num_rounds: int
) -> int:
    """The first of the rounds in which a client's update releases most."""
    costs = [
        accountant.epsilon(in_round(training, r).releases(mechanism, num_examples), SEEN_AT)
        for r in range(1, num_rounds + 1)
    ]
    return 1 + costs.index(max(costs))


def attacks_of(config: Experiment, trials: int) -> list[Audited]:
    """Attacks on some rounds of a client (or one round of the server) of ``config``.

    Where rounds differ, each attacked round is the costliest one.

    Client update, minibatch, clip norms, relation and noise are the config's. The first attacks
    take its problem, manifold, starting point and smallest shard too, at its own step size, a
    shorter and a longer one; the last replaces problem and data by the worst case. Of data that
    every site has at home none is opened: a shard of made-up records stands for the smallest.

    Growing samples are attacked from round 1 on, by coupled streams; their mode "paper", which
    protects nobody, is held to what the paper claims.

    Raises:
        ConfigError: when nothing is private, or a round has more than one upload.
    """
    source = NoiseSource.from_seed(config.federation.seed)
    if isinstance(config.training, GrowingSamples):
        return [_of_streams(config, config.training, source, trials)]
    if config.privacy.kind == "none":
        raise ConfigError("privacy.kind: nothing to audit, got 'none'")
    if config.privacy.kind == "client-level":
        return [_of_server(config, source, trials)]
    if config.privacy.kind == "correlated":
        return _of_masks(config, source, trials)
    if is_plugin(config.training.kind):
        raise ConfigError(
            "training.kind: the audit runs this library's algorithms at several step sizes, got "
            f"{config.training.kind!r}"
        )
    facts = facts_of(config)
    mechanism = example_mechanism(config, facts.sizes)
    if len(config.training.phases) > 1:
        raise ConfigError(
            f"training.kind: expected one upload a round, got {config.training.kind!r}, which has "
            f"{len(config.training.phases)}"
        )
    assert mechanism.l2_norm_clip is not None
    if isinstance(config.data, SiteData):
        smallest = made_up_examples(config, min(facts.sizes))
    else:
        smallest = min(load_shards(config).examples, key=len)
    if isinstance(config.training, Scheduled):
        rounds = config.federation.num_rounds
        r = costliest_round(config.training, mechanism, len(smallest), rounds)
        config = config.model_copy(update={"training": in_round(config.training, r)})
    mirrored = -1.0 if mechanism.neighboring_relation == "replace-one" else None
    if isinstance(config.training, OneShot):
        return _of_one_shot(config, mechanism, smallest, mirrored, source, trials)
    short = config.training.model_copy(update={"step_size": SHORT_STEP})
    worst = ExampleAttack(
        short, mechanism, len(smallest), 10 * mechanism.l2_norm_clip, mirrored, source
    )
    rounds = 1
    while rounds < config.federation.num_rounds and price(worst, rounds)(SEEN_AT) < ENOUGH:
        rounds = min(2 * rounds, config.federation.num_rounds)
    worst, x = replace(worst, num_rounds=rounds), initial_point(config)
    claim = price(worst)

    def audited(how: str, attack: Attack) -> Audited:
        return Audited(config.name, attack, claim, trials, how)

    assert not isinstance(config.training, GrowingSamples)
    step = config.training.step_size
    found_attacks: list[Audited] = []
    for name, size in (("own", step), ("short", SHORT_STEP * step), ("long", LONG_STEPS * step)):
        training = config.training.model_copy(update={"step_size": size})
        own = OwnProblemAttack(facts.problem, training, mechanism, smallest, x, source, rounds)
        how = f"own problem, {name} step size {size:g}: the record that moves the upload most"
        found_attacks.append(audited(how, own))
    how = "worst case: canary gradient at the clip norm, all others zero"
    return [*found_attacks, audited(how, worst)]


def _of_masks(config: Experiment, source: NoiseSource, trials: int) -> list[Audited]:
    """The first rounds of DECOR's nodes on the config's graph, against each adversary.

    Raises:
        ConfigError: for another algorithm with masks, and where examples are protected.
    """
    training = config.training
    if not isinstance(training, Decor) or config.privacy.kind != "correlated":
        raise ConfigError(
            "training.kind: with privacy.kind = 'correlated' the audit of a config attacks 'decor' "
            f"and 'stationary-decor', got {training.kind!r}; manifed audit --all attacks masks on "
            "graphs of its own"
        )
    if config.privacy.unit != "client":
        raise ConfigError(
            "privacy.unit: the audit of a config with masks attacks 'client', got 'example'; "
            "manifed audit --all attacks masks on graphs of its own"
        )
    if config.federation.num_clients > MOST_EXACT:
        raise ConfigError(
            f"federation.num_clients: expected at most {MOST_EXACT} in the audit of a config with "
            f"masks, got {config.federation.num_clients}"
        )
    mechanism = example_mechanism(config, facts_of(config).sizes)
    assert isinstance(mechanism, MaskedMechanism)
    whole = StreamAttack(training, mechanism, source)
    found: list[Audited] = []
    for coalition, how in colluders(
        whole.noise, config.privacy.collusion, config.privacy.coalition
    ):
        attack = replace(whole, coalition=coalition)
        attack = enough_rounds(attack, config.federation.num_rounds, SEEN_AT, ENOUGH)
        said = f"{how}; {attack.num_rounds} rounds from the first on"
        found.append(Audited(config.name, attack, attack.claim, trials, said))
    return found


def _of_one_shot(
    config: Experiment,
    mechanism: ExampleMechanism,
    smallest: Examples,
    mirrored: float | None,
    source: NoiseSource,
    trials: int,
) -> list[Audited]:
    """One release: the config's own rows, and the worst case."""
    training, x = config.training, initial_point(config)
    assert mechanism.l2_norm_clip is not None
    worst = MomentAttack(
        training, mechanism, len(smallest), 10 * mechanism.l2_norm_clip, mirrored, source
    )
    own = OwnProblemAttack(facts_of(config).problem, training, mechanism, smallest, x, source)
    rows: list[tuple[str, Attack]] = [
        ("own problem: the record that moves the upload most", own),
    ]
    if isinstance(training, SecondMoment):
        rows.append(("worst case: canary statistic at the clip norm, all others zero", worst))
    return [Audited(config.name, attack, price(worst), trials, how) for how, attack in rows]


def _of_streams(
    config: Experiment,
    training: GrowingSamples,
    source: NoiseSource,
    trials: int,
) -> Audited:
    """Coupled streams through a node's client updates, from round 1 on.

    Raises:
        ConfigError: when nothing is private and the mode is not "paper".
    """
    rounds, mechanism = config.federation.num_rounds, None
    if training.mode != "paper":
        if config.privacy.kind == "none":
            raise ConfigError("privacy.kind: nothing to audit, got 'none'")
        mechanism = example_mechanism(config, facts_of(config).sizes)
    return audited_coupling(config.name, training, mechanism, rounds, source, trials)


def _of_server(config: Experiment, source: NoiseSource, trials: int) -> Audited:
    mechanism, cohort = client_mechanism(config), config.federation.cohort
    assert mechanism is not None
    if cohort.kind == "fixed-size":
        raise ConfigError(
            "federation.cohort.kind: the audit attacks 'all' and 'poisson', got 'fixed-size'"
        )
    clients = config.federation.num_clients
    rate = None if cohort.kind == "all" else cohort.rate(clients)
    plan, x = plan_of(config), initial_point(config)
    space = plan.server_update.space
    attack = ClientAttack(source, mechanism, rate, plan.manifold, x, space, clients)
    return Audited(
        config.name,
        attack,
        attack.claim,
        trials,
        "own manifold and clip rule: canary upload ten times the clip norm; one round",
    )
