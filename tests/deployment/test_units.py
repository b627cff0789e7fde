"""The systemd units of deploy/ and the files that they read."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

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
