"""The purse of a run: charges every attempt of a round to the ledger before its letters leave.

What was charged is priced by app/views.py. A resumed run counts all that its ledger holds.
"""

from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from app.assembly import lens_of, server_lens_of
from app.views import Views, check_reporting_delta, reporting_delta
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
        self._views = Views(config, turns, self.delta)

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
            treasury._views.price(participations=1, rounds=1)
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

    # -- what it cost ------------------------------------------------------------------------
    def headline(self) -> float | None:
        """Epsilon so far in the view that protects against the server (or the outsider)."""
        if self._config.privacy.kind == "none":
            return None
        return self._headline(max(self._count.values(), default=0), self._rounds)

    def _headline(self, participations: int, rounds: int) -> float:
        return self._views.price(participations, rounds)[0]["epsilon"]

    def statement(self) -> dict[str, Any]:
        """The privacy statement as data (app/statement.py prints it)."""
        return self._views.statement(max(self._count.values(), default=0), self._rounds)

    def planned(self, rounds: int) -> dict[str, Any]:
        """The statement that ``rounds`` rounds would end with if all invited everybody."""
        return self._views.statement(rounds, rounds)
