"""Prices of turns and rounds, per view; thin names over privacy/."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from manifed.errors import ConfigError
from manifed.experiment.schema import Experiment
from manifed.privacy import accountant, participation
from manifed.privacy.calibration import noise_multiplier
from manifed.privacy.composition import NoValidBound
from manifed.privacy.events import GaussianRelease, PoissonSampled, Unsampled
from manifed.privacy.ledger import Head, Ledger
from manifed.privacy.odometer import Odometer


def price_server(turn: Sequence[GaussianRelease], participations: int, delta: float) -> float:
    """Epsilon at ``delta`` of a client that took ``participations`` such turns, all seen."""
    return participation.server_epsilon(tuple(turn), participations=participations, delta=delta)


def price_server_a_priori(
    turn: Sequence[GaussianRelease], rate: float, rounds: int, delta: float
) -> float:
    """The same before the cohorts are drawn: a Binomial quantile of turns, its tail in delta."""
    return participation.server_epsilon_a_priori(
        tuple(turn), participation_probability=rate, num_rounds=rounds, delta=delta
    )


def price_external(
    turn: Sequence[GaussianRelease], rate: float, rounds: int, delta: float
) -> float:
    """Epsilon at ``delta`` against an outsider who does not know who took part (spec 000 §11)."""
    if rate >= 1.0:
        return price_server(turn, rounds, delta)
    return participation.external_epsilon(
        tuple(turn), participation_probability=rate, num_rounds=rounds, delta=delta
    )


def price_client_level(releases: Sequence[GaussianRelease], delta: float) -> float:
    """Epsilon at ``delta`` of noised averages over sampled cohorts."""
    return accountant.epsilon(releases, delta)


def calibrated(
    target_epsilon: float, target_delta: float, steps: int, sampling_probability: float
) -> dict[str, float]:
    """Noise multiplier and what it costs; see `ConfigError` for impossible targets."""
    try:
        sampling = (
            Unsampled()
            if sampling_probability == 1.0
            else PoissonSampled(sampling_probability=sampling_probability)
        )

        def releases(multiplier: float) -> tuple[GaussianRelease, ...]:
            release = GaussianRelease(
                unit="example",
                neighboring_relation="add-or-remove",
                noise_multiplier=multiplier,
                sampling=sampling,
                count=steps,
            )
            return (release,)

        found = noise_multiplier(releases, target_epsilon=target_epsilon, target_delta=target_delta)
    except ValueError as error:
        raise ConfigError(f"calibrate: {error}".replace("\n", " ")) from None
    epsilon = accountant.epsilon(releases(found), target_delta)
    return {"noise_multiplier": found, "epsilon": epsilon, "delta": target_delta}


def planned_curve(config: Experiment, points: int = 20) -> list[dict[str, Any]]:
    """Epsilon of every view after some rounds of a run that invites everybody it can."""
    from manifed.experiment.assembly import load_shards
    from manifed.experiment.treasury import Treasury

    if config.privacy.kind == "none":
        raise ConfigError("privacy.kind: there is no curve to draw, got 'none'")
    treasury, last = Treasury.prepare(config, load_shards(config).sizes), config.federation
    picks = sorted({max(1, round(last.num_rounds * k / points)) for k in range(1, points + 1)})
    rows: list[dict[str, Any]] = []
    for rounds in picks:
        views = treasury.planned(rounds)["views"]
        rows.append({"round": rounds} | {view["view"]: view["epsilon"] for view in views})
    return rows


def planned_statement(config: Experiment) -> dict[str, Any]:
    """The statement of a whole run in which every client is invited as often as can be."""
    from manifed.experiment.assembly import load_shards
    from manifed.experiment.treasury import Treasury

    treasury = Treasury.prepare(config, load_shards(config).sizes)
    return treasury.planned(config.federation.num_rounds)


def audit_ledger(
    path: Path, delta: float, *, key: bytes | None = None, anchors: Sequence[Head] = ()
) -> dict[str, Any]:
    """What a ledger proves on its own, read once in a stream.

    Raises:
        LedgerDamaged: for a broken chain, a torn last line, a wrong key, or an anchor (a head that
            was kept elsewhere) that is not in the chain.
        ConfigError: for charges that no theorem prices.
    """
    odometer = Odometer()
    found = Ledger.verify(path, key=key, anchors=anchors, feed=odometer.feed)
    if found.is_torn:
        raise found.torn_error(path)
    try:
        views = [asdict(view) for view in odometer.spent(delta)]
    except NoValidBound as refusal:
        raise ConfigError(f"{path}: {refusal}") from None
    return {
        "format": found.format,
        "run_id": found.run_id,
        "head": str(found.head),
        "key_id": found.key_id,
        "authenticity": found.authenticity,
        "entries": found.head.sequence + 1,
        "charges": odometer.rounds_counted,
        "consumed": odometer.rounds_consumed,
        "delta": delta,
        "views": views,
    }
