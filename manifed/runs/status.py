"""The status of a run, read from its folder while it runs or after it stopped.

Nothing is written and no lock is taken: the process that holds the folder is read from /proc/locks,
so a run is never kept from starting. A row or a line of the ledger that is being written does not
count yet. What is said is the server's own knowledge.
"""

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from manifed.errors import named_by, one_line
from manifed.experiment.schema import sha256
from manifed.federation.exchange import KINDS
from manifed.plan import budget_of
from manifed.privacy.composition import NoValidBound
from manifed.runs.evidence import evidence_of, saved_config, to_go_on
from manifed.runs.folder import RunFolder, json_object
from manifed.runs.places import real


def status_of(directory: Path) -> dict[str, Any]:
    """Reads the status of a run as data.

    Raises:
        ConfigError, FolderDamaged, LedgerDamaged: it is no run folder, or a file
            in it is not what a run writes; one line with the file.
    """
    directory = real("--resume", directory)
    config = saved_config(directory)
    folder = RunFolder(directory)
    holder = _holder_of(directory)
    found = evidence_of(directory, config)
    saved = found.checkpoint
    final = found.manifest.get("final", {})
    metrics = folder.metrics(final.get("rounds"))
    delta = config.setting.reporting_delta
    budget = budget_of(config.setting)
    with named_by("ledger.jsonl", NoValidBound):
        spent = () if delta is None else found.odometer.spent(delta)
    name = shlex.quote(str(directory))
    state, next_step = "stopped" if found.manifest else "not begun", to_go_on(f"--resume {name}")
    if holder is not None:
        state, next_step = "running", "wait"
    elif final:
        state, next_step = "finished", f"manifed report {name}"
    error = found.manifest.get("stopped")
    if not final and os.path.lexists(folder.error_path):
        kept = json_object(folder.error_path)
        error = f"{kept.get('when')} {kept.get('what')}"
    return {
        "label": found.label,
        "doubts": found.doubts,
        "directory": str(directory),
        "name": config.name,
        "state": state,
        "held_by": holder,
        "round": int((metrics.get("round") or [0])[-1] or 0),
        "num_rounds": config.federation.num_rounds,
        "charged": found.odometer.covered,
        "checkpoint": saved.server_round if saved else None,
        "seconds": final.get("seconds"),
        "failures": {kind: sum(n or 0 for n in metrics[kind]) for kind in KINDS if kind in metrics},
        "missing": saved.meta.tally.missed if saved else {},
        "spent": {one["name"]: one["epsilon"] for one in spent},
        "delta": delta,
        "budget": budget
        and {
            "field": budget.field,
            "epsilon": budget.epsilon,
            "adversary": budget.adversary.name,
            "delta": budget.delta,
        },
        "last_error": error and one_line(str(error)),
        "config_sha256": sha256(config),
        "ledger_head": str(found.ledger.head) if found.ledger else None,
        "next_step": next_step,
    }


def text_of(status: Mapping[str, Any]) -> str:
    """Returns a status as text for people, one fact per line."""

    def said(value: Any) -> str:
        if isinstance(value, Mapping):
            return ", ".join(f"{key} {said(one)}" for key, one in value.items())
        return f"{value:.6g}" if isinstance(value, float) else str(value)

    return "\n".join(
        f"{key.replace('_', ' ')}: {said(value)}"
        for key, value in status.items()
        if value not in (None, {}, ())
    )


def _holder_of(folder: Path) -> int | None:
    """The process that holds a folder (`manifed.durable.held`), as the kernel lists it."""
    found = folder.stat()
    device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    try:
        locks = Path("/proc/locks").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    line = re.search(rf" FLOCK +\S+ +\S+ +(\d+) {device} ", locks)
    return None if line is None else int(line[1])
