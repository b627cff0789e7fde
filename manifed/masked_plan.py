"""The part of a plan for nodes that add masks: mechanism and statement.

Imported where ``privacy.kind`` is "correlated" alone.
"""

import math
from typing import Any

from manifed.errors import ConfigError
from manifed.privacy import epsilon_bounds
from manifed.privacy.composition import NoValidBound
from manifed.privacy.events import repeated
from manifed.privacy.mechanism import Noise
from manifed.privacy.secldp import Correlated, Hidden, MaskedMechanism, calibrate_masks
from manifed.privacy.tariff import Terms
from manifed.setting import CorrelatedNoise


def masked_mechanism(
    training: Any, privacy: CorrelatedNoise, size: int, rounds: int
) -> MaskedMechanism:
    """Makes the nodes' mechanism: clip, own noise, masks, and what they hide from whom.

    A target is met over so many rounds by a node with ``size`` examples: own noise a ratio above
    the least that any masks complete, and the least masks with it.

    Raises:
        ConfigError: when no masks on this graph meet the target.
    """
    graph = training.secret_graph
    rule = privacy.target

    def made(own: float, hidden: Hidden, mask: float = 0.0) -> MaskedMechanism:
        return MaskedMechanism(
            l2_norm_clip=privacy.l2_norm_clip,
            neighboring_relation=privacy.neighboring_relation,
            noise=Noise(value=own),
            unit=privacy.unit,
            mask_stddev=mask,
            hidden=hidden,
        )

    if rule is None:
        noise = Correlated(privacy.noise_stddev or 0.0, privacy.mask_stddev or 0.0)
    else:

        def cost(stddev: float) -> float:
            """Epsilon of all rounds of a node whose messages carry so much effective noise."""
            released = training.releases(made(stddev, Hidden.uniform(stddev)), size)
            return epsilon_bounds.epsilon(repeated(released, rounds), rule.delta)

        coalition = len(privacy.coalition) or privacy.collusion
        colluding = {"server": 0, "one-node": 1, "coalition": coalition}[rule.adversary]
        colluding = min(colluding, graph.num_nodes - 1)
        try:
            local = epsilon_bounds.least_multiplier(cost, rule.epsilon)  # without any masks: LDP
            own = min(rule.noise_ratio * local / math.sqrt(graph.num_nodes - colluding), local)
            noise = calibrate_masks(graph, own, colluding, lambda found: found.stddev >= local)
        except NoValidBound as refusal:
            raise ConfigError(f"privacy: {refusal}") from None
        except ValueError as impossible:
            raise ConfigError(f"privacy.target: {impossible}") from None
    hidden = training.hidden(noise, privacy.collusion, privacy.coalition)
    return made(noise.sigma_cdp, hidden, noise.sigma_cor)


def masked_text(training: Any, terms: Terms) -> str:
    """Returns a statement's words on noise, masks, and the origin of pairs' secrets."""
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
