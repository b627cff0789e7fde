"""The tutorials run as they are printed, in a copy of what a clone holds."""

import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from manifed.cli.main import main
from tests.fresh import ROOT

TUTORIALS = ROOT / "docs" / "tutorials"
FENCE = re.compile(r"^```(bash|toml|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = {"first_component": 4, "three_sites": 4, "epsilon": 3, "visits": 9}
"""How many commands each has; the others: tests/experiment/test_extending.py."""


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """What the pages need of a clone; runs of one page lie beside those of another."""
    found = tmp_path_factory.mktemp("pages") / "clone"
    ignored = shutil.ignore_patterns("__pycache__", "files")
    for part in ("app", "strategies", "clients", "manifed", "configs"):
        shutil.copytree(ROOT / part, found / part, ignore=ignored)
    shutil.copy(ROOT / "simulation.py", found)
    return found


def run(line):
    """The exit status of a command of a page; ours without another process, for the time's sake."""
    words = shlex.split(line, comments=True)
    if words[0] not in ("python", "manifed"):
        return subprocess.run(words, check=False).returncode
    sys.argv = words[1:] if words[0] == "python" else words
    try:
        if words[0] == "python":
            runpy.run_path(words[1], run_name="__main__")
        else:
            main(words[1:])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def played(page, capfd):
    """Write and run the blocks of a page in order; every command that was run, and what it said."""
    said = []
    for language, text in FENCE.findall(page.read_text()):
        if language != "bash":
            name, _, rest = text.partition("\n")
            Path(name.removeprefix("# ")).write_text(rest)
            continue
        for line in text.strip().splitlines():
            code = run(line)
            told = "".join(capfd.readouterr())
            assert code == (2 if line.endswith("# exit 2") else 0), (line, told[-2000:])
            said.append((line, told))
    return said


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_a_tutorial_runs_as_printed(clone, monkeypatch, capfd, name):
    monkeypatch.chdir(clone)
    monkeypatch.setattr(sys, "argv", sys.argv)
    said = played(TUTORIALS / f"{name}.md", capfd)
    assert len(said) == PAGES[name]
    assert not [line for line, text in said if "Traceback" in text]
    whole = "\n".join(text for _, text in said)
    for promised in {
        "first_component": ["step_size=0.5", "step_size=0.25", "1e-05)-DP against the server"],
        "three_sites": ["column 'weight': expected one column of this name, got 0"],
        "visits": ["857 rows, 857 count", "unit: one person", "accuracy: 0.8", "678 rows"],
        "epsilon": ["unit: one example", "unit: one client", "external"],
    }[name]:
        assert promised in whole


@pytest.mark.slow
def test_the_page_on_files_runs_as_printed(clone, monkeypatch):
    monkeypatch.chdir(clone)
    monkeypatch.setattr(sys, "argv", sys.argv)
    blocks = FENCE.findall((ROOT / "docs" / "data.md").read_text())
    lines = "".join(text for language, text in blocks if language == "bash").splitlines()
    assert [run(line) for line in lines] == [0, 0]


def test_every_tutorial_is_tested():
    others = {"own_manifold", "own_algorithm"}
    assert {path.stem for path in TUTORIALS.glob("*.md")} == set(PAGES) | others


def test_the_page_on_secure_sums_runs_as_printed(capsys):
    page = (ROOT / "docs" / "secure_sum.md").read_text()
    first, second = (text for language, text in FENCE.findall(page) if language == "python")
    exec(first, {})
    exec(second, {})
    met, private, public = capsys.readouterr().out.splitlines()
    assert met == "True"
    assert [len(line.split()[-1]) for line in (private, public)] == [64, 64]


def test_the_page_on_guard_runs_as_printed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "guard.md").read_text()
    server, client = (text for language, text in FENCE.findall(page) if language == "python")
    made = {}
    exec(server, made)
    exec(client, {})
    assert made["strategy"].payable(100) == 30  # at epsilon 8
    made["strategy"].close()
    assert [path.name for path in tmp_path.glob("*.jsonl")] == ["ledger.jsonl"]


def test_the_page_on_statistics_runs_as_printed(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", sys.argv)
    rng = np.random.default_rng(0)
    for name in "abc":
        rows = rng.normal([0.5, 0.0, -0.2], [0.5, 0.4, 0.3], (400, 3))
        header = "age,bmi,pressure"
        np.savetxt(f"{name}.csv", rows, delimiter=",", header=header, comments="")
    page = (ROOT / "docs" / "statistics.md").read_text()
    (block,) = (text for language, text in FENCE.findall(page) if language == "python")
    made = {}
    exec(block, made)
    assert 0.9 < float(capfd.readouterr().out) <= 1.0
    truth = np.vstack(made["sites"]).mean(0)
    assert made["found"].interval("mean").estimate.numpy() == pytest.approx(truth, abs=0.1)
    (tmp_path / "page.md").write_text(page.replace(block, "# block.py\n"))
    (_, ran), (_, printed) = played(tmp_path / "page.md", capfd)
    assert "RELEASE" in ran
    assert "| 2, pressure |" in printed
