"""`fit`, `fit_module` and `federate`: the rounds of a federation in this process.

`federate` yields round after round; `fit` runs them all and keeps model, curves and statement;
`fit_module` does so for a torch module. What clients hold may be tensors, numpy arrays, lists or
frames (`manifed.problems.own_arrays`): it is turned into float64 before anything is checked.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from manifed.algorithms.algorithm import ClientUpdate, ServerUpdate
from manifed.algorithms.payloads import BadBroadcast, State, check_point
from manifed.algorithms.tangent_mean import TangentMean
from manifed.durable import write_atomically
from manifed.errors import BudgetExhausted, ConfigError, check_kind, described, short
from manifed.experiment.assembly import starts
from manifed.experiment.paths import fault
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
from manifed.problems.module_problem import Loss, ModuleProblem
from manifed.problems.own_arrays import columns_of, tensor_of
from manifed.problems.problem import InvalidRecord, Problem, require
from manifed.runs.folder import RunFolder, encode, with_label
from manifed.runs.progress import is_screen, shown
from manifed.runs.statement import headline, label_in, statement_of
from manifed.setting import Federation, NoPrivacy, Privacy, Setting
from manifed.torch import Algorithm, Metric, Site, task_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_Path = str | PathLike[str]
_Connect = Callable[[ClientSide], Transport]
_Evaluate = Callable[[Tensor], Mapping[str, float]]


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


@dataclass(frozen=True, repr=False)
class Result:
    """The result of `fit` or `fit_module`: model, rounds and statement."""

    model: Tensor
    curves: Mapping[str, list[float | None]]
    """One entry a round: "round", "epsilon", "participants", "failures", and what was evaluated."""
    statement: Mapping[str, Any]
    """The privacy statement as data; `text` prints it."""
    stopped: str | None = None
    """Why there are fewer rounds than were asked for: a budget that ran out."""
    state_dict: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    """The parameters of a torch module for its ``load_state_dict``; empty for another problem."""
    problem: Problem = field(default_factory=Problem)
    """What was minimised."""

    def __repr__(self) -> str:
        """Tells the size of the model, the rounds, and what is promised."""
        rounds = len(self.curves.get("round", ()))
        shape = tuple(self.model.shape)
        return f"<Result: {rounds} rounds, model {shape}, {headline(self.statement)}>"

    def predict(self, features: Any) -> Tensor:
        """Returns what the model predicts of each row of ``features`` (n, *feature), (n, ...).

        Classes of a module with cross-entropy, of `Logistic` and of `ClassMeans`; outputs of other
        modules, and the scores of `LeastSquares`. ``features`` may be whatever a shard may be.

        Raises:
            ConfigError: the problem predicts nothing, or not from such features.
        """
        read = tensor_of(features, "features")
        with _computing(self.problem, {"features": tuple(read.shape)}, "features"):
            wide = self.problem.widened(Examples({"z": read}))
            return self.problem.predict(self.model, wide["z"])

    @property
    def text(self) -> str:
        """The privacy statement, one fact per line."""
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
    shards: Sequence[Any],
    algorithm: Algorithm,
    *,
    rounds: int,
    privacy: Privacy | None = None,
    cohort: Cohort | None = None,
    seed: int = 0,
    start: Any = None,
    replies: ReplyPolicy | None = None,
    ledger: _Path | None = None,
    transport: _Connect = StackTransport,
) -> Iterator[Round]:
    """Yields the rounds of a federation in this process, one by one.

    All is judged before a ledger is made. Arguments as `fit`.

    Raises:
        ConfigError: before round 1, for parts that do not go together or that nothing prices.
        BudgetExhausted: for a round that the budget does not pay; the rounds before stand.
        RoundFailed: as `manifed.federation.rounds.run_rounds`.
    """
    if isinstance(problem, nn.Module):
        raise ConfigError("problem: a torch module is trained by fit_module(model, sites)")
    check_kind("problem", problem, Problem, "a problem (manifed.problems)")
    level = get_args(Privacy)[0] | None
    check_kind("privacy", privacy, level, "ExampleLevel, ClientLevel or another level")
    check_kind("ledger", ledger, str | PathLike | None, "the path of a file that is not there yet")
    client, server = _sides(algorithm)
    examples = _examples_of(problem, shards)
    try:
        federation = Federation(
            num_clients=len(examples),
            num_rounds=rounds,
            seed=seed,
            cohort=Everyone() if cohort is None else cohort,
            replies=ReplyPolicy() if replies is None else replies,
        )
    except ValidationError as error:
        raise ConfigError(fault(error, Federation).removeprefix("num_")) from None
    setting = Setting(
        federation, client, problem.manifold, server, privacy or NoPrivacy(), problem=problem
    )
    made = plan(setting, tuple(map(len, examples)))
    with _computing(problem, examples[0].shapes):
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
    return _Rounds(made, x, _connected(transport, side), rounds, ledger)


class _Rounds(Iterator[Round]):
    """The rounds of a federation, each charged before its clients are asked; what came of them."""

    def __init__(
        self, plan: Plan, x: Tensor, transport: Transport, last: int, ledger: _Path | None
    ) -> None:
        self.plan, self.state, self.last = plan, plan.server_update.start(x), last
        self.account = Account(plan.promise)
        self._made = self._rounds(transport, last, ledger)
        self.close = self._made.close

    def __next__(self) -> Round:
        return next(self._made)

    def _rounds(self, transport: Transport, last: int, ledger: _Path | None) -> Generator[Round]:
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
    problem: Problem,
    shards: Sequence[Any],
    algorithm: Algorithm,
    *,
    rounds: int,
    privacy: Privacy | None = None,
    cohort: Cohort | None = None,
    seed: int = 0,
    start: Any = None,
    replies: ReplyPolicy | None = None,
    ledger: _Path | None = None,
    transport: _Connect = StackTransport,
    evaluate: _Evaluate | None = None,
    progress: bool | None = None,
) -> Result:
    """Runs all rounds of a federation in this process, and returns model and statement.

    A budget that runs out ends the fit in good order. A torch module is trained by `fit_module`.

    Args:
        problem: what is minimised, and on which manifold.
        shards: one entry a client: a tensor, an array, a list or a frame with a row an example,
            which the problem knows as "z"; a dict of these by the names that the problem reads
            ("feature" and "label", for example); or Examples. All become float64.
        algorithm: a client update and a server update, or one object that is both (a client update
            alone goes with the tangent mean).
        rounds: how many.
        privacy: ``ExampleLevel(epsilon=2, delta=1e-5)``, or the frozen object of a config: it is
            priced, and each cohort draw passes its budget. None protects nobody.
        cohort: who takes part in a round; None is everyone.
        seed: of a seeded run, and of the random starting point.
        start: x^(0); None is a random point of ``seed``, or the parameters of a module. A torch
            tensor in float32 makes the points of the run float32.
        replies: when a round goes on without everybody.
        ledger: a file that is not there yet: each charge is on it before the clients are asked.
        transport: how clients are reached; `StackTransport` is a stack of them in this process.
        evaluate: maps a model to named numbers for the curves, and is tried at x^(0); what it
            computes from private data is no part of the release, and the statement says so.
        progress: whether a line on standard error follows the rounds; None: in a notebook and on a
            terminal.

    Raises:
        ConfigError: before round 1, for parts that do not go together or that nothing prices.
        RoundFailed: as `manifed.federation.rounds.run_rounds`.
    """
    run = federate(
        problem, shards, algorithm, rounds=rounds, privacy=privacy, cohort=cohort, seed=seed,
        start=start, replies=replies, ledger=ledger, transport=transport,
    )  # fmt: skip
    return _finished(run, problem, evaluate, progress)


def fit_module(
    model: nn.Module,
    sites: Sequence[Site],
    *,
    loss: str | Loss = "cross-entropy",
    rounds: int = 30,
    privacy: Privacy | None = None,
    step_size: float | None = None,
    local_steps: int | None = None,
    batch_size: float | None = None,
    strategy: TangentMean | None = None,
    algorithm: Algorithm | None = None,
    test: Site | None = None,
    metrics: Mapping[str, Metric] | None = None,
    compute: Literal["float64", "float32"] = "float64",
    cohort: Cohort | None = None,
    seed: int = 0,
    start: Any = None,
    replies: ReplyPolicy | None = None,
    ledger: _Path | None = None,
    transport: _Connect | None = None,
    evaluate: _Evaluate | None = None,
    progress: bool | None = None,
) -> Result:
    """Trains a copy of a torch module across sites, and returns its ``state_dict`` and statement.

    Parameters that are `geoopt.ManifoldParameter`s stay on their manifolds (`manifed.torch`).

    Args:
        model: its parameters are the start, and public.
        sites: each site's (feature, label) pairs: a data set or list of pairs, two arrays, or a
            dict of the two; arrays as `fit` takes them.
        loss: "cross-entropy", "mse", or a function of an output (1, *) and a label.
        rounds: how many.
        privacy: as `fit`.
        step_size: of each local step of Riemannian SGD; None is 1.
        local_steps: between two rounds; None is 1.
        batch_size: expected size of a Poisson batch; None is 64, or a smaller site's size.
        strategy: the server's part: ``TangentMean(momentum=0.9)``, momentum, an average, step sizes
            by the round; None is the plain tangent mean.
        algorithm: another one, in the place of the four before.
        test: public examples, on which the model is judged after every round.
        metrics: further columns of the curves: functions of outputs and labels of ``test``.
        compute: the type that the module computes in; clips, noise and points are float64.
        cohort: as `fit`, and so are the following.
        seed: of a seeded run.
        start: None is the parameters of the module.
        replies: when a round goes on without everybody.
        ledger: a file that is not there yet.
        transport: None is a whole cohort at once in this process.
        evaluate: named numbers of a model, which may come from private data.
        progress: whether a line on standard error follows the rounds.

    Raises:
        ConfigError: before round 1, for parts that do not go together or that nothing prices.
        NotPrivate: the module lets examples meet.
        RoundFailed: as `manifed.federation.rounds.run_rounds`.
    """
    steps = {
        "step_size": step_size, "local_steps": local_steps, "batch_size": batch_size,
        "strategy": strategy,
    }  # fmt: skip
    task = task_of(
        model, sites, algorithm, steps, loss=loss, test=test, metrics=metrics, compute=compute
    )
    if transport is None:
        transport = partial(StackTransport, at_once=None, memory_budget_mb=1024)
    run = federate(
        task.problem, task.shards, task.algorithm, rounds=rounds, privacy=privacy, cohort=cohort,
        seed=seed, start=start, replies=replies, ledger=ledger, transport=transport,
    )  # fmt: skip
    return _finished(run, task.problem, evaluate, progress, task.judge)


def _finished(
    run: Iterator[Round],
    problem: Problem,
    evaluate: _Evaluate | None,
    progress: bool | None,
    judge: _Evaluate | None = None,
) -> Result:
    """Run all rounds; ``judge`` looks at public examples alone."""

    def judged(x: Tensor) -> dict[str, float]:
        return {**(judge(x) if judge else {}), **(_evaluated(evaluate, x) if evaluate else {})}

    assert isinstance(run, _Rounds)
    plan = run.plan
    promise = plan.promise
    check_kind("evaluate", evaluate, Callable | None, "a function of a model")
    judged(plan.server_update.model(run.state, plan.manifold))
    curves: dict[str, list[float | None]] = {}
    stopped = None
    is_shown = is_screen() if progress is None else progress
    line = shown(run.last, is_rewritten=True, is_of_all=True) if is_shown else nullcontext()
    try:
        with closing(run), line as show:
            for found in run:
                row: dict[str, float | None] = {
                    "round": found.server_round,
                    "epsilon": found.spending,
                    "participants": len(found.participants),
                    "failures": len(found.failures),
                    **judged(found.model),
                }
                for name, value in row.items():
                    curves.setdefault(name, []).append(value)
                if show:
                    show(found.server_round, with_label(row, promise.label(run.account.odometer)))
    except BudgetExhausted as budget:
        stopped = str(budget)
        run.account.odometer.noise_origins |= budget.noise_origins
    x = plan.server_update.output(run.state, plan.manifold)
    return Result(
        x,
        curves,
        promise.statement(run.account.odometer, has_oracle=evaluate is not None),
        stopped,
        problem.state_dict(x) if isinstance(problem, ModuleProblem) else {},
        problem,
    )


def _evaluated(evaluate: _Evaluate, x: Tensor) -> dict[str, float]:
    try:
        return {str(name): float(value) for name, value in evaluate(x).items()}
    except Exception as error:  # code of somebody's own
        raise ConfigError(
            f"evaluate: expected a dict of numbers of a model {tuple(x.shape)}, got "
            f"{described(error)}"
        ) from error


# -- what a fit is handed, judged before a ledger is made or a round is charged -----------------
def _sides(algorithm: Any) -> tuple[ClientUpdate, ServerUpdate | None]:
    """Client and server update of an algorithm, which may be one object."""
    both = (algorithm, None)
    if isinstance(algorithm, tuple) and len(algorithm) == 2:
        both = algorithm
    client, server = both
    check_kind("algorithm", client, ClientUpdate, "a client update, or a pair of both sides")
    check_kind("algorithm", server, ServerUpdate | None, "a server update as second of a pair")
    return client, server


def _connected(transport: _Connect, side: ClientSide) -> Transport:
    """The transport that a function of somebody's own may make."""
    try:
        found = transport(side)
        found.exchange  # noqa: B018  raises where it is none
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"transport: expected a function that connects to clients, got {short(transport)}: "
            + described(error)
        ) from error
    return found


@contextmanager
def _computing(
    problem: Problem, shapes: Mapping[str, tuple[int, ...]], name: str = "shards"
) -> Generator[None]:
    """Say of what a problem, which may be somebody's own, raises that its examples do not fit."""
    try:
        yield
    except (ConfigError, InvalidRecord, NotPrivate, ArithmeticError):
        raise
    except Exception as error:
        raise ConfigError(
            f"{name}: expected examples that {type(problem).__name__} can be computed for, got "
            f"shapes {dict(shapes)}: {described(error)}"
        ) from None


def _examples_of(problem: Problem, shards: Sequence[Any]) -> tuple[Examples, ...]:
    """Each client's examples: of one kind, and such that ``problem`` can be computed for them.

    Raises:
        ConfigError: naming client and record, or the columns.
        NotPrivate: a module lets examples meet.
    """
    is_array = isinstance(shards, Tensor | np.ndarray) and shards.ndim > 0
    if not is_array and (not isinstance(shards, Sequence) or isinstance(shards, str)):
        raise ConfigError(
            f"shards: expected a list with one entry a client, got {type(shards).__name__}"
        )
    read = tuple(_examples(f"shards: client {i}", shard) for i, shard in enumerate(shards))
    sizes = [*map(len, read)]
    if not sizes or not all(sizes):
        raise ConfigError(f"shards: expected at least one example a client, got sizes {sizes}")
    found = list[Examples]()
    for i, shard in enumerate(read):
        for what, one, first in (
            ("examples of", shard.shapes, read[0].shapes),
            ("a frame with columns", columns_of(shards[i]), columns_of(shards[0])),
        ):
            if one != first:
                raise ConfigError(
                    f"shards: client {i}: expected {what} {first} like client 0's, got {one}"
                )
        try:
            with _computing(problem, shard.shapes):
                wide = problem.widened(shard)
                for name, tensor in wide.tensors.items() if wide.stream is None else ():
                    rows = tensor.reshape(len(wide), -1)
                    require(
                        rows.sum(-1), torch.isfinite(rows).all(-1), f"finite entries of {name!r}"
                    )
                problem.check_records(wide)
        except (InvalidRecord, ArithmeticError) as error:
            raise ConfigError(f"shards: client {i}, {error}; mend or remove the record") from None
        found.append(wide)
    return tuple(found)


def _examples(client: str, shard: Any) -> Examples:
    """A client's examples, real numbers in the type that they came in; shape (n, *feature)."""
    held = shard.tensors if isinstance(shard, Examples) else shard
    if isinstance(held, Mapping):
        tensors = {str(key): tensor_of(one, f"{client}, {key!r}") for key, one in held.items()}
    else:
        tensors = {"z": tensor_of(held, client)}
    for name, tensor in tensors.items():
        if not tensor.dim():
            raise ConfigError(
                f"{client}, {name!r}: expected a dense tensor of real numbers, shape "
                "(n, *feature), got one number"
            )
    try:
        return replace(shard, tensors=tensors) if isinstance(shard, Examples) else Examples(tensors)
    except (ValueError, StopIteration) as error:
        raise ConfigError(
            f"{client}: {error or 'expected tensors of examples, got none'}"
        ) from None


def _start(problem: Problem, x: Any, shape: tuple[int, ...], seed: int) -> Tensor:
    """x^(0) as it is handed in, without what it was computed from; None: a random point.

    Raises:
        ConfigError: no point of the problem's manifold, of ``shape``.
    """
    if x is None and isinstance(problem, ModuleProblem):
        return problem.start
    if x is None:
        return problem.manifold.random(*shape, generator=starts(seed))
    found = tensor_of(x, "start")
    if not (isinstance(x, Tensor) and found.dtype == torch.float32):
        found = found.to(torch.float64)
    if found.shape != shape:
        raise ConfigError(
            f"start: expected shape {shape}, that of a point for these shards, got "
            f"{tuple(found.shape)}"
        )
    try:
        check_point("a point", found, problem.manifold)
    except BadBroadcast as error:
        raise ConfigError(f"start: {error}") from None
    return found


def _check_computed(problem: Problem, x: Tensor, examples: Examples) -> None:
    """Try the gradient of one example at ``x``.

    What fails by the example's numbers alone (an `ArithmeticError`) is left to the oracle.

    Raises:
        ConfigError: it cannot be computed, or is no vector at x.
    """
    one = examples.take(torch.zeros(1, dtype=torch.long)).to(x.dtype)
    one = one.beside(KEY, torch.zeros(1, dtype=torch.float64)) if problem.needs_keys else one
    with suppress(ArithmeticError), _computing(problem, examples.shapes):
        gradients = problem.gradients(x, one)
        found = gradients.sum(torch.ones_like(gradients.norms))
        if found.shape != x.shape:
            raise ConfigError(
                f"problem: expected gradients of the shape of a point, {tuple(x.shape)}, got "
                f"{tuple(found.shape)}"
            )
