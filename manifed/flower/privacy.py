"""Privacy parameters as two Flower apps agree on them: each side states its own, both compare.

What clients protect is computed by clients from their own object, never from a message. The server
prices with its own. A digest of what decides the guarantee stands in the handshake and in every
message, so that sides that differ refuse each other.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from manifed.algorithms.interface import ClientUpdate, Scheduled, setup_phases_of
from manifed.algorithms.rsgd import RSGD
from manifed.errors import ConfigError
from manifed.experiment.privacy import FLOATING_POINT, RELEASED
from manifed.federation.cohorts import Cohort, check_probabilities
from manifed.manifolds.base import Manifold
from manifed.oracles.minibatch import Full
from manifed.privacy.accountant import NoValidBound
from manifed.privacy.adversaries import CLIENT_LEVEL, SERVER
from manifed.privacy.charges import ClientReleases, Terms
from manifed.privacy.events import NeighboringRelation
from manifed.privacy.filter import Budget, Draw, Filter
from manifed.privacy.mechanism import ClientMechanism, ExampleMechanism, RelativeNoise
from manifed.privacy.statement import Promise

ONE_GRADIENT = RSGD(step_size=1.0, minibatch=Full())
"""A client update that asks for one gradient of all examples; no step size alters a price."""
_PROBES = (1_000, 1_000_000)
"""Shard sizes at which two sides compare what a client update releases."""


@dataclass(frozen=True)
class _Parameters:
    """What both units take.

    ``num_examples`` has the public size of each shard; a client may leave it empty. ``update`` is
    what clients run, as far as it decides what they release.
    """

    l2_norm_clip: float
    noise_multiplier: float
    num_examples: Sequence[int] = ()
    neighboring_relation: NeighboringRelation = "add-or-remove"
    update: ClientUpdate = ONE_GRADIENT


@dataclass(frozen=True)
class ExampleLevel(_Parameters):
    """Every example is protected by its own client, which clips and noises gradients."""

    @property
    def example_mechanism(self) -> ExampleMechanism:
        """What clients apply."""
        return ExampleMechanism(
            l2_norm_clip=self.l2_norm_clip,
            neighboring_relation=self.neighboring_relation,
            noise=RelativeNoise(multiplier=self.noise_multiplier),
        )

    @property
    def client_mechanism(self) -> None:
        """Nothing is left to the server."""
        return None


@dataclass(frozen=True)
class ClientLevel(_Parameters):
    """Every client is protected by the server, which clips uploads and noises their mean."""

    @property
    def example_mechanism(self) -> ExampleMechanism:
        """Clients add nothing."""
        return ExampleMechanism()

    @property
    def client_mechanism(self) -> ClientMechanism:
        """What the server applies."""
        return ClientMechanism(
            l2_norm_clip=self.l2_norm_clip,
            noise_multiplier=self.noise_multiplier,
            neighboring_relation=self.neighboring_relation,
        )


Privacy = ExampleLevel | ClientLevel


@dataclass(frozen=True)
class Priced:
    """Privacy as a server needs it, priced already: that of a config, for one."""

    promise: Promise
    """What is charged, what the budget pays, and whom the statement names."""
    client_mechanism: ClientMechanism | None
    """What the server applies to a cohort's uploads; None leaves it to the clients."""
    digest: str
    """What both sides compare."""


def agreement(manifold: Manifold, update: ClientUpdate, privacy: Privacy | None) -> str:
    """Hash of what decides guarantee and meaning of the messages; both sides compute their own.

    It holds the manifold, the exchanges, the privacy parameters and what a client update releases;
    step sizes and shards are not in it.
    """
    exchanges = [
        (p.name, p.down.__name__, p.up.__name__, p.places, p.uploads, p.aggregation)
        for p in (*setup_phases_of(update), *update.phases)
    ]
    said: list[object] = [manifold.name, exchanges]
    if privacy is not None:
        mechanism = privacy.client_mechanism or privacy.example_mechanism
        said += [type(privacy).__name__, mechanism.model_dump(mode="json")]
        said += [
            [r.model_dump(mode="json") for r in update.releases(privacy.example_mechanism, size)]
            for size in _PROBES
        ]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def promise_of(
    privacy: Privacy | None,
    num_clients: int,
    cohort: Cohort,
    budget: tuple[float, float] | None,
    draws: int,
    noise_source: str = "os",
) -> Promise:
    """What ``draws`` cohort draws at most promise, with a budget (epsilon, delta) or without one.

    An infinite epsilon refuses nothing and says at which delta epsilon is stated.

    It is stated against whoever sees most: the server for examples, for clients whoever sees the
    models.

    Raises:
        ConfigError: for sizes that are not those of the clients, or a budget without privacy.
    """
    if privacy is None:
        if budget is not None:
            raise ConfigError(f"budget: expected privacy beside a budget, got {budget} and none")
        terms = Terms(population=num_clients)
        return Promise(
            terms, Filter(Draw.of(terms), draws), facts={"kind": "none", "noise_source": None}
        )
    if isinstance(privacy.update, Scheduled):
        raise ConfigError(
            f"update: {type(privacy.update).__name__} releases other things in other rounds, which "
            "a strategy does not price yet; run it from a config or by manifed.fit"
        )
    check_probabilities(cohort, num_clients)
    sizes = tuple(privacy.num_examples)
    if len(sizes) != num_clients:
        raise ConfigError(
            f"privacy.num_examples: expected the public size of each of the {num_clients} shards, "
            f"got {len(sizes)}"
        )
    sampling, server = cohort.sampling(num_clients), privacy.client_mechanism
    adversary = SERVER if server is None else CLIENT_LEVEL
    kind, unit = ("example-level", "example") if server is None else ("client-level", "client")
    terms = Terms(
        population=num_clients,
        updates=_releases(privacy, sizes) if server is None else (),
        sampling=sampling,
        aggregate=() if server is None else (server.release(sampling=sampling),),
        planned_draws=draws,
        probabilities=cohort.probabilities,
    )
    count = sum(sizes) if server is None else num_clients
    if budget is not None and not budget[1] < 1 / count:
        raise ConfigError(
            f"budget: expected delta < 1/n = {1 / count:.3g} ({count} {unit}s), got {budget[1]:g}"
        )
    spent = None if budget is None else Budget(*budget, adversary)
    promise = Promise(
        terms,
        Filter(Draw.of(terms), draws, spent),
        (adversary,),
        None if budget is None else budget[1],
        {
            "kind": kind,
            "noise_source": noise_source,
            "unit": unit,
            "neighboring_relation": privacy.neighboring_relation,
            "released": RELEASED[kind],
            "mechanism": (
                f"Gaussian at {'each client' if server is None else 'the server'}, multiplier "
                f"{privacy.noise_multiplier:.5g}, l2_norm_clip {privacy.l2_norm_clip:g}"
            ),
            "floating_point": FLOATING_POINT["single"],
        },
    )
    try:
        promise.planned(1)
    except NoValidBound as refusal:
        raise ConfigError(f"privacy: {refusal}") from None
    return promise


def priced_for(
    privacy: Privacy | None,
    manifold: Manifold,
    update: ClientUpdate,
    sizes: tuple[int, ...],
    cohort: Cohort,
    budget: tuple[float, float] | None,
    draws: int,
    noise_source: str,
) -> Priced:
    """The parameters that two apps agree on, priced for these clients; errors as `promise_of`."""
    own = None if privacy is None else replace(privacy, update=update, num_examples=sizes)
    return Priced(
        promise_of(own, len(sizes), cohort, budget, draws, noise_source),
        None if own is None else own.client_mechanism,
        agreement(manifold, update, own),
    )


def _releases(privacy: Privacy, sizes: tuple[int, ...]) -> tuple[ClientReleases, ...]:
    """Who releases what; clients with shards of one size stand together."""
    mechanism = privacy.example_mechanism
    owners: dict[int, list[int]] = {}
    for i, size in enumerate(sizes):
        owners.setdefault(size, []).append(i)
    return tuple(
        ClientReleases(partitions=tuple(who), releases=privacy.update.releases(mechanism, size))
        for size, who in owners.items()
    )
