"""The run that happens is the run that was checked: one experiment, resolved once."""

import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from manifed.cli import launch as launching
from manifed.cli.launch import Request, _networked, launch, resolve
from manifed.errors import ConfigError, EngineFailed, RunEnded
from manifed.experiment.load import load
from manifed.experiment.schema import sha256
from manifed.flower import apps
from manifed.flower import client as node
from manifed.flower.grids import InlineGrid
from manifed.flower.run_config import experiment_of, run_config_of
from tests.runs.running import QUICKSTART, run_in

SETS = (
    "federation.num_clients=2",
    "federation.num_rounds=1",
    "evaluation.is_enabled=false",
)


NAMES = [
    "it's",
    'say "x"',
    "two  words ",
    "line\nbreak",
    "-x",
    "[draft",
    "{a=1}",
    "größe \U0001f600",
    "\\",
    "a=1",
    "privacy={kind='none'}",
    "#",
    "tab\t\x7f",
    os.fsdecode(b"\xff\xfe"),
]


@pytest.mark.parametrize("name", NAMES)
def test_a_run_folder_has_any_name_that_the_file_system_takes(tmp_path, name):
    out = tmp_path / name
    folder = run_in(out, *SETS)
    assert folder.directory == out
    assert os.listdir(os.fsencode(tmp_path)) == [os.fsencode(name)]
    assert folder.manifest()["final"]["rounds"] == 1
    assert folder.manifest()["config_sha256"] == sha256(load(QUICKSTART, SETS))


def test_a_folder_in_the_config_is_used(tmp_path):
    sets = (*SETS, f"output.directory={tmp_path / 'mine'}")
    assert resolve(Request(QUICKSTART, sets)).output.directory == str(tmp_path / "mine")
    assert resolve(Request(QUICKSTART, sets, out=tmp_path / "other")).output.directory == str(
        tmp_path / "other"
    )


@pytest.mark.parametrize(
    ("kind", "given", "found"),
    [
        ("deployment", {}, {"is_insecure": False, "credentials": None}),
        ("deployment", {"is_insecure": True}, {"is_insecure": True, "credentials": None}),
        ("inline", {"is_insecure": True}, "--insecure: expected --engine deployment, got 'inline'"),
        ("ray", {"credentials": Path("c")}, "--credentials: expected --engine deployment"),
        ("deployment", {"is_insecure": True, "credentials": Path("c")}, "--insecure: .*got both"),
    ],
)
def test_a_deployment_is_secure_unless_it_is_asked_not_to_be(
    tmp_path, monkeypatch, kind, given, found
):
    request = Request(QUICKSTART, SETS, kind, out=tmp_path / "run", **given)
    if isinstance(found, dict):
        told = dict[str, Any]()
        monkeypatch.setattr(launching, "engine", lambda _: lambda **given: told.update(given))
        _networked(resolve(request), request)
        assert {key: told[key] for key in ("is_insecure", "credentials")} == found
        return
    with pytest.raises(ConfigError, match=found):
        resolve(request)


@pytest.mark.parametrize("text", ["[draft", "a = 1\nprivacy = {kind='none'}", "\x01\x1f\x7f'\"\\"])
@pytest.mark.parametrize("name", NAMES[:-1])
def test_every_process_of_a_run_reads_the_experiment_that_was_resolved(tmp_path, text, name):
    config = resolve(
        Request(QUICKSTART, (f"description={text}", *SETS), "ray", out=tmp_path / name)
    )
    assert experiment_of(tomllib.loads(tomli_w.dumps(run_config_of(config)))) == config
    assert config.output.directory == str(tmp_path / name)


def test_a_folder_whose_name_is_no_text_cannot_be_told_to_other_processes(tmp_path):
    config = resolve(Request(QUICKSTART, SETS, "ray", out=tmp_path / NAMES[-1]))
    with pytest.raises(ConfigError, match="Unicode"):
        run_config_of(config)


def test_what_flwr_run_carries_is_a_file_and_lines_of_toml():
    given = {"experiment": "configs/quickstart.toml", "resolved": ""}
    overrides = 'federation.num_rounds = 7\nprivacy.noise.epsilon = 0.5\ndescription = "a b"'
    config = experiment_of({**given, "overrides": overrides})
    assert sha256(config) == sha256(
        load(QUICKSTART, ["federation.num_rounds=7", "privacy.noise.epsilon=0.5"])
    )
    assert config.description == "a b"
    with pytest.raises(ConfigError, match="one per line"):
        experiment_of({**given, "overrides": "federation.num_rounds=7 privacy.noise.epsilon=0.5"})
    with pytest.raises(ConfigError, match="resolved"):
        experiment_of({**run_config_of(config), "overrides": "federation.num_rounds=7"})


def test_a_deployed_run_is_gone_on_with_by_the_config_that_names_its_files(tmp_path, monkeypatch):
    sites = Path(QUICKSTART).parent / "examples" / "three_sites.toml"
    asked = []
    rounds = [0]

    class Stops(InlineGrid):
        def send_and_receive(self, messages, *, timeout=None):
            rounds[0] += 1
            if rounds[0] == 3:
                raise EngineFailed("stopped", "the SuperLink is gone")
            return super().send_and_receive(messages, timeout=timeout)

    def deployed(*, run_config, data_paths, **_):
        asked.append(data_paths)
        config = experiment_of(run_config)
        assert not config.data.paths
        files = config.data.model_copy(update={"paths": tuple(map(str, data_paths))})
        nodes = config.model_copy(update={"data": files})
        apps.run(Stops(node.client_app_of(lambda _: nodes), 3, {}), config)

    monkeypatch.setattr("manifed.cli.launch.engine", lambda kind: deployed)
    sets = ("output.checkpoint_every=1",)
    out = tmp_path / "run"
    with pytest.raises(RunEnded) as ended:
        launch(Request(str(sites), sets, "deployment", out=out))
    assert str(ended.value).endswith(f"python simulation.py {sites} --resume {out}")
    with pytest.raises(ConfigError, match=r"data\.paths: required"):
        resolve(Request(QUICKSTART, resume=out))
    launch(Request(str(sites), resume=out))
    assert asked[0] == asked[1] == tuple(sites.parent / "three_sites" / f"{name}.csv"
                                         for name in ("north", "middle", "south"))  # fmt: skip
    assert "three_sites/" not in (out / "experiment.toml").read_text()
