"""What a run folder says of a run that runs, was stopped or has finished, and what to do next.

Nothing is written, and no lock is taken: who holds the folder is read from /proc/locks, so a run is
never kept from starting. Files of a running run are read as they are: a row or a line of the ledger
that is being written does not count yet.
"""

import os
import shlex
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from manifed.errors import ConfigError, one_line
from manifed.experiment.load import sha256
from manifed.experiment.privacy import budget_of, reporting_delta
from manifed.experiment.schema import Experiment
from manifed.federation.kinds import KINDS
from manifed.privacy.account import ledger_key
from manifed.privacy.accountant import NoValidBound
from manifed.privacy.adversaries import CLIENT_LEVEL, EXTERNAL, OF_MASKS, SERVER
from manifed.privacy.filter import Draw, a_priori
from manifed.privacy.ledger import Ledger, Verified
from manifed.privacy.odometer import Odometer
from manifed.runs import checkpoint
from manifed.runs.checkpoint import Checkpoint
from manifed.runs.places import real
from manifed.runs.reading import (
    CheckpointMeta,
    FolderDamaged,
    check_regular,
    checked,
    is_there,
    json_object,
)
from manifed.runs.resume import saved_config, to_go_on
from manifed.runs.run_folder import RunFolder
from manifed.runs.tally import Tally

_LOCKS = Path("/proc/locks")
_QUIET = 20.0
"""Rows' worth of seconds without a new row after which a running run is called quiet."""


@dataclass(frozen=True)
class Budget:
    """What may be spent, and how much of it is, whoever was drawn."""

    field: str
    epsilon: float
    delta: float
    adversary: str
    spent: float


@dataclass(frozen=True)
class Status:
    """A run at one moment."""

    directory: str
    name: str
    state: str
    """"running", "finished", "stopped" (it can go on) or "not begun"."""
    held_by: int | None
    """The process that runs in the folder; None: nobody that this machine's kernel knows of."""
    round: int
    """Of the newest row."""
    num_rounds: int
    charged: int
    """Rounds up to this one are charged."""
    checkpoint: int | None
    row_age: float | None
    """Seconds since the newest row was written."""
    row_seconds: float | None
    """What a row took so far, mean."""
    seconds: float | None
    """What the run took from start to end, its last part where it was resumed; None before."""
    participants: int | None
    """Usable replies over all rows."""
    failures: Mapping[str, int]
    """Clients that were asked and dropped, by kind, over all rows."""
    missing: Mapping[str, Mapping[str, Any]]
    """Who missed which rounds, by client and kind, up to the newest checkpoint."""
    spent: Mapping[str, float]
    """Epsilon of all that counts, by adversary."""
    delta: float | None
    budget: Budget | None
    last_error: str | None
    config_sha256: str
    ledger_head: str | None
    next_step: str

    def text(self) -> str:
        """For a person."""
        holder = "" if self.held_by is None else f" (process {self.held_by})"
        rows = [
            f"run: {self.name} in {self.directory}",
            f"state: {self.state}{holder}",
            f"round: {self.round} of {self.num_rounds}; charged up to {self.charged}; checkpoint "
            f"{'none' if self.checkpoint is None else f'after round {self.checkpoint}'}",
        ]
        if self.row_age is not None:
            pace = "" if self.row_seconds is None else f", one every {self.row_seconds:.3g} s"
            rows.append(f"newest row: {self.row_age:.0f} s ago{pace}")
        if self.seconds is not None:
            rows.append(f"took: {self.seconds:.1f} s from start to end")
        if self.participants is not None:
            kinds = ", ".join(f"{kind} {n}" for kind, n in self.failures.items() if n)
            rows.append(f"replies: {self.participants} used; dropped: {kinds or 'none'}")
        for client, kinds in self.missing.items():
            said = "; ".join(f"{kind} in rounds {_stretches(r)}" for kind, r in kinds.items())
            rows.append(f"missing: client {client}, {said}")
        for name, epsilon in self.spent.items():
            rows.append(f"spent: epsilon {epsilon:.4g} at delta {self.delta:g} against {name}")
        if self.budget is not None:
            part = self.budget.spent / self.budget.epsilon
            rows.append(
                f"budget: {self.budget.field} = {self.budget.epsilon:g} against "
                f"{self.budget.adversary}, {part:.0%} of it spent whoever was drawn"
            )
        if self.last_error is not None:
            rows.append(f"last error: {self.last_error}")
        return "\n".join([*rows, f"next: {self.next_step}"])

    def data(self) -> dict[str, Any]:
        """As data."""
        return asdict(self)


def status_of(directory: Path) -> Status:
    """What the folder says now.

    Raises:
        ConfigError, FolderDamaged, LedgerDamaged, CheckpointError: it is no run folder, or a file
            in it is not what a run writes; one line with the file.
    """
    directory = real("RUN_DIR", directory)
    folder = RunFolder(directory)
    config = saved_config(directory)
    held_by = holder_of(directory)
    manifest = folder.manifest() if is_there(folder.manifest_path) else None
    known = (manifest or {}).get("experiment_sha256")
    if known is not None:
        folder.check_unedited(known)
    saved = _checkpoint(folder.checkpoint_path)
    metrics = folder.metrics()
    odometer, ledger = _ledger(folder)
    rows = metrics.get("round") or [0]
    final = (manifest or {}).get("final")
    is_finished = final is not None and (manifest or {}).get("config_sha256") == sha256(config)
    if final is not None and rows[-1] != final["rounds"]:
        expected = f"rows up to round {final['rounds']}, the last"
        raise FolderDamaged(folder.metrics_path, expected, f"rows up to {rows[-1]:.0f}")
    state = "finished" if is_finished else "stopped" if manifest is not None else "not begun"
    state = state if held_by is None else "running"
    age, pace = _age(folder.metrics_path), _pace(metrics)
    return Status(
        directory=str(directory),
        name=config.name,
        state=state,
        held_by=held_by,
        round=int(rows[-1] or 0),
        num_rounds=config.federation.num_rounds,
        charged=odometer.covered,
        checkpoint=saved.server_round if saved else None,
        row_age=age,
        row_seconds=pace,
        seconds=final["seconds"] if is_finished and final is not None else None,
        participants=_total(metrics, "participants"),
        failures={kind: _total(metrics, kind) or 0 for kind in KINDS if kind in metrics},
        missing=Tally.of(saved).missed if saved else {},
        spent=_spent(config, odometer),
        delta=reporting_delta(config),
        budget=_budget(config, odometer),
        last_error=_last_error(folder, manifest if is_finished else None),
        config_sha256=sha256(config),
        ledger_head=str(ledger.head) if ledger else None,
        next_step=_next_step(directory, state, age, pace),
    )


def holder_of(folder: Path) -> int | None:
    """The process that holds a folder (`manifed.durable.held`), as the kernel lists it."""
    found = folder.stat()
    device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    try:
        lines = _LOCKS.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    for line in lines:
        words = line.split()
        if len(words) >= 6 and words[1] == "FLOCK" and words[5] == device:
            return int(words[4])
    return None


def _checkpoint(path: Path) -> Checkpoint | None:
    if not is_there(path):
        return None
    check_regular(path, "a checkpoint", most=1 << 40)
    saved = checkpoint.load(path)
    checked(saved.meta, CheckpointMeta, path)
    return saved


def _ledger(folder: RunFolder) -> tuple[Odometer, Verified | None]:
    odometer = Odometer()
    if not is_there(folder.ledger_path):
        return odometer, None
    check_regular(folder.ledger_path, "a ledger", most=1 << 40)
    return odometer, Ledger.verify(folder.ledger_path, key=ledger_key(), feed=odometer.feed)


def _spent(config: Experiment, odometer: Odometer) -> dict[str, float]:
    delta, kind = reporting_delta(config), config.privacy.kind
    if delta is None:
        return {}
    own = (CLIENT_LEVEL,) if kind == "client-level" else (SERVER, EXTERNAL)
    if kind == "correlated":
        own = OF_MASKS
    try:
        return {adversary.name: odometer.epsilon(adversary, delta) for adversary in own}
    except NoValidBound as error:
        raise ConfigError(f"ledger.jsonl: {error}") from None


def _budget(config: Experiment, odometer: Odometer) -> Budget | None:
    budget, terms = budget_of(config), odometer.terms
    if budget is None:
        return None
    adversary, delta, spent = budget.adversary, budget.delta, odometer.epsilon
    epsilon = spent(adversary, delta)
    if terms is not None and terms.is_drawn:
        epsilon = a_priori(Draw.of(terms), adversary, odometer.rounds_counted, delta)
    return Budget(budget.field, budget.epsilon, delta, adversary.name, epsilon)


def _last_error(folder: RunFolder, finished: Mapping[str, Any] | None) -> str | None:
    if finished is not None:
        stopped = finished.get("stopped")
        return None if stopped is None else one_line(str(stopped))
    if not is_there(folder.error_path):
        return None
    found = json_object(folder.error_path)
    return one_line(f"{found.get('when')}: {found.get('what')}")


def _next_step(directory: Path, state: str, age: float | None, pace: float | None) -> str:
    name = shlex.quote(str(directory))
    if state == "finished":
        return f"manifed report {name}; more rounds: manifed extend {name} --rounds N"
    if state == "running":
        if age is not None and pace is not None and age > max(60.0, _QUIET * pace):
            return "no row for long: read the log of the run, and see whether its nodes are there"
        return "wait"
    return to_go_on(f"--resume {name}")


def _age(path: Path) -> float | None:
    try:
        return max(0.0, time.time() - path.stat().st_mtime)
    except OSError:
        return None


def _pace(metrics: Mapping[str, list[float | None]]) -> float | None:
    seconds = [s for s in metrics.get("seconds", ())[1:] if s is not None]
    return sum(seconds) / len(seconds) if seconds else None


def _total(metrics: Mapping[str, list[float | None]], column: str) -> int | None:
    values = metrics.get(column)
    return None if values is None else int(sum(value or 0 for value in values))


def _stretches(rounds: list[list[int]]) -> str:
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in rounds)
