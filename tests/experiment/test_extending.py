"""The pages of docs/extending.md, written to an empty folder and run from there."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
FENCE = re.compile(r"^```(?:python|toml)\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def call(folder, *arguments):
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), str(PAGE.parents[1])])},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_package_of_the_page_runs_from_outside(tmp_path):
    (tmp_path / "orchard").mkdir()
    (tmp_path / "orchard" / "__init__.py").write_text("")
    for name, text in FENCE.findall(PAGE.read_text()):
        (tmp_path / name).write_text(text)
    for name in sorted(tmp_path.glob("check_*.py")):
        call(tmp_path, str(name))
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
