"""The purse of a run: charges every attempt of a round to the ledger before its letters leave.

What was charged is priced by app/views.py. A resumed run counts all that its ledger holds.
"""

import logging
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flwr.common.logger import log

from app.assembly import lens_of, server_lens_of
from app.budget import Prices
from app.views import Views, check_reporting_delta, passed_target, reporting_delta
from configs.load import ConfigError, sha256
from configs.schema import Experiment
from privacy.accountant import NoValidBound
from privacy.ledger import Ledger
from privacy.spending import CHARGE, Charge, TurnReleases, charges
from strategies.plan import BudgetExhausted


class Treasury:
    """Charges, and prices what was charged."""

    def __init__(self, config: Experiment, turns: tuple[TurnReleases, ...]) -> None:
        self._config, self._turns = config, turns
        self._count: Counter[int] = Counter()
        self._attempts: Counter[int] = Counter()
        self._rounds = 0
        self._ledger: Ledger | None = None
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
            treasury._views.price(participations=1, draws=1, planned=1)
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
        """Refuse the draw that the budget does not pay, whoever is in it (app/budget.py)."""
        prices, draws = self._prices, self._rounds + 1
        if not prices.pays(draws):
            budget = prices.budget
            assert budget is not None
            cost = prices.a_priori(budget.view, draws, budget.delta)
            raise BudgetExhausted(
                f"{budget.field}: round {charge.server_round} would be cohort draw {draws}, which "
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
        return self._headline(max(self._count.values(), default=0), self._rounds)

    def _headline(self, participations: int, rounds: int) -> float:
        return self._views.price(participations, rounds)[0]["epsilon"]

    def statement(self) -> dict[str, Any]:
        """The privacy statement as data (app/statement.py prints it).

        What an outsider learns is priced for all draws that were planned, made or not.
        """
        return self._views.statement(max(self._count.values(), default=0), self._rounds)

    def planned(self, rounds: int) -> dict[str, Any]:
        """The statement of a plan of ``rounds`` rounds, if all of them invite everybody."""
        return self._views.statement(rounds, rounds, planned=rounds)
