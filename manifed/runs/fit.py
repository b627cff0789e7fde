"""The researcher's loop: rounds over one's own tensors, accounted as a run from a config is.

`federate` yields round after round; `fit` runs them all and keeps model, curves and statement.
"""

import hashlib
import json
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import ValidationError
from torch import Tensor

from manifed.algorithms.interface import ClientUpdate, ServerState, ServerUpdate, setup_phases_of
from manifed.algorithms.pair_masks import Masking
from manifed.algorithms.tangent_mean import TangentMean
from manifed.errors import BudgetExhausted, ConfigError, short
from manifed.experiment.assembly import release_source, seeded_source, starting_point
from manifed.experiment.limits import (
    AnyTraining,
    check_average,
    check_correlated,
    check_laplace,
    check_participation,
    check_private,
    check_sampling,
    check_statistic,
    check_steepness,
    server_update,
)
from manifed.experiment.privacy import client_mechanism, example_mechanism, promise_of, unit_of
from manifed.experiment.schema import (
    ClientLevel,
    Engine,
    Evaluation,
    ExampleLevel,
    Federation,
    NoPrivacy,
)
from manifed.federation.client import ClientSetup, ClientSide
from manifed.federation.cohorts import Cohort, Everyone, check_probabilities
from manifed.federation.plan import Plan, RoundReport
from manifed.federation.replies import ReplyPolicy
from manifed.federation.rounds import Charge, run_rounds
from manifed.federation.transport import MemoryTransport, Transport
from manifed.privacy.account import count_only, opened
from manifed.privacy.odometer import Odometer
from manifed.privacy.statement import Promise
from manifed.problems.base import Problem
from manifed.problems.starts import RandomStart
from manifed.runs import handed
from manifed.runs.handed import Shard
from manifed.runs.progress import watched
from manifed.runs.result import Result, Round
from manifed.runs.run_folder import with_label

Algorithm = ClientUpdate | tuple[ClientUpdate, ServerUpdate]
Evaluate = Callable[[Tensor], Mapping[str, float]]
Privacy = ExampleLevel | ClientLevel | None
Connect = Callable[[ClientSide], Transport]


def federate(
    problem: Problem,
    shards: Sequence[Shard],
    algorithm: Algorithm,
    *,
    rounds: int,
    privacy: Privacy = None,
    cohort: Cohort | None = None,
    seed: int = 0,
    start: Tensor | None = None,
    replies: ReplyPolicy | None = None,
    ledger: str | Path | None = None,
    transport: Connect = MemoryTransport,
) -> Iterator[Round]:
    """The rounds of a federation in this process, one by one.

    Arguments as `fit`.

    Raises:
        ConfigError: before round 1, for parts that do not go together or that nothing prices.
        BudgetExhausted: for a round that the budget does not pay; the rounds before stand.
        RoundFailed: as `manifed.federation.rounds.run_round`.
    """
    run = _prepared(
        problem, shards, algorithm, rounds, privacy, cohort, seed, start, replies, ledger, transport
    )
    return (found for found, _ in run.rounds())


def fit(
    problem: Problem,
    shards: Sequence[Shard],
    algorithm: Algorithm,
    *,
    rounds: int,
    privacy: Privacy = None,
    cohort: Cohort | None = None,
    seed: int = 0,
    start: Tensor | None = None,
    replies: ReplyPolicy | None = None,
    ledger: str | Path | None = None,
    transport: Connect = MemoryTransport,
    evaluate: Evaluate | None = None,
    is_evaluation_public: bool = False,
    progress: bool | None = None,
) -> Result:
    """All rounds of `federate`, and what came of them; errors as there.

    A budget that runs out ends the fit in good order.

    Args:
        problem: what is minimised, and on which manifold.
        shards: one entry a client: Examples, a dict of tensors, or a tensor that the problem knows
            as "z"; each tensor of shape (n, *feature).
        algorithm: a client update and a server update, or one object that is both (a client update
            alone goes with the tangent mean).
        rounds: how many.
        privacy: the frozen object of a config: it is priced, and each cohort draw passes its
            budget. None protects nobody.
        cohort: who takes part in a round; None is everyone.
        seed: of a seeded run, and of the random starting point.
        start: x^(0); None is a random point of ``seed``.
        replies: when a round goes on without everybody.
        ledger: a file that is not there yet: each charge is on it before the clients are asked.
        transport: how clients are reached; one after the other in this process.
        evaluate: maps a model to named numbers for the curves; what it computes from private data
            is no part of the release, and the statement says so.
        is_evaluation_public: whether ``evaluate`` computes from public data alone.
        progress: whether a line on standard error follows the rounds; None: in a notebook and on a
            terminal.
    """
    run = _prepared(
        problem, shards, algorithm, rounds, privacy, cohort, seed, start, replies, ledger, transport
    )
    curves: dict[str, list[float | None]] = {}
    state, odometer, origins, stopped = run.state, run.promise.odometer(), frozenset[str](), None
    try:
        with watched(rounds, is_shown=progress) as show:
            for found, spent in run.rounds():
                state, (odometer, new) = found.state, spent
                origins |= new
                row: dict[str, float | None] = {
                    "round": found.server_round,
                    "epsilon": found.spending,
                    "participants": len(found.participants),
                    "failures": len(found.failures),
                    **(evaluate(found.model) if evaluate is not None else {}),
                }
                for name, value in row.items():
                    curves.setdefault(name, []).append(value)
                word = run.promise.label(origins, is_charged=odometer.rounds_counted > 0)
                show(found.server_round, with_label(row, word))
    except BudgetExhausted as budget:
        stopped = str(budget)
        origins |= budget.noise_origins
    has_oracle = evaluate is not None and not is_evaluation_public
    statement = run.promise.statement(odometer, noise_origins=origins, has_oracle=has_oracle)
    model = run.plan.server_update.output(state, run.plan.manifold)
    return Result(model, curves, statement, stopped)


_UNSEEN, _HERE = Evaluation(is_enabled=False), Engine()


@dataclass(frozen=True)
class _Arguments:
    """What decides mechanisms and price, as a `Setting`."""

    federation: Federation
    training: ClientUpdate
    server_update: ServerUpdate
    privacy: NoPrivacy | ExampleLevel | ClientLevel
    evaluation: Evaluation = _UNSEEN
    engine: Engine = _HERE
    is_at_sites: bool = False
    has_all_data: bool = True

    def sha256(self) -> str:
        """Hash of everything that decides the trajectory, problem and data aside."""
        said = [repr(self.federation), repr(self.training), repr(self.server_update)]
        return hashlib.sha256(json.dumps([*said, repr(self.privacy)]).encode()).hexdigest()


@dataclass(frozen=True)
class _Prepared:
    """A federation before its first round."""

    plan: Plan
    state: ServerState
    promise: Promise
    transport: Transport
    num_rounds: int
    ledger: str | Path | None

    def rounds(self) -> Generator[tuple[Round, tuple[Odometer, frozenset[str]]], None, None]:
        """Each round with the odometer after it and where its noise came from."""
        server, manifold = self.plan.server_update, self.plan.manifold
        with self._charging() as (charge, odometer, note):
            reports = run_rounds(
                self.plan, self.state, self.transport, charge, num_rounds=self.num_rounds
            )
            for report in reports:
                note(report)
                found = Round(
                    report.server_round,
                    report.state,
                    server.model(report.state, manifold),
                    self.promise.headline(odometer),
                    report.participants,
                    {i: failure.text for i, failure in report.failures.items()},
                )
                yield found, (odometer, report.noise_origins)

    @contextmanager
    def _charging(
        self,
    ) -> Generator[tuple[Charge, Odometer, Callable[[RoundReport], None]], None, None]:
        """How an attempt is charged, what counts it, and what is told of each round."""
        if self.ledger is None:
            odometer = self.promise.odometer()
            yield partial(count_only, self.promise, odometer), odometer, lambda _: None
            return
        header = {"config_sha256": self.plan.config_sha256}
        with opened(
            Path(self.ledger), self.promise, last_round=self.num_rounds, header=header
        ) as account:

            def note(report: RoundReport) -> None:
                account.note_origins(report.server_round, report.noise_origins)

            yield account.charge, account.odometer, note


def _prepared(
    problem: Problem,
    shards: Sequence[Shard],
    algorithm: Algorithm,
    rounds: int,
    privacy: Privacy,
    cohort: Cohort | None,
    seed: int,
    start: Tensor | None,
    replies: ReplyPolicy | None,
    ledger: str | Path | None,
    transport: Connect,
) -> _Prepared:
    examples = handed.examples_of(problem, shards)
    client, server = _updates(algorithm)
    try:
        federation = Federation(
            num_clients=len(examples),
            num_rounds=rounds,
            seed=seed,
            cohort=cohort or Everyone(),
            replies=replies or ReplyPolicy(),
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = {"num_rounds": "rounds"}.get(str(first["loc"][0]), first["loc"][0])
        raise ConfigError(f"{field}: {first['msg']}, got {short(first['input'])}") from None
    setting = _Arguments(federation, client, server, privacy or NoPrivacy())
    _check_parts(setting, problem)
    sizes = tuple(len(shard) for shard in examples)
    shape, manifold = handed.point_shape(problem, examples[0]), problem.manifold
    if start is None:
        x = starting_point(RandomStart(), manifold, shape, seed)
    else:
        x = handed.check_start(problem, start, shape)
    handed.check_computed(problem, x, examples[0])
    setup = ClientSetup(problem, client, example_mechanism(setting, sizes))
    source = seeded_source(setting)
    side = ClientSide(
        setup, examples, shape, source, partial(release_source, setting), x.dtype,
        rate=federation.cohort.expected_size(len(examples)) / len(examples),
        unit=unit_of(setting),
    )  # fmt: skip
    plan = Plan(
        server_update=server,
        manifold=manifold,
        phases=client.phases,
        setup_phases=setup_phases_of(client),
        cohort=federation.cohort,
        policy=federation.replies,
        source=source or release_source(setting),
        num_examples=sizes,
        config_sha256=setting.sha256(),
        mechanism=client_mechanism(setting),
        needs_everyone=server.needs_everyone,
    )
    promise = promise_of(setting, sizes)
    return _Prepared(plan, server.initial(x), promise, transport(side), rounds, ledger)


def _updates(algorithm: Algorithm) -> tuple[ClientUpdate, ServerUpdate]:
    """Client and server update; a tangent mean moves by the maps of the client's."""
    if isinstance(algorithm, tuple):
        client, server = algorithm
        if not isinstance(server, TangentMean):
            return client, server
        return client, server_update(client, server)
    return algorithm, server_update(algorithm, None)


def _check_parts(setting: _Arguments, problem: Problem) -> None:
    """Refuse a mechanism that nothing charges for, and a cohort the algorithm cannot go with.

    Raises:
        ConfigError: naming the field and what works instead.
    """
    privacy, client, cohort = setting.privacy, setting.training, setting.federation.cohort
    if isinstance(client, Masking):
        raise ConfigError(
            f"algorithm: {client.kind!r} adds masks that nodes agree on, which a config prices "
            "(privacy.kind = 'correlated'); run it from a config"
        )
    fields = sum(len(phase.up.names()) for phase in client.phases)
    if privacy.kind == "client-level" and fields > 1:
        raise ConfigError(
            "privacy.kind: 'client-level' noises one array a client and round, got an algorithm "
            f"that uploads {fields}; use 'example-level'"
        )
    rule = privacy.noise if privacy.kind == "example-level" else None
    if rule is not None and rule.kind == "target" and rule.adversary == "client-level":
        raise ConfigError(
            "privacy.noise.adversary: 'client-level' needs ClientLevel, got ExampleLevel"
        )
    if setting.server_update.needs_everyone and cohort.kind != "all":
        raise ConfigError(
            f"cohort: {client.kind!r} needs every client in every round, got {cohort.kind!r}"
        )
    server = setting.server_update
    if privacy.kind == "client-level" and not type(server).__module__.startswith("manifed."):
        raise ConfigError(
            "privacy.kind: 'client-level' needs a server update of the library, got "
            f"{type(server).__name__}, which may read un-noised uploads; use 'example-level'"
        )
    try:
        check_statistic(client, problem, type(problem).__name__)
        check_probabilities(cohort, setting.federation.num_clients)
        check_participation(client, privacy.kind, cohort, setting.federation.num_clients)
        check_steepness(client, problem, type(problem).__name__)
        check_average(server, setting.federation.num_rounds, problem.manifold)
        if privacy.kind != "none":
            check_private(client, privacy.kind, privacy.noise.kind)
            check_correlated(client, privacy.kind, cohort)
        if privacy.kind == "example-level" and isinstance(client, AnyTraining):
            check_sampling(client, privacy.neighboring_relation, privacy.l2_norm_clip)
            check_laplace(client, privacy.l1_norm_clip)
        if privacy.kind == "client-level":
            setting.federation.replies.check_client_level()
    except ValueError as error:
        raise ConfigError(str(error)) from None
