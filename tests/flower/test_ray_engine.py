import re
import shutil
import signal
import sys
from pathlib import Path

import pytest
import torch

from app import deployment
from benchmarks.engines_agree import compare_engines
from manifed.cli.launch import Request, launch
from manifed.errors import EngineFailed
from manifed.experiment.plugins import VARIABLE
from manifed.problems.data import FOLDERS
from tests.deployment.conftest import TINY_PROJECT, leaves_nothing  # noqa: F401 - a fixture
from tests.deployment.interrupt import interrupted
from tests.deployment.kills import gone
from tests.deployment.tiny_run_config import tiny_run_config
from tests.experiment import own_nets
from tests.experiment.test_own_module import CONFIG as OWN_MODULE
from tests.fresh import QUICKSTART
from tests.tensors import assert_near

EVALUATED = "evaluation={kind='private',hold_out=0.25,loss_range=[-1.0,0.0]}"
QUIET = ()
FEW = "federation.num_rounds=1"
pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.mark.usefixtures("leaves_nothing")
def test_own_files_and_their_private_evaluation_are_those_of_inline(tmp_path):
    shared = Path("/tmp/ray")  # where Ray puts itself unless it is told otherwise
    before = shared.exists() and shared.stat().st_mtime
    config = str(QUICKSTART.parent / "examples" / "three_sites.toml")
    sets = (EVALUATED, *QUIET)
    ran = [
        launch(Request(config, sets, engine, out=tmp_path / engine, plain=True))
        for engine in ("inline", "ray")
    ]
    models = [folder.load_tensors("model")["x"] for folder in ran]
    assert_near(*models, atol=1e-10)
    losses = [folder.metrics()["held_out_loss"] for folder in ran]
    assert sum(loss is not None for loss in losses[0]) == 3
    assert losses[1] == pytest.approx(losses[0], abs=1e-10)
    assert (shared.exists() and shared.stat().st_mtime) == before


@pytest.mark.usefixtures("leaves_nothing")
def test_a_module_of_a_package_outside_has_one_trajectory_on_every_engine(tmp_path, monkeypatch):
    """Nothing is installed or allowed: the package lies beside the config that a person runs."""
    shutil.copy(Path(own_nets.__file__), tmp_path / "nets_of_mine.py")
    monkeypatch.setattr(sys, "path", list(sys.path))
    for variable in (FOLDERS, VARIABLE):
        monkeypatch.setenv(variable, "")
    config = tmp_path / "own.toml"
    config.write_text(OWN_MODULE.replace(own_nets.FACTORY, "nets_of_mine:orthogonal"))
    sets = ["federation.num_rounds=2", *QUIET]
    found = compare_engines(str(config), sets, ("inline", "ray", "deployment"))
    assert found["engines"] == ["inline", "ray", "deployment"]
    assert found["max_difference"] <= 1e-10


@pytest.mark.usefixtures("leaves_nothing")
def test_a_secure_sum_is_rehearsed_to_the_bit_and_released(tmp_path):
    config = str(QUICKSTART.parent / "examples" / "secure_sum.toml")
    ran = [
        launch(Request(config, (FEW, sets), engine, out=tmp_path / str(number), plain=True))
        for number, (engine, sets) in enumerate((
            ("inline", "privacy.noise_source=seed"), ("ray", "privacy.noise_source=seed"),
            ("ray", "privacy.noise_source=os"),
        ))
    ]  # fmt: skip
    rehearsed, again, _ = (folder.load_tensors("model")["x"] for folder in ran)
    assert torch.equal(rehearsed, again)
    said = [folder.manifest()["privacy"] for folder in ran]
    assert said[2]["label"] == "release"
    assert said[2]["adversaries"] == said[0]["adversaries"]


@pytest.mark.usefixtures("leaves_nothing")
def test_a_run_that_takes_too_long_is_ended(tmp_path):
    with pytest.raises(EngineFailed, match="not finished after 6 s") as caught:
        deployment.run(
            run_config=tiny_run_config(4, tmp_path / "out", "rounds=100000"), num_supernodes=4,
            project=TINY_PROJECT, timeout=6.0, on_line=lambda _: None, is_simulation=True,
        )  # fmt: skip
    assert caught.value.status == "timeout"


def test_sigterm_ends_ray_and_everything_else_and_removes_the_home(tmp_path):
    code, started, lines = interrupted("ray", TINY_PROJECT, tmp_path / "out", signal.SIGTERM)
    assert code == 128 + signal.SIGTERM
    assert len(started) >= 6  # SuperLink, SuperExec, simulation, gcs, raylet, actors
    gone(started, 1.0)
    (home,) = set(re.findall(r"(\S*/mf-[^/]+)/flwr/apps", "".join(lines)))
    assert not Path(home).exists()
