"""docs/extending.md and its two tutorials, written to an empty folder and run from there."""

import json
import math
import re
from pathlib import Path

import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from tests import fresh

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "docs" / name
    for name in ("tutorials/own_manifold.md", "extending.md", "tutorials/own_algorithm.md")
]
FENCE = re.compile(r"^```(?:python|toml)\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def of_gaussians(count, noise_multiplier, delta):
    """Epsilon of so many full-batch Gaussians: one of mu = sqrt(count) / noise_multiplier."""
    mu = math.sqrt(count) / noise_multiplier

    def excess(epsilon):
        first, second = norm.cdf(mu / 2 - epsilon / mu), norm.cdf(-mu / 2 - epsilon / mu)
        return first - math.exp(epsilon) * second - delta

    return brentq(excess, 0.0, 50.0)


def call(folder, *arguments):
    done = fresh.python(*arguments, cwd=folder, path=(folder, ROOT))
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_package_of_the_page_runs_from_outside(tmp_path):
    (tmp_path / "orchard").mkdir()
    (tmp_path / "orchard" / "__init__.py").write_text("")
    for page in PAGES:
        for name, text in FENCE.findall(page.read_text()):
            (tmp_path / name).write_text(text)
    for name in sorted(tmp_path.glob("check_*.py")):
        call(tmp_path, str(name))
    growing = "training={kind='orchard.growing:Growing',step_size=0.2}"
    said = call(
        tmp_path, "-m", "manifed", "run", "config.toml", "--out", str(tmp_path / "growing"),
        "--set", growing, "--set", "federation.cohort={kind='poisson',sampling_probability=0.5}",
    )  # fmt: skip
    assert "of round 1; they depend on the round" in said
    call(
        tmp_path,
        "-c",
        "from orchard.keys import Introduced; Introduced(step_size=0.1).setup_phases",
    )
    said = call(tmp_path, "-m", "manifed", "run", "descent.toml", "--out", "runs/heavy-ball")
    assert "1e-05)-DP against the server" in said
    manifests = []
    for execution in ("messages", "cohort"):
        out = tmp_path / execution
        sets = ("--set", f"engine.execution={execution}")
        said = call(tmp_path, "-m", "manifed", "run", "config.toml", "--out", str(out), *sets)
        assert "epsilon" in said
        manifests.append(json.loads((out / "manifest.json").read_text()))
    first, second = manifests
    assert first["config_sha256"] == second["config_sha256"]
    assert first["privacy"] == second["privacy"]
    (server,) = [one for one in first["privacy"]["adversaries"] if one["name"] == "server"]
    assert server["delta"] == 1e-5
    assert server["epsilon"] == pytest.approx(of_gaussians(5, 8.0, 1e-5), rel=1e-4)
