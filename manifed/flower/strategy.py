"""A server update as a Flower strategy of one's own: it sends, aggregates, charges, and stops."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypedDict

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from manifed.algorithms.interface import (
    ClientUpdate,
    ServerUpdate,
    remembers_setup,
    setup_phases_of,
)
from manifed.errors import BudgetExhausted, ConfigError
from manifed.federation.cohorts import Cohort, Everyone
from manifed.federation.plan import Plan, RoundReport
from manifed.federation.replies import ReplyPolicy
from manifed.flower.loop import ServerLoop
from manifed.flower.privacy import Priced, Privacy, priced_for
from manifed.manifolds.base import Manifold
from manifed.privacy.account import Account, count_more, count_only, opened
from manifed.privacy.noise import NoiseSource
from manifed.privacy.odometer import Odometer
from manifed.runs.driver import Job
from manifed.runs.statement import statement_of

MOST_ROUNDS = 10**6
"""Of a ledger whose run does not say how many there will be."""


class Settings(TypedDict, total=False):
    """Keyword arguments of `ManifoldStrategy`, cohorts aside; none has to be given."""

    num_examples: Sequence[int] | None
    """Public size of every client's shard; left out, those of ``privacy``."""
    privacy: Privacy | Priced | None
    budget: tuple[float, float] | None
    """(epsilon, delta): the draw that it does not pay ends the run."""
    ledger: str | Path | Account | None
    """A file that is not there yet, with ``privacy``; or the account of a run."""
    num_rounds: int | None
    """For Flower's own loop, which does not say how many rounds there will be."""
    replies: ReplyPolicy | None
    source: NoiseSource | None
    """A seeded one in tests; left out, it is keyed by the operating system."""


class CohortSettings(Settings, total=False):
    """The same for an algorithm that does not need every client in every round."""

    cohort: Cohort | None


def settings_of(job: Job) -> Settings:
    """What a run says of a strategy beside its algorithm and its cohorts; the account is the run's.

    The strategy goes on where the run does.
    """
    plan = job.plan
    return {
        "num_examples": plan.num_examples,
        "privacy": Priced(job.promise, plan.mechanism, plan.config_sha256),
        "ledger": job.account,
        "num_rounds": job.num_rounds,
        "replies": plan.policy,
        "source": plan.source,
    }


def strategy_of(job: Job) -> "ManifoldStrategy":
    """The strategy of any run: by the server update of its config, as the library knows it."""
    config, plan = job.config, job.plan
    return ManifoldStrategy(
        plan.manifold,
        config.training,
        config.server_update,
        cohort=plan.cohort,
        **settings_of(job),
    )


class ManifoldStrategy(ServerLoop):
    """A server update as a Flower strategy of one's own ServerApp: no config, no run folder.

    It sends what the server update broadcasts, aggregates replies by it, charges every cohort draw
    to a ledger before its messages leave, and stops at the draw that the budget does not pay.
    """

    def __init__(
        self,
        manifold: Manifold,
        update: ClientUpdate,
        server_update: ServerUpdate,
        *,
        num_examples: Sequence[int] | None = None,
        cohort: Cohort | None = None,
        privacy: Privacy | Priced | None = None,
        budget: tuple[float, float] | None = None,
        ledger: str | Path | Account | None = None,
        num_rounds: int | None = None,
        replies: ReplyPolicy | None = None,
        source: NoiseSource | None = None,
    ) -> None:
        """``num_examples`` are public: weights, and the sizes that prices use.

        None takes those of ``privacy``. ``budget`` is (epsilon, delta), ``ledger`` a file that is
        not there yet, or the account of a run, which whoever opened it closes. ``num_rounds`` is
        for Flower's own loop, which does not say how many rounds there will be; `start` does.
        ``source`` is a seeded one in tests; None is keyed by the operating system.

        Raises:
            ConfigError: for parts that do not go together.
        """
        people, policy = cohort or Everyone(), replies or ReplyPolicy()
        own, name = source or NoiseSource.from_os(), type(self).__name__
        public = () if privacy is None or isinstance(privacy, Priced) else privacy.num_examples
        sizes = tuple(num_examples or public)
        _check(name, sizes, people, server_update)
        priced = privacy
        if not isinstance(priced, Priced):
            if ledger is not None and priced is None:
                raise ConfigError("ledger: expected privacy beside a ledger, got none")
            priced = priced_for(
                priced, manifold, update, sizes, people, budget, num_rounds or 0, own.origin
            )
        self.promise, mechanism = priced.promise, priced.client_mechanism
        means = sum(len(phase.up.names()) for phase in update.phases)
        if mechanism is not None and means != 1:
            raise ConfigError(
                "privacy: ClientLevel releases and charges one noised mean a round, got an update "
                f"that sends {means}; use ExampleLevel"
            )
        self._is_planned = isinstance(privacy, Priced)
        self._planned = num_rounds
        self._ledger, self._open_files = ledger, ExitStack()
        self._is_stopped = self._is_closed = False
        self._account = ledger if isinstance(ledger, Account) else None
        self._odometer = self.promise.odometer()
        self._origins: frozenset[str] = frozenset()
        plan = Plan(
            server_update=server_update,
            manifold=manifold,
            phases=update.phases,
            setup_phases=setup_phases_of(update),
            remembers_setup=remembers_setup(update),
            cohort=people,
            policy=policy,
            source=own,
            num_examples=sizes,
            config_sha256=priced.digest,
            mechanism=mechanism,
            needs_everyone=server_update.needs_everyone,
        )
        super().__init__(plan, None, self.charge, self._note)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """As `ServerLoop.start`; a budget that runs out ends it with the last paid model."""
        self._plan_for(num_rounds)
        try:
            return super().start(grid, initial_arrays, num_rounds, timeout, evaluate_fn=evaluate_fn)
        finally:
            self.close()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As `ServerLoop.configure_train`; no messages once the budget has run out."""
        if self._is_stopped:
            return []
        self._plan_for(self._planned)
        try:
            return super().configure_train(server_round, arrays, config, grid)
        except BudgetExhausted as budget:
            self._stop(budget)
            return []

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """As `ServerLoop.aggregate_train`; nothing new once the budget has run out."""
        if self._is_stopped:
            return self._arrays(), None
        return super().aggregate_train(server_round, replies)

    def statement(self) -> dict[str, Any]:
        """The privacy statement so far, as data; clients declare where their noise came from."""
        return self.promise.statement(self.odometer, noise_origins=self._origins, is_declared=True)

    @property
    def text(self) -> str:
        """The privacy statement so far, one fact a line."""
        return statement_of(self.statement())

    @property
    def odometer(self) -> Odometer:
        """What is spent."""
        return self._odometer if self._account is None else self._account.odometer

    def close(self) -> None:
        """Settle and release the ledger; whoever runs Flower's own loop calls it at the end."""
        if self._account is not None:
            self._odometer = self._account.odometer
        self._open_files.close()
        self._account, self._is_closed = None, True

    # -- what is paid ------------------------------------------------------------------------
    def _plan_for(self, num_rounds: int | None) -> None:
        """Price an outsider for all planned draws, once (privacy/filter.py says why).

        Raises:
            ConfigError: when cohorts are drawn and nobody said how many there will be.
        """
        if self._is_planned:
            return
        if num_rounds is not None:
            draws = num_rounds * (
                self.plan.policy.max_attempts if self.plan.policy.on_failure == "retry" else 1
            )
            self.promise, self._planned = self.promise.for_draws(draws), num_rounds
            self._odometer.declare(self.promise.terms)
        elif self.promise.adversaries and self.promise.terms.is_drawn:
            raise ConfigError(
                f"num_rounds: expected it in the call of {type(self).__name__} under Flower's own "
                "loop, got none; an outsider is priced for all cohorts that may be drawn"
            )
        self._is_planned = True

    def charge(self, server_round: int, attempt: int, partitions: tuple[int, ...]) -> None:
        """Pay for an attempt before its messages leave: the filter, the ledger, the odometer.

        Raises:
            BudgetExhausted: for the draw that the budget does not pay.
        """
        if isinstance(self._ledger, str | Path) and self._account is None:
            if self._is_closed:
                raise ConfigError(
                    f"ledger: expected no round after close(), got round {server_round}; make a "
                    f"new {type(self).__name__} with a ledger of its own"
                )
            self._account = self._open_files.enter_context(
                opened(
                    Path(self._ledger),
                    self.promise,
                    last_round=self._planned or MOST_ROUNDS,
                    header={"config_sha256": self.plan.config_sha256},
                )
            )
        if self._account is not None:
            self._account.charge(server_round, attempt, partitions)
        else:
            count_only(self.promise, self._odometer, server_round, attempt, partitions)

    def charge_more(
        self,
        server_round: int,
        attempt: int,
        partitions: tuple[int, ...],
        disclosed: tuple[int, ...],
    ) -> None:
        """Pay for masks that the next exchange discloses.

        Raises:
            BudgetExhausted: when the budget does not pay it.
        """
        if self._account is not None:
            self._account.charge_more(server_round, attempt, partitions, disclosed)
        elif self.promise.adversaries:
            count_more(self.promise, self._odometer, server_round, attempt, partitions, disclosed)

    def _note(self, report: RoundReport) -> None:
        self._origins |= report.noise_origins
        if self._account is not None:
            self._account.note_origins(report.server_round, report.noise_origins)

    def _stop(self, budget: BudgetExhausted) -> None:
        self._is_stopped = True
        self._origins |= budget.noise_origins
        log(30, "%s", budget)


def _check(name: str, sizes: tuple[int, ...], cohort: Cohort, server_update: ServerUpdate) -> None:
    """Refuse parts that do not go together.

    Raises:
        ConfigError: naming the argument.
    """
    if not sizes or min(sizes) < 1:
        raise ConfigError(
            "num_examples: expected the public size, at least 1, of every client's shard, got "
            f"{list(sizes[:5])}"
        )
    if server_update.needs_everyone and cohort.kind != "all":
        raise ConfigError(f"cohort: {name} needs every client in every round, got {cohort.kind!r}")
