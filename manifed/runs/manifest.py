"""The manifest: what ran, on what, with which code, written before round 1.

Nothing secret enters it: a release's key never does, and a seed is public by nature.
"""

import hashlib
import importlib.metadata
import os
import platform
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Literal

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
FORMAT = 2
"""Of run folders; 1 had no such key, no bound checkpoints, and is read but not resumed."""
LIBRARY = Path(__file__).resolve().parents[1]
"""The folder of the imported ``manifed``; beside it, in a clone, lies everything else."""


def manifest_of(
    config: Mapping[str, Any],
    config_sha256: str,
    argv: Sequence[str],
    *,
    name: str,
    engine: str,
    seed: int | None,
    randomness_source: Literal["seed", "os"],
    data_checksums: Mapping[str, str | None],
    privacy: Mapping[str, Any] | None,
    work: Mapping[str, Any] | None = None,
    ledger_run_id: str | None = None,
    experiment_sha256: str | None = None,
    num_examples: Sequence[Sequence[int]] = (),
    device: str = "cpu",
    dtype: str = "float64",
) -> dict[str, Any]:
    """The manifest of a run that starts now, ready for ``RunFolder.begin``.

    Args:
        config: the resolved configuration, as plain JSON values.
        config_sha256: its hash, the one that replies are checked against.
        argv: the command line, program first.
        name: what figures and tables call the run (the config's file name without suffix).
        engine: "inline", "ray" or "deployment".
        seed: of the sampling and, in a seeded run, of the noise; None when none was given.
        randomness_source: "seed" (a seeded run, not private) or "os" (a release).
        data_checksums: data file or recipe to SHA-256; None with privacy, where it would be a
            membership test.
        privacy: the privacy statement as data; None when privacy is off.
        work: the account of one round (manifed/runs/work.py).
        ledger_run_id: of the ledger beside it.
        experiment_sha256: of experiment.toml beside it, as written.
        num_examples: N_i of every client, public (`manifed.runs.evidence.sizes_in_runs`).
        device: where tensors live.
        dtype: of the model.
    """
    return {
        "format": FORMAT,
        "name": name,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command_line": shlex.join(argv),
        "engine": engine,
        "seed": seed,
        "randomness_source": randomness_source,
        "privacy": dict(privacy) if privacy is not None else None,
        "work": dict(work) if work is not None else None,
        "data_checksums": dict(data_checksums),
        "num_examples": [list(one) for one in num_examples],
        "ledger_run_id": ledger_run_id,
        "experiment_sha256": experiment_sha256,
        "config_sha256": config_sha256,
        "config": dict(config),
        "git": git_state(LIBRARY.parent),
        "code_sha256": code_sha256(),
        "versions": versions(),
        "machine": machine(device, dtype),
    }


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


@cache
def code_sha256() -> str:
    """Hash of the source files of the imported ``manifed``: their sorted names and contents."""
    return source_sha256(LIBRARY)


def source_sha256(package: Path) -> str:
    """Hash of the names and contents of all Python files under ``package``."""
    digest = hashlib.sha256()
    files = {path.relative_to(package).as_posix(): path for path in package.rglob("*.py")}
    for name, path in sorted(files.items()):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        digest.update(f"{content}  {name}\n".encode())
    return digest.hexdigest()


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


@cache
def versions() -> dict[str, str | None]:
    """Version of Python, of each package that computes, and of the BLAS under NumPy and torch."""
    import numpy
    import torch

    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    build: Any = numpy.show_config(mode="dicts")
    blas = build["Build Dependencies"]["blas"]
    found["numpy-blas"] = f"{blas['name']} {blas['version']}"
    built = torch.__config__.show()
    found["torch-blas"] = built.partition("BLAS_INFO=")[2].partition(",")[0] or None
    return found


def machine(device: str, dtype: str) -> dict[str, str | int | None]:
    """Platform, cores, torch threads, device and dtype of the run."""
    import torch

    return {
        "platform": platform.platform(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": device,
        "dtype": dtype,
    }


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
