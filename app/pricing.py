"""Prices of turns and rounds, per view; thin names over privacy/."""

from collections.abc import Sequence
from typing import Any

from configs.schema import Experiment
from privacy import accountant, participation
from privacy.events import GaussianRelease


def price_server(turn: Sequence[GaussianRelease], participations: int, delta: float) -> float:
    """Epsilon at ``delta`` of a client that took ``participations`` such turns, all seen."""
    return accountant.epsilon(participation.repeated(turn, participations), delta)


def price_external(
    turn: Sequence[GaussianRelease], rate: float, rounds: int, delta: float
) -> float:
    """Epsilon at ``delta`` against an outsider who does not know who took part (spec 000 §11)."""
    if rate >= 1.0:
        return price_server(turn, rounds, delta)
    return participation.external_epsilon(turn, rate, rounds, delta)


def price_client_level(releases: Sequence[GaussianRelease], delta: float) -> float:
    """Epsilon at ``delta`` of noised averages over sampled cohorts."""
    return accountant.epsilon(releases, delta)


def planned_statement(config: Experiment) -> dict[str, Any]:
    """The statement of a whole run in which every client is invited as often as can be."""
    from app.assembly import load_shards
    from app.treasury import Treasury

    treasury = Treasury.prepare(config, load_shards(config).sizes)
    return treasury.planned(config.federation.num_rounds)
