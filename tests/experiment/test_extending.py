"""docs/extending.md and its two tutorials, written to an empty folder and run from there."""

import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from manifed.experiment.plugins import VARIABLE
from manifed.privacy.composition import gaussian_epsilon
from tests import fresh
from tests.fresh import ROOT

ALGORITHM = ROOT / "docs" / "tutorials" / "own_algorithm.md"
PAGES = [ALGORITHM.with_name("own_manifold.md"), ROOT / "docs" / "extending.md", ALGORITHM]
FENCE = re.compile(r"^```(?:python|toml)\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def call(folder, *arguments):
    done = fresh.python(*arguments, cwd=folder, path=(folder, ROOT))
    assert done.returncode == 0, done.stderr
    return done.stdout


def shell(folder, line):
    """What a line of a page says to a person who has installed manifed and nothing of this page."""
    kept = {name: text for name, text in os.environ.items() if name not in ("PYTHONPATH", VARIABLE)}
    path = os.pathsep.join([str(Path(sys.executable).parent), kept["PATH"]])
    done = subprocess.run(
        ["bash", "-ec", line], cwd=folder, env=kept | {"PATH": path}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def written(folder, pages):
    """The files of the pages."""
    (folder / "orchard").mkdir(parents=True)
    (folder / "orchard" / "__init__.py").write_text("")
    for page in pages:
        for name, text in FENCE.findall(page.read_text()):
            (folder / name).write_text(text)


@pytest.mark.slow
def test_the_tutorial_of_an_algorithm_runs_as_it_is_printed(tmp_path):
    folder = tmp_path / "mine"
    elsewhere = tmp_path / "elsewhere"
    written(folder, [ALGORITHM])
    elsewhere.mkdir()
    blocks = re.findall(r"^```bash\n(.*?)^```$", ALGORITHM.read_text(), re.M | re.S)
    lines = "".join(blocks).splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["manifed", w] for w in ("run", "report", "sweep")
    ]
    said = [shell(folder, line) for line in lines]
    assert "1e-05)-DP against the server" in said[0]
    assert "report.html" in said[1]
    assert "momentum=0.3" in said[2]
    run = folder / "runs" / "heavy-ball"
    assert "finished" in shell(elsewhere, f"manifed run --resume {run} --status")
    assert "report.html" in shell(elsewhere, f"manifed report {run}")


@pytest.mark.slow
def test_the_package_of_the_page_runs_from_outside(tmp_path):
    written(tmp_path, PAGES)
    for name in sorted(path.name for path in tmp_path.glob("check_*.py")):
        shell(tmp_path, f"python {name}")
    run = partial(call, tmp_path, "-m", "manifed", "run", "config.toml", "--out")
    growing = "training={kind='orchard.growing:Growing',step_size=0.2}"
    poisson = "federation.cohort={kind='poisson',sampling_probability=0.5}"
    said = run(str(tmp_path / "growing"), "--set", growing, "--set", poisson)
    assert "of round 1; they depend on the round" in said
    anchored = "training={kind='orchard.anchored:Anchored',step_size=0.2}"
    said = run(str(tmp_path / "anchored"), "--set", anchored)
    assert f"({gaussian_epsilon(1e-5, mu=10**0.5 / 8):.4g}, 1e-05)-DP against the server" in said
    keys = "from orchard.keys import Introduced; Introduced(step_size=0.1).setup_phases"
    call(tmp_path, "-c", keys)
    manifests = []
    for execution in ("messages", "cohort"):
        out = tmp_path / execution
        assert "epsilon" in run(str(out), "--set", f"engine.execution={execution}")
        manifests.append(json.loads((out / "manifest.json").read_text()))
    first, second = manifests
    assert first["config_sha256"] == second["config_sha256"]
    assert first["privacy"] == second["privacy"]
    (server,) = [one for one in first["privacy"]["adversaries"] if one["name"] == "server"]
    assert server["delta"] == 1e-5
    assert server["epsilon"] == pytest.approx(gaussian_epsilon(1e-5, mu=5**0.5 / 8), rel=1e-4)
