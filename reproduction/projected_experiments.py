"""The experiments configs/experiments/001_*.toml as tables to change, and what a claim returns."""

import tomllib
from dataclasses import dataclass
from typing import Any

import torch

from manifed.experiment.assembly import load_shards
from manifed.experiment.evaluation import client_shares
from manifed.experiment.schema import Experiment
from reproduction.experiment_files import experiment_path


@dataclass(frozen=True)
class Verdict:
    """What was measured, and whether the claim holds as stated."""

    claim: str
    holds: bool
    numbers: dict[str, Any]


def table(name: str, **changes: Any) -> dict[str, Any]:
    """The table of an experiment; ``rounds``, ``seed``, ``step_size`` and ``centred`` change it."""
    found = tomllib.loads(experiment_path(name).read_text())
    if "rounds" in changes:
        found["federation"]["num_rounds"] = changes["rounds"]
    if "seed" in changes:
        found["federation"]["seed"] = changes["seed"]
    if "step_size" in changes:
        found["training"]["step_size"] = changes["step_size"]
    if "batch" in changes:
        found["training"]["minibatch"] = changes["batch"]
    if changes.get("centred"):
        found["data"]["is_centred"] = True
    return found


def best_point(config: Experiment) -> torch.Tensor:
    """The reference optimum, as a start."""
    found = load_shards(config)
    return found.problem.optimum(found.examples, client_shares(found.sizes, "uniform")).x
