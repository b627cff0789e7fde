"""Runs of figures' curves that are kept in folders, one a config and seed."""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from manifed.cli.launch import Request
from manifed.runs.report.runs import Run, read
from reproduction.experiments import experiment_path
from reproduction.trials import run_silently


def run_of(name: str, seed: int, out: Path, sets: Sequence[str]) -> Run:
    """The finished run of one config and seed, made now unless it is there."""
    folder = out / f"{name}-seed-{seed}"
    if folder.exists() and (not (folder / "manifest.json").exists() or not read(folder).final):
        shutil.rmtree(folder)
    if not folder.exists():
        overrides = ("output.plots=false", *sets, f"federation.seed={seed}")
        run_silently(Request(str(experiment_path(name)), overrides, out=folder, plain=True))
    run = read(folder)
    cost, seconds = run.last("cost"), run.final["seconds"]
    sys.stderr.write(f"{folder.name}: cost {cost:.4g}, {seconds:.1f} s\n")
    return run
