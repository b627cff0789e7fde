"""The systemd units and the compose file of deploy/, and the files that they read."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from app.credentials import generate
from app.processes import CONNECTION, private_flower
from tests.deployment.test_flwr_run import ended
from tests.fresh import ROOT
from tests.runs.test_wheel import app_of_the_page, wheel_of

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
WANTED = {
    "UMask=0077", "NoNewPrivileges=true", "ProtectSystem=strict", "ProtectHome=true",
    "PrivateTmp=true", "CapabilityBoundingSet=", "StateDirectoryMode=0700",
}  # fmt: skip


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_systemd_takes_the_units_as_they_are(tmp_path):
    for unit in UNITS:
        program = tmp_path / unit.stem
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
        lines = unit.read_text().splitlines()
        (started,) = [line for line in lines if line.startswith("ExecStart=")]
        place = started.removeprefix("ExecStart=").split()[0]
        (tmp_path / unit.name).write_text(unit.read_text().replace(place, str(program)))
    found = subprocess.run(
        ["systemd-analyze", "verify", *(str(tmp_path / unit.name) for unit in UNITS)],
        env={**os.environ, "SYSTEMD_LOG_LEVEL": "warning"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (found.returncode, found.stdout + found.stderr) == (0, "")


def test_each_service_has_a_user_of_its_own_and_may_write_only_in_its_own_folder():
    users = []
    for unit in UNITS:
        lines = set(unit.read_text().splitlines())
        assert lines >= WANTED, unit.name
        users += [line for line in lines if line.startswith("User=")]
    assert len(UNITS) == len(set(users)) == 3


def test_only_what_has_no_network_reads_the_data():
    texts = {unit.name: unit.read_text() for unit in UNITS}
    assert "PrivateNetwork=true\n" in texts["manifed-site.service"]
    assert "RestrictAddressFamilies=AF_UNIX\n" in texts["manifed-site.service"]
    assert "InaccessiblePaths=-/srv/manifed\n" in texts["manifed-supernode.service"]


COMPOSE = DEPLOY / "docker" / "compose.yml"


def said(*words, **env):
    return subprocess.run(
        words, env=os.environ | env, capture_output=True, text=True, check=False
    )  # fmt: skip


@pytest.mark.slow
def test_the_compose_file_holds_what_flower_takes_and_starts_where_docker_does(tmp_path):
    schema = ("-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec")
    checked = said(sys.executable, *schema, str(COMPOSE))
    assert checked.returncode == 0, checked.stdout
    whole = yaml.safe_load(COMPOSE.read_text())
    creds = tmp_path / "creds"
    generate(creds, 2, ["superlink", "127.0.0.1"])
    for name, secret in whole["secrets"].items():
        assert secret == {"file": f"${{CREDENTIALS:-./creds}}/{name}"}
        assert (creds / name).is_file()
    bin_folder = Path(sys.executable).parent
    for name, service in whole["services"].items():
        program = f"flower-{service['build']['args']['ROLE']}"
        options = re.findall(r"--[a-z-]+", said(str(bin_folder / program), "--help").stdout)
        assert {word.partition("=")[0] for word in service["command"]} <= set(options), name
        files = {
            word.rpartition("/run/secrets/")[2] for word in service["command"] if "/run" in word
        }
        assert files == set(service["secrets"])
    names = {"PROJECT_DIR": str(tmp_path / "app"), "CREDENTIALS": str(creds)}
    names |= {"STATE": str(tmp_path / "state")}
    compose = ("docker", "compose", "-f", str(COMPOSE))
    if shutil.which("docker") is None or said(*compose, "version").returncode:
        return  # the schema is what can be asked
    assert said(*compose, "config", "--quiet", **names).returncode == 0
    if said("docker", "info").returncode == 0:
        _starts(tmp_path, creds, lambda *words: said(*compose, *words, **names))


def _starts(folder, creds, compose):
    """The app of docs/flower.md runs in the containers."""
    app_of_the_page(folder / "app")
    wheel_of(ROOT, folder / "app")
    (folder / "state").mkdir()
    (folder / "state").chmod(0o777)  # the user of Flower's images is another one
    for key in creds.iterdir():
        key.chmod(0o644)
    try:
        up = compose("up", "--build", "--detach")
        assert up.returncode == 0, up.stderr
        with private_flower(ROOT) as flower:
            flower.connect("127.0.0.1:8000", creds / "ca.crt")
            for number in range(2):
                key = f"{creds}/supernode_{number}.pub"
                flower.call("flwr", "supernode", "register", key, CONNECTION)
            config = 'num-server-rounds=1 out="/app/state"'
            status, details, log = ended(
                flower, "flwr", "run", str(folder / "app"), CONNECTION, "--run-config", config
            )
            assert status == "finished:completed", details
            assert "against the server" in log
    finally:
        compose("down", "--volumes")
