"""A run on the server's side over any transport: folder, ledger, rounds, evaluation, numbers.

Everything goes into the run folder: the manifest before round 1, the charge before the messages,
the metrics as they come, the model and the final numbers at the end.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from manifed.algorithms.payloads import State
from manifed.callbacks import Curves, calling, trackers_of
from manifed.durable import remove_drafts, write_atomically
from manifed.errors import BudgetExhausted, RoundFailed, named_by
from manifed.experiment.assembly import (
    Facts,
    client_side,
    facts_of,
    initial_point,
    outlined_side,
    plan_of,
    side_of,
)
from manifed.experiment.evaluation import (
    Evaluator,
    Judged,
    PublicEvaluator,
    node_row,
    oracle_of,
    public_evaluator,
)
from manifed.experiment.load import from_toml, to_toml
from manifed.experiment.schema import Experiment, sha256
from manifed.federation.exchange import Transport
from manifed.federation.plan import Plan, RoundReport
from manifed.federation.rounds import run_rounds
from manifed.federation.stack import ClientSide, StackTransport
from manifed.fields import Document
from manifed.plan import Sizes
from manifed.privacy.charging import Account, opened
from manifed.runs import checkpoint
from manifed.runs.checkpoint import COLUMNS, Pace, Tally
from manifed.runs.evidence import held_or_refused, read_past
from manifed.runs.folder import LABEL, FolderDamaged, RunFolder
from manifed.runs.manifest import manifest_of, placeless
from manifed.runs.progress import is_screen, shown

_log = logging.getLogger("manifed")

_Measured = dict[str, float | None]
_AskSizes = Callable[[], Sizes]
"""Asks every site for the N_i that it declares, before anything is priced."""


@dataclass(frozen=True)
class Job:
    """A run with its folder and ledger open, before its next round."""

    config: Experiment
    plan: Plan
    account: Account
    state: State
    """Before round ``first_round``."""
    first_round: int
    last_accepted: dict[int, int]
    """The newest round that took each client's reply."""

    @property
    def attempts(self) -> Callable[[int], int] | None:
        """How often a round was charged before; None where nothing was."""
        return self.account.attempts if self.account.odometer.ranges else None

    @property
    def num_rounds(self) -> int:
        """The number of the last round."""
        return self.config.federation.num_rounds


_Rounds = Callable[[Job], Iterator[RoundReport]]
"""Runs the rounds of a job, one by one; each attempt is charged to its account."""


def rounds_over(transport: Transport) -> _Rounds:
    """Runs the rounds of any job over an open transport."""
    return lambda job: run_rounds(
        job.plan,
        job.state,
        transport,
        job.account.charge,
        num_rounds=job.num_rounds,
        first_round=job.first_round,
        attempts=job.attempts,
        last_accepted=job.last_accepted,
    )


def named_directory(config: Experiment) -> Path:
    """Returns ``output.directory``, or runs/<name>-<UTC time> under the current folder."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")[:-3]
    return Path(config.output.directory or Path.cwd() / "runs" / f"{config.name}-{stamp}")


def run(
    config: Experiment,
    rounds: _Rounds,
    *,
    is_elsewhere: bool = False,
    is_deployment: bool = False,
    ask_sizes: _AskSizes | None = None,
) -> RunFolder:
    """Runs an experiment and returns its finished run folder.

    ``is_elsewhere``: clients run in other processes, so that only they know their noise.
    ``is_deployment``: they may be on other machines. ``ask_sizes``: where sites declare their own;
    a resumed run takes the sizes that its ledger was charged for.

    A resumed run is judged before anything is written, and the folder is held from then to the end,
    so that neither a refusal nor a second process changes a byte of it.
    """
    began = time.perf_counter()
    has_oracle = config.setting.has_oracle(is_deployment=is_deployment)
    directory = named_directory(config)
    folder = RunFolder(directory)
    trackers = trackers_of(config.output, directory)
    past = agreed = None
    if not config.output.resume:
        agreed = _agreed(config, ask_sizes)
        _claim(directory)
    with held_or_refused(directory), calling(trackers, config.setting) as track:
        if agreed is None:
            past = read_past(directory, config)
            known = past.odometer.terms and past.odometer.terms.num_examples
            agreed = _agreed(config, (lambda: known) if known else ask_sizes)
        else:
            _claim(directory)
            write_atomically(folder.experiment_path, to_toml(placeless(config)).encode())
        facts, plan = agreed
        promise = plan.promise
        privacy = promise.statement(
            promise.odometer(), has_oracle=has_oracle, is_declared=is_elsewhere
        )
        judge = oracle_of(config, facts.sizes) if has_oracle else public_evaluator(config)
        going = _Run(config, plan, folder, judge, past and past.checkpoint, track)
        done = going.done
        with opened(
            folder.ledger_path,
            promise,
            header={"config_sha256": sha256(config)},
            block=config.federation.reserve_rounds or 1,
            last_round=config.federation.num_rounds,
            resumed_at=done + 1 if past and past.ledger else None,
        ) as account:
            remove_drafts(directory)
            folder.error_path.unlink(missing_ok=True)
            if not past or not past.manifest:
                folder.begin(manifest_of(config, facts, folder, privacy, account.ledger.run_id))
            folder.drop_metrics_after(going.tally.told if done else -1)
            if trackers:  # only they read earlier rows
                going.curves |= folder.metrics()
            if past and past.odometer.covered > done:
                _log.warning(
                    "Going on after round %d: rounds %d to %d were charged before the run stopped, "
                    "are made again, and are paid for again",
                    done,
                    done + 1,
                    past.odometer.covered,
                )
            job = Job(config, plan, account, going.state, done + 1, dict(going.accepted))
            return going.finish(
                going.go(rounds(job), account), is_declared=is_elsewhere, began=began
            )


def _agreed(config: Experiment, declared: _AskSizes | None) -> tuple[Facts, Plan]:
    """What is settled before anything is written: sizes, and the plan with its prices."""
    facts = facts_of(config)
    if facts.declared is None and declared is not None:
        facts = replace(facts, declared=declared())
    return facts, plan_of(config, facts.sizes)


def _claim(directory: Path) -> None:
    with named_by("output.directory", OSError):
        RunFolder.claim(directory)


class _Run:
    """The rounds of one run, from its newest checkpoint on, with what is written after each."""

    def __init__(
        self,
        config: Experiment,
        plan: Plan,
        folder: RunFolder,
        evaluator: Evaluator | PublicEvaluator | None,
        saved: checkpoint.Checkpoint | None,
        track: Callable[[Curves, Tensor], bool],
    ) -> None:
        """Nothing is written.

        Raises:
            FolderDamaged: rows of this run cannot follow those of the folder.
        """
        self._config = config
        self._plan = plan
        self._folder = folder
        self._update = plan.server_update
        self._manifold = plan.manifold
        self._held = config.evaluation
        self._track = track
        self.curves: dict[str, list[Any]] = {}
        self._last = config.federation.num_rounds
        self._evaluator, self._pace = evaluator, Pace(config.output.checkpoint_every)
        self._tick, self._judged, self._whole = time.perf_counter(), Judged(), 0
        """``_whole``: the newest round whose row, if it has one, is on disk."""
        device = config.engine.server_device
        if saved is None:
            self.tally, self.done, self.accepted = Tally.of_nothing(), 0, dict[int, int]()
            self.state = self._update.start(initial_point(config).to(device))
            return
        self.state = {name: t.to(device) for name, t in saved.tensors.items()}
        self.tally = saved.meta.tally
        self.done = saved.server_round
        self.accepted = {int(k): v for k, v in saved.meta.last_accepted.items()}
        self._judged = Judged(**saved.meta.judged)
        columns = {"round", "epsilon", "uploads", "seconds", LABEL}.union(
            COLUMNS, self._measured(None)
        )
        found = set(next(iter(folder.rows()), columns))
        if found != columns:
            expected, others = (",".join(sorted(names)) for names in (columns, found))
            raise FolderDamaged(folder.metrics_path, f"the columns {expected}", others)

    def go(self, made: Iterator[RoundReport], account: Account) -> str | None:
        """All rounds; why there are fewer than planned, where a budget ran out."""
        self._account = account
        self._saved = self.done
        is_rewritten = not self._config.output.plain and is_screen()
        with shown(self._last, is_rewritten=is_rewritten) as self._show:
            if self.done == 0:
                self._tell()
            try:
                for report in made:
                    self._after_round(report)
                    if stopped := self._early_end():
                        return stopped
            except BudgetExhausted as budget:
                account.note_origins(self.done + 1, budget.noise_origins)
                if self.tally.told < self.done:
                    self._tell()
                return str(budget)
            except BaseException as error:
                self._keep_the_newest()
                self._folder.keep_error(error)
                raise
        return None

    def _after_round(self, report: RoundReport) -> None:
        """The row before the checkpoint: a crash between them leaves a row that is made again."""
        self.tally.add(report)
        self._account.note_origins(report.server_round, report.noise_origins)
        self.accepted |= dict.fromkeys(report.participants, report.server_round)
        self.done = report.server_round
        self.state = report.state
        is_last = self.done == self._last
        if is_last or self.done % self._held.every == 0:
            self._tell(report.held_out)
        self._whole = self.done
        if is_last or self._pace.is_due(self.done):
            self._save_checkpoint()

    def _keep_the_newest(self) -> None:
        """A run that fails or is interrupted keeps its last good state if the disk lets it."""
        if self._saved < self.done == self._whole:
            with contextlib.suppress(OSError):
                self._save_checkpoint()

    def _save_checkpoint(self) -> None:
        with self._pace.counted():
            checkpoint.save_in(
                self._folder,
                self.done,
                self.state,
                self._account.ledger,
                self._plan.config_sha256,
                self.tally,
                self.accepted,
                self._judged._asdict(),
            )
        self._saved = self.done

    def _early_end(self) -> str | None:
        """Why the run ends before its last round; all of them are paid for."""
        held = self._held
        if held.kind == "oracle" or held.stop_when is None or self.done >= self._last:
            return None
        if self._judged.since < held.stop_when.no_better_for:
            return None
        self._plan.charge_rest(self._account, self.done, self._last)
        return (
            f"evaluation.stop_when: {self._judged.since} evaluations were no better than that of "
            f"round {self._judged.best_round}; all {self._last} rounds are paid for"
        )

    # -- what is said of a model -------------------------------------------------------------------
    def _measured(self, held_out: tuple[Tensor, int] | None) -> _Measured:
        """What the newest row says of the model, and of the nodes' own models where there are."""
        held = self._held
        row = self._seen(self._update.model(self.state, self._manifold))
        if held.kind == "private":
            row |= held.row(held_out, self._plan.client_mechanism)
        models = self._update.node_models(self.state, self._manifold)
        if models is not None:
            oracle = self._evaluator if isinstance(self._evaluator, Evaluator) else None
            row |= node_row(models, self._manifold, oracle)
        return row

    def _seen(self, model: Tensor) -> _Measured:
        return {} if self._evaluator is None else self._evaluator.row(model)

    def _judge(self, row: _Measured) -> None:
        """Count the newest evaluation, and keep the best model where that is asked for."""
        held = self._held
        if held.kind == "oracle" or self.done % held.every:
            return
        before = self._judged.best_round
        self._judged = self._judged.after(self.done, row.get("held_out_loss"))
        if held.keep == "best" and self._judged.best_round > before:
            self._folder.save_tensors(
                "best",
                {
                    "x": self._update.model(self.state, self._manifold).to("cpu"),
                    "round": torch.tensor(self.done),
                },
            )

    def _output(self) -> Tensor:
        """The model of the last round, or of the one that evaluations liked best."""
        held = self._held
        best = self._judged.best_round
        if held.kind != "oracle" and held.keep == "best" and best:
            kept = self._folder.load_tensors("best")
            if int(kept["round"]) == best:
                return kept["x"]
            _log.warning("Expected the model of round %d in best.safetensors, got another", best)
        return self._update.output(self.state, self._manifold)

    def _tell(self, held_out: tuple[Tensor, int] | None = None) -> None:
        measured = self._measured(held_out)
        self._judge(measured)
        now = time.perf_counter()
        row: Document = {
            "round": self.done,
            **measured,
            LABEL: self._plan.promise.label(self._account.odometer),
            "epsilon": self._plan.promise.headline(self._account.odometer),
            "uploads": self.done * self._plan.matrices_up,
            **self.tally.take(self.done),
            "seconds": now - self._tick,
        }
        self._tick = now
        self._folder.append_metrics(row)
        self._show(self.done, row)
        if not self._config.output.trackers:
            return
        for name, value in row.items():
            self.curves.setdefault(name, []).append(value)
        self._track(self.curves, self._update.model(self.state, self._manifold))

    def finish(self, stopped: str | None, *, is_declared: bool, began: float) -> RunFolder:
        """Write the model and the final numbers."""
        model = self._output()
        promise = self._plan.promise
        account = self._account
        folder = self._folder
        if not torch.isfinite(model).all():
            bad = RoundFailed(
                f"Expected a finite model after round {self.done}, got another", is_computed=True
            )
            folder.keep_error(bad)
            raise bad
        if self._saved < self.done or not folder.checkpoint_path.exists():
            self._save_checkpoint()
        folder.save_tensors("model", {"x": model})
        final: Document = {
            "relative_cost_gap": None,
            "gradient_norm": None,
            **self._seen(model),
            LABEL: promise.label(account.odometer),
            "epsilon": promise.headline(account.odometer),
            "delta": promise.delta,
            "rounds": self.done,
            "seconds": time.perf_counter() - began,
        }
        account.settle()
        folder.finish(
            final,
            {
                "ledger_head": str(account.ledger.head),
                "privacy": promise.statement(
                    account.odometer,
                    has_oracle=isinstance(self._evaluator, Evaluator),
                    is_declared=is_declared,
                ),
                "randomness_source": account.randomness_source,
                "stopped": stopped,
                "replies": self.tally.summary(),
            },
        )
        return folder


# -- the transport of a cohort in stacks -----------------------------------------------------------
@contextlib.contextmanager
def cohort_transport(config: Experiment) -> Generator[Transport]:
    """Makes the transport that ``engine`` asks for; its workers end with the context.

    Raises:
        ConfigError: the memory budget is too small, or as `RayTransport`.
    """
    engine = config.engine
    common: Document = {
        "at_once": engine.chunk_clients,
        "device": engine.device,
        "memory_budget_mb": engine.memory_budget_mb,
    }
    if engine.processes is None:
        yield StackTransport(client_side(config), threads=engine.workers or 1, **common)
        return
    from manifed.federation.workers import RayTransport

    facts = facts_of(config)
    with RayTransport(
        partial(_share, to_toml(config), facts.sizes, facts.point_shape),
        outlined_side(config),
        workers=engine.processes,
        address=engine.address or "local",
        timeout=config.federation.replies.timeout,
        **common,
    ) as workers:
        yield workers


def _share(text: str, sizes: Sizes, point_shape: tuple[int, ...], members: range) -> ClientSide:
    """`side_of` neighbours, in a worker that is sent a config's text."""
    return side_of(_experiment_of(text), sizes, point_shape, members)


_experiment_of = lru_cache(maxsize=1)(from_toml)
"""The one config of all stacks of a worker."""
