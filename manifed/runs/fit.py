"""`fit`, `fit_module` and `federate`: the rounds of a federation in this process.

`federate` yields round after round; `fit` runs them all and keeps model, curves and statement;
`fit_module` does so for a torch module. What clients hold may be tensors, numpy arrays, lists or
frames (`manifed.problems.own_arrays`): it is turned into float64 before anything is checked.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from torch import Tensor, nn

from manifed.algorithms.payloads import State
from manifed.algorithms.tangent_mean import TangentMean
from manifed.callbacks import Callback, calling
from manifed.durable import remove_drafts, write_atomically
from manifed.errors import BudgetExhausted, ConfigError, check_kind, named_by, short
from manifed.experiment.assembly import initial_point
from manifed.experiment.schema import Experiment
from manifed.federation.client import try_update
from manifed.federation.cohorts import Cohort, Everyone
from manifed.federation.exchange import ReplyPolicy, Transport
from manifed.federation.held_out import HELD_OUT, PrivateEvaluation
from manifed.federation.plan import Plan
from manifed.federation.rounds import run_rounds
from manifed.federation.stack import StackTransport
from manifed.plan import plan
from manifed.privacy.charging import Account, opened
from manifed.problems.examples import Examples, Mapped, check_apart
from manifed.problems.module_problem import Loss, ModuleProblem
from manifed.problems.own_arrays import tensor_of
from manifed.problems.problem import Problem
from manifed.runs.checkpoint import Pace, Tally, save_in
from manifed.runs.evidence import own_past
from manifed.runs.folder import RunFolder, encode, is_fresh, with_label
from manifed.runs.handed import (
    Connect,
    Evaluate,
    Shards,
    computing,
    connected,
    evaluated,
    examples_of,
    hashes_of,
    side_of,
    sides_of,
    start_of,
)
from manifed.runs.progress import is_screen, shown
from manifed.runs.statement import headline, label_in, statement_of
from manifed.setting import Engine, Evaluation, Federation, NoPrivacy, Privacy, Setting
from manifed.torch import Algorithm, Metric, Site, task_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_Path = str | PathLike[str]


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
    held_out: Mapping[str, float | None] = field(default_factory=dict[str, float | None])
    """What a private evaluation said, None in a round without one; empty where there is none."""


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
        shape = tuple(read.shape)
        with (
            named_by(f"features of shape {shape}", ArithmeticError),
            computing(self.problem, {"features": shape}, "features"),
        ):
            wide = self.problem.of_rows.widened(Examples({"z": read}))
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
        return self._end(made)

    def _end(self, made: RunFolder) -> Path:
        """Write model and statement, which ends the folder."""
        made.save_tensors("model", {"x": self.model})
        write_atomically(
            made.directory / "statement.json", encode({**self.statement, "stopped": self.stopped})
        )
        return made.directory


def federate(
    problem: Problem | nn.Module,
    shards: Shards,
    algorithm: Algorithm | None = None,
    *,
    rounds: int,
    privacy: Privacy | None = None,
    cohort: Cohort | None = None,
    seed: int = 0,
    start: Any = None,
    replies: ReplyPolicy | None = None,
    held_out: PrivateEvaluation | None = None,
    ledger: _Path | None = None,
    resume: _Path | None = None,
    device: str = "cpu",
    transport: Connect | None = None,
) -> Iterator[Round]:
    """Yields the rounds of a federation in this process, one by one.

    All is judged before a ledger is made. Arguments as `fit`, and a torch module, or a
    `ModuleProblem` of it, with sites as `fit_module` takes them; its ``algorithm`` None is that of
    `fit_module`. What ``held_out`` says of stopping and keeping is left to the loop.

    Raises:
        ConfigError: before round 1, for parts that do not go together or that nothing prices.
        BudgetExhausted: for a round that the budget does not pay; the rounds before stand.
        RoundFailed: as `manifed.federation.rounds.run_rounds`.
    """
    stack = StackTransport
    if isinstance(problem, nn.Module | ModuleProblem):
        problem, shards, algorithm, _ = task_of(problem, shards, algorithm, {})
        stack = partial(StackTransport, at_once=None, memory_budget_mb=1024)
    check_kind("problem", problem, Problem, "a problem (manifed.problems) or a torch module")
    level = get_args(Privacy)[0] | None
    check_kind("privacy", privacy, level, "ExampleLevel, ClientLevel or another level")
    check_kind("held_out", held_out, PrivateEvaluation | None, "a PrivateEvaluation")
    check_kind("ledger", ledger, str | PathLike | None, "the path of a file that is not there yet")
    check_kind("resume", resume, str | PathLike | None, "the path of a folder")
    if ledger is not None and resume is not None:
        raise ConfigError("ledger: is in the folder of resume, got both; leave it out")
    client, server = sides_of(algorithm)
    examples = examples_of(problem, shards)
    try:
        engine = Engine(device=device)
        federation = Federation(
            num_clients=len(examples),
            num_rounds=rounds,
            seed=seed,
            cohort=Everyone() if cohort is None else cohort,
            replies=ReplyPolicy() if replies is None else replies,
        )
    except ConfigError as error:
        raise ConfigError(str(error).removeprefix("num_")) from None
    engine.check_device("device")
    setting = Setting(
        federation, client, problem.manifold, server, privacy or NoPrivacy(),
        held_out or Evaluation(is_enabled=False), engine, problem,
    )  # fmt: skip
    if isinstance(examples, Mapped):
        stack = partial(StackTransport, at_once=None, memory_budget_mb=1024)
        sizes = examples.sizes
    else:
        sizes = tuple(map(len, examples))
    made = plan(setting, sizes)
    check_apart(examples, setting.privacy)
    with computing(problem, examples[0].shapes):
        shape = tuple(problem.point_shape(examples[0]))
    x = start_of(problem, start, shape, seed)
    said = hashes_of(setting, examples, x)
    side = side_of(setting, problem, made, examples, shape, x.dtype)
    try_update(
        f"shards, algorithm: expected examples that {type(problem).__name__} can be computed for, "
        f"got shapes {examples[0].shapes}", side, made.server_update, x,
    )  # fmt: skip
    reached = connected(stack if transport is None else transport, side, device)
    return _Rounds(setting, made, x, reached, ledger, resume, said)


class _Rounds(Iterator[Round]):
    """The rounds of a federation, each charged before its clients are asked; what came of them."""

    def __init__(
        self,
        setting: Setting,
        plan: Plan,
        x: Tensor,
        transport: Transport,
        ledger: _Path | None,
        resume: _Path | None,
        said: dict[str, str],
    ) -> None:
        """``said`` has a hash of each part of what decides the fit in the folder ``resume``."""
        self.setting, self.plan, self.last = setting, plan, setting.federation.num_rounds
        self.state = plan.server_update.start(x.to(plan.device))
        self.account = Account(plan.promise)
        self.judge: Evaluate = lambda x: {}
        self.curves: dict[str, list[float | None]] = {}
        self.folder = None if resume is None else RunFolder(Path(resume))
        self.said = said
        self._made = self._rounds(transport, ledger)
        self.close = self._made.close

    def __next__(self) -> Round:
        return next(self._made)

    @property
    def model(self) -> Tensor:
        """The newest model, on the CPU."""
        return self.plan.server_update.model(self.state, self.plan.manifold).to("cpu")

    def _rounds(self, transport: Transport, ledger: _Path | None) -> Generator[Round]:
        plan, folder, held = self.plan, self.folder, self.setting.held_out
        promise = plan.promise
        past, tally, done, pace = None, Tally.of_nothing(), 0, Pace("auto")
        header: dict[str, Any] = {"config_sha256": plan.config_sha256}
        with ExitStack() as stack:
            if folder:
                past = stack.enter_context(
                    own_past(folder.directory, self.setting, self.said, self.state)
                )
                ledger, header["fit"] = folder.ledger_path, self.said
                if past and (saved := past.checkpoint):
                    self.state = {name: t.to(plan.device) for name, t in saved.tensors.items()}
                    done = saved.server_round
            if ledger is not None:
                self.account = stack.enter_context(
                    opened(
                        Path(ledger),
                        promise,
                        last_round=self.last,
                        header=header,
                        resumed_at=done + 1 if past else None,
                    )
                )
            if folder:
                remove_drafts(folder.directory)
                folder.drop_metrics_after(done)
                self.curves |= folder.metrics()
            whole, account = self.state, self.account

            def save() -> None:
                if folder and done:
                    with pace.counted():
                        tally.take(done)
                        save_in(folder, done, whole, account.ledger, plan.config_sha256, tally)

            try:
                for report in run_rounds(
                    plan,
                    self.state,
                    transport,
                    account.charge,
                    num_rounds=self.last,
                    first_round=done + 1,
                    attempts=account.attempts,
                ):
                    account.note_origins(report.server_round, report.noise_origins)
                    self.state = report.state
                    seen = held.row(report.held_out, plan.client_mechanism) if held else {}
                    now = Round(
                        report.server_round,
                        report.state,
                        self.model,
                        promise.headline(account.odometer),
                        report.participants,
                        {i: failure.text for i, failure in report.failures.items()},
                        seen,
                    )
                    row: dict[str, float | None] = {
                        "round": now.server_round,
                        "epsilon": now.spending,
                        "participants": len(now.participants),
                        "failures": len(now.failures),
                        **seen,
                        **self.judge(now.model),
                    }
                    for name, value in row.items():
                        self.curves.setdefault(name, []).append(value)
                    if folder:
                        folder.append_metrics(with_label(row, promise.label(account.odometer)))
                    done, whole = now.server_round, report.state
                    if pace.is_due(done):
                        save()
                    yield now
            finally:
                with suppress(OSError):
                    save()


def fit(
    problem: Problem,
    shards: Shards,
    algorithm: Algorithm,
    *,
    rounds: int,
    privacy: Privacy | None = None,
    cohort: Cohort | None = None,
    seed: int = 0,
    start: Any = None,
    replies: ReplyPolicy | None = None,
    held_out: PrivateEvaluation | None = None,
    ledger: _Path | None = None,
    resume: _Path | None = None,
    device: str = "cpu",
    transport: Connect | None = None,
    evaluate: Evaluate | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
) -> Result:
    """Runs all rounds of a federation in this process, and returns model and statement.

    When the privacy budget runs out, the fit ends early and `Result.stopped` says why. A torch
    module is trained by `fit_module`.

    Args:
        problem: the loss and the manifold of the model; one of `manifed.problems`, for example
            ``FrechetMean(Sphere())``.
        shards: one entry a client: a tensor, an array, a list or a frame with a row an example,
            which the problem knows as "z"; a dict of these by the names that the problem reads
            ("feature" and "label", for example); or Examples. All become float64. Or one array, or
            a dict of arrays, with the clients as first axis: they may be memory maps, larger than
            the memory, unless ``held_out`` divides them. Do not write to them during the fit.
        algorithm: one of `manifed.algorithms`, for example ``RSGD(step_size=0.1)``, or a pair of a
            client update and a server update. A client update alone is paired with `TangentMean`.
        rounds: the number of rounds.
        privacy: what is protected, and how much: ``ExampleLevel(epsilon=2, delta=1e-5)`` or a
            `ClientLevel`. The price of all rounds is computed before round 1, and no round is run
            that exceeds the budget. None: no privacy.
        cohort: the rule by which clients are chosen for a round; None: all clients.
        seed: the seed of the random starting point, and of all draws if the noise is seeded.
        start: the starting point; None: a random point, or the parameters of a module. A torch
            tensor in float32 makes the points of the run float32.
        replies: a `ReplyPolicy`, which says when a round goes on although replies are missing.
        held_out: judges the model by records that training does not use, under noise that the
            ledger is charged for; its ``stop_when`` ends the fit.
        ledger: the path of a file that does not exist yet. The price of a round is written to it
            before the clients are asked.
        resume: a folder for ledger, checkpoint, curves, model and statement. The same call goes on
            with the unfinished fit in it, whatever ended that; all that was charged stays spent.
        device: where tensors live: "cpu", "cuda" or "cuda:1"; with privacy it is the CPU.
        transport: a function that connects to the clients; None: they are computed in this process.
        evaluate: a function that maps a model to named numbers, which become columns of the curves.
            It is called before round 1, too. What it computes from private data is not protected,
            and the statement says so.
        callbacks: functions that are called after each round (`manifed.callbacks`).
        progress: whether a line on standard error shows the progress; None: only in a notebook and
            on a terminal.

    Raises:
        ConfigError: before round 1, for parts that do not go together or that nothing prices.
        RoundFailed: as `manifed.federation.rounds.run_rounds`.
    """
    if isinstance(problem, nn.Module):
        raise ConfigError("problem: a torch module is trained by fit_module(model, sites)")
    run = federate(
        problem, shards, algorithm, rounds=rounds, privacy=privacy, cohort=cohort, seed=seed,
        start=start, replies=replies, held_out=held_out, ledger=ledger, resume=resume,
        device=device, transport=transport,
    )  # fmt: skip
    return _finished(run, problem, evaluate, callbacks, progress)


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
    held_out: PrivateEvaluation | None = None,
    ledger: _Path | None = None,
    resume: _Path | None = None,
    device: str = "cpu",
    transport: Connect | None = None,
    evaluate: Evaluate | None = None,
    callbacks: Sequence[Callback] = (),
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
        held_out: a paid evaluation on records of the sites.
        ledger: a file that is not there yet.
        resume: a folder whose unfinished fit goes on.
        device: where tensors live.
        transport: None is a whole cohort at once in this process.
        evaluate: named numbers of a model, which may come from private data.
        callbacks: functions that are called after each round.
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
    run = federate(
        task.problem, task.shards, task.algorithm, rounds=rounds, privacy=privacy, cohort=cohort,
        seed=seed, start=start, replies=replies, held_out=held_out, ledger=ledger, resume=resume,
        device=device, transport=transport,
    )  # fmt: skip
    return _finished(run, task.problem, evaluate, callbacks, progress, task.judge)


def fit_as_planned(plan: Experiment, shards: Shards) -> Result:
    """Runs the method of a config on these examples, from its start, without a progress line."""
    return fit(
        plan.minimised,
        shards,
        plan.training if plan.strategy is None else (plan.training, plan.strategy),
        rounds=plan.federation.num_rounds,
        privacy=plan.privacy,
        start=initial_point(plan),
        progress=False,
    )


def _finished(
    run: Iterator[Round],
    problem: Problem,
    evaluate: Evaluate | None,
    callbacks: Sequence[Callback],
    progress: bool | None,
    judge: Evaluate | None = None,
) -> Result:
    """Run all rounds; ``judge`` looks at public examples alone."""

    def judged(x: Tensor) -> dict[str, float]:
        return {**(judge(x) if judge else {}), **(evaluated(evaluate, x) if evaluate else {})}

    assert isinstance(run, _Rounds)
    plan = run.plan
    promise = plan.promise
    held = run.setting.held_out
    check_kind("evaluate", evaluate, Callable | None, "a function of a model")
    check_kind("progress", progress, bool | None, "True, False or None")
    if not isinstance(callbacks, Sequence) or not all(map(callable, callbacks)):
        raise ConfigError(f"callbacks: expected a list of functions, got {short(callbacks)}")
    if held is not None and (held.stop_when or held.keep != "last"):
        raise ConfigError(
            "held_out: expected no stop_when and no keep, which are for a config; stop by "
            "callbacks=[EarlyStopping(column='held_out_loss')]"
        )
    public = judge(run.model) if judge else {}
    private = evaluated(evaluate, run.model) if evaluate else {}
    first = {**public, **private}
    if run.folder:
        if not all(map(str.isidentifier, first)):
            raise ConfigError(f"evaluate: expected names like test_loss, got {', '.join(first)}")
        run.said |= {"evaluate": ",".join(sorted(first))} if first else {}
    run.judge = judged
    stopped = None
    is_shown = is_screen() if progress is None else progress
    line = shown(run.last, is_rewritten=True, is_of_all=True) if is_shown else nullcontext()
    try:
        with (
            closing(run),
            calling(callbacks, run.setting, public, private) as call,
            line as show,
        ):
            if not run.folder or is_fresh(run.folder.directory):
                names = {"round": 0, **dict.fromkeys(HELD_OUT if held else ()), **first}
                call({name: [value] for name, value in names.items()}, run.model)
            for found in run:
                if show:
                    row = {name: values[-1] for name, values in run.curves.items()}
                    show(found.server_round, with_label(row, promise.label(run.account.odometer)))
                if call(run.curves, found.model) and found.server_round < run.last:
                    plan.charge_rest(run.account, found.server_round, run.last)
                    stopped = (
                        f"a callback, after round {found.server_round}; all {run.last} rounds are "
                        "charged"
                    )
                    break
    except BudgetExhausted as budget:
        stopped = str(budget)
        run.account.odometer.noise_origins |= budget.noise_origins
    x = plan.server_update.output(run.state, plan.manifold).to("cpu")
    made = Result(
        x,
        run.curves,
        promise.statement(run.account.odometer, has_oracle=evaluate is not None),
        stopped,
        problem.state_dict(x) if isinstance(problem, ModuleProblem) else {},
        problem,
    )
    if run.folder:
        made._end(run.folder)
    return made
