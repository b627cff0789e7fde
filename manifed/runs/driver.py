"""A run as the server sees it, over any transport: folder, ledger, rounds, evaluation, numbers.

Everything goes into the run folder: the manifest before round 1, the charge before the messages,
the metrics as they come, the model and the final numbers at the end.
"""

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from manifed.algorithms.interface import ServerState
from manifed.durable import remove_drafts, write_atomically
from manifed.errors import BudgetExhausted, ConfigError, RoundFailed
from manifed.experiment.assembly import Shards, initial_point, load_shards, plan_of
from manifed.experiment.evaluation import Evaluator, client_shares, oracle_is_on
from manifed.experiment.load import dump, sha256, to_toml
from manifed.experiment.privacy import promise_of
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
from manifed.runs.resume import Past, experiment_digest, held_or_refused, read_past
from manifed.runs.run_folder import RunFolder, printable
from manifed.runs.statement import statement_of
from manifed.runs.tally import COLUMNS, Tally
from manifed.runs.work import work_of

log = logging.getLogger("manifed")

Connect = Callable[[Plan], Transport]
"""Makes the transport of a run, once its folder and ledger are there and before round 1."""


@dataclass(frozen=True)
class Start:
    """Where a run starts: fresh, or after its newest checkpoint."""

    state: ServerState
    first_round: int
    last_accepted: dict[int, int]
    tally: Tally = field(default_factory=Tally)


def named_directory(config: Experiment) -> Path:
    """``output.directory``, or runs/<name>-<UTC time> under the current folder."""
    if config.output.directory is not None:
        return Path(config.output.directory)
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")[:-3]
    return Path.cwd() / "runs" / f"{config.name}-{stamp}"


def run(
    config: Experiment, connect: Connect, *, is_elsewhere: bool = False, is_deployment: bool = False
) -> RunFolder:
    """`run_experiment`, and print its statement unless it is to be quiet."""
    folder = run_experiment(config, connect, is_elsewhere=is_elsewhere, is_deployment=is_deployment)
    if not config.output.quiet:
        statement = statement_of(folder.manifest()["privacy"])
        sys.stdout.write(f"{statement}\nrun folder: {printable(folder.directory)}\n")
    return folder


def run_experiment(
    config: Experiment, connect: Connect, *, is_elsewhere: bool = False, is_deployment: bool = False
) -> RunFolder:
    """The finished run folder; see `ConfigError`, `RoundFailed` and `LedgerDamaged` for errors.

    ``is_elsewhere``: clients run in other processes, so that only they know their noise.
    ``is_deployment``: they may be on other machines.

    A resumed run is judged before anything is written, and the folder is held from then to the end,
    so that neither a refusal nor a second process changes a byte of it.
    """
    plan, found = plan_of(config), load_shards(config)
    promise = promise_of(config, found.sizes)
    has_oracle = oracle_is_on(config, is_deployment=is_deployment)
    privacy = promise.statement(promise.odometer(), has_oracle=has_oracle, is_declared=is_elsewhere)
    directory, past = named_directory(config), None
    if not config.output.resume:
        _claim(directory)
    with held_or_refused(directory):
        if config.output.resume:
            past = read_past(directory, config)
        else:
            _claim(directory)
            text = to_toml(_placeless(config))
            write_atomically(RunFolder(directory).experiment_path, text.encode())
        folder = RunFolder(directory)
        start = _start(config, plan, past)
        evaluator = _evaluator(config, has_oracle)
        if start.first_round > 1:
            model = plan.server_update.model(start.state, plan.manifold)
            folder.check_columns(_columns(evaluator.row(model) if evaluator else {}))
        resumed_at = start.first_round if past is not None and past.has_ledger else None
        header, last = {"config_sha256": sha256(config)}, config.federation.num_rounds
        with opened(
            folder.ledger_path, promise, header=header, last_round=last, resumed_at=resumed_at
        ) as account:
            remove_drafts(directory)
            if past is None or not past.has_begun:
                folder.begin(_manifest(config, folder, account, found, privacy))
            folder.drop_metrics_after(start.tally.told if start.first_round > 1 else -1)
            if past is not None:
                _tell_what_is_paid_again(past)
            made = _Run(config, plan, folder, promise, account, evaluator, is_declared=is_elsewhere)
            return made.go(connect, start)


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
    found: Shards,
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
        data_checksums={config.data.kind: _checksum(config, found)},
        privacy=privacy,
        work=work_of(config, found.point_shape),
        ledger_run_id=account.ledger.run_id,
        experiment_sha256=experiment_digest(folder.experiment_path.read_bytes()),
        device=config.engine.device,
    )


def _placeless(config: Experiment) -> Experiment:
    """The experiment without its folder, whose name may be no text that a file can hold."""
    changes = {"directory": None, "resume": False, "ledger_head": None}
    return config.model_copy(update={"output": config.output.model_copy(update=changes)})


def _checksum(config: Experiment, found: Shards) -> str | None:
    """The checksum of public data; of private data it would tell whether a guess is right."""
    return found.checksum if config.privacy.kind == "none" else None


def _randomness(config: Experiment) -> Any:
    return "seed" if config.privacy.kind == "none" else config.privacy.noise_source


def _start(config: Experiment, plan: Plan, past: Past | None) -> Start:
    device = config.engine.device
    saved = past.checkpoint if past is not None else None
    if saved is None:
        return Start(plan.server_update.initial(initial_point(config).to(device)), 1, {})
    state = ServerState({name: t.to(device) for name, t in saved.tensors.items()})
    accepted = {int(k): int(v) for k, v in saved.meta["last_accepted"].items()}
    return Start(state, saved.server_round + 1, accepted, Tally.of(saved))


def _columns(measured: Iterable[str]) -> tuple[str, ...]:
    """The columns of a row with these measures."""
    return ("round", *measured, "epsilon", "uploads", *COLUMNS, "seconds")


def _evaluator(config: Experiment, has_oracle: bool) -> Evaluator | None:
    if not has_oracle:
        return None
    found = load_shards(config)
    shares = client_shares(found.sizes, config.server_update.weights)
    return Evaluator(found.problem, found.examples, shares, found.meta)


class _Run:
    """The rounds of one run, with what is written down after each."""

    def __init__(
        self,
        config: Experiment,
        plan: Plan,
        folder: RunFolder,
        promise: Promise,
        account: Account,
        evaluator: Evaluator | None,
        *,
        is_declared: bool,
    ) -> None:
        self._config, self._plan, self._folder = config, plan, folder
        self._promise, self._account, self._evaluator = promise, account, evaluator
        self._began = self._last_tick = time.perf_counter()
        self._evaluating, self._rounds = 0.0, 0
        self._tally = Tally()
        self._accepted: dict[int, int] = {}
        self._row: dict[str, Any] = {}
        self._is_declared = is_declared
        self._pace = Pace(config.output.checkpoint_every)
        self._newest: RoundReport | None = None
        self._saved_round = 0

    @property
    def _ledger(self) -> Ledger:
        """The run's ledger, which is held for the whole run."""
        return self._account.ledger

    def go(self, connect: Connect, start: Start) -> RunFolder:
        """All rounds, then the final numbers; a budget that ran out ends the run in good order."""
        rounds, state = self._config.federation.num_rounds, start.state
        self._accepted, self._rounds = dict(start.last_accepted), start.first_round - 1
        self._tally = start.tally
        self._saved_round = self._rounds
        stopped: str | None = None
        with progress_of(rounds, plain=self._config.output.plain) as self._progress:
            if start.first_round == 1:
                self._tell(0, state)
            try:
                for report in run_rounds(
                    self._plan,
                    state,
                    connect(self._plan),
                    self._account.charge,
                    num_rounds=rounds,
                    first_round=start.first_round,
                    attempts=self._account.attempts,
                    last_accepted=start.last_accepted,
                ):
                    state = report.state
                    self._after_round(report)
            except BudgetExhausted as budget:
                stopped = str(budget)
                self._account.note_origins(self._rounds + 1, budget.noise_origins)
                if self._tally.told < self._rounds:
                    self._tell(self._rounds, state)
            except BaseException:
                self._keep_the_newest()
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
            self._tell(report.server_round, report.state)
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
                "config_sha256": self._plan.config_sha256,
                "ledger_run_id": self._ledger.run_id,
                "ledger_head": str(self._ledger.head),
            }
            checkpoint.save(self._folder.checkpoint_path, server_round, tensors, meta)
        self._saved_round = server_round

    def _tell(self, server_round: int, state: ServerState) -> None:
        now = time.perf_counter()
        seconds, self._last_tick = now - self._last_tick, now
        model = self._plan.server_update.model(state, self._plan.manifold)
        with self._evaluation_time():
            measured = self._evaluator.row(model) if self._evaluator else {}
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
        model: Tensor = self._plan.server_update.output(state, self._plan.manifold)
        if not bool(torch.isfinite(model).all()):
            raise RoundFailed(f"Expected a finite model after round {self._rounds}, got another")
        if self._saved_round < self._rounds or not self._folder.checkpoint_path.exists():
            self._save_checkpoint(self._rounds, state)
        self._folder.save_tensors("model", {"x": model.to("cpu").contiguous()})
        seconds = time.perf_counter() - self._began
        final_row = self._evaluator.row(model) if self._evaluator else {}
        final = {
            "relative_cost_gap": final_row.get("relative_cost_gap"),
            "gradient_norm": final_row.get("gradient_norm"),
            "epsilon": self._promise.headline(self._account.odometer),
            "delta": self._promise.delta,
            "rounds": self._rounds,
            "seconds": seconds,
        }
        self._account.settle()
        measured = {
            "ledger_head": str(self._ledger.head),
            "privacy": self._promise.statement(
                self._account.odometer,
                noise_origins=self._account.noise_origins,
                has_oracle=self._evaluator is not None,
                is_declared=self._is_declared,
            ),
            "randomness_source": self._account.randomness_source,
            "stopped": stopped,
            "replies": self._tally.summary(),
            "seconds_without_evaluation": seconds - self._evaluating,
        }
        if self._config.output.plots:
            from manifed.runs.report.figures import draw
            from manifed.runs.report.runs import read

            run = read(self._folder.directory)
            draw([replace(run, manifest={**run.manifest, "final": final})], self._folder.directory)
        self._folder.finish(final, measured)
        return self._folder
