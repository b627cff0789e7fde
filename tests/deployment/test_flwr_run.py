"""``flwr run`` itself: its run config, the code that it brings, and nodes that run other code."""

import json
import re
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from app import deployment
from app.processes import free_ports, private_flower, stage
from app.superlink import start_superlink, submit
from manifed.errors import EngineFailed
from manifed.experiment.load import load
from manifed.flower.run_config import run_config_of
from manifed.problems.data import source_sha256
from manifed.runs.manifest import LIBRARY
from tests.fresh import QUICKSTART, ROOT


@pytest.fixture
def clone(tmp_path):
    """The checkout as ``git clone`` would hand it out, edits that are not committed included."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    folder = tmp_path / "clone"
    for name in names.split("\0"):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture
def project(tmp_path):
    """Our app, with code that is not what is installed."""
    folder = stage(ROOT, tmp_path / "project")
    with (folder / "manifed" / "__init__.py").open("a") as file:
        file.write("\n# a version of its own\n")
    return folder


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("leaves_nothing")
def test_flwr_run_in_a_fresh_clone_with_a_fresh_home_ends_with_a_statement(clone, monkeypatch):
    monkeypatch.chdir(clone)
    names = ("FLWR_LOCAL_SUPERLINK_HTTP_API_PORT", "FLWR_LOCAL_CONTROL_API_PORT")
    with private_flower(clone, dict(zip(names, map(str, free_ports(2)), strict=True))) as flower:
        assert not Path(flower.env["FLWR_HOME"]).exists()
        status, details, log = ended(flower, "flwr", "run", ".")
        assert status == "finished:completed", details
        assert "privacy statement\n  SEEDED RUN" in log
        assert "(1.997, 1e-05)-DP against the server, who sees every cohort" in log
        manifest = _newest_manifest(clone)
        assert manifest["privacy"]["adversaries"][0]["epsilon"] == pytest.approx(1.997, abs=1e-3)
        assert manifest["final"]["rounds"] == 30
        assert manifest["config"]["federation"]["num_clients"] == 2

        began = time.monotonic()
        status, details, _ = ended(flower, "flwr", "run", ".", "--run-config", "num-clients=3")
        assert status == "finished:failed"
        assert "Expected 3 clients, got 2" in details
        assert "--federation-config num-supernodes=3" in details
        assert time.monotonic() - began < 200  # Ray starts, and one ClientApp


def ended(flower, *command):
    """Status, details and log of a run on Flower's own local SuperLink, once it has ended."""
    (run_id,) = re.findall(r"Successfully started run (\d+)", flower.call(*command))
    deadline = time.monotonic() + 400
    while True:
        listing = flower.call("flwr", "list", "--run-id", run_id, "--format", "json")
        run = json.loads(listing[listing.index("{") :])["runs"][0]
        if run["status"].startswith("finished"):
            log = flower.call("flwr", "log", run_id, "--show")
            return run["status"], run["status-details"], log
        assert time.monotonic() < deadline, f"{command}: still {run['status']}"
        time.sleep(1.0)


def _newest_manifest(folder):
    newest = max((folder / "runs").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    return json.loads((newest / "manifest.json").read_text())


@pytest.mark.deployment
@pytest.mark.slow
@pytest.mark.usefixtures("leaves_nothing")
def test_a_node_whose_process_imported_another_version_first_is_refused(
    project, tmp_path, monkeypatch
):
    installed = tmp_path / "installed"
    shutil.copytree(LIBRARY, installed / "manifed", ignore=shutil.ignore_patterns("__pycache__"))
    for folder in ("strategies", "clients"):  # as a wheel has them
        shutil.copytree(
            LIBRARY.parent / folder,
            installed / "manifed" / "flower" / folder,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    (installed / "sitecustomize.py").write_text("import manifed\n")
    config = load(QUICKSTART, ["federation.num_clients=1"])
    with private_flower(project) as flower:
        link, address = start_superlink(flower, ["--insecure", "--isolation", "subprocess"])
        flower.connect(address)
        planted = replace(flower, env={**flower.env, "PYTHONPATH": str(installed)})
        configs = deployment.node_configs(1, None)
        deployment.SuperNodes(planted, address, configs, None, lambda _: None)
        with pytest.raises(EngineFailed) as refused:
            submit(
                flower, run_config_of(config), (), timeout=300.0, on_line=lambda _: None,
                check=link.check,
            )  # fmt: skip

    def sha256_of(folder):
        module = SimpleNamespace(__file__=str(folder / "manifed" / "__init__.py"))
        monkeypatch.setitem(sys.modules, "planted", module)
        return source_sha256("planted")

    ours = sha256_of(project)
    theirs = sha256_of(installed)
    assert refused.value.status == "finished:failed"
    said = f"the server runs manifed '{ours[:12]}', this process '{theirs[:12]}'"
    assert said in refused.value.details
