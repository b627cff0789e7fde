"""The curves of the papers' figures: which figure file has one, and their tables to change."""

from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from manifed.errors import ConfigError
from manifed.experiment.assembly import load_shards
from manifed.experiment.evaluation import client_shares
from manifed.experiment.figure_files import FigureOf, read_figure
from manifed.experiment.paths import nearest
from manifed.experiment.schema import Experiment

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "configs" / "figures"


@lru_cache(maxsize=1)
def curves() -> dict[str, FigureOf]:
    """The figure that has a curve, by the curve's name."""
    figures = [read_figure(path) for path in sorted(FIGURES.glob("*.toml"))]
    return {curve: figure for figure in figures for curve in figure.choices}


def experiment_path(name: str) -> Path:
    """What `load` takes for a curve, FIGURE.toml::NAME; a path to a config itself.

    Raises:
        ConfigError: no figure has it.
    """
    if name.endswith(".toml"):
        return Path(name)
    return Path(_figure_of(name).source(name))


def table(name: str, **changes: Any) -> dict[str, Any]:
    """The table of an experiment; ``rounds``, ``seed``, ``step_size`` and ``centred`` change it."""
    found = _figure_of(name).table(name)
    if "rounds" in changes:
        found["federation"]["num_rounds"] = changes["rounds"]
    if "seed" in changes:
        found["federation"]["seed"] = changes["seed"]
    if "step_size" in changes:
        found["training"]["step_size"] = changes["step_size"]
    if changes.get("centred"):
        found["data"]["is_centred"] = True
    return found


def _figure_of(name: str) -> FigureOf:
    if name not in curves():
        meant = nearest(name, curves())
        hint = f"; did you mean {meant!r}?" if meant else ""
        raise ConfigError(f"Expected a curve of a file in {FIGURES}, got {name!r}{hint}")
    return curves()[name]


def best_point(config: Experiment) -> torch.Tensor:
    """The reference optimum, as a start."""
    found = load_shards(config)
    return found.problem.optimum(found.examples, client_shares(found.sizes, "uniform")).x
