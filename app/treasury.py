"""The purse of a run: charges rounds to the ledger before they happen and says what they cost.

Costs are upper bounds per view. The `server` view is realised: the worst client over the rounds to
which it was really invited, aborted attempts and retries included. The `external` view is a priori:
an adversary who sees the models and not who took part.
"""

from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from app.assembly import lens_of, server_lens_of
from app.noise_level import check_delta
from app.pricing import price_client_level, price_external, price_server
from configs.load import ConfigError, sha256
from configs.schema import Experiment
from privacy.accountant import NoValidBound
from privacy.events import GaussianRelease
from privacy.ledger import Ledger
from privacy.spending import CHARGE, Charge, TurnReleases, charges
from strategies.plan import BudgetExhausted

Releases = tuple[GaussianRelease, ...]

_RELEASED = {
    "example-level": "every upload (to the server) and every broadcast model",
    "client-level": "every broadcast model; the server sees uploads in clear and is trusted",
}
_SERVER = "the server, who sees the cohort and every upload"
_EXTERNAL = "an outsider who sees every broadcast model and not the cohort"


class Treasury:
    """Charges, and prices what was charged."""

    def __init__(self, config: Experiment, turns: tuple[TurnReleases, ...]) -> None:
        self._config, self._turns = config, turns
        self._owner = {i: turn.releases for turn in turns for i in turn.partitions}
        self._count: Counter[int] = Counter()
        self._attempts: Counter[int] = Counter()
        self._rounds = 0
        self._ledger: Ledger | None = None
        self.delta = _reporting_delta(config)

    @classmethod
    def prepare(cls, config: Experiment, sizes: Sequence[int]) -> "Treasury":
        """The purse of a config, with nothing spent.

        Raises:
            ConfigError: for a delta that is no guarantee, or a combination nothing prices.
        """
        if config.privacy.kind == "none":
            return cls(config, ())
        _check_reporting_delta(config, sizes)
        lens = lens_of(config)
        by_size: dict[int, list[int]] = {}
        for i, size in enumerate(sizes):
            by_size.setdefault(size, []).append(i)
        turns = tuple(
            TurnReleases(partitions=tuple(owners), releases=config.training.releases(lens, size))
            for size, owners in by_size.items()
        )
        treasury = cls(config, turns)
        try:
            treasury._price_views(participations=1, rounds=1)
        except NoValidBound as refusal:
            raise ConfigError(f"privacy: {refusal}") from None
        return treasury

    # -- charging ----------------------------------------------------------------------------
    @contextmanager
    def open_ledger(self, path: Path, *, resumed_at: int | None) -> Generator[None, None, None]:
        """Hold the run's ledger; on a resumed run everything in it counts as spent.

        A last line that a crash tore is charged as if it had invited everybody.
        """
        if resumed_at is not None:
            everybody = tuple(range(self._config.federation.num_clients))
            torn = self._charge(resumed_at, 0, everybody).model_dump(mode="json")
            ledger = Ledger.recover(path, charge=torn)
            for charge in charges(ledger.entries):
                self._count_charge(charge)
        else:
            ledger = Ledger.create(path, {"config_sha256": sha256(self._config)})
        with ledger:
            self._ledger = ledger
            yield
            self._ledger = None

    def attempts(self, server_round: int) -> int:
        """How often a round was charged so far."""
        return self._attempts[server_round]

    def charge(self, server_round: int, attempt: int, partitions: tuple[int, ...]) -> None:
        """Put a round's charge on disk, before any letter of it leaves.

        A run without privacy has nothing to charge and writes nothing.
        """
        if self._config.privacy.kind == "none":
            return
        assert self._ledger is not None
        charge = self._charge(server_round, attempt, partitions)
        self._refuse_beyond_budget(charge)
        self._ledger.append(CHARGE, charge.model_dump(mode="json"))
        self._count_charge(charge)

    def _charge(self, server_round: int, attempt: int, partitions: tuple[int, ...]) -> Charge:
        federation = self._config.federation
        lens = server_lens_of(self._config)
        sampling = federation.cohort.sampling(federation.num_clients)
        return Charge(
            server_round=server_round,
            attempt=attempt,
            partitions=partitions,
            turns=tuple(turn for turn in self._turns if turn.releases),
            sampling=sampling,
            aggregate=() if lens is None else (lens.release(sampling=sampling),),
        )

    def _count_charge(self, charge: Charge) -> None:
        self._count.update(charge.partitions)
        self._attempts[charge.server_round] = max(
            self._attempts[charge.server_round], charge.attempt + 1
        )
        self._rounds += 1

    def _refuse_beyond_budget(self, charge: Charge) -> None:
        privacy = self._config.privacy
        if privacy.kind == "none" or privacy.max_epsilon is None:
            return
        worst = max((self._count[i] + 1 for i in charge.partitions), default=0)
        worst = max(worst, *self._count.values(), 0) if self._count else worst
        after = self._headline(worst, self._rounds + 1)
        if after > privacy.max_epsilon:
            raise BudgetExhausted(
                f"privacy.max_epsilon: round {charge.server_round} would bring epsilon to "
                f"{after:.4g}, the budget is {privacy.max_epsilon:g}; the model of the last paid "
                "round is kept"
            )

    # -- pricing -----------------------------------------------------------------------------
    def headline(self) -> float | None:
        """Epsilon so far in the view that protects against the server (or the outsider)."""
        if self._config.privacy.kind == "none":
            return None
        return self._headline(max(self._count.values(), default=0), self._rounds)

    def _headline(self, participations: int, rounds: int) -> float:
        return self._price_views(participations, rounds)[0]["epsilon"]

    def _price_views(self, participations: int, rounds: int) -> list[dict[str, Any]]:
        if self._config.privacy.kind == "client-level":
            return [self._client_view(rounds)]
        assert self.delta is not None
        turns = tuple(turn.releases for turn in self._turns)
        federation = self._config.federation
        rate = federation.cohort.rate(federation.num_clients)
        server = max((_server(t, participations, self.delta) for t in turns), default=0.0)
        views: list[dict[str, Any]] = [_view("server", _SERVER, server, self.delta)]
        views[0]["remark"] = f"realised: at most {participations} rounds a client"
        views.append(self._external_view(turns, rate, rounds, server))
        return views

    def _external_view(
        self, turns: Sequence[Releases], rate: float, rounds: int, server: float
    ) -> dict[str, Any]:
        assert self.delta is not None
        if rate >= 1.0:
            return _view("external", _EXTERNAL, server, self.delta)
        epsilon = max((_external(t, rate, rounds, self.delta) for t in turns), default=0.0)
        return _view("external", _EXTERNAL, epsilon, self.delta)

    def _client_view(self, rounds: int) -> dict[str, Any]:
        federation, lens = self._config.federation, server_lens_of(self._config)
        assert lens is not None
        assert self.delta is not None
        sampling = federation.cohort.sampling(federation.num_clients)
        release = lens.release(count=rounds, sampling=sampling)
        epsilon = _client_level((release,), self.delta) if rounds else 0.0
        return _view("client-level", _EXTERNAL, epsilon, self.delta)

    # -- the statement -----------------------------------------------------------------------
    def statement(self) -> dict[str, Any]:
        """The privacy statement as data (app/statement.py prints it)."""
        return self._statement(max(self._count.values(), default=0), self._rounds)

    def planned(self, rounds: int) -> dict[str, Any]:
        """The statement that ``rounds`` rounds would end with if all invited everybody."""
        return self._statement(rounds, rounds)

    def _statement(self, participations: int, rounds: int) -> dict[str, Any]:
        privacy = self._config.privacy
        if privacy.kind == "none":
            return {"kind": "none", "noise_source": None, "views": [], "notes": []}
        views = self._price_views(participations, rounds)
        if privacy.kind == "example-level" and privacy.noise.kind == "published":
            views.append(self._published_view(rounds))
        return {
            "kind": privacy.kind,
            "noise_source": privacy.noise_source,
            "unit": "example" if privacy.kind == "example-level" else "client",
            "neighboring_relation": privacy.neighboring_relation,
            "released": _RELEASED[privacy.kind],
            "mechanism": self._mechanism(),
            "views": views,
            "notes": self._notes(),
        }

    def _mechanism(self) -> str:
        lens = server_lens_of(self._config)
        if lens is not None:
            return (
                f"tangent Gaussian at the server, noise multiplier {lens.noise_multiplier:.5g}, "
                f"l2_norm_clip {lens.l2_norm_clip:g}"
            )
        releases = [release for turn in self._turns for release in turn.releases]
        shown = {
            f"{r.label}: {r.count} a turn, multiplier {r.noise_multiplier:.5g}, {r.sampling.kind}"
            for r in releases
        }
        return "tangent Gaussian at each client; " + "; ".join(sorted(shown))

    def _notes(self) -> list[str]:
        notes = ["shard sizes, the config and the number of rounds are public"]
        if self._config.evaluation.is_enabled:
            notes.append(
                "cost, gap and gradient norm come from a simulation oracle that sees all data; "
                "they are not part of the release"
            )
        return notes

    def _published_view(self, rounds: int) -> dict[str, Any]:
        from privacy.published import theorem

        privacy, federation = self._config.privacy, self._config.federation
        assert privacy.kind == "example-level"
        assert privacy.noise.kind == "published"
        cohort = max(1, round(federation.cohort.expected_size(federation.num_clients)))
        claimed = theorem(
            privacy.noise.local_epsilon,
            privacy.noise.local_delta,
            num_clients=federation.num_clients,
            cohort_size=cohort,
            num_rounds=max(rounds, 1),
            slack_delta=privacy.noise.slack_delta,
        )
        view = _view("published", "nobody in particular", claimed[0], claimed[1])
        return view | {"remark": "Theorem 4.2 as printed: UNSOUND at record level"}


def _view(name: str, adversary: str, epsilon: float, delta: float) -> dict[str, Any]:
    return {"view": name, "adversary": adversary, "epsilon": epsilon, "delta": delta}


@lru_cache(maxsize=65536)
def _server(turn: Releases, participations: int, delta: float) -> float:
    return price_server(turn, participations, delta)


@lru_cache(maxsize=65536)
def _external(turn: Releases, rate: float, rounds: int, delta: float) -> float:
    return price_external(turn, rate, rounds, delta)


@lru_cache(maxsize=65536)
def _client_level(releases: Releases, delta: float) -> float:
    return price_client_level(releases, delta)


def _reporting_delta(config: Experiment) -> float | None:
    privacy = config.privacy
    if privacy.kind == "none":
        return None
    if privacy.delta is not None:
        return privacy.delta
    if privacy.noise.kind == "target":
        return privacy.noise.delta
    if privacy.noise.kind == "published":
        return privacy.noise.local_delta
    raise ConfigError(
        "privacy.delta: required with privacy.noise.kind = 'multiplier', but not given; epsilon is "
        "reported at this delta"
    )


def _check_reporting_delta(config: Experiment, sizes: Sequence[int]) -> None:
    """Delta < 1/n, except for the papers' own settings, which break it and are labelled."""
    privacy = config.privacy
    delta = _reporting_delta(config)
    if privacy.kind == "none" or delta is None or privacy.noise.kind == "published":
        return
    if privacy.kind == "client-level":
        check_delta(delta, len(sizes), "privacy.delta", "clients")
    else:
        check_delta(delta, sum(sizes), "privacy.delta", "examples")
