"""The configs on files of one's own run with privacy, and docs/data.md runs as it is printed."""

import csv
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from manifed.experiment.assembly import client_side
from manifed.experiment.load import load
from manifed.federation.stack import StackTransport
from manifed.runs.driver import rounds_over, run

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "configs" / "examples"
CONFIGS = sorted(path.stem for path in EXAMPLES.glob("own_*.toml"))
QUICK = ("federation.num_rounds=2", "evaluation.is_enabled=false")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The examples with their files, in a folder of their own."""
    found = tmp_path_factory.mktemp("examples")
    for path in EXAMPLES.glob("own_*.toml"):
        shutil.copy(path, found)
    subprocess.run([sys.executable, EXAMPLES / "make_files.py", found / "files"], check=True)
    return found


def config_of(folder, name, out, *overrides):
    plain = ("output.quiet=true", "output.plots=false", f"output.directory={out}")
    return load(folder / f"{name}.toml", [*plain, *overrides])


def in_memory(config):
    transport = StackTransport(client_side(config), at_once=None, memory_budget_mb=512)
    return run(config, rounds_over(transport))


def last_row(made):
    with (made.directory / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))[-1]


@pytest.mark.parametrize("name", CONFIGS)
def test_every_ready_problem_runs_privately_on_files(folder, tmp_path, name):
    config = config_of(folder, name, tmp_path / "out", *QUICK)
    made = in_memory(config)
    assert 1.9 < float(last_row(made)["epsilon"]) <= 2.0
    (model,) = load_file(made.directory / "model.safetensors").values()
    assert config.problem.build().manifold.check_point_on_manifold(model)
