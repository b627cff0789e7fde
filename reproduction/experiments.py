"""The checked-in experiments: where they lie, and their tables to change."""

import tomllib
from pathlib import Path
from typing import Any

import torch

from manifed.experiment.assembly import load_shards
from manifed.experiment.evaluation import client_shares
from manifed.experiment.schema import Experiment

ROOT = Path(__file__).resolve().parents[1]
EXPERIMENTS = ROOT / "configs" / "experiments"


def experiment_path(name: str) -> Path:
    """configs/experiments/NAME.toml, or NAME itself where it is a path to a config."""
    return Path(name) if name.endswith(".toml") else EXPERIMENTS / f"{name}.toml"


def table(name: str, **changes: Any) -> dict[str, Any]:
    """The table of an experiment; ``rounds``, ``seed``, ``step_size`` and ``centred`` change it."""
    found = tomllib.loads(experiment_path(name).read_text())
    if "rounds" in changes:
        found["federation"]["num_rounds"] = changes["rounds"]
    if "seed" in changes:
        found["federation"]["seed"] = changes["seed"]
    if "step_size" in changes:
        found["training"]["step_size"] = changes["step_size"]
    if changes.get("centred"):
        found["data"]["is_centred"] = True
    return found


def best_point(config: Experiment) -> torch.Tensor:
    """The reference optimum, as a start."""
    found = load_shards(config)
    return found.problem.optimum(found.examples, client_shares(found.sizes, "uniform")).x
