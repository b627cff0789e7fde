"""The purse of a run: charges every attempt of a round to the ledger before its messages leave.

What was charged is priced by experiment/views.py. A resumed run counts all that its ledger holds.
"""

import logging
import os
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from manifed.errors import BudgetExhausted, ConfigError
from manifed.experiment.assembly import mechanism_of, server_mechanism_of
from manifed.experiment.budget import Prices
from manifed.experiment.load import sha256
from manifed.experiment.schema import Experiment
from manifed.experiment.views import Views, check_reporting_delta, passed_target, reporting_delta
from manifed.privacy.account import Account
from manifed.privacy.accountant import NoValidBound
from manifed.privacy.charges import ClientReleases, Terms
from manifed.privacy.ledger import Head, Ledger, read_key
from manifed.privacy.odometer import NOTE, Odometer

log = logging.getLogger("flwr").log
KEY_FILE: Final = "MANIFED_LEDGER_KEY_FILE"
"""The environment variable that names the file of the ledger's key."""


_ORIGINS: Final = "noise_origins"


def _noted(ledger: Ledger) -> frozenset[str]:
    """Where noise came from, as the ledger's notes say."""
    notes = [entry.body for entry in ledger.entries if entry.kind == NOTE]
    return frozenset(origin for body in notes for origin in body.get(_ORIGINS, ()))


def ledger_key(path: Path | None = None) -> bytes | None:
    """The key in ``path``, or in the file that the environment names; None for no key.

    Raises:
        ConfigError: when the file cannot be read, or holds less than 16 bytes.
    """
    named = path or os.environ.get(KEY_FILE)
    if not named:
        return None
    try:
        return read_key(named)
    except (OSError, ValueError) as error:
        raise ConfigError(f"ledger key ({KEY_FILE} or --ledger-key): {error}") from None


def anchors_of(heads: Iterable[str]) -> tuple[Head, ...]:
    """The ledger heads that a user kept.

    Raises:
        ConfigError: for a text that no run printed.
    """
    try:
        return tuple(Head.parse(head) for head in heads)
    except ValueError as error:
        raise ConfigError(f"ledger head: {error}") from None


class Treasury:
    """Charges, and prices what was charged."""

    def __init__(self, config: Experiment, turns: tuple[ClientReleases, ...]) -> None:
        self._config, self._turns = config, turns
        self._account: Account | None = None
        self.odometer = Odometer()
        """Of what the ledger holds."""
        self.noise_origins: frozenset[str] = frozenset()
        """Where the keys of all noise came from so far, as the sources said (privacy/noise.py)."""
        self.head: Head | None = None
        """The ledger's last line once it was closed: the anchor to keep."""
        self.delta = reporting_delta(config)
        self._prices = Prices(config, turns, self.delta)
        self._views = Views(config, turns, self.delta, self._prices)

    @classmethod
    def prepare(cls, config: Experiment, sizes: Sequence[int]) -> "Treasury":
        """The purse of a config, with nothing spent.

        Raises:
            ConfigError: for a delta that is no guarantee, or a combination nothing prices.
        """
        if config.privacy.kind == "none":
            return cls(config, ())
        check_reporting_delta(config, sizes)
        mechanism = mechanism_of(config)
        by_size: dict[int, list[int]] = {}
        for i, size in enumerate(sizes):
            by_size.setdefault(size, []).append(i)
        turns = tuple(
            ClientReleases(
                partitions=tuple(owners), releases=config.training.releases(mechanism, size)
            )
            for size, owners in by_size.items()
        )
        treasury = cls(config, turns)
        try:
            treasury._views.price(participations=1, draws=1, planned=1)
        except NoValidBound as refusal:
            raise ConfigError(f"privacy: {refusal}") from None
        return treasury

    # -- charging ----------------------------------------------------------------------------
    @contextmanager
    def open_ledger(
        self, path: Path, *, resumed_at: int | None, anchors: Iterable[Head] = ()
    ) -> Generator[None, None, None]:
        """Hold the run's ledger; on a resumed run everything in it counts as spent.

        A last line that a crash tore is charged as if it had invited everybody. At the end, also
        after an error, it is written which reserved rounds were run.
        """
        terms, key = self._terms(), ledger_key()
        last = self._config.federation.num_rounds
        if resumed_at is None:
            ledger = Ledger.create(path, {"config_sha256": sha256(self._config)}, key=key)
            account = Account(ledger, Odometer(), terms, last_round=last)
        else:
            account = Account.recover(
                path, terms, resumed_at=resumed_at, key=key, anchors=anchors, last_round=last
            )
        with account.ledger as ledger:
            self._account, self.odometer = account, account.odometer
            if resumed_at is not None:
                self.noise_origins = _noted(ledger)
                self._refuse_other_terms()
            try:
                yield
            finally:
                account.settle()
                self.head, self._account = ledger.head, None

    @property
    def ledger(self) -> Ledger | None:
        """The ledger while it is held."""
        return None if self._account is None else self._account.ledger

    def settle(self) -> None:
        """Write which reserved rounds were run; nothing that was settled is written again."""
        if self._account is not None:
            self._account.settle()

    def attempts(self, server_round: int) -> int:
        """How often a round was charged so far."""
        return 0 if self._account is None else self._account.attempts(server_round)

    def charge(self, server_round: int, attempt: int, partitions: tuple[int, ...]) -> None:
        """Put a round's charge on disk, before any message of it leaves.

        A run without privacy has nothing to charge and writes nothing.
        """
        if self._config.privacy.kind == "none":
            return
        assert self._account is not None
        self._refuse_beyond_budget(server_round)
        self._account.charge(server_round, attempt, partitions)

    def note_origins(self, server_round: int, origins: frozenset[str]) -> None:
        """Write down where the noise of a round came from, when that is new."""
        if origins <= self.noise_origins or self._account is None:
            return
        self.noise_origins |= origins
        if self._config.privacy.kind != "none":
            body = {_ORIGINS: sorted(self.noise_origins), "server_round": server_round}
            self._account.ledger.append(NOTE, body)

    def _terms(self) -> Terms:
        federation = self._config.federation
        mechanism = server_mechanism_of(self._config)
        sampling = federation.cohort.sampling(federation.num_clients)
        return Terms(
            population=federation.num_clients,
            turns=tuple(turn for turn in self._turns if turn.releases),
            sampling=sampling,
            aggregate=() if mechanism is None else (mechanism.release(sampling=sampling),),
            planned_draws=self._prices.planned() if self._turns else 0,
        )

    def _refuse_other_terms(self) -> None:
        """Refuse a ledger that was charged more for its draws than this config prices them."""
        federation, draws = self._config.federation, self.odometer.rounds_counted
        if self.delta is None or draws == 0:
            return
        is_client_level = self._config.privacy.kind == "client-level"
        view = "client-level" if is_client_level else "external"
        counted = self.odometer.epsilon(view, self.delta)
        planned = draws if is_client_level else max(draws, self._prices.planned())
        priced = self._prices.a_priori(view, planned, self.delta)
        if counted > priced * (1 + 1e-6):
            raise ConfigError(
                f"output.resume: expected a ledger whose {planned} draws cost at most {priced:.4g} "
                f"in the {view} view, got {counted:.4g}: it was charged under other terms than "
                f"this config's; start a new run of {federation.num_rounds} rounds instead"
            )

    def _refuse_beyond_budget(self, server_round: int) -> None:
        """Refuse the draw that the budget does not pay, whoever is in it (experiment/budget.py)."""
        prices, draws = self._prices, self.odometer.rounds_counted + 1
        if not prices.pays(draws):
            budget = prices.budget
            assert budget is not None
            cost = prices.a_priori(budget.view, draws, budget.delta)
            raise BudgetExhausted(
                f"{budget.field}: round {server_round} would be cohort draw {draws}, which "
                f"costs epsilon {cost:.4g} in the {budget.view} view whoever is drawn, the budget "
                f"is {budget.epsilon:g}; the model of the last paid round is kept, and "
                "privacy.max_epsilon may allow more"
            )
        if prices.passes_target(draws) and not prices.passes_target(draws - 1):
            log(logging.WARNING, "%s", passed_target(self._config, prices, draws))

    # -- what it cost ------------------------------------------------------------------------
    def headline(self) -> float | None:
        """Epsilon so far in the view that protects against the server (or the outsider)."""
        if self._config.privacy.kind == "none":
            return None
        assert self.delta is not None
        is_client_level = self._config.privacy.kind == "client-level"
        return self.odometer.epsilon("client-level" if is_client_level else "server", self.delta)

    def _counted(self) -> dict[str, float]:
        """What counts in every view, from the ledger's entries alone."""
        if self.delta is None:
            return {}
        return {view.view: view.epsilon for view in self.odometer.spent(self.delta)}

    def statement(
        self, has_oracle: bool | None = None, *, is_declared: bool = False
    ) -> dict[str, Any]:
        """The privacy statement as data (manifed/runs/statement.py prints it).

        What an outsider learns is priced for all draws that were planned, made or not.
        ``has_oracle``: whether the run prints numbers computed on all data; None: as the config
        says. ``is_declared``: whether clients in other processes said where their noise came from.
        """
        odometer = self.odometer
        said = self._views.statement(
            odometer.participations,
            odometer.rounds_counted,
            has_oracle=has_oracle,
            counted=self._counted(),
        )
        return said | {"noise_origins": sorted(self.noise_origins), "is_declared": is_declared}

    def randomness_source(self) -> str:
        """Whether every source that was used had a key of the operating system: "os" or "seed"."""
        return "os" if self.noise_origins == {"os"} else "seed"

    def planned(self, rounds: int) -> dict[str, Any]:
        """The statement of a plan of ``rounds`` rounds, if all of them invite everybody."""
        return self._views.statement(rounds, rounds, planned=rounds)
