"""Rounds over one's own tensors or torch module, in this process, accounted as those of a config.

`federate` yields round after round; `fit` runs them all and keeps model, curves and statement.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from manifed.algorithms.broadcast import BadBroadcast, check_point
from manifed.algorithms.tangent_mean import TangentMean
from manifed.errors import BudgetExhausted, ConfigError, one_line, short
from manifed.experiment.assembly import starts
from manifed.federation.client import ClientSetup, ClientSide
from manifed.federation.cohorts import Cohort, Everyone
from manifed.federation.replies import ReplyPolicy
from manifed.federation.rounds import run_rounds
from manifed.federation.stack import StackTransport, Transport
from manifed.plan import plan
from manifed.privacy.account import Account, opened
from manifed.problems.examples import KEY, Examples
from manifed.problems.module_checks import NotPrivate
from manifed.problems.module_problem import Loss
from manifed.problems.problem import InvalidRecord, Problem
from manifed.runs.folder import with_label
from manifed.runs.progress import is_screen, shown
from manifed.runs.result import Result, Round
from manifed.setting import Federation, NoPrivacy, Privacy, Setting
from manifed.torch import Algorithm, Metric, Site, task_of

_Shard = Examples | Tensor | Mapping[str, Tensor]
_Evaluate = Callable[[Tensor], Mapping[str, float]]
_Connect = Callable[[ClientSide], Transport]


def federate(
    problem: Problem,
    shards: Sequence[_Shard],
    algorithm: Algorithm,
    *,
    rounds: int,
    privacy: Privacy | None = None,
    cohort: Cohort | None = None,
    seed: int = 0,
    start: Tensor | None = None,
    replies: ReplyPolicy | None = None,
    ledger: str | Path | None = None,
    transport: _Connect = StackTransport,
) -> Iterator[Round]:
    """The rounds of a federation in this process, one by one.

    Arguments as `fit`.

    Raises:
        ConfigError: before round 1, for parts that do not go together or that nothing prices.
        BudgetExhausted: for a round that the budget does not pay; the rounds before stand.
        RoundFailed: as `manifed.federation.rounds.run_rounds`.
    """
    return _Run(
        problem, shards, algorithm, rounds, privacy, cohort, seed, start, replies, ledger, transport
    ).rounds()


def fit(
    problem: Problem | None = None,
    shards: Sequence[_Shard] = (),
    algorithm: Algorithm | None = None,
    *,
    model: nn.Module | None = None,
    sites: Sequence[Site] = (),
    loss: str | Loss | None = None,
    rounds: int | None = None,
    privacy: Privacy | None = None,
    step_size: float | None = None,
    local_steps: int | None = None,
    batch_size: float | None = None,
    strategy: TangentMean | None = None,
    test: Site | None = None,
    metrics: Mapping[str, Metric] | None = None,
    clip_shares: Mapping[str, float] | None = None,
    compute: Literal["float64", "float32"] | None = None,
    cohort: Cohort | None = None,
    seed: int = 0,
    start: Tensor | None = None,
    replies: ReplyPolicy | None = None,
    ledger: str | Path | None = None,
    transport: _Connect | None = None,
    evaluate: _Evaluate | None = None,
    progress: bool | None = None,
) -> Result:
    """All rounds of a federation in this process, and what came of them.

    ``fit(problem, shards, algorithm, rounds=...)`` minimises a problem of manifed's;
    ``fit(model=..., sites=...)`` trains a copy of a torch module and leaves its ``state_dict`` too
    (`manifed.torch`). A budget that runs out ends the fit in good order.

    Args:
        problem: what is minimised, and on which manifold.
        shards: one entry a client: Examples, a dict of tensors, or a tensor that the problem knows
            as "z"; each tensor of shape (n, *feature).
        algorithm: a client update and a server update, or one object that is both (a client update
            alone goes with the tangent mean). With a module, None is Riemannian SGD.
        model: a module; its parameters are the start, and public.
        sites: each site's (feature, label) pairs: a data set, two tensors, or a dict of the two.
        loss: "cross-entropy" (that of None), "mse", or a function of an output (1, *) and a label.
        rounds: how many; with a module, None is 30.
        privacy: ``ExampleLevel(epsilon=2, delta=1e-5)``, or the frozen object of a config: it is
            priced, and each cohort draw passes its budget. None protects nobody.
        step_size: of each local step on a module; None is 1.
        local_steps: between two rounds on a module; None is 1.
        batch_size: expected size of a batch of a module's examples; None is 64.
        strategy: the server's part where a module has no algorithm: ``TangentMean(momentum=0.9)``,
            momentum, an average, step sizes by the round; None is the plain tangent mean.
        test: public examples, on which a module is judged after every round.
        metrics: further columns of the curves: functions of outputs and labels of ``test``.
        clip_shares: groups of a module's parameters that are clipped by themselves, by prefixes of
            their names; the price is that of one clip.
        compute: what a module computes in; None is "float64".
        cohort: who takes part in a round; None is everyone.
        seed: of a seeded run, and of the random starting point.
        start: x^(0); None is a random point of ``seed``, or the parameters of the module.
        replies: when a round goes on without everybody.
        ledger: a file that is not there yet: each charge is on it before the clients are asked.
        transport: how clients are reached; None is one after the other in this process, and with
            a module a whole cohort at once.
        evaluate: maps a model to named numbers for the curves; what it computes from private data
            is no part of the release, and the statement says so.
        progress: whether a line on standard error follows the rounds; None: in a notebook and on a
            terminal.

    Raises:
        ConfigError: before round 1, for parts that do not go together or that nothing prices.
        NotPrivate: a module lets examples meet.
        RoundFailed: as `manifed.federation.rounds.run_rounds`.
    """
    of_modules = {
        "loss": loss, "step_size": step_size, "local_steps": local_steps, "batch_size": batch_size,
        "strategy": strategy, "test": test, "metrics": metrics, "clip_shares": clip_shares,
        "compute": compute,
    }  # fmt: skip
    given: dict[str, Any] = {k: value for k, value in of_modules.items() if value is not None}
    task, way = None, StackTransport
    if model is not None:
        if problem is not None or shards or (evaluate is not None and test is not None):
            said = _named(model=model, problem=problem, shards=shards, evaluate=evaluate, test=test)
            raise ConfigError(
                "fit: model= goes with sites= alone, and with one of test= and evaluate=; got "
                f"{said}"
            )
        task = task_of(model, sites, algorithm, **given)
        problem, shards, algorithm = task.problem, task.shards, task.algorithm
        rounds = 30 if rounds is None else rounds
        start, evaluate = task.problem.start if start is None else start, task.judge or evaluate
        way = partial(StackTransport, at_once=None, memory_budget_mb=1024)
    elif given or sites or problem is None or algorithm is None or rounds is None:
        raise ConfigError(
            "fit: expected a problem, shards, an algorithm and rounds, or model= and sites=; "
            f"got {_named(problem=problem, algorithm=algorithm, rounds=rounds, **given)}"
        )
    assert problem is not None
    assert algorithm is not None
    assert rounds is not None
    connect = transport or way
    run = _Run(
        problem, shards, algorithm, rounds, privacy, cohort, seed, start, replies, ledger, connect
    )
    curves: dict[str, list[float | None]] = {}
    promise, stopped = run.plan.promise, None
    try:
        is_shown = is_screen() if progress is None else progress
        line = shown(rounds, is_rewritten=True, is_of_all=True)
        with line if is_shown else nullcontext(lambda *_: None) as show:
            for found in run.rounds():
                row: dict[str, float | None] = {
                    "round": found.server_round,
                    "epsilon": found.spending,
                    "participants": len(found.participants),
                    "failures": len(found.failures),
                    **(evaluate(found.model) if evaluate is not None else {}),
                }
                for name, value in row.items():
                    curves.setdefault(name, []).append(value)
                word = promise.label(run.origins, is_charged=run.odometer.rounds_counted > 0)
                show(found.server_round, with_label(row, word))
    except BudgetExhausted as budget:
        stopped = str(budget)
        run.origins |= budget.noise_origins
    statement = promise.statement(
        run.odometer,
        noise_origins=run.origins,
        has_oracle=evaluate is not None and test is None,
    )
    x = run.plan.server_update.output(run.state, run.plan.manifold)
    result = Result(x, curves, statement, stopped)
    return result if task is None else replace(result, state_dict=task.problem.state_dict(x))


def _named(**arguments: object) -> str:
    """The names of what was given."""
    return ", ".join(k for k, v in arguments.items() if v is not None and v != ()) or "nothing"


class _Run:
    """A federation, and what became of it so far."""

    def __init__(
        self,
        problem: Problem,
        shards: Sequence[_Shard],
        algorithm: Algorithm,
        rounds: int,
        privacy: Privacy | None,
        cohort: Cohort | None,
        seed: int,
        start: Tensor | None,
        replies: ReplyPolicy | None,
        ledger: str | Path | None,
        transport: _Connect,
    ) -> None:
        """All is judged before a ledger is made; arguments as `fit`."""
        examples = _examples_of(problem, shards)
        client, server = algorithm if isinstance(algorithm, tuple) else (algorithm, None)
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
        setting = Setting(
            federation, client, problem.manifold, server, privacy or NoPrivacy(), problem=problem
        )
        self.plan = plan(setting, tuple(map(len, examples)))
        with _computing(problem, examples[0]):
            shape = tuple(problem.point_shape(examples[0]))
        if start is None:
            x = problem.manifold.random(*shape, generator=starts(seed))
        else:
            x = _check_start(problem, start, shape)
        _check_computed(problem, x, examples[0])
        self._transport = transport(
            ClientSide(
                ClientSetup(problem, client, self.plan.client_mechanism),
                examples,
                shape,
                setting.client_source,
                x.dtype,
                rate=federation.cohort.expected_size(len(examples)) / len(examples),
                unit=setting.privacy.unit,
            )
        )
        self.state, self._num_rounds, self._ledger = (
            self.plan.server_update.start(x),
            rounds,
            ledger,
        )
        self.odometer = self.plan.promise.odometer()
        self.origins: frozenset[str] = frozenset()
        """Where its noise came from."""

    def rounds(self) -> Iterator[Round]:
        """Each round, charged before its clients are asked."""
        plan, last = self.plan, self._num_rounds
        charging = nullcontext(Account(plan.promise, odometer=self.odometer))
        if self._ledger is not None:
            header = {"config_sha256": plan.config_sha256}
            charging = opened(Path(self._ledger), plan.promise, last_round=last, header=header)
        with charging as account:
            self.odometer = account.odometer
            for report in run_rounds(
                plan, self.state, self._transport, account.charge, num_rounds=last
            ):
                account.note_origins(report.server_round, report.noise_origins)
                self.state, self.origins = report.state, self.origins | report.noise_origins
                yield Round(
                    report.server_round,
                    report.state,
                    plan.server_update.model(report.state, plan.manifold),
                    plan.promise.headline(self.odometer),
                    report.participants,
                    {i: failure.text for i, failure in report.failures.items()},
                )


# -- what a fit is handed, judged before a ledger is made or a round is charged -----------------
@contextmanager
def _computing(problem: Problem, examples: Examples) -> Generator[None, None, None]:
    """Say of what a problem, which may be somebody's own, raises that its examples do not fit."""
    try:
        yield
    except (ConfigError, InvalidRecord, NotPrivate, ArithmeticError):
        raise
    except Exception as error:
        said = one_line(f"{type(error).__name__}: {error}", 200)
        raise ConfigError(
            f"shards: expected examples that {type(problem).__name__} can be computed for, got "
            f"shapes {_shapes(examples)}: {said}"
        ) from None


def _examples_of(problem: Problem, shards: Sequence[_Shard]) -> tuple[Examples, ...]:
    """Each client's examples: of one kind, and such that ``problem`` can be computed for them.

    Raises:
        ConfigError: naming client and record, or the columns.
        NotPrivate: a module lets examples meet.
    """
    if not isinstance(shards, Sequence | Tensor):
        raise ConfigError(f"shards: expected one entry a client, got {type(shards).__name__}")
    found = tuple(_examples(i, shard) for i, shard in enumerate(shards))
    if not found or not all(map(len, found)):
        sizes = [len(shard) for shard in found]
        raise ConfigError(f"shards: expected at least one example a client, got sizes {sizes}")
    for i, shard in enumerate(found):
        if _shapes(shard) != _shapes(found[0]):
            raise ConfigError(
                f"shards: client {i}: expected examples of {_shapes(found[0])} like client 0's, "
                f"got {_shapes(shard)}"
            )
        try:
            with _computing(problem, shard):
                _check_records(problem, shard)
        except (InvalidRecord, ArithmeticError) as error:
            raise ConfigError(f"shards: client {i}, {error}; mend or remove the record") from None
    return found


def _check_start(problem: Problem, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The point x^(0) as it is handed in, without what it was computed from.

    Raises:
        ConfigError: no point of the problem's manifold, of ``shape``.
    """
    if not _is_dense(x) or x.dtype not in (torch.float64, torch.float32):
        raise ConfigError(
            f"start: expected a dense tensor of float64 or float32, got {_described(x)}"
        )
    if tuple(x.shape) != shape:
        raise ConfigError(
            f"start: expected shape {shape}, that of a point for these shards, got {tuple(x.shape)}"
        )
    try:
        check_point("a point", x.detach(), problem.manifold)
    except BadBroadcast as error:
        raise ConfigError(f"start: {error}") from None
    return x.detach()


def _check_computed(problem: Problem, x: Tensor, examples: Examples) -> None:
    """Try the gradient of one example at ``x``.

    What fails by the example's numbers alone (an `ArithmeticError`) is left to the oracle.

    Raises:
        ConfigError: it cannot be computed, or is no vector at x.
    """
    one = examples.take(torch.zeros(1, dtype=torch.long)).to(x.dtype)
    one = one.beside(KEY, torch.zeros(1, dtype=torch.float64)) if problem.needs_keys else one
    with suppress(ArithmeticError), _computing(problem, examples):
        gradients = problem.gradients(x, one)
        found = gradients.sum(torch.ones_like(gradients.norms))
        if found.shape != x.shape:
            raise ConfigError(
                f"problem: expected gradients of the shape of a point, {tuple(x.shape)}, got "
                f"{tuple(found.shape)}"
            )


def _examples(client: int, shard: _Shard) -> Examples:
    """A client's examples, real numbers in float64; each tensor has shape (n, *feature)."""
    if not isinstance(shard, Examples | Tensor | Mapping):
        raise ConfigError(
            f"shards: client {client}: expected Examples, a tensor or a dict of tensors, got "
            f"{type(shard).__name__}"
        )
    tensors = {"z": shard} if isinstance(shard, Tensor) else shard
    tensors = tensors.tensors if isinstance(tensors, Examples) else tensors
    for name, tensor in tensors.items():
        if not _is_dense(tensor) or tensor.dim() == 0:
            raise ConfigError(
                f"shards: client {client}, {name!r}: expected a dense tensor of real numbers, "
                f"shape (n, *feature), got {_described(tensor)}"
            )
    try:
        found = shard if isinstance(shard, Examples) else Examples.of_columns(dict(tensors))
    except ValueError as error:
        raise ConfigError(f"shards: client {client}: {error}") from None
    return found.to(torch.float64)


def _check_records(problem: Problem, shard: Examples) -> None:
    """Refuse data that nothing may be computed from.

    Raises:
        InvalidRecord: naming the record.
    """
    for name, tensor in shard.tensors.items() if shard.stream is None else ():
        is_finite = torch.isfinite(tensor).reshape(len(shard), -1).all(-1)
        if not bool(is_finite.all()):
            first = int((~is_finite).nonzero()[0])
            raise InvalidRecord(f"record {first}: expected finite entries of {name!r}, got others")
    problem.check_records(shard)


def _shapes(examples: Examples) -> dict[str, tuple[int, ...]]:
    """The shapes of one example's tensors, by their names."""
    ndim = examples.feature_ndim
    return {k: tuple(t.shape[t.dim() - ndim[k] :]) for k, t in sorted(examples.tensors.items())}


def _is_dense(value: object) -> bool:
    return (
        isinstance(value, Tensor)
        and value.layout == torch.strided
        and not (value.is_meta or value.is_complex())
    )


def _described(value: object) -> str:
    if not isinstance(value, Tensor):
        return type(value).__name__
    kind = "meta" if value.is_meta else f"{value.layout}".removeprefix("torch.")
    return f"{value.dtype} of shape {tuple(value.shape)} ({kind})"
