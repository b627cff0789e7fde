"""The library without its optional packages: what works, and the line that names the extra."""

import json
import re
import subprocess
import sys
import tomllib
from importlib import import_module

import pytest

from manifed.errors import EXTRAS, Missing, optional
from tests.fresh import QUICKSTART, ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OPTIONAL = [*EXTRAS, "click", "grpc", "rich", "pandas", "PIL"]
BLOCKED = """
import sys

sys.modules.update(dict.fromkeys(sys.argv.pop(1).split(",")))  # None: as if it were not there
"""
HOW = 'is not installed: pip install "manifed[{}]"'


def without(names, program, folder, *words):
    """(exit code, standard output, last line of standard error) of a program without ``names``."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BLOCKED + program, ",".join(names), *words],
        cwd=folder,
        check=False,
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout, done.stderr.strip().rpartition("\n")[2]


def command(names, folder, *words):
    program = "from manifed.__main__ import main\nmain()"
    return without(names, program, folder, *words)


def test_each_extra_is_declared_and_all_is_all_of_them():
    extras = PROJECT["optional-dependencies"]
    (everything,) = extras["all"]
    named = re.fullmatch(r"manifed\[(.*)\]", everything)[1].split(",")
    assert set(named) == {*EXTRAS.values()}
    assert set(named) <= set(extras)


@pytest.mark.slow
def test_the_snippet_of_the_readme_runs_without_any_optional_package(tmp_path):
    (snippet,) = re.findall(
        r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL
    )
    program = snippet + 'found.save("found")\n'
    code, out, err = without(OPTIONAL, program, tmp_path)
    assert (code, err) == (0, "")
    assert "against the server" in out
    statement = json.loads((tmp_path / "found" / "statement.json").read_text())
    assert statement["unit"] == "example"


def test_another_module_that_is_missing_keeps_its_own_error():
    with pytest.raises(ModuleNotFoundError, match="no_such_module"), optional():
        import_module("no_such_module")


@pytest.mark.slow
@pytest.mark.one_week_in(3)
@pytest.mark.parametrize(
    ("package", "program"),
    [
        ("flwr", "from manifed.flower.strategies.tangent_mean import TangentMean"),
        ("flwr", "from manifed.flower.clients.local_training import client_app"),
        ("matplotlib", "from manifed.runs.report import picture\npicture({}, 'round', 'cost')"),
        ("matplotlib", "from manifed.runs.report import figure_of\nfigure_of({}, {})"),
        ("sklearn", "from manifed.problems.real import A9a\nA9a().load(None, 0)"),
        ("tensorboard", "import manifed\nmanifed.callbacks.tensorboard('runs')"),
        ("mlflow", "import manifed\nmanifed.callbacks.mlflow()"),
        ("wandb", "import manifed\nmanifed.callbacks.wandb()"),
    ],
)
def test_a_missing_package_is_an_import_error_that_names_its_extra(package, program, tmp_path):
    code, out, err = without([package], program, tmp_path)
    assert (code, out) == (1, "")
    assert err == f"manifed.errors.Missing: {package} {HOW.format(EXTRAS[package])}"
    assert issubclass(Missing, ImportError)


def test_the_command_without_typer_ends_in_one_line(tmp_path):
    code, out, err = command(["click", "typer"], tmp_path, "--help")
    assert (code, out, err) == (2, "", f"error: typer {HOW.format('cli')}")


@pytest.mark.slow
@pytest.mark.one_week_in(3)
@pytest.mark.parametrize(
    ("package", "sets"),
    [
        ("sklearn", ["engine.execution=cohort"]),
        ("flwr", ["engine.execution=messages"]),
        ("tensorboard", ["output.trackers=['tensorboard']"]),
        ("ray", ["engine.execution=cohort", "engine.workers=2", "engine.chunk_clients=1"]),
    ],
)
def test_a_run_without_what_it_needs_ends_in_one_line(package, sets, tmp_path):
    words = [
        word for one in (*sets, f"output.directory={tmp_path / 'run'}") for word in ("--set", one)
    ]
    code, _, err = command([package], tmp_path, "run", str(QUICKSTART), *words)
    assert (code, err) == (2, f"error: {package} {HOW.format(EXTRAS[package])}")
