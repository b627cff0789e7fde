"""The command line: bad input is one clear line and exit code 2; JSON is a document alone."""

import gc
import json
import subprocess
import sys
from pathlib import Path

import pytest

from manifed.runs import evidence
from manifed.runs.evidence import to_go_on
from tests.command import invoke
from tests.runs.running import QUICKSTART, ROOT, refused

SMALL = ["--set", "federation.num_rounds=2", "--plain"]


BAD = [
    ("--set federation.num_round=5", ["federation.num_round", "unknown key"]),
    ("--set federation.num_rounds=x", ["federation.num_rounds", "'x'"]),
    ("--set privacy.noise.delta=0.01", ["privacy.noise.delta", "1/n", "0.01", "1797"]),
    (
        "--set training.minibatch={kind='poisson',batch_size=500}",
        ["training.minibatch.batch_size", "179", "500"],
    ),
    (
        "--set federation.cohort={kind='fixed-size',cohort_size=99}",
        ["federation.cohort.cohort_size", "10", "99"],
    ),
    ("--set federation.num_clients=5000", ["num_partitions", "5000"]),
    ("--set data.kind=reproduction.recipes:Wishart", ["principal-eigenvector", "Wishart"]),
    ("--set data.kind=mnist", ["data.kind", "MANIFED_DATA"]),
    ("--engine spark", ["engine.kind", "spark"]),
]


@pytest.mark.parametrize(("words", "expected"), BAD)
def test_bad_input_is_one_line_and_code_2_and_writes_nothing(
    tmp_path, monkeypatch, words, expected
):
    monkeypatch.delenv("MANIFED_DATA", raising=False)
    line = refused("run", QUICKSTART, *words.split(), "--out", tmp_path / "run")
    assert gc.isenabled()
    for word in expected:
        assert word in line
    assert not (tmp_path / "run").exists()


def test_a_run_ends_with_the_privacy_statement_and_its_json_is_alone(tmp_path):
    result = invoke("run", QUICKSTART, *SMALL, "--out", tmp_path / "run", "--json")
    assert result.exit_code == 0, result.stderr
    final = json.loads(result.stdout)
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert list(manifest)[-1] == "final"
    assert final == {"directory": str(tmp_path / "run"), **manifest["final"]}
    _, _, statement = result.stderr.partition("\nprivacy statement\n")
    for word in ("SEEDED RUN", "unit: one example", "add-or-remove", "released", "server: ("):
        assert word in statement
    assert "RELEASE:" not in statement


def test_a_run_without_privacy_says_so(tmp_path):
    done = invoke(
        "run",
        QUICKSTART,
        *SMALL,
        "--set",
        "privacy={kind='none'}",
        "--out",
        tmp_path / "run",
        "--json",
    )
    assert "NOT PRIVATE" in done.stderr
    assert json.loads(done.stdout)["epsilon"] is None


def test_help_is_quick_and_needs_no_torch():
    code = (
        "import runpy, sys\n"
        "try: runpy.run_path('simulation.py', run_name='__main__')\n"
        "except SystemExit: print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    *shown, modules = done.stdout.splitlines()
    assert "--engine" in "".join(shown)
    slow = {"torch", "flwr", "ray", "matplotlib", "dp_accounting", "numpy", "scipy", "pydantic",
            "geoopt", "rich"}  # fmt: skip
    assert not slow & set(modules.split())


def test_whoever_is_interrupted_is_told_the_command_that_was_used(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/usr/bin/manifed"])
    assert to_go_on("--resume x") == "manifed run --resume x"
    monkeypatch.setattr(sys, "argv", ["simulation.py"])
    assert to_go_on("--resume x") == "python simulation.py --resume x"
    monkeypatch.setattr(evidence, "LIBRARY", Path("/nowhere/manifed"))
    assert to_go_on("--resume x") == "manifed run --resume x"
