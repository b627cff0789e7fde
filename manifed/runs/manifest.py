"""The manifest of a run: config, machine, versions and code, written before round 1.

Nothing secret enters it: a release's key never does, and a seed is public by nature.
"""

import hashlib
import os
import platform
import re
import shlex
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from pathlib import Path

import torch

from manifed.experiment.assembly import Facts
from manifed.experiment.load import dump
from manifed.experiment.plugins import note_of
from manifed.experiment.schema import Experiment, sha256
from manifed.fields import Document, Values
from manifed.oracles.fused import kernel_name
from manifed.problems.data import source_sha256
from manifed.runs.folder import FORMAT, RunFolder

LIBRARY = Path(__file__).resolve().parents[1]
"""The folder of the imported ``manifed``; beside it, in a clone, lies everything else."""


def manifest_of(
    config: Experiment,
    facts: Facts,
    folder: RunFolder,
    privacy: Values | None,
    ledger_run_id: str | None,
) -> Document:
    """Makes the manifest of a run that starts now, ready for ``RunFolder.begin``.

    Args:
        config: what runs; its experiment.toml is in ``folder`` already.
        facts: the shape of a point and the public sizes N_i, kept as [size, how many in a row].
        folder: of the run.
        privacy: the privacy statement as data.
        ledger_run_id: of the ledger beside it.
    """
    table = dump(placeless(config))
    return {
        "format": FORMAT,
        "name": config.name,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command_line": shlex.join(sys.argv),
        "engine": config.engine.kind,
        "seed": config.federation.seed,
        "randomness_source": config.privacy.noise_source,
        "privacy": privacy,
        # with privacy a checksum would tell whether a guessed data set is the one
        "data_checksums": {
            config.data.kind: facts.checksum if config.privacy.kind == "none" else None
        },
        "num_examples": [[size, len([*same])] for size, same in groupby(facts.sizes)],
        "ledger_run_id": ledger_run_id,
        "experiment_sha256": hashlib.sha256(folder.experiment_path.read_bytes()).hexdigest(),
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
            "kernel": kernel_name(),
        },
        **note_of(table),
    }


def placeless(config: Experiment) -> Experiment:
    """Returns the experiment without its folder, whose name may be no text that a file can hold."""
    changes = {"directory": None, "resume": False, "ledger_head": None}
    return config.model_copy(update={"output": config.output.model_copy(update=changes)})


@cache
def code_sha256() -> str:
    """Hashes names and contents of the Python files of the imported ``manifed``."""
    return source_sha256("manifed")


def git_state(source: Path) -> dict[str, str | bool] | None:
    """Returns commit and uncommitted changes; None if ``source`` is not the root of a git checkout.

    A Flower app bundle that is unpacked somewhere inside another repository is not that repository.
    """
    if not (source / ".git").exists():
        return None
    try:
        said = subprocess.run(
            ["git", "-C", str(source), "status", "--porcelain=v2", "--branch"],
            check=False,
            capture_output=True,
            text=True,
            timeout=20,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    commit = re.search(r"^# branch\.oid ([0-9a-f]+)$", said.stdout, re.MULTILINE)
    is_dirty = re.search("^[^#]", said.stdout, re.MULTILINE) is not None
    return commit and {"commit": commit[1], "is_dirty": is_dirty}


def versions() -> dict[str, str | None]:
    """Returns the versions of Python and of each package that computes."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in (
        "torch",
        "flwr",
        "geoopt",
        "numpy",
        "scipy",
        "dp-accounting",
        "cryptography",
        "scikit-learn",
    ):
        found[package] = None
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found
