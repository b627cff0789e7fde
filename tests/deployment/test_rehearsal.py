"""The first part of docs/deployment.md, run as printed by deploy/rehearse.sh."""

import os
import pwd
import re
import subprocess
import sys

import pytest

from deploy.three_sites import tables
from manifed.privacy.ledger import Ledger
from manifed.runs.folder import RunFolder
from tests.deployment.planted import rows_in
from tests.fresh import ROOT

PAGE = ROOT / "docs" / "deployment.md"
SITES = ("north", "middle", "south")


def test_the_made_up_files_are_those_of_the_repository():
    here = ROOT / "configs" / "examples" / "three_sites"
    made = tables()
    assert {path.name: path.read_bytes() for path in here.iterdir()} == made
    (first, *_) = made["north.csv"].decode().splitlines()[1:]
    cells = first.split(",")
    assert rows_in([here / "north.csv"], made["north.csv"])
    assert not rows_in([here / "north.csv"], made["south.csv"])
    assert len(cells) == 5


def test_every_command_of_the_first_part_is_run_by_somebody():
    text = PAGE.read_text()
    part = text[text.index("## 1. ") : text.index("### A trial on one machine")]
    assert set(re.findall(r"^```(.*)$", part, re.MULTILINE)[::2]) == {
        f"bash {role}" for role in ("everywhere", "link", "site", "node", "carry")
    }


@pytest.mark.deployment
@pytest.mark.slow
@pytest.mark.one_week_in(2)
def test_the_page_is_played_and_nothing_of_a_file_comes_out(tmp_path):
    results = tmp_path / "results"
    played = subprocess.run(
        [str(ROOT / "deploy" / "rehearse.sh"), str(results)],
        env={**os.environ, "VENV": sys.prefix}, text=True, capture_output=True, check=False,
    )  # fmt: skip
    assert played.returncode == 0, played.stdout + played.stderr
    assert "the page was played to its end" in played.stdout
    assert played.stdout.count("the ledgers agree: 3 rounds charged alike") == 3
    is_one_user = "all parties are the user" in played.stdout
    assert is_one_user != ("each file could be read by its own user only" in played.stdout)
    assert [user.pw_name for user in pwd.getpwall() if re.match(r"mf\d+-", user.pw_name)] == []

    manifest = RunFolder.open(results / "link" / "run").manifest()
    assert manifest["final"]["rounds"] == 3
    assert manifest["randomness_source"] == "os"
    for site in SITES:
        assert Ledger.verify(results / site / "ledger" / "ledger.jsonl").head.sequence >= 4
        audited = (results / site / "audit.txt").read_text()
        spent = [float(found) for found in re.findall(r"\(([\d.]+), 1e-05\)-DP", audited)]
        assert 1.9 < max(spent) <= 2.0
    told = [path for path in results.rglob("*") if path.is_file() and path.name != "patients.csv"]
    told = [path for path in told if "made-up" not in path.parts]
    for site in SITES:
        assert rows_in(told, tables()[f"{site}.csv"]) == []
