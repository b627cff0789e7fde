import json
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from app.engines import deployment
from app.engines.credentials import TLSFiles, generate
from app.engines.processes import EngineFailed
from tests.deployment.interrupt import all_gone, interrupted

pytestmark = [pytest.mark.deployment, pytest.mark.slow]


def _run(project: Path, out: Path, *overrides: str, nodes: int = 2, **more: Any) -> list[str]:
    lines: list[str] = []
    deployment.run(
        experiment=Path("some.toml"), overrides=[f"clients={nodes}", *overrides],
        num_supernodes=nodes, out=out, project=project, on_line=lines.append,
        **{"timeout": 300.0, **more},
    )  # fmt: skip
    return lines


@pytest.mark.usefixtures("leaves_nothing")
def test_every_node_answers_every_round_with_its_own_memory_and_partition(
    tiny_project: Path, tmp_path: Path
) -> None:
    lines = _run(tiny_project, tmp_path / "out", "rounds=3", nodes=3)
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert [(a["partition-id"], a["count"]) for a in result["answers"]] == [(0, 3), (1, 3), (2, 3)]
    assert {a["num-partitions"] for a in result["answers"]} == {3}
    assert result["experiment"] == str(Path("some.toml").absolute())
    assert result["threads"] == "1"
    assert sum(line.startswith("turn ") for line in lines) == 3


@pytest.mark.usefixtures("leaves_nothing")
def test_a_failing_serverapp_fails_the_engine_with_its_exception_text(
    tiny_project: Path, tmp_path: Path
) -> None:
    with pytest.raises(EngineFailed, match="server went boom") as caught:
        _run(tiny_project, tmp_path / "out", "message=server went boom")
    assert caught.value.status == "finished:failed"
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("leaves_nothing")
def test_with_tls_only_registered_keys_take_part_and_each_finds_its_own_data(
    tiny_project: Path, tmp_path: Path
) -> None:
    paths = [tmp_path / "data a", tmp_path / "data b"]
    tls = generate(tmp_path / "creds", 2)
    _run(tiny_project, tmp_path / "out", "rounds=1", tls=tls, data_paths=paths)
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert [a["data-path"] for a in result["answers"]] == [str(path) for path in paths]


@pytest.mark.usefixtures("leaves_nothing")
def test_a_superlink_that_another_authority_vouches_for_is_not_talked_to(
    tiny_project: Path, tmp_path: Path
) -> None:
    ours, theirs = generate(tmp_path / "ours", 1), generate(tmp_path / "theirs", 1)
    mixed = TLSFiles(
        theirs.ca_certificate, ours.server_certificate, ours.server_key, ours.supernode_keys
    )
    with pytest.raises(EngineFailed, match="Connection to the SuperLink is unavailable"):
        _run(tiny_project, tmp_path / "out", nodes=1, tls=mixed)


def test_fewer_keys_than_nodes_is_refused_before_anything_starts(
    tiny_project: Path, tmp_path: Path
) -> None:
    tls = generate(tmp_path / "creds", 1)
    with pytest.raises(ValueError, match=r"Expected 2 keys in tls.supernode_keys, got 1"):
        _run(tiny_project, tmp_path / "out", tls=tls)


def test_ctrl_c_ends_every_process_and_removes_the_home(tiny_project: Path, tmp_path: Path) -> None:
    code, started, lines = interrupted("deployment", tiny_project, tmp_path / "out", signal.SIGINT)
    assert "KeyboardInterrupt" in "".join(lines)
    assert code in {130, 1, -signal.SIGINT}
    assert len(started) >= 6  # a SuperLink and two SuperNodes, a SuperExec each
    assert all_gone(started, 1.0)
    (home,) = set(re.findall(r"(\S*/mf-[^/]+)/flwr/apps", "".join(lines)))
    assert not Path(home).exists()


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv (util-linux)")
def test_even_when_the_engine_is_killed_its_processes_end(
    tiny_project: Path, tmp_path: Path
) -> None:
    code, started, lines = interrupted("deployment", tiny_project, tmp_path / "out", signal.SIGKILL)
    (home,) = set(re.findall(r"(\S*/mf-[^/]+)/flwr/apps", "".join(lines)))
    try:
        assert code == -signal.SIGKILL
        assert all_gone(started, 60.0)
    finally:
        shutil.rmtree(home)
