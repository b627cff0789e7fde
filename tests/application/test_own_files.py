"""The configs on files of one's own run with privacy, and docs/data.md runs as it is printed."""

import shutil
import subprocess
import sys

import pytest

from manifed.experiment.assembly import client_side
from manifed.experiment.load import load
from manifed.federation.stack import StackTransport
from manifed.runs.driver import rounds_over, run
from tests.fresh import ROOT

EXAMPLES = ROOT / "configs" / "examples"
CONFIGS = sorted(path.stem for path in EXAMPLES.glob("own_*.toml"))
QUICK = (
    "federation.num_rounds=2", "evaluation.is_enabled=false", "output.quiet=true",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The examples with their files, in a folder of their own."""
    found = tmp_path_factory.mktemp("examples")
    for path in EXAMPLES.glob("own_*.toml"):
        shutil.copy(path, found)
    subprocess.run([sys.executable, EXAMPLES / "make_files.py", found / "files"], check=True)
    return found


@pytest.mark.parametrize("name", CONFIGS)
def test_every_ready_problem_runs_privately_on_files(folder, tmp_path, name):
    config = load(folder / f"{name}.toml", [*QUICK, f"output.directory={tmp_path / 'out'}"])
    transport = StackTransport(client_side(config), at_once=None, memory_budget_mb=512)
    made = run(config, rounds_over(transport))
    assert 1.9 < made.metrics()["epsilon"][-1] <= 2.0
    (model,) = made.load_tensors("model").values()
    assert config.problem.build().manifold.check_point_on_manifold(model)
