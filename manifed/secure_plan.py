"""The part of a plan for a sum that nobody opens alone: who may be in it, and what it costs.

Imported where ``privacy.trust`` is a secure sum alone.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from manifed.algorithms.algorithm import asked_of
from manifed.algorithms.secure_mean import SecureMean
from manifed.errors import ConfigError, named_by
from manifed.privacy.committee import degree
from manifed.privacy.events import COALITION, OF_MASKS
from manifed.privacy.mechanism import ExampleMechanism, Noise

SERVER, _ONE_NODE, _, _EVERYBODY = OF_MASKS
OF_SUM = (
    replace(
        COALITION,
        text="nodes that collude, with the server if they like, and know their own shares of the "
        "noise; a target holds against them, whoever falls silent",
    ),
    replace(SERVER, text="the server, who sees every message, and every sum that was opened"),
    replace(_ONE_NODE, text="any one other node, who knows its own share of the noise"),
    replace(_EVERYBODY, text="everybody else together: a node's own share is what protects it"),
)
"""Adversaries of a sum whose noise each node adds a share of."""


_ANY = ExampleMechanism(l2_norm_clip=1.0, noise=Noise(multiplier=1.0))


def sealed(setting: Any, sizes: tuple[int, ...]) -> Any:
    """Returns the `manifed.setting.Setting` whose algorithm is the secure mean of what it was.

    Raises:
        ConfigError: sizes that the weights of the mean do not fit, or too few clients.
    """
    training, server = setting.training, setting.server_update
    trust = setting.privacy.trust
    if isinstance(training, SecureMean):
        return setting
    unit = setting.privacy.unit
    held = setting.held_out
    cohort, clients = setting.federation.cohort, setting.federation.num_clients
    if unit == "client":  # what a client holds says nothing of its weight
        sizes = (1,) * clients
    sizes = sizes if held is None else tuple(map(held.trained_on, sizes))
    if unit != "client" and server.weighting == "uniform" and len(set(sizes)) > 1:
        raise ConfigError(
            "strategy.weights: expected 'num-examples' with privacy.trust = 'secure-sum' and "
            f"examples as units, which all weigh alike in one sum, got 'uniform' and {sizes[:5]}"
        )
    made = SecureMean(
        client_update=training,
        server_update=server,
        unit=unit,
        sizes=sizes,
        rates=cohort.probabilities or (cohort.rate(clients),) * clients,
        is_seeded=setting.privacy.noise_source == "seed",
        rounds=setting.federation.num_rounds,
        **trust.model_dump(exclude={"kind"}),
    )
    made._manifold = setting.manifold
    return replace(setting, training=made, strategy=None)


def faults(setting: Any) -> Iterator[str]:
    """Yields why a sum of these uploads cannot be opened, or would not say what is asked."""
    training, privacy = setting.training, setting.privacy
    where = f"privacy.trust: 'secure-sum' with training.kind = {training.kind!r}"
    phases = training.phases
    if training.setup_phases or len(phases) != 1 or phases[0].aggregation != "mean":
        yield (
            f"{where}: expected an algorithm with one exchange a round whose server takes a mean, "
            f"got {[one.name for one in (*training.setup_phases, *phases)]}; use 'rsgd'"
        )
    if setting.server_update.judges_uploads or len(phases[0].up.names()) != 1:
        yield f"{where}: expected a server that needs nothing but the mean of one vector"
    if privacy.unit == "client":
        if why := training.without_client_level:
            yield f"{where}: it has no client-level privacy ({why})"
        if privacy.adaptive is not None:
            yield (
                "privacy.adaptive: expected none with privacy.trust = 'secure-sum', where the clip "
                "of all integers is fixed; remove it"
            )
    else:
        asks = asked_of(training)
        if (
            len(asks) != 1
            or asks[0].count != 1
            or asks[0].form != "gradient"
            or training.has_memory
        ):
            yield (
                f"{where} and examples as units: expected one answer a round and no memory "
                "(local_steps = 1), whose sum is all that is opened; use 'client-level' for more "
                "local steps"
            )
        if privacy.l1_norm_clip is not None or privacy.noise.kind == "published":
            yield f"{where}: expected l2_norm_clip and noise of kind 'target' or 'multiplier'"
        if setting.is_at_sites and setting.federation.num_examples is None:
            yield (
                "federation.num_examples: required with privacy.trust = 'secure-sum' and examples "
                "as units, because the scale of all integers depends on it; list every N_i"
            )
    adversary = getattr(privacy.noise, "adversary", "server")
    if adversary != "server":
        yield (
            "privacy.noise.adversary: expected none with privacy.trust = 'secure-sum', where a "
            f"target holds against nodes that collude with the server, got {adversary!r}; remove it"
        )
    if (setting.federation.reserve_rounds or 1) > 1:
        yield (
            "federation.reserve_rounds: expected none with privacy.trust = 'secure-sum', whose "
            "rounds are charged by who was in them; remove it"
        )
    clients = setting.federation.num_clients
    with named_by("privacy.trust", ValueError):
        mean = sealed(setting, (1,) * clients).training
        numbers = mean.numbers_with(_ANY)
        numbers.check(clients)
        if not mean.is_seeded:  # a rehearsal shares no secrets
            degree(clients, numbers.dropped(clients), numbers.collusion)


def summed_text(training: Any) -> str:
    """Returns a statement's words on the noise of a sum, and on what hides its terms."""
    numbers, clients = training.numbers, training.clients
    coding = numbers.of(clients, 1)
    said = (
        f"discrete Gaussian of variance {coding.variance} added by each of {clients} clients to "
        f"integers of norm at most {coding.bound}, noise multiplier {numbers.multiplier:.5g} with "
        f"{numbers.dropped(clients)} silent and {numbers.collusion} colluding, l2_norm_clip "
        f"{numbers.l2_norm_clip:g}; "
    )
    if training.is_seeded:
        return said + "no masks, since the noise is seeded: a rehearsal hides no upload"
    if training.pinned_keys is None:
        return said + (
            "keys are not pinned: uploads are hidden from a server that only reads, not from one "
            "that changes messages"
        )
    if training.degree < clients - 1:
        return said + "keys are pinned; it holds where the server does not choose who falls silent"
    return said + "keys are pinned; it holds whoever falls silent, by the server's choice too"
