"""The manifest: what ran, on what, at which cost, with which code; written before round 1.

Nothing secret enters it: a release's key never does, and a seed is public by nature.

The cost of a round is as in Zhang, Hu, So, Johansson (2024), section 5: the "communication
quantity" is the number of d x k matrices a client sends to the server; its table of calls of the
geometry is counted in tests/runs/test_work.py.
"""

import hashlib
import importlib.metadata
import math
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from manifed.algorithms.algorithm import ClientUpdate
from manifed.algorithms.payloads import Payload
from manifed.experiment.assembly import Facts
from manifed.experiment.load import dump
from manifed.experiment.plugins import note_of
from manifed.experiment.schema import Experiment, sha256
from manifed.runs.folder import FORMAT, RunFolder, experiment_digest

PACKAGES = (
    "torch",
    "flwr",
    "geoopt",
    "numpy",
    "scipy",
    "dp-accounting",
    "cryptography",
    "scikit-learn",
)
LIBRARY = Path(__file__).resolve().parents[1]
"""The folder of the imported ``manifed``; beside it, in a clone, lies everything else."""


def manifest_of(
    config: Experiment,
    facts: Facts,
    folder: RunFolder,
    privacy: Mapping[str, Any] | None,
    ledger_run_id: str | None,
) -> dict[str, Any]:
    """The manifest of a run that starts now, ready for ``RunFolder.begin``.

    Args:
        config: what runs; its experiment.toml is in ``folder`` already.
        facts: the shape of a point and the public sizes N_i, kept as [size, how many in a row].
        folder: of the run.
        privacy: the privacy statement as data.
        ledger_run_id: of the ledger beside it.
    """
    table, is_private = dump(placeless(config)), config.privacy.kind != "none"
    source = "seed" if config.privacy.kind == "none" else config.privacy.noise_source
    runs = [[size, len(list(same))] for size, same in groupby(facts.sizes)]
    return {
        "format": FORMAT,
        "name": config.name,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command_line": shlex.join(sys.argv),
        "engine": config.engine.kind,
        "seed": config.federation.seed,
        "randomness_source": source,
        "privacy": privacy,
        "work": {"communication_per_client": communication(config.training, facts.point_shape)},
        # with privacy a checksum would tell whether a guessed data set is the one
        "data_checksums": {config.data.kind: None if is_private else facts.checksum},
        "num_examples": runs,
        "ledger_run_id": ledger_run_id,
        "experiment_sha256": experiment_digest(folder.experiment_path.read_bytes()),
        "config_sha256": sha256(config),
        "config": table,
        "git": git_state(LIBRARY.parent),
        "code_sha256": code_sha256(),
        "versions": versions(),
        "machine": {
            "platform": platform.platform(),
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "device": config.engine.device,
            "dtype": config.engine.dtype,
        },
        **note_of(table),
    }


def placeless(config: Experiment) -> Experiment:
    """The experiment without its folder, whose name may be no text that a file can hold."""
    changes = {"directory": None, "resume": False, "ledger_head": None}
    return config.model_copy(update={"output": config.output.model_copy(update=changes)})


def communication(training: ClientUpdate, point_shape: tuple[int, ...]) -> dict[str, int]:
    """Phases of a round, and the matrices and bytes (float64) that a client sends and gets."""

    def entries(payloads: Sequence[type[Payload]]) -> int:
        layouts = (payload.layout(point_shape, torch.float64).values() for payload in payloads)
        return sum(math.prod(shape) for layout in layouts for shape, _ in layout)

    phases, point = training.phases, math.prod(point_shape)
    up, down = entries([one.up for one in phases]), entries([one.down for one in phases])
    return {"phases": len(phases), "matrices_up": up // point, "matrices_down": down // point,
            "bytes_up": up * 8, "bytes_down": down * 8}  # fmt: skip


def process_began() -> float:
    """When this process was started, on the clock of `time.perf_counter`.

    Where no kernel tells, now.
    """
    now = time.perf_counter()
    try:
        fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return now
    started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return now - (time.clock_gettime(time.CLOCK_BOOTTIME) - started)


def source_sha256(package: Path) -> str:
    """Hash of the sorted names and the contents of all Python files under ``package``."""
    digest = hashlib.sha256()
    files = {path.relative_to(package).as_posix(): path for path in package.rglob("*.py")}
    for name, path in sorted(files.items()):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        digest.update(f"{content}  {name}\n".encode())
    return digest.hexdigest()


@cache
def code_sha256() -> str:
    """`source_sha256` of the imported ``manifed``."""
    return source_sha256(LIBRARY)


def git_state(source: Path) -> dict[str, str | bool] | None:
    """Commit and whether files differ from it; None when ``source`` is no git checkout of its own.

    A Flower app bundle that is unpacked somewhere inside another repository is not that repository.
    """
    top = _git(source, "rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() != source.resolve():
        return None
    commit = _git(source, "rev-parse", "--verify", "HEAD")
    status = _git(source, "status", "--porcelain")
    if commit is None or status is None:
        return None
    return {"commit": commit, "is_dirty": bool(status)}


def versions() -> dict[str, str | None]:
    """Version of Python and of each package that computes."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found


def _git(source: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(source), *words],
            check=False,
            capture_output=True,
            text=True,
            timeout=20,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
