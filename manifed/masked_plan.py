"""Plans whose nodes add masks: their mechanism, what is said of it, what a dropout costs.

Imported where ``privacy.kind`` is "correlated" alone.
"""

import math
from typing import Any

from manifed.errors import ConfigError
from manifed.privacy import accountant
from manifed.privacy.accountant import NoValidBound, least_multiplier
from manifed.privacy.events import repeated
from manifed.privacy.mechanism import ExampleMechanism, Noise
from manifed.privacy.secldp import Correlated, Hidden, MaskedMechanism, calibrate_masks
from manifed.privacy.tariff import ClientReleases, Terms
from manifed.setting import CorrelatedNoise


def masked_mechanism(
    training: Any, privacy: CorrelatedNoise, size: int, rounds: int
) -> MaskedMechanism:
    """The nodes' mechanism: clip, own noise, masks, and what they hide from whom on the graph.

    A target is met over so many rounds by a node with ``size`` examples: own noise a ratio above
    the least that any masks complete, and the least masks with it.

    Raises:
        ConfigError: when no masks on this graph meet the target.
    """
    graph = training.secret_graph
    rule = privacy.target
    bare = MaskedMechanism(
        l2_norm_clip=privacy.l2_norm_clip,
        neighboring_relation=privacy.neighboring_relation,
        noise=Noise(value=1.0),
        unit=privacy.unit,
        hidden=Hidden.uniform(1.0),
    )

    def masked(noise: Correlated) -> MaskedMechanism:
        hidden = training.hidden(noise, privacy.collusion, privacy.coalition)
        own = {"noise": Noise(value=noise.sigma_cdp), "mask_stddev": noise.sigma_cor}
        return bare.model_copy(update={**own, "hidden": hidden})

    if rule is None:
        return masked(Correlated(privacy.noise_stddev or 0.0, privacy.mask_stddev or 0.0))

    def cost(stddev: float) -> float:
        """Epsilon of all rounds of a node whose messages carry so much effective noise."""
        if stddev == 0:
            return math.inf
        hidden = bare.hidden.model_copy(update={"from_all": stddev})
        changes = {"noise": Noise(value=stddev), "hidden": hidden}
        released = training.releases(bare.model_copy(update=changes), size)
        return accountant.epsilon(repeated(released, rounds), rule.delta)

    coalition = len(privacy.coalition) or privacy.collusion
    colluding = {"server": 0, "one-node": 1, "coalition": coalition}[rule.adversary]
    colluding = min(colluding, graph.num_nodes - 1)
    try:
        local = least_multiplier(cost, rule.epsilon)  # without any masks: LDP
        own = min(rule.noise_ratio * local / math.sqrt(graph.num_nodes - colluding), local)
        noise = calibrate_masks(graph, own, colluding, lambda found: found.stddev >= local)
    except NoValidBound as refusal:
        raise ConfigError(f"privacy: {refusal}") from None
    except ValueError as impossible:
        raise ConfigError(f"privacy.target: {impossible}") from None
    return masked(noise)


def after_dropout(
    training: Any,
    privacy: CorrelatedNoise,
    mechanism: ExampleMechanism,
    sizes: tuple[int, ...],
    dropped: tuple[int, ...],
) -> Terms:
    """What a round releases besides when survivors reveal their masks with silent nodes.

    Survivors are worth what they are on the graph without those nodes, and the silent ones, whose
    messages may lie somewhere, their own noise. Squares of mu add up, so what was charged for the
    round already is taken off; a sampled release is charged whole once more.
    """
    assert isinstance(mechanism, MaskedMechanism)
    graph = training.secret_graph
    noise = Correlated(mechanism.noise.value, mechanism.mask_stddev)
    left = [i for i in range(graph.num_nodes) if i not in dropped]
    coalition = [left.index(i) for i in privacy.coalition if i in left]
    collusion = privacy.collusion if not privacy.coalition else 0
    survivors = Hidden.of(graph.without(dropped), noise, collusion, coalition)
    updates: list[ClientReleases] = []
    for who, after in ((left, survivors), (dropped, Hidden.uniform(noise.sigma_cdp))):
        for size in dict.fromkeys(sizes[i] for i in who):
            released = training.releases(mechanism.disclosing(after), size)
            if any(r.sampling.kind != "unsampled" for r in released):
                released = training.releases(mechanism.model_copy(update={"hidden": after}), size)
            owners = tuple(i for i in who if sizes[i] == size)
            updates.append(ClientReleases(partitions=owners, releases=released))
    return Terms(population=graph.num_nodes, updates=tuple(updates))


def masked_text(training: Any, terms: Terms) -> str:
    """What a statement says of noise, masks, and where the secrets of pairs come from."""
    shown = {
        f"{r.label}: {r.count} a round, multipliers {r.to_server:.5g} to the server, "
        f"{r.to_one:.5g} to one node, {r.to_coalition:.5g} to the coalition, "
        f"{r.noise_multiplier:.5g} to everybody else"
        for one in terms.updates
        for r in one.releases
        if r.is_masked
    }
    graph = training.secret_graph
    kind = training.graph.kind
    return (
        f"Gaussian at each of {graph.num_nodes} nodes and on each of {len(graph.edges)} edges "
        f"({kind}); {'; '.join(sorted(shown))}; {training.about_keys}"
    )
