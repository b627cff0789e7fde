"""Where the module of a plug-in is found: one rule for commands and the processes they start."""

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import tomli_w

from manifed.cli import launch as launching
from manifed.cli.launch import Request, _networked, launch
from manifed.errors import ConfigError
from manifed.experiment.load import load, read_toml
from manifed.experiment.plugins import NOTED, VARIABLE, sha256_of
from manifed.flower.run_config import experiment_of, run_config_of
from manifed.problems.data import FOLDERS
from manifed.runs.evidence import saved_config
from manifed.runs.export import viewed
from manifed.runs.folder import FolderDamaged
from manifed.runs.report import read
from tests.fresh import QUICKSTART

MEADOW = """
from manifed.problems.data import Equal, PartitionRule
from typing import Literal


class Cut(PartitionRule):
    kind: Literal["meadow:Cut"] = "meadow:Cut"

    def split(self, dataset, num_partitions, rng):
        return Equal().split(dataset, num_partitions, rng)
"""


@pytest.fixture
def places(tmp_path, monkeypatch):
    """Folders a, b, c, the current one; nothing of what a test imports or sets stays behind."""
    folders = {name: tmp_path / name for name in ("a", "b", "c")}
    for folder in folders.values():
        folder.mkdir()
    monkeypatch.chdir(folders["c"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv(FOLDERS, "")
    monkeypatch.setenv(VARIABLE, "")
    yield SimpleNamespace(**folders)
    sys.modules.pop("meadow", None)
    sha256_of.cache_clear()


def grow(folder):
    (folder / "meadow.py").write_text(MEADOW)


def config_in(folder):
    table = read_toml(QUICKSTART)
    table["federation"] |= {"partition": {"kind": "meadow:Cut"}, "num_rounds": 1}
    path = folder / "config.toml"
    path.write_text(tomli_w.dumps(table))
    return path


def without(places):
    return [entry for entry in sys.path if entry not in map(str, vars(places).values())]


def imported_from():
    return Path(sys.modules["meadow"].__file__).parent


def test_a_plugin_is_found_beside_the_config_and_then_in_the_current_folder(places):
    path = config_in(places.a)
    with pytest.raises(ConfigError, match=r"No module named 'meadow'.*beside the config file"):
        load(path)
    grow(places.c)
    load(path)
    assert imported_from() == places.c


def test_beside_the_config_comes_first_and_hides_nothing_that_python_finds_itself(
    places, monkeypatch
):
    path = config_in(places.a)
    for folder in (places.a, places.c):
        grow(folder)
        (folder / "colorsys.py").write_text("raise SystemExit")
    load(path)
    assert imported_from() == places.a
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    found = Path(str(importlib.import_module("colorsys").__file__)).parent
    assert found not in vars(places).values()


def test_a_process_that_this_one_starts_looks_where_it_does(places):
    grow(places.a)
    load(config_in(places.a))
    program = "from manifed.problems.data import named; print(named('meadow:Cut', 'c').__module__)"
    said = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    assert said.stdout.split() == [b"meadow"]


def test_a_run_folder_is_read_where_the_run_looked_and_never_in_itself(places, monkeypatch):
    grow(places.a)
    run = places.b / "run"
    folder = launch(Request(str(config_in(places.a)), (), out=run))
    assert folder.manifest()[NOTED] == [str(places.a), str(places.c)]
    assert NOTED not in viewed(read(run)).manifest

    def read_anew(by):
        sys.modules.pop("meadow", None)
        sys.path[:] = without(places)
        monkeypatch.setenv(FOLDERS, "")
        by(run)
        return imported_from()

    ways = (saved_config, lambda path: viewed(read(path)))
    monkeypatch.chdir(places.b)
    assert [read_anew(by) for by in ways] == [places.a] * 2
    grow(run)
    with monkeypatch.context() as other:
        other.setattr(os, "geteuid", lambda: os.stat(run).st_uid + 1)
        for by in ways:
            with pytest.raises((ConfigError, FolderDamaged), match="No module named 'meadow'"):
                read_anew(by)
    manifest = folder.manifest_path.read_text()
    for damage in ("[]", '"', f'{{"{NOTED}": [1]}}', f'{{"{NOTED}": "{places.a}"}}'):
        folder.manifest_path.write_text(damage)
        with pytest.raises(ConfigError, match="No module named 'meadow'"):
            read_anew(saved_config)
    folder.manifest_path.write_text(manifest)
    (places.a / "meadow.py").rename(places.b / "meadow.py")
    assert [read_anew(by) for by in ways] == [places.b] * 2


def test_a_run_config_adds_no_folder(places, monkeypatch):
    monkeypatch.setenv(VARIABLE, "meadow")
    grow(places.a)
    grow(places.c)
    path = config_in(places.a)
    with pytest.raises(ConfigError, match="No module named 'meadow'"):
        experiment_of({"experiment": str(path)})
    text = run_config_of(load(path, ["name='another'"]))
    sys.modules.pop("meadow")
    monkeypatch.setenv(FOLDERS, "")
    monkeypatch.setattr(sys, "path", without(places))
    with pytest.raises(ConfigError, match="No module named 'meadow'"):
        experiment_of(text)


def test_whoever_runs_a_config_here_consents_for_the_nodes_that_the_command_plays(
    places, monkeypatch
):
    grow(places.a)
    path = config_in(places.a)
    config = load(path, ["engine.kind='ray'"])
    seen = []

    def play(**given):
        seen.append(experiment_of(given["run_config"]))

    monkeypatch.setattr(launching, "engine", lambda kind: play)
    with pytest.raises(ConfigError, match="MANIFED_PLUGINS"):
        experiment_of(run_config_of(config))
    _networked(config, Request(str(path)))
    assert seen == [config]
