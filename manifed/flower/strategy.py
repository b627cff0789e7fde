"""The base class of the Flower strategies: handshake, charges, replies and the end of a run.

A strategy of `strategies/` writes out `configure_train` (draw and charge a cohort, send),
`aggregate_train` (read the replies, aggregate, step) and `aggregate` (what becomes of uploads).
Both loops call these: `ManifoldStrategy.start`, which repeats a failed round where the reply
policy says so, and Flower's own `Strategy.start`, in which a failed round raises. An algorithm with
several exchanges a round takes as many of Flower's rounds for one of its own.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar, Generic, Self, TypedDict, TypeVar, Unpack

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from manifed.algorithms.algorithm import ClientUpdate, ServerUpdate
from manifed.algorithms.payloads import Down, State
from manifed.errors import BudgetExhausted, ConfigError, RoundFailed
from manifed.federation.cohorts import Cohort, Everyone
from manifed.federation.exchange import Asked, Replies, ReplyPolicy
from manifed.federation.plan import Plan, RoundReport
from manifed.federation.rounds import Attempt, Course, Mean
from manifed.fields import Document
from manifed.flower.handshake import meet
from manifed.flower.records import MessageTransport, tensors_from_record, tensors_to_record
from manifed.manifolds.base import TOLERANCE, Manifold
from manifed.plan import plan as planned
from manifed.privacy.charging import Account, opened
from manifed.privacy.odometer import Odometer
from manifed.privacy.random_numbers import NoiseSource
from manifed.privacy.statement import Promise
from manifed.runs.statement import statement_of
from manifed.setting import Federation, NoPrivacy, Privacy, Setting

_Joint = TypeVar("_Joint", bound=ClientUpdate)


class Settings(TypedDict, total=False):
    """Keyword arguments of `ManifoldStrategy`; none has to be given."""

    num_examples: Sequence[int]
    """Public size of every client's shard: weights, and what prices use."""
    privacy: Privacy | None
    """What clients or the server protect, as in a config; the key of noise is ``source``'s."""
    ledger: str | Path | Account | None
    """A file that is not there yet, with ``privacy``; or the account of a run."""
    num_rounds: int | None
    """For Flower's own loop, which does not say how many rounds there will be."""
    replies: ReplyPolicy | None
    source: NoiseSource | None
    """A seeded one in tests; left out, it is keyed by the operating system."""
    plan: Plan | None
    """A run's plan, which is priced already; it takes the place of all arguments but ``ledger``."""
    cohort: Cohort | None
    """Left out, everyone: refused are others where an algorithm needs every client."""


class TrainingOnly(Strategy):
    """A strategy that asks no client to evaluate a model, because the answers are not noised."""

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sends nothing, because client-side evaluation would return un-noised numbers."""
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Aggregates nothing, because `configure_evaluate` sends nothing."""
        return None


class ManifoldStrategy(TrainingOnly):
    """Base of the strategies in `strategies/`, each a server update as a Flower strategy."""

    opens_sums: ClassVar[bool] = False
    """Whether it carries the exchanges of a secure sum."""
    _setting: Setting | None = None
    """What is not priced yet for all rounds; None: it is."""
    _wire: MessageTransport | None = None
    _course: Course | None = None
    _sent: tuple[int, Asked, list[Message]] | None = None
    """The round of Flower's, and the messages that wait for replies with what they ask."""
    _metrics: MetricRecord | None = None
    _report: RoundReport | None = None
    """The report of the round that the last replies ended."""
    _stopped: BudgetExhausted | None = None
    _exchange = 0
    _is_closed = False

    def __init__(
        self,
        manifold: Manifold,
        update: ClientUpdate,
        server_update: ServerUpdate,
        *,
        num_examples: Sequence[int] = (),
        cohort: Cohort | None = None,
        privacy: Privacy | None = None,
        ledger: str | Path | Account | None = None,
        num_rounds: int | None = None,
        replies: ReplyPolicy | None = None,
        source: NoiseSource | None = None,
        plan: Plan | None = None,
    ) -> None:
        """``num_examples`` are public: weights, and the sizes that prices use.

        ``manifold`` may be one of geoopt's that has a counterpart here.

        ``ledger`` is a file that is not there yet, or the account of a run, which whoever opened it
        closes. ``num_rounds`` is for Flower's own loop, which does not say how many rounds there
        will be; `start` does. ``source`` is a seeded one in tests; None is keyed by the operating
        system. A ``plan`` takes the place of all this but the ledger.

        Raises:
            ConfigError: for parts that do not go together, as a config refuses them.
        """
        if plan is None:
            if ledger is not None and privacy is None:
                raise ConfigError("ledger: expected privacy beside a ledger, got none")
            sizes = tuple(num_examples)
            if not sizes or min(sizes) < 1:
                raise ConfigError(
                    "num_examples: expected the public size, at least 1, of every client's shard, "
                    f"got {list(sizes[:5])}"
                )
            if privacy is not None and (privacy.trust is not None) != self.opens_sums:
                raise ConfigError(
                    "privacy.trust: expected 'secure-sum' with the strategy SecureMean and with no "
                    f"other, got {privacy.trust} with {type(self).__name__}"
                )
            if not isinstance(manifold, Manifold):
                from manifed.manifolds.of_geoopt import counterpart

                manifold = counterpart(manifold)
            self._setting = Setting(
                Federation(
                    num_clients=len(sizes),
                    num_rounds=num_rounds or 1,
                    cohort=cohort or Everyone(),
                    replies=replies or ReplyPolicy(),
                ),
                update,
                manifold,
                server_update,
                keyed_by(privacy, source),
            )
            if num_rounds is None and self._setting.privacy.noise.kind == "target":
                raise ConfigError(
                    f"num_rounds: expected it in the call of {type(self).__name__} with a target, "
                    "got none; the noise depends on it"
                )
            fresh = NoiseSource.from_os(precision=self._setting.privacy.noise_precision)
            plan = planned(self._setting, sizes, source=source or fresh)
        self._take(plan, ledger, num_rounds)

    @classmethod
    def of_plan(
        cls,
        plan: Plan,
        ledger: Account | None = None,
        num_rounds: int | None = None,
    ) -> Self:
        """The strategy of a plan, whatever else the constructor of a subclass asks for."""
        made = cls.__new__(cls)
        made._take(plan, ledger, num_rounds)
        return made

    def _take(
        self, plan: Plan, ledger: str | Path | Account | None, num_rounds: int | None
    ) -> None:
        """Begin before the first round of a plan."""
        self.plan = plan
        self._planned, self._ledger, self._open_files = num_rounds, ledger, ExitStack()
        self._account = ledger if isinstance(ledger, Account) else None
        self._timeout = plan.policy.timeout

    # -- what a strategy writes out ----------------------------------------------------------
    @abstractmethod
    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Returns the messages of the next exchange, of a round that is paid for."""

    @abstractmethod
    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Returns the model after the exchange whose messages `configure_train` made."""

    @abstractmethod
    def aggregate(self, now: Attempt, replies: Replies) -> Mean:
        """Returns one array for each field of the uploads that a round goes on with."""

    # -- what it writes that with ------------------------------------------------------------
    def opened(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Attempt | None:
        """Returns the attempt, its cohort drawn and charged; None if no budget pays for it.

        Nodes are met once. Messages whose replies were not aggregated are out of use: their round
        is begun, and charged, once more.

        Raises:
            ConfigError: for a ``config``, which no client would read.
        """
        if self._stopped is not None:
            return None
        _refuse("train_config", config)
        if self._wire is None or self._course is None:
            self._plan_for(self._planned)
            self._wire = self._wire or meet(grid, self.plan, self._timeout)
            self._begin_at(arrays)
        if self._sent is not None:
            self.course.now = self._sent = None
        try:
            return self.course.opened()
        except BudgetExhausted as budget:
            self._stopped = budget
            self.odometer.noise_origins |= budget.noise_origins
            log(30, "%s", budget)
            return None

    def messages(self, server_round: int, down: Down) -> list[Message]:
        """Makes a message for every client of the exchange; an evaluation is sent the model."""
        wire = self._wire
        asked = self.course.asked(down)
        assert wire is not None
        made = wire.messages(asked)
        self._sent = (server_round, asked, made)
        return made

    def read(self, server_round: int, replies: Iterable[Message]) -> Replies | None:
        """Returns the uploads that are readable, finite and in place; None if nobody was asked.

        An exchange is used once: its round was charged once.

        Raises:
            RoundFailed: without the messages of `configure_train`.
        """
        self._report = None
        if self._stopped is not None:
            return None
        made = self._sent
        self._sent = None
        course = self.course
        if course.now is None or self._wire is None or made is None or made[0] != server_round:
            course.now = None
            raise RoundFailed(f"Expected configure_train for round {server_round} first")
        return course.judged(self._wire.read(*made[1:], replies))

    def moved(self, replies: Replies | None) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Takes the step on what `aggregate` makes of the replies; returns model and metrics.

        Raises:
            RoundFailed: as `manifed.federation.rounds.run_rounds`.
        """
        report = None if replies is None else self.course.moved(replies, self.aggregate)
        self._report = report
        if report is None:
            return self.arrays(), None
        account = self._account
        if account is not None and not report.noise_origins <= account.odometer.noise_origins:
            account.note_origins(report.server_round, report.noise_origins)
        return self.arrays(), MetricRecord(
            {
                "server-round": report.server_round,
                "replies": len(report.participants),
                "failures": len(report.failures),
                "bytes-down": report.bytes_down,
                "bytes-up": report.bytes_up,
            }
        )

    # -- the loop ----------------------------------------------------------------------------
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
        """Runs all rounds up to ``num_rounds``, or as many as the budget pays, then `close`.

        Replies are waited for the shorter of ``timeout`` and the reply policy's.

        Raises:
            ConfigError: for a second run, or a config that no client would read.
        """
        _refuse("train_config", train_config)
        _refuse("evaluate_config", evaluate_config)
        self._timeout = min(timeout, self.plan.policy.timeout)
        self._plan_for(num_rounds)
        self._begin_at(initial_arrays)
        self.summary()
        result = Result()
        try:
            for report in self.rounds(grid, num_rounds):
                facts = self._metrics or MetricRecord()
                spent = self.promise.headline(self.odometer)
                if spent is not None:
                    facts["epsilon"] = spent
                result.train_metrics_clientapp[report.server_round] = facts
                told = evaluate_fn and evaluate_fn(report.server_round, self.arrays())
                if told is not None:
                    result.evaluate_metrics_serverapp[report.server_round] = told
        except BudgetExhausted:
            pass  # the last paid model stands
        finally:
            self.close()
        result.arrays = self.arrays()
        return result

    def rounds(self, grid: Grid, num_rounds: int) -> Iterator[RoundReport]:
        """Yields the rounds up to ``num_rounds``; a failed one is tried as the policy says.

        Raises:
            ConfigError: for a second run. Others as `manifed.federation.rounds.run_rounds`.
        """
        if self._wire is not None:
            raise ConfigError(
                f"{type(self).__name__}: expected one run per object, got a second, which would "
                "draw the noise of the first again; make a new object"
            )
        self._wire = meet(grid, self.plan, self._timeout)
        while self.course.round <= num_rounds:
            yield self.course.one_round(partial(self._exchanged, grid))

    def _exchanged(self, grid: Grid) -> RoundReport | None:
        """The report of the round that the next exchange ends; None where it goes on."""
        self._exchange += 1
        made = self.configure_train(self._exchange, ArrayRecord(), ConfigRecord(), grid)
        if self._stopped is not None:
            raise self._stopped
        _, self._metrics = self.aggregate_train(
            self._exchange, grid.send_and_receive(made, timeout=self._timeout)
        )
        if self._sent is not None:
            raise RoundFailed(f"Expected {type(self).__name__} to read replies, got none")
        return self._report

    def go_on_at(
        self,
        server_round: int,
        state: State,
        last_accepted: Mapping[int, int],
        attempts: Callable[[int], int] | None,
    ) -> None:
        """Continues at ``server_round``; arguments as `manifed.federation.rounds.Course`."""
        self._course = Course(self.plan, state, self.charge, server_round, attempts, last_accepted)

    @property
    def course(self) -> Course:
        """The state of the run between two exchanges.

        Raises:
            ConfigError: before there is a model to start from.
        """
        if self._course is None:
            raise ConfigError("initial_arrays: expected a point x to start from, got none")
        return self._course

    @property
    def state(self) -> State:
        """The server's state after the last round; errors as `course`."""
        return self.course.state

    def arrays(self) -> ArrayRecord:
        """The model after the last round."""
        return tensors_to_record(
            {"x": self.plan.server_update.model(self.course.state, self.plan.manifold)}
        )

    def _begin_at(self, arrays: ArrayRecord | None) -> None:
        """Start from ``arrays`` unless there is a state or they hold nothing.

        Raises:
            ConfigError: there is no x, or it does not lie on the manifold.
        """
        if self._course is not None or not arrays:
            return
        if "x" not in arrays:
            raise ConfigError(f"initial_arrays: expected an array 'x', got {list(arrays)[:5]}")
        x = tensors_from_record(arrays)["x"]
        within = TOLERANCE[x.dtype]
        defect = float(self.plan.manifold.membership_defect(x))
        if not defect <= within:
            raise ConfigError(
                f"initial_arrays: expected x on {self.plan.manifold.name} within {within:g}, got a "
                f"relative distance of {defect:.3g}"
            )
        self._course = Course(self.plan, self.plan.server_update.start(x), self.charge)

    def summary(self) -> None:
        """Prints nothing; a run prints its own facts."""

    # -- what is paid ------------------------------------------------------------------------
    @property
    def promise(self) -> Promise:
        """The promise of the run: its charges, its budget, and the adversaries it names."""
        return self.plan.promise

    def statement(self) -> Document:
        """The privacy statement so far, as data; clients declare where their noise came from."""
        return self.promise.statement(self.odometer, is_declared=True)

    @property
    def text(self) -> str:
        """The privacy statement so far, one fact per line."""
        return statement_of(self.statement())

    @property
    def odometer(self) -> Odometer:
        """The odometer of what is spent so far."""
        return self.promise.odometer() if self._account is None else self._account.odometer

    def close(self) -> None:
        """Settles and releases the ledger; call it after Flower's own loop."""
        self._open_files.close()
        self._is_closed = True

    def _plan_for(self, num_rounds: int | None) -> None:
        """Price an outsider for all planned draws, once (privacy/tariff.py says why).

        Raises:
            ConfigError: when cohorts are drawn and nobody said how many there will be.
        """
        if self._setting is None:
            return
        if num_rounds is None:
            promise = self.promise
            if promise.adversaries and (promise.terms.is_drawn or self.plan.last_priced):
                raise ConfigError(
                    f"num_rounds: expected it in the call of {type(self).__name__} under Flower's "
                    "own loop, got none; cohorts that may be drawn, and rounds that cost different "
                    "amounts, are priced ahead"
                )
        elif num_rounds != self._setting.federation.num_rounds:
            federation = self._setting.federation.model_copy(update={"num_rounds": num_rounds})
            setting = replace(self._setting, federation=federation)
            self.plan = planned(setting, self.plan.num_examples, source=self.plan.source)
        self._setting = None
        self._planned = num_rounds

    def charge(
        self,
        server_round: int,
        attempt: int,
        partitions: tuple[int, ...],
        offered: int | None = None,
    ) -> None:
        """Pays for an attempt before its messages leave, or for the sum that it opens next.

        Raises:
            BudgetExhausted: for the draw that the budget does not pay.
        """
        if isinstance(self._ledger, str | Path):
            if self._is_closed:
                raise ConfigError(
                    f"ledger: expected no round after close(), got round {server_round}; make a "
                    f"new {type(self).__name__} with a ledger of its own"
                )
            if self._account is None:
                header = {"config_sha256": self.plan.config_sha256}
                last = self._planned or 10**6
                self._account = self._open_files.enter_context(
                    opened(Path(self._ledger), self.promise, last_round=last, header=header)
                )
        elif self._account is None:
            self._account = Account(self.promise, odometer=self.promise.odometer())
        self._account.charge(server_round, attempt, partitions, offered)


class JointStrategy(ManifoldStrategy, Generic[_Joint]):
    """Base of strategies whose algorithm is client and server update in one."""

    def __init__(self, manifold: Manifold, update: _Joint, **settings: Unpack[Settings]) -> None:
        """Both sides must hold equal ``update``; `Settings` lists the other arguments.

        Raises:
            ConfigError: for parts that do not go together, as a config refuses them.
        """
        assert isinstance(update, ServerUpdate)
        super().__init__(manifold, update, update, **settings)


def _refuse(name: str, config: ConfigRecord | None) -> None:
    """Refuse what a caller would tell clients, who take nothing from a message but the payload.

    Raises:
        ConfigError: naming the argument.
    """
    if config:
        raise ConfigError(
            f"{name}: expected none, got {sorted(config)[:5]}; clients run their own update with "
            "their own privacy, and read no settings from a message"
        )


def keyed_by(privacy: Privacy | None, source: NoiseSource | None) -> Privacy:
    """Returns the privacy of your app with noise keyed by ``source``.

    Without a source that is the operating system's, whatever ``privacy.noise_source`` says.
    """
    if privacy is None or privacy.kind == "none":
        return privacy or NoPrivacy()
    origin = "os" if source is None else source.origin
    return privacy.model_copy(update={"noise_source": origin})
