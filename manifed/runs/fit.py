"""`fit` and `federate`: rounds in this process over one's own tensors or torch module.

`federate` yields round after round; `fit` runs them all and keeps model, curves and statement.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from manifed.algorithms.payloads import BadBroadcast, State, check_point
from manifed.algorithms.tangent_mean import TangentMean
from manifed.durable import write_atomically
from manifed.errors import BudgetExhausted, ConfigError, one_line, short
from manifed.experiment.assembly import starts
from manifed.federation.client import ClientSetup, ClientSide
from manifed.federation.cohorts import Cohort, Everyone
from manifed.federation.exchange import ReplyPolicy, Transport
from manifed.federation.plan import Plan
from manifed.federation.rounds import run_rounds
from manifed.federation.stack import StackTransport
from manifed.plan import plan
from manifed.privacy.account import Account, opened
from manifed.problems.examples import KEY, Examples
from manifed.problems.module_checks import NotPrivate
from manifed.problems.module_problem import Loss
from manifed.problems.problem import InvalidRecord, Problem, require
from manifed.runs.folder import RunFolder, encode, with_label
from manifed.runs.progress import is_screen, shown
from manifed.runs.statement import label_in, statement_of
from manifed.setting import Federation, NoPrivacy, Privacy, Setting
from manifed.torch import Algorithm, Metric, Site, task_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_Shard = Examples | Tensor | Mapping[str, Tensor]
_Connect = Callable[[ClientSide], Transport]


@dataclass(frozen=True)
class Round:
    """The facts known after one round of `federate`."""

    server_round: int
    state: State
    model: Tensor
    spending: float | None
    """Epsilon so far against the first adversary of the statement; None without privacy."""
    participants: tuple[int, ...]
    failures: Mapping[int, str]


@dataclass(frozen=True)
class Result:
    """The result of `fit`: model, rounds and statement."""

    model: Tensor
    curves: Mapping[str, list[float | None]]
    """One entry a round: "round", "epsilon", "participants", "failures", and what was evaluated."""
    statement: Mapping[str, Any]
    """The privacy statement as data; `text` prints it."""
    stopped: str | None = None
    """Why there are fewer rounds than were asked for: a budget that ran out."""
    state_dict: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    """The parameters of a torch module for its ``load_state_dict``; empty for another problem."""

    @property
    def text(self) -> str:
        """The privacy statement, one fact a line."""
        return statement_of(self.statement)

    def plot(self) -> "Figure":
        """Draws a matplotlib figure of what was evaluated, and epsilon, round by round."""
        from manifed.runs.report import figure_of

        return figure_of(self.curves, self.statement)

    def save(self, folder: str | Path) -> Path:
        """Writes model.safetensors, metrics.csv and statement.json into a new or empty folder.

        Raises:
            OSError: when the folder is taken or cannot be written.
        """
        made = RunFolder.claim(Path(folder))
        label = label_in(self.statement)
        for values in zip(*self.curves.values(), strict=True):
            made.append_metrics(with_label(dict(zip(self.curves, values, strict=True)), label))
        made.save_tensors("model", {"x": self.model})
        write_atomically(
            made.directory / "statement.json", encode({**self.statement, "stopped": self.stopped})
        )
        return made.directory


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
    """Yields the rounds of a federation in this process, one by one.

    All is judged before a ledger is made. Arguments as `fit`.

    Raises:
        ConfigError: before round 1, for parts that do not go together or that nothing prices.
        BudgetExhausted: for a round that the budget does not pay; the rounds before stand.
        RoundFailed: as `manifed.federation.rounds.run_rounds`.
    """
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
        name = str(first["loc"][0]).removeprefix("num_")
        raise ConfigError(f"{name}: {first['msg']}, got {short(first['input'])}") from None
    setting = Setting(
        federation, client, problem.manifold, server, privacy or NoPrivacy(), problem=problem
    )
    made = plan(setting, tuple(map(len, examples)))
    with _computing(problem, examples[0]):
        shape = tuple(problem.point_shape(examples[0]))
    x = _start(problem, start, shape, seed)
    _check_computed(problem, x, examples[0])
    side = ClientSide(
        ClientSetup(problem, client, made.client_mechanism),
        examples,
        shape,
        setting.source(),
        x.dtype,
        rate=federation.cohort.expected_size(len(examples)) / len(examples),
        unit=setting.privacy.unit,
    )
    return _Rounds(made, x, transport(side), rounds, ledger)


class _Rounds(Iterator[Round]):
    """The rounds of a federation, each charged before its clients are asked; what came of them."""

    def __init__(
        self, plan: Plan, x: Tensor, transport: Transport, last: int, ledger: str | Path | None
    ) -> None:
        self.plan, self.state = plan, plan.server_update.start(x)
        self.account = Account(plan.promise)
        self._made = self._rounds(transport, last, ledger)
        self.close = self._made.close

    def __next__(self) -> Round:
        return next(self._made)

    def _rounds(
        self, transport: Transport, last: int, ledger: str | Path | None
    ) -> Generator[Round]:
        plan = self.plan
        charging = nullcontext(self.account)
        if ledger is not None:
            charging = opened(
                Path(ledger),
                plan.promise,
                last_round=last,
                header={"config_sha256": plan.config_sha256},
            )
        with charging as self.account:
            for report in run_rounds(
                plan, self.state, transport, self.account.charge, num_rounds=last
            ):
                self.account.note_origins(report.server_round, report.noise_origins)
                self.state = report.state
                yield Round(
                    report.server_round,
                    report.state,
                    plan.server_update.model(report.state, plan.manifold),
                    plan.promise.headline(self.account.odometer),
                    report.participants,
                    {i: failure.text for i, failure in report.failures.items()},
                )


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
    compute: Literal["float64", "float32"] | None = None,
    cohort: Cohort | None = None,
    seed: int = 0,
    start: Tensor | None = None,
    replies: ReplyPolicy | None = None,
    ledger: str | Path | None = None,
    transport: _Connect | None = None,
    evaluate: Callable[[Tensor], Mapping[str, float]] | None = None,
    progress: bool | None = None,
) -> Result:
    """Runs all rounds of a federation in this process, and returns model and statement.

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
        "strategy": strategy, "test": test, "metrics": metrics, "compute": compute,
    }  # fmt: skip
    given: dict[str, Any] = {k: value for k, value in of_modules.items() if value is not None}
    task = None
    way = StackTransport
    if model is not None:
        if problem is not None or shards or (evaluate is not None and test is not None):
            raise ConfigError(
                "fit: model= goes with sites= alone, and with one of test= and evaluate=; got "
                + _named(model=model, problem=problem, shards=shards, evaluate=evaluate, test=test)
            )
        task = task_of(model, sites, algorithm, **given)
        problem = task.problem
        shards = task.shards
        algorithm = task.algorithm
        rounds = 30 if rounds is None else rounds
        start = task.problem.start if start is None else start
        evaluate = task.judge or evaluate
        way = partial(StackTransport, at_once=None, memory_budget_mb=1024)
    elif given or sites or problem is None or algorithm is None or rounds is None:
        raise ConfigError(
            "fit: expected a problem, shards, an algorithm and rounds, or model= and sites=; "
            f"got {_named(problem=problem, algorithm=algorithm, rounds=rounds, **given)}"
        )
    run = federate(
        problem, shards, algorithm, rounds=rounds, privacy=privacy, cohort=cohort, seed=seed,
        start=start, replies=replies, ledger=ledger, transport=transport or way,
    )  # fmt: skip
    assert isinstance(run, _Rounds)
    curves: dict[str, list[float | None]] = {}
    promise = run.plan.promise
    stopped = None
    is_shown = is_screen() if progress is None else progress
    line = shown(rounds, is_rewritten=True, is_of_all=True) if is_shown else nullcontext()
    try:
        with closing(run), line as show:
            for found in run:
                row: dict[str, float | None] = {
                    "round": found.server_round,
                    "epsilon": found.spending,
                    "participants": len(found.participants),
                    "failures": len(found.failures),
                    **({} if evaluate is None else evaluate(found.model)),
                }
                for name, value in row.items():
                    curves.setdefault(name, []).append(value)
                if show:
                    show(found.server_round, with_label(row, promise.label(run.account.odometer)))
    except BudgetExhausted as budget:
        stopped = str(budget)
        run.account.odometer.noise_origins |= budget.noise_origins
    x = run.plan.server_update.output(run.state, run.plan.manifold)
    return Result(
        x,
        curves,
        promise.statement(run.account.odometer, has_oracle=evaluate is not None and test is None),
        stopped,
        task.problem.state_dict(x) if task else {},
    )


def _named(**arguments: object) -> str:
    """The names of what was given."""
    return ", ".join(k for k, v in arguments.items() if v is not None and v != ()) or "nothing"


# -- what a fit is handed, judged before a ledger is made or a round is charged -----------------
@contextmanager
def _computing(problem: Problem, examples: Examples) -> Generator[None]:
    """Say of what a problem, which may be somebody's own, raises that its examples do not fit."""
    try:
        yield
    except (ConfigError, InvalidRecord, NotPrivate, ArithmeticError):
        raise
    except Exception as error:
        said = one_line(f"{type(error).__name__}: {error}", 200)
        raise ConfigError(
            f"shards: expected examples that {type(problem).__name__} can be computed for, got "
            f"shapes {examples.shapes}: {said}"
        ) from None


def _examples_of(problem: Problem, shards: Sequence[_Shard]) -> tuple[Examples, ...]:
    """Each client's examples: of one kind, and such that ``problem`` can be computed for them.

    Raises:
        ConfigError: naming client and record, or the columns.
        NotPrivate: a module lets examples meet.
    """
    if not isinstance(shards, Sequence | Tensor):
        raise ConfigError(f"shards: expected one entry a client, got {type(shards).__name__}")
    found = tuple(_examples(f"shards: client {i}", shard) for i, shard in enumerate(shards))
    sizes = [*map(len, found)]
    if not sizes or not all(sizes):
        raise ConfigError(f"shards: expected at least one example a client, got sizes {sizes}")
    for i, shard in enumerate(found):
        if shard.shapes != found[0].shapes:
            raise ConfigError(
                f"shards: client {i}: expected examples of {found[0].shapes} like client 0's, "
                f"got {shard.shapes}"
            )
        try:
            with _computing(problem, shard):
                for name, tensor in shard.tensors.items() if shard.stream is None else ():
                    rows = tensor.reshape(len(shard), -1)
                    require(
                        rows.sum(-1), torch.isfinite(rows).all(-1), f"finite entries of {name!r}"
                    )
                problem.check_records(shard)
        except (InvalidRecord, ArithmeticError) as error:
            raise ConfigError(f"shards: client {i}, {error}; mend or remove the record") from None
    return found


def _examples(client: str, shard: _Shard) -> Examples:
    """A client's examples, real numbers in float64; each tensor has shape (n, *feature)."""
    if not isinstance(shard, Examples | Tensor | Mapping):
        raise ConfigError(
            f"{client}: expected Examples, a tensor or a dict of tensors, got "
            f"{type(shard).__name__}"
        )
    tensors = {"z": shard} if isinstance(shard, Tensor) else shard
    tensors = dict(tensors.tensors if isinstance(tensors, Examples) else tensors)
    for name, tensor in tensors.items():
        if (said := _undense(tensor)) or not tensor.dim():
            raise ConfigError(
                f"{client}, {name!r}: expected a dense tensor of real numbers, shape "
                f"(n, *feature), got {said or 'one number'}"
            )
    try:
        found = shard if isinstance(shard, Examples) else Examples(tensors)
    except ValueError as error:
        raise ConfigError(f"{client}: {error}") from None
    return found.to(torch.float64)


def _start(problem: Problem, x: Tensor | None, shape: tuple[int, ...], seed: int) -> Tensor:
    """x^(0) as it is handed in, without what it was computed from; None: a random point.

    Raises:
        ConfigError: no point of the problem's manifold, of ``shape``.
    """
    if x is None:
        return problem.manifold.random(*shape, generator=starts(seed))
    said = _undense(x) or str(x.dtype)
    if said not in ("torch.float64", "torch.float32"):
        raise ConfigError(f"start: expected a dense tensor of float64 or float32, got {said}")
    if x.shape != shape:
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


def _undense(value: object) -> str | None:
    """What a value is if no dense tensor of real numbers; None if it is one."""
    if not isinstance(value, Tensor):
        return type(value).__name__
    if value.layout == torch.strided and not (value.is_meta or value.is_complex()):
        return None
    return f"{value.dtype} of shape {tuple(value.shape)} ({value.layout} on {value.device})"
