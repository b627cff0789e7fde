"""Where a run is, read from its folder while it runs, after it stopped or when it has finished.

Nothing is written and no lock is taken: the process that holds the folder is read from /proc/locks,
so a run is never kept from starting. A row or a line of the ledger that is being written does not
count yet. What is said is the server's own knowledge.
"""

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from manifed.errors import ConfigError, one_line
from manifed.experiment.schema import Experiment, sha256
from manifed.federation.replies import KINDS
from manifed.plan import budget_of, reporting_delta
from manifed.privacy.accountant import NoValidBound
from manifed.privacy.events import CLIENT_LEVEL, EXTERNAL, OF_MASKS, SERVER
from manifed.privacy.odometer import Odometer
from manifed.privacy.tariff import Tariff
from manifed.runs.evidence import judged, saved_config
from manifed.runs.folder import FolderDamaged, RunFolder, is_there, json_object
from manifed.runs.places import real
from manifed.runs.resume import to_go_on


def status_of(directory: Path) -> dict[str, Any]:
    """Where the run is, as data.

    Raises:
        ConfigError, FolderDamaged, LedgerDamaged: it is no run folder, or a file
            in it is not what a run writes; one line with the file.
    """
    directory = real("--resume", directory)
    folder, config = RunFolder(directory), saved_config(directory)
    holder = holder_of(directory)
    manifest = folder.manifest() if is_there(folder.manifest_path) else {}
    evidence, metrics = judged(folder, config, manifest), folder.metrics()
    saved, odometer = evidence.checkpoint, evidence.odometer
    rows, final = metrics.get("round") or [0], manifest.get("final")
    if final is not None and rows[-1] != final["rounds"]:
        expected = f"rows up to round {final['rounds']}, the last"
        raise FolderDamaged(folder.metrics_path, expected, f"rows up to {rows[-1]:.0f}")
    is_finished = final is not None and manifest.get("config_sha256") == sha256(config)
    state = "finished" if is_finished else "stopped" if manifest else "not begun"
    name = shlex.quote(str(directory))
    next_step = "wait" if holder is not None else to_go_on(f"--resume {name}")
    if is_finished:
        next_step = f"manifed report {name}; more rounds: {next_step} --rounds N"
    error = manifest.get("stopped")
    if not is_finished and is_there(folder.error_path):
        error = " ".join(str(json_object(folder.error_path).get(key)) for key in ("when", "what"))
    return {
        "label": evidence.label,
        "doubts": evidence.doubts,
        "directory": str(directory),
        "name": config.name,
        "state": state if holder is None else "running",
        "held_by": holder,
        "round": int(rows[-1] or 0),
        "num_rounds": config.federation.num_rounds,
        "charged": odometer.covered,
        "checkpoint": saved.server_round if saved else None,
        "seconds": final["seconds"] if is_finished and final else None,
        "failures": {kind: sum(n or 0 for n in metrics[kind]) for kind in KINDS if kind in metrics},
        "missing": saved.meta["tally"]["missed"] if saved else {},
        "spent": _spent(config, odometer),
        "delta": reporting_delta(config.setting),
        "budget": _budget(config, odometer),
        "last_error": None if error is None else one_line(str(error)),
        "config_sha256": sha256(config),
        "ledger_head": str(evidence.ledger.head) if evidence.ledger else None,
        "next_step": next_step,
    }


def text_of(status: Mapping[str, Any]) -> str:
    """A status as text for people, one fact a line."""

    def said(value: Any) -> str:
        if isinstance(value, Mapping):
            return ", ".join(f"{key} {said(one)}" for key, one in value.items())
        return f"{value:.6g}" if isinstance(value, float) else str(value)

    facts = {key: value for key, value in status.items() if value not in (None, {}, ())}
    return "\n".join(f"{key.replace('_', ' ')}: {said(value)}" for key, value in facts.items())


def holder_of(folder: Path) -> int | None:
    """The process that holds a folder (`manifed.durable.held`), as the kernel lists it."""
    found = folder.stat()
    device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    try:
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    for line in lines:
        words = line.split()
        if len(words) >= 6 and words[1] == "FLOCK" and words[5] == device:
            return int(words[4])
    return None


def _spent(config: Experiment, odometer: Odometer) -> dict[str, float]:
    delta, kind = reporting_delta(config.setting), config.privacy.kind
    if delta is None:
        return {}
    own = {"client-level": (CLIENT_LEVEL,), "correlated": OF_MASKS}.get(kind, (SERVER, EXTERNAL))
    try:
        return {adversary.name: odometer.epsilon(adversary, delta) for adversary in own}
    except NoValidBound as error:
        raise ConfigError(f"ledger.jsonl: {error}") from None


def _budget(config: Experiment, odometer: Odometer) -> dict[str, Any] | None:
    budget, terms = budget_of(config.setting), odometer.terms
    if budget is None:
        return None
    adversary, delta = budget.adversary, budget.delta
    spent = odometer.epsilon(adversary, delta)
    if terms is not None and terms.is_drawn:
        spent = Tariff((terms,)).ahead(adversary, (odometer.rounds_counted,), delta)
    return {"field": budget.field, "epsilon": budget.epsilon, "adversary": adversary.name,
            "delta": delta, "spent": spent}  # fmt: skip
