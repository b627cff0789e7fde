"""Chooses and runs the attacks on the mechanism of a config."""

from dataclasses import replace
from typing import Any

from manifed.algorithms.algorithm import ClientUpdate
from manifed.algorithms.decor import Decor
from manifed.algorithms.growing_samples import GrowingSamples
from manifed.algorithms.one_shot import OneShot
from manifed.audit.attacks import (
    ClientAttack,
    ExampleAttack,
    MaskedAttack,
    worst_case,
)
from manifed.audit.bound import Attack, Audited
from manifed.errors import ConfigError
from manifed.experiment.assembly import (
    facts_of,
    initial_point,
    load_shards,
    made_up_examples,
    plan_of,
)
from manifed.experiment.plugins import is_plugin
from manifed.experiment.schema import Experiment
from manifed.plan import client_mechanism, example_mechanism
from manifed.privacy import epsilon_bounds
from manifed.privacy.mechanism import ExampleMechanism
from manifed.privacy.random_numbers import NoiseSource
from manifed.privacy.secldp import MOST_EXACT, Correlated, MaskedMechanism, worst

_SEEN_AT = 0.05
"""So many rounds are attacked together that epsilon = 1 is claimed at this delta, or all there are:
a claim of nearly nothing cannot be told from nothing by a few thousand runs."""
_SMALL = 1e-9
"""A delta at which every release costs more than nothing."""
_Found = list[tuple[Attack, str]]
"""Attacks, each with what it does in words."""


def attacks_of(config: Experiment, trials: int) -> list[Audited]:
    """Lists the attacks on a config: some rounds of a client, or one round of the server.

    Where rounds differ, the costliest ones are attacked.

    Client update, minibatch, clip norms, relation and noise are the config's. The first attack
    takes its problem, manifold, starting point and smallest shard too; the other replaces problem
    and data by the worst case. Of data that every site has at home none is opened: a shard of
    made-up records stands for the smallest.

    Raises:
        ConfigError: when nothing is private, or the algorithm is not one that is attacked here.
    """
    ways = {"client-level": _of_server, "correlated": _of_masks, "example-level": _of_examples}
    if (kind := config.privacy.kind) not in ways:
        raise ConfigError("privacy.kind: nothing to audit, got 'none'")
    if config.privacy.trust is not None:
        raise ConfigError(
            "privacy.trust: the audit attacks noise that one party adds, got 'secure-sum'; in a "
            "clone `python -m tests.attacks.sums CONFIG` attacks sums of it"
        )
    source = NoiseSource.from_seed(config.federation.seed)
    return [Audited(config.name, one, trials, how) for one, how in ways[kind](config, source)]


def costliest_first(
    training: ClientUpdate, mechanism: ExampleMechanism, num_examples: int, num_rounds: int
) -> tuple[int, ...]:
    """Returns the rounds of a run, those first in which a client's update releases most."""

    def cost(server_round: int) -> float:
        made = training.in_round(server_round).releases(mechanism, num_examples)
        return epsilon_bounds.epsilon(made, _SMALL)

    return tuple(sorted(range(1, num_rounds + 1), key=cost, reverse=True))


def enough(attack: Any, most: int) -> Any:
    """The attack over so many rounds that enough is claimed, ``most`` at most."""
    while attack.num_rounds < most and attack.claim(_SEEN_AT) < 1.0:
        attack = replace(attack, num_rounds=min(2 * attack.num_rounds, most))
    return attack


def _of_examples(config: Experiment, source: NoiseSource) -> _Found:
    """The smallest shard, and the worst case."""
    training = config.training
    rounds = config.federation.num_rounds
    if isinstance(training, GrowingSamples) or is_plugin(training.kind):
        raise ConfigError(
            "training.kind: the audit of a config attacks this library's algorithms that upload "
            f"steps or statistics, got {training.kind!r}; write an attack with manifed.audit"
        )
    if len(training.phases) > 1:
        raise ConfigError(
            f"training.kind: expected one upload a round, got {training.kind!r}, which has "
            f"{len(training.phases)}"
        )
    facts = facts_of(config)
    mechanism = example_mechanism(config.setting, facts.sizes)
    smallest = (
        made_up_examples(config, min(facts.sizes))
        if config.setting.is_at_sites
        else min(load_shards(config).examples, key=len)
    )
    adaptive: Any = getattr(config.privacy, "adaptive", None)
    beside = ""
    if adaptive is not None:  # attacked at the largest clip, where noise is as large
        mechanism = mechanism.scaled((1 - adaptive.budget_share) ** -0.5)
        beside = "; the count beside an answer is not attacked"
    size = len(smallest)
    order = costliest_first(training, mechanism, size, rounds) if training.is_scheduled else ()
    own = ExampleAttack(
        facts.problem, training, mechanism, smallest, initial_point(config), source, order=order
    )
    how = f"own problem: the record that moves the upload most{beside}"
    if isinstance(training, OneShot):
        return [(own, how)]
    extreme = enough(worst_case(training, mechanism, size, source, order=order), rounds)
    return [
        (replace(own, num_rounds=extreme.num_rounds), how),
        (extreme, f"worst case: canary gradient at the clip norm, all others zero{beside}"),
    ]


def _of_masks(config: Experiment, source: NoiseSource) -> _Found:
    """The first rounds of DECOR's nodes on the config's graph, against each adversary.

    Raises:
        ConfigError: for another algorithm with masks, and where examples are protected.
    """
    training = config.training
    privacy = config.privacy
    if type(training) is not Decor:
        raise ConfigError(
            "training.kind: with privacy.kind = 'correlated' the audit of a config attacks "
            f"'decor', got {training.kind!r}"
        )
    assert privacy.kind == "correlated"
    graph = training.secret_graph
    if privacy.unit != "client" or graph.num_nodes > MOST_EXACT:
        raise ConfigError(
            "privacy.unit, federation.num_clients: the audit of a config with masks attacks "
            f"'client' and at most {MOST_EXACT} of them, got {privacy.unit!r} and {graph.num_nodes}"
        )
    mechanism = example_mechanism(config.setting, facts_of(config).sizes)
    assert isinstance(mechanism, MaskedMechanism)
    assert mechanism.l2_norm_clip is not None
    stddevs = Correlated(mechanism.noise.stddev(1.0, 1), mechanism.mask_stddev)
    named = tuple(sorted(privacy.coalition))
    coalitions: dict[tuple[int, ...], str] = {(): "the server: every message, best linear test"}
    if graph.num_nodes > 1 and (one := worst(graph, stddevs, 1).coalition):
        coalitions[one] = f"node {one[0]} takes the masks off that it shares"
    if not named and privacy.collusion < graph.num_nodes:
        named = worst(graph, stddevs, privacy.collusion).coalition or ()
    if len(named) > 1:
        coalitions[named] = f"nodes {', '.join(map(str, named))} collude"
    first = MaskedAttack(graph, stddevs, source, clip=mechanism.l2_norm_clip)
    most = min(config.federation.num_rounds, 16)
    found = _Found()
    for coalition, how in coalitions.items():
        attack = enough(replace(first, coalition=coalition), most)
        found.append((attack, f"{how}; {attack.num_rounds} rounds from the first on"))
    return found


def _of_server(config: Experiment, source: NoiseSource) -> _Found:
    """One round of the server's noised mean."""
    mechanism = client_mechanism(config.setting)
    cohort = config.federation.cohort
    assert mechanism is not None
    if cohort.kind == "fixed-size":
        raise ConfigError(
            "federation.cohort.kind: the audit attacks 'all' and 'poisson', got 'fixed-size'"
        )
    plan = plan_of(config)
    attack = ClientAttack(
        source, mechanism, cohort, plan.manifold, initial_point(config), plan.server_update.space,
        plan.num_clients,
    )  # fmt: skip
    how = "own manifold and clip rule: canary upload ten times the clip norm; one round"
    return [(attack, how)]
