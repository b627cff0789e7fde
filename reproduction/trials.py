"""Runs of figures' curves in this process: the product's own path, without figures on disk."""

import contextlib
import io
import logging
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor

from benchmarks.common.quiet import flower_says_only
from manifed.cli.launch import Request, launch
from manifed.experiment.assembly import load_shards
from manifed.experiment.evaluation import client_shares
from manifed.experiment.schema import Experiment
from manifed.runs.report import read
from reproduction.figure_files import curve_path, curves

NON_PRIVATE = 'privacy={ kind = "none" }'
"""Override: neither clipping nor noise."""


@dataclass(frozen=True)
class Trial:
    """One finished run: measured columns, final model, privacy statement."""

    columns: Mapping[str, NDArray[np.float64]]
    model: Tensor
    privacy: Mapping[str, Any]

    def at(self, column: str, server_round: int) -> float:
        """The value measured after ``server_round``."""
        (row,) = np.flatnonzero(self.columns["round"] == server_round)
        return float(self.columns[column][row])

    def tail(self, column: str, rows: int = 20) -> float:
        """The mean of the last ``rows`` measured values."""
        return float(self.columns[column][-rows:].mean())

    def least(self, column: str) -> float:
        """The smallest value."""
        return float(self.columns[column].min())


@lru_cache(maxsize=256)
def trial(name: str, seed: int, *sets: str) -> Trial:
    """The run of the curve NAME (or of a path) at ``seed`` with ``sets`` applied."""
    overrides = ("engine.execution=cohort", "output.plots=false", *sets)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        request = Request(
            str(curve_path(name)), (*overrides, f"federation.seed={seed}"), out=out, plain=True
        )
        run_silently(request)
        found = read(out)
        model = load_file(out / "model.safetensors")["x"]
    return Trial(found.columns, model, found.manifest["privacy"])


def trials(name: str, seeds: Sequence[int], *sets: str) -> list[Trial]:
    """`trial` for each of ``seeds``."""
    return [trial(name, seed, *sets) for seed in seeds]


def run_silently(request: Request) -> None:
    """`launch` without progress on the terminal."""
    with (
        flower_says_only(logging.WARNING),
        contextlib.redirect_stderr(io.StringIO()),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        launch(request)


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean."""
    return float(np.mean(values))


def table(name: str, **changes: Any) -> dict[str, Any]:
    """The table of a curve; ``rounds``, ``seed``, ``step_size`` and ``centred`` change it."""
    found = curves()[name].table(name)
    if "rounds" in changes:
        found["federation"]["num_rounds"] = changes["rounds"]
    if "seed" in changes:
        found["federation"]["seed"] = changes["seed"]
    if "step_size" in changes:
        found["training"]["step_size"] = changes["step_size"]
    if changes.get("centred"):
        found["data"]["is_centred"] = True
    return found


def best_point(config: Experiment) -> Tensor:
    """The reference optimum, as a start."""
    found = load_shards(config)
    return found.problem.optimum(found.examples, client_shares(found.sizes, "uniform")).x
