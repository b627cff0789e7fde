"""A run as the server sees it, over any transport: folder, ledger, rounds, evaluation, numbers.

Everything goes into the run folder: the manifest before round 1, the charge before the messages,
the metrics as they come, the model and the final numbers at the end.
"""

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from manifed.algorithms.interface import KeepsNodeModels, ServerState
from manifed.durable import remove_drafts, write_atomically
from manifed.errors import BudgetExhausted, ConfigError, RoundFailed
from manifed.experiment.assembly import (
    Facts,
    facts_of,
    initial_point,
    oracle_of,
    plan_of,
    public_evaluator,
)
from manifed.experiment.evaluation import (
    HELD_OUT,
    Evaluator,
    Judged,
    PublicEvaluator,
    node_row,
    oracle_is_on,
)
from manifed.experiment.load import dump, sha256, to_toml
from manifed.experiment.privacy import Sizes, promise_of
from manifed.experiment.schema import Experiment
from manifed.federation.plan import Plan, RoundReport
from manifed.federation.rounds import run_rounds
from manifed.federation.transport import Transport
from manifed.privacy.account import Account, opened
from manifed.privacy.ledger import Ledger
from manifed.privacy.statement import Promise
from manifed.runs import checkpoint
from manifed.runs.checkpoint import Pace
from manifed.runs.manifest import manifest_of
from manifed.runs.progress import progress_of
from manifed.runs.report.apart import NotDrawn, draw_figures
from manifed.runs.resume import Past, held_or_refused, read_past
from manifed.runs.run_folder import RunFolder, experiment_digest, printable
from manifed.runs.statement import statement_of
from manifed.runs.tally import COLUMNS, Tally
from manifed.runs.work import work_of

log = logging.getLogger("manifed")

AskSizes = Callable[[], Sizes]
"""Asks every site for the N_i that it declares, before anything is priced."""


@dataclass(frozen=True)
class _Agreed:
    """What is settled before anything is written: sizes, plan and prices."""

    facts: Facts
    plan: Plan
    promise: Promise

    @staticmethod
    def of(config: Experiment, ask_sizes: AskSizes | None) -> "_Agreed":
        facts = facts_of(config)
        if facts.declared is None and ask_sizes is not None:
            facts = replace(facts, declared=ask_sizes())
        plan = plan_of(config, facts.sizes)
        return _Agreed(facts, plan, promise_of(config, facts.sizes))


@dataclass(frozen=True)
class Start:
    """Where a run starts: fresh, or after its newest checkpoint."""

    state: ServerState
    first_round: int
    last_accepted: dict[int, int]
    tally: Tally = field(default_factory=Tally)
    judged: Judged = field(default_factory=Judged)


@dataclass(frozen=True)
class Job:
    """A run whose folder and ledger are there, before its next round."""

    config: Experiment
    plan: Plan
    promise: Promise
    account: Account
    start: Start

    @property
    def num_rounds(self) -> int:
        """The last round."""
        return self.config.federation.num_rounds


Rounds = Callable[[Job], Iterator[RoundReport]]
"""Runs the rounds of a job, one by one; each attempt is charged to its account."""


def rounds_over(transport: Transport) -> Rounds:
    """The rounds of any job over a transport that is there."""

    def rounds(job: Job) -> Iterator[RoundReport]:
        start = job.start
        return run_rounds(
            job.plan,
            start.state,
            transport,
            job.account.charge,
            num_rounds=job.num_rounds,
            first_round=start.first_round,
            attempts=job.account.attempts,
            last_accepted=start.last_accepted,
            charge_more=job.account.charge_more,
        )

    return rounds


def named_directory(config: Experiment) -> Path:
    """``output.directory``, or runs/<name>-<UTC time> under the current folder."""
    if config.output.directory is not None:
        return Path(config.output.directory)
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")[:-3]
    return Path.cwd() / "runs" / f"{config.name}-{stamp}"


def run(
    config: Experiment,
    rounds: Rounds,
    *,
    is_elsewhere: bool = False,
    is_deployment: bool = False,
    ask_sizes: AskSizes | None = None,
    began: float | None = None,
) -> RunFolder:
    """`run_experiment`; print its statement unless it is to be quiet, then draw its figures."""
    folder = run_experiment(
        config,
        rounds,
        is_elsewhere=is_elsewhere,
        is_deployment=is_deployment,
        ask_sizes=ask_sizes,
        began=began,
    )
    if not config.output.quiet:
        statement = statement_of(folder.manifest()["privacy"])
        sys.stdout.write(f"{statement}\nrun folder: {printable(folder.directory)}\n")
        sys.stdout.flush()
    if config.output.draws_later:
        return folder
    try:
        draw_figures(folder, is_quiet=config.output.quiet)
    except NotDrawn as reason:
        log.warning("%s", reason)
    return folder


def run_experiment(
    config: Experiment,
    rounds: Rounds,
    *,
    is_elsewhere: bool = False,
    is_deployment: bool = False,
    ask_sizes: AskSizes | None = None,
    began: float | None = None,
) -> RunFolder:
    """The finished run folder; see `ConfigError`, `RoundFailed` and `LedgerDamaged` for errors.

    ``is_elsewhere``: clients run in other processes, so that only they know their noise.
    ``is_deployment``: they may be on other machines. ``ask_sizes``: where sites declare their own;
    a resumed run takes the sizes that its ledger was charged for. ``began``: when whoever waits for
    the run asked for it, on the clock of `time.perf_counter`; None for now.

    A resumed run is judged before anything is written, and the folder is held from then to the end,
    so that neither a refusal nor a second process changes a byte of it.
    """
    began = time.perf_counter() if began is None else began
    has_oracle = oracle_is_on(config, is_deployment=is_deployment)
    directory, past = named_directory(config), None
    agreed = None if config.output.resume else _Agreed.of(config, ask_sizes)
    if agreed is not None:
        _claim(directory)
    with held_or_refused(directory):
        if agreed is None:
            past = read_past(directory, config)
            declared = past.declared
            agreed = _Agreed.of(config, (lambda: declared) if declared else ask_sizes)
        else:
            _claim(directory)
            text = to_toml(_placeless(config))
            write_atomically(RunFolder(directory).experiment_path, text.encode())
        plan, promise = agreed.plan, agreed.promise
        privacy = promise.statement(
            promise.odometer(), has_oracle=has_oracle, is_declared=is_elsewhere
        )
        folder = RunFolder(directory)
        start = _start(config, plan, past)
        evaluator = oracle_of(config, agreed.facts) if has_oracle else public_evaluator(config)
        if start.first_round > 1:
            model = plan.server_update.model(start.state, plan.manifold)
            held = HELD_OUT if config.evaluation.kind == "private" else ()
            whole = evaluator.row(model) if evaluator and not held else {}
            folder.check_columns(
                _columns([*whole, *held, *_of_nodes(plan, start.state, evaluator)])
            )
        resumed_at = start.first_round if past is not None and past.has_ledger else None
        header, last = {"config_sha256": sha256(config)}, config.federation.num_rounds
        with opened(
            folder.ledger_path,
            promise,
            header=header,
            block=config.federation.reserve_rounds or 1,
            last_round=last,
            resumed_at=resumed_at,
        ) as account:
            remove_drafts(directory)
            folder.error_path.unlink(missing_ok=True)
            if past is None or not past.has_begun:
                folder.begin(_manifest(config, folder, account, agreed.facts, privacy))
            elif past.is_amended:
                folder.reopen(_of_more_rounds(config, past, privacy))
            folder.drop_metrics_after(start.tally.told if start.first_round > 1 else -1)
            if past is not None:
                _tell_what_is_paid_again(past)
            job = Job(config, plan, promise, account, start)
            going = _Run(job, folder, evaluator, is_declared=is_elsewhere, began=began)
            return going.go(rounds(job))


def _claim(directory: Path) -> None:
    try:
        RunFolder.claim(directory)
    except OSError as error:
        raise ConfigError(f"output.directory: {error}") from None


def _tell_what_is_paid_again(past: Past) -> None:
    if past.covered > past.last_round:
        log.warning(
            "Going on after round %d: rounds %d to %d were charged before the run stopped, are "
            "made again, and are paid for again",
            past.last_round,
            past.last_round + 1,
            past.covered,
        )


def _manifest(
    config: Experiment,
    folder: RunFolder,
    account: Account,
    facts: Facts,
    privacy: dict[str, Any],
) -> dict[str, Any]:
    return manifest_of(
        dump(_placeless(config)),
        sha256(config),
        sys.argv,
        name=config.name,
        engine=config.engine.kind,
        seed=config.federation.seed,
        randomness_source=_randomness(config),
        data_checksums={config.data.kind: _checksum(config, facts)},
        privacy=privacy,
        work=work_of(config, facts.point_shape),
        ledger_run_id=account.ledger.run_id,
        experiment_sha256=experiment_digest(folder.experiment_path.read_bytes()),
        device=config.engine.device,
        dtype=config.engine.dtype,
    )


def _of_more_rounds(config: Experiment, past: Past, privacy: dict[str, Any]) -> dict[str, Any]:
    """What an amendment changes in the manifest."""
    return {
        "config": dump(_placeless(config)),
        "config_sha256": sha256(config),
        "privacy": privacy,
        "amendments": [one.model_dump(mode="json") for one in past.odometer.amendments],
    }


def _placeless(config: Experiment) -> Experiment:
    """The experiment without its folder, whose name may be no text that a file can hold."""
    changes = {"directory": None, "resume": False, "ledger_head": None, "draws_later": False}
    return config.model_copy(update={"output": config.output.model_copy(update=changes)})


def _checksum(config: Experiment, facts: Facts) -> str | None:
    """The checksum of public data; of private data it would tell whether a guess is right."""
    return facts.checksum if config.privacy.kind == "none" else None


def _randomness(config: Experiment) -> Any:
    return "seed" if config.privacy.kind == "none" else config.privacy.noise_source


def _start(config: Experiment, plan: Plan, past: Past | None) -> Start:
    device = config.engine.server_device
    saved = past.checkpoint if past is not None else None
    if saved is not None and plan.setup_phases:
        raise ConfigError(
            "output.resume: expected a run without exchanges before round 1, got training.kind = "
            f"{config.training.kind!r}, which has some: its clients would go on without what they "
            "learnt there; start a new run"
        )
    if saved is None:
        return Start(plan.server_update.initial(initial_point(config).to(device)), 1, {})
    state = ServerState({name: t.to(device) for name, t in saved.tensors.items()})
    accepted = {int(k): int(v) for k, v in saved.meta["last_accepted"].items()}
    judged = Judged(**saved.meta.get("judged", {}))
    return Start(state, saved.server_round + 1, accepted, Tally.of(saved), judged)


def _columns(measured: Iterable[str]) -> tuple[str, ...]:
    """The columns of a row with these measures."""
    return ("round", *measured, "epsilon", "uploads", *COLUMNS, "seconds")


def _of_nodes(
    plan: Plan, state: ServerState, evaluator: Evaluator | PublicEvaluator | None
) -> dict[str, float]:
    """What a row says of the nodes' own models, where there are some."""
    if not isinstance(plan.server_update, KeepsNodeModels):
        return {}
    models = plan.server_update.node_models(state, plan.manifold)
    return node_row(models, plan.manifold, evaluator if isinstance(evaluator, Evaluator) else None)


class _Run:
    """The rounds of one run, with what is written down after each."""

    def __init__(
        self,
        job: Job,
        folder: RunFolder,
        evaluator: Evaluator | PublicEvaluator | None,
        *,
        is_declared: bool,
        began: float,
    ) -> None:
        self._config, self._plan, self._folder = job.config, job.plan, folder
        self._promise, self._account, self._evaluator = job.promise, job.account, evaluator
        self._start = job.start
        self._last_tick = time.perf_counter()
        self._began, self._before = began, self._last_tick - began
        self._evaluating, self._rounds = 0.0, 0
        self._tally = Tally()
        self._accepted: dict[int, int] = {}
        self._row: dict[str, Any] = {}
        self._is_declared = is_declared
        self._pace = Pace(job.config.output.checkpoint_every)
        self._newest: RoundReport | None = None
        self._saved_round = 0
        self._judged = job.start.judged
        self._newest_seen: tuple[Tensor, dict[str, float | None]] | None = None

    @property
    def _ledger(self) -> Ledger:
        """The run's ledger, which is held for the whole run."""
        return self._account.ledger

    def go(self, made: Iterator[RoundReport]) -> RunFolder:
        """All rounds, then the final numbers; a budget that ran out ends the run in good order."""
        start = self._start
        rounds, state = self._config.federation.num_rounds, start.state
        self._accepted, self._rounds = dict(start.last_accepted), start.first_round - 1
        self._tally = start.tally
        self._saved_round = self._rounds
        stopped: str | None = None
        with progress_of(rounds, plain=self._config.output.plain) as self._progress:
            if start.first_round == 1:
                self._tell(0, state)
            try:
                for report in made:
                    state = report.state
                    self._after_round(report)
                    if stopped := self._early_end():
                        break
            except BudgetExhausted as budget:
                stopped = str(budget)
                self._account.note_origins(self._rounds + 1, budget.noise_origins)
                if self._tally.told < self._rounds:
                    self._tell(self._rounds, state)
            except BaseException as error:
                self._keep_the_newest()
                self._folder.keep_error(error)
                raise
        return self._finish(state, stopped)

    def _after_round(self, report: RoundReport) -> None:
        """The row before the checkpoint: a crash between them leaves a row that is made again."""
        self._newest = None
        self._tally.add(report)
        self._account.note_origins(report.server_round, report.noise_origins)
        self._accepted |= dict.fromkeys(report.participants, report.server_round)
        is_last = report.server_round == self._config.federation.num_rounds
        if is_last or report.server_round % self._config.evaluation.every == 0:
            self._tell(report.server_round, report.state, report.held_out)
        self._newest, self._rounds = report, report.server_round
        if is_last or self._pace.is_due(report.server_round):
            self._save_checkpoint(report.server_round, report.state)

    def _keep_the_newest(self) -> None:
        """A run that fails or is interrupted keeps its last good state if the disk lets it."""
        if self._newest is not None and self._saved_round < self._newest.server_round:
            with contextlib.suppress(OSError):
                self._save_checkpoint(self._newest.server_round, self._newest.state)

    def _save_checkpoint(self, server_round: int, state: ServerState) -> None:
        with self._pace.counted():
            self._folder.sync_metrics()
            tensors = {name: t.to("cpu").contiguous() for name, t in state.tensors.items()}
            meta = {
                "last_accepted": {str(k): v for k, v in self._accepted.items()},
                "tally": self._tally.state(),
                "judged": asdict(self._judged),
                "config_sha256": self._plan.config_sha256,
                "ledger_run_id": self._ledger.run_id,
                "ledger_head": str(self._ledger.head),
            }
            checkpoint.save(self._folder.checkpoint_path, server_round, tensors, meta)
        self._saved_round = server_round

    def _early_end(self) -> str | None:
        """Why the run ends before its last round, which is charged as if it had gone on.

        When it ends depends on what was released, so every planned round is paid for, by the
        cohort that would have made it: draws depend on no release.
        """
        held, rounds = self._config.evaluation, self._config.federation.num_rounds
        if held.kind == "oracle" or self._rounds >= rounds:
            return None
        if not self._judged.is_over(held.stop_when):
            return None
        plan = self._plan
        with contextlib.suppress(BudgetExhausted):
            for r in range(self._rounds + 1, rounds + 1):
                attempt = self._account.attempts(r)
                cohort = plan.cohort.draw(plan.num_clients, r, attempt, plan.source)
                self._account.charge(r, attempt, cohort)
        return (
            f"evaluation.stop_when: {self._judged.since} evaluations were no better than that of "
            f"round {self._judged.best_round}; all {rounds} rounds are paid for"
        )

    def _measured(
        self, server_round: int, model: Tensor, held_out: tuple[Tensor, int] | None
    ) -> dict[str, float | None]:
        """What the row of a round says of its model."""
        held, row = self._config.evaluation, dict[str, float | None]()
        row |= self._seen(model)
        if held.kind == "private":
            row |= dict.fromkeys(HELD_OUT)
            mechanism = self._plan.evaluation_mechanism
            if held_out is not None and mechanism is not None:
                row |= held.row(*held_out, held.stddev(mechanism))
        if held.kind != "oracle" and server_round % held.every == 0:
            before = self._judged
            self._judged = before.after(server_round, row.get("held_out_loss"))
            if held.keep == "best" and self._judged.best_round > before.best_round:
                x = model.to("cpu").contiguous()
                self._folder.save_tensors("best", {"x": x, "round": torch.tensor(server_round)})
        return row

    def _seen(self, model: Tensor) -> dict[str, float | None]:
        """What the evaluator says of a model; of the one before it says the same again."""
        if self._evaluator is None:
            return {}
        if self._newest_seen is None or not torch.equal(self._newest_seen[0], model):
            self._newest_seen = model, self._evaluator.row(model)
        return self._newest_seen[1]

    def _best(self, model: Tensor) -> Tensor:
        """The model of the round that evaluations liked best, where that is asked for."""
        held, best = self._config.evaluation, self._judged.best_round
        if held.kind == "oracle" or held.keep == "last" or best == 0:
            return model
        kept = self._folder.load_tensors("best")
        if int(kept["round"]) != best:
            log.warning("Expected the model of round %d in best.safetensors, got another", best)
            return model
        return kept["x"]

    def _tell(
        self, server_round: int, state: ServerState, held_out: tuple[Tensor, int] | None = None
    ) -> None:
        now = time.perf_counter()
        seconds, self._last_tick = now - self._last_tick, now
        model = self._plan.server_update.model(state, self._plan.manifold)
        with self._evaluation_time():
            measured = self._measured(server_round, model, held_out)
            measured |= _of_nodes(self._plan, state, self._evaluator)
            spent = self._promise.headline(self._account.odometer)
        self._row = {
            "round": server_round,
            **measured,
            "epsilon": spent,
            "uploads": server_round * self._plan.matrices_up,
            **self._tally.take(server_round),
            "seconds": seconds,
        }
        self._folder.append_metrics(self._row)
        self._progress(server_round, self._row)

    @contextlib.contextmanager
    def _evaluation_time(self) -> Generator[None, None, None]:
        before = time.perf_counter()
        yield
        self._evaluating += time.perf_counter() - before
        self._last_tick = time.perf_counter()

    def _finish(self, state: ServerState, stopped: str | None) -> RunFolder:
        going = time.perf_counter() - self._began - self._before - self._evaluating
        model: Tensor = self._plan.server_update.output(state, self._plan.manifold)
        model = self._best(model)
        if not bool(torch.isfinite(model).all()):
            said = f"Expected a finite model after round {self._rounds}, got another"
            bad = RoundFailed(said, is_computed=True)
            self._folder.keep_error(bad)
            raise bad
        if self._saved_round < self._rounds or not self._folder.checkpoint_path.exists():
            self._save_checkpoint(self._rounds, state)
        self._folder.save_tensors("model", {"x": model.to("cpu").contiguous()})
        with self._evaluation_time():
            final_row = self._seen(model)
        final: dict[str, Any] = {
            "relative_cost_gap": final_row.get("relative_cost_gap"),
            "gradient_norm": final_row.get("gradient_norm"),
            "epsilon": self._promise.headline(self._account.odometer),
            "delta": self._promise.delta,
            "rounds": self._rounds,
            "seconds": time.perf_counter() - self._began,
        }
        self._account.settle()
        measured = {
            "ledger_head": str(self._ledger.head),
            "privacy": self._promise.statement(
                self._account.odometer,
                noise_origins=self._account.noise_origins,
                has_oracle=isinstance(self._evaluator, Evaluator),
                is_declared=self._is_declared,
            ),
            "randomness_source": self._account.randomness_source,
            "stopped": stopped,
            "replies": self._tally.summary(),
        }
        final["seconds"] = whole = time.perf_counter() - self._began
        parts = {"before": self._before, "rounds": going, "evaluation": self._evaluating}
        measured["seconds_by_part"] = parts | {"after": whole - sum(parts.values())}
        self._folder.finish(final, measured)
        return self._folder
