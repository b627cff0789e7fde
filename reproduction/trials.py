"""Runs of figures' curves in this process: the product's own path, without figures on disk."""

import contextlib
import io
import logging
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor

from benchmarks.common.quiet import flower_says_only
from manifed.algorithms.rsvrg import RSVRG
from manifed.cli.launch import Request, launch
from manifed.experiment.assembly import load_shards
from manifed.experiment.evaluation import client_shares
from manifed.experiment.load import load, parse
from manifed.experiment.schema import Experiment
from manifed.runs.report import read
from reproduction.figure_files import curve_path, curves

NON_PRIVATE = 'privacy={ kind = "none" }'
"""Override: neither clipping nor noise."""
FULL_STEPS = (
    'federation.cohort={ kind = "all" }',
    "training.local_steps=1",
    'training.minibatch={ kind = "full" }',
)
"""Overrides: everybody takes one step of a full batch."""


class Columns(dict[str, NDArray[np.float64]]):
    """What was measured after so many rounds."""

    def at(self, column: str, server_round: int) -> float:
        """The value measured after ``server_round``."""
        (value,) = self[column][self["round"] == server_round]
        return float(value)

    def tail(self, column: str, rows: int) -> float:
        """The mean of the last ``rows`` measured values."""
        return float(self[column][-rows:].mean())


@lru_cache(maxsize=256)
def trial(name: str, seed: int, *sets: str) -> tuple[Columns, Tensor]:
    """Columns and final model of the curve NAME (or of a path) at ``seed``, ``sets`` applied."""
    overrides = ("engine.execution=cohort", *sets, f"federation.seed={seed}")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        run_silently(Request(str(curve_path(name)), overrides, out=out, plain=True))
        return Columns(read(out).columns), load_file(out / "model.safetensors")["x"]


def run_silently(request: Request) -> None:
    """`launch` without progress on the terminal."""
    with (
        flower_says_only(logging.WARNING),
        contextlib.redirect_stderr(io.StringIO()),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        launch(request)


def curve(name: str, **changes: Any) -> Experiment:
    """The config of a curve, with other rounds, seed or centring, or keys of its training."""
    found = curves()[name].table(name)
    places = {"num_rounds": "federation", "seed": "federation", "is_centred": "data"}
    for key, value in changes.items():
        found[places.get(key, "training")][key] = value
    return parse(found)


def experiment(name: str, *sets: str) -> Experiment:
    """The curve NAME (or a path) with overrides."""
    return load(curve_path(name), sets)


def best_point(config: Experiment) -> Tensor:
    """The reference optimum, as a start."""
    found = load_shards(config)
    return found.problem.optimum(found.examples, client_shares(found.sizes, "uniform")).x


def gradients_a_round(config: Experiment, num_examples: int) -> float:
    """IFO calls: n + 2 m b an epoch of RSVRG, b a step of RGD and RSGD."""
    training = config.training
    size = training.minibatch.expected_size(num_examples)
    if isinstance(training, RSVRG):
        return training.epochs * (num_examples + 2 * training.inner_steps * size)
    return training.local_steps * size
