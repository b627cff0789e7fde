import json
import re
import shutil
import signal
import uuid
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from app import deployment
from app.credentials import generate
from app.process_tree import family
from manifed.errors import EngineFailed
from tests.deployment.interrupt import interrupted
from tests.deployment.kills import gone, soon
from tests.deployment.tiny_run_config import tiny_run_config

pytestmark = [pytest.mark.deployment, pytest.mark.slow]


def _run(project, out, *overrides, nodes=2, lines=None, **more):
    lines = [] if lines is None else lines
    deployment.run(
        run_config=tiny_run_config(nodes, out, *overrides), num_supernodes=nodes,
        project=project, on_line=lines.append,
        **{"timeout": 600.0, **more},
    )  # fmt: skip
    return lines


@pytest.mark.usefixtures("leaves_nothing")
def test_a_failing_serverapp_fails_the_engine_with_its_exception_text(tiny_project, tmp_path):
    """The run is insecure, too: its first line says what is not protected."""
    lines = []
    with pytest.raises(EngineFailed, match="server went boom") as caught:
        _run(
            tiny_project, tmp_path / "out", "message=server went boom", nodes=1, lines=lines,
            is_insecure=True,
        )  # fmt: skip
    assert caught.value.status == "finished:failed"
    assert not (tmp_path / "out").exists()
    assert lines[0].startswith("insecure: no TLS and no SuperNode authentication")


@pytest.mark.usefixtures("leaves_nothing")
def test_with_tls_and_registered_keys_each_node_has_its_partition_its_data_and_its_memory(
    tiny_project, tmp_path
):
    paths = [tmp_path / "data a", tmp_path / "data b"]
    credentials = tmp_path / "creds"
    lines = _run(
        tiny_project, tmp_path / "out", "rounds=2", credentials=credentials, data_paths=paths
    )
    assert (credentials / "ca.key").is_file()
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["answers"] == [
        {"partition-id": i, "num-partitions": 2, "count": 2, "data-path": str(paths[i])}
        for i in range(2)
    ]
    assert result["experiment"] == "some.toml"
    assert result["threads"] == "1"
    assert sum(line.startswith("round ") for line in lines) == 2


@pytest.mark.usefixtures("leaves_nothing")
def test_a_superlink_that_another_authority_vouches_for_is_not_talked_to(tiny_project, tmp_path):
    ours = generate(tmp_path / "ours", 1)
    shutil.copyfile(generate(tmp_path / "theirs", 1).ca_certificate, ours.ca_certificate)
    with pytest.raises(EngineFailed, match="Connection to the SuperLink is unavailable"):
        _run(tiny_project, tmp_path / "out", nodes=1, credentials=tmp_path / "ours")


def test_ctrl_c_ends_every_process_and_removes_the_home(tiny_project, tmp_path):
    code, started, lines = interrupted("run", tiny_project, tmp_path / "out", signal.SIGINT)
    assert code == 130
    assert len(started) >= 6  # a SuperLink and two SuperNodes, a SuperExec each
    gone(started, 1.0)
    (home,) = set(re.findall(r"(\S*/mf-[^/]+)/flwr/apps", "".join(lines)))
    assert not Path(home).exists()


@pytest.mark.parametrize(
    ("until", "after"),
    [
        *(pytest.param("begun", after, marks=pytest.mark.one_week_in(3)) for after in (0.5, 3, 8)),
        ("round 1", 0.2),
    ],
)
def test_a_killed_engine_leaves_no_process_and_no_home(
    until, after, tiny_project, tmp_path, monkeypatch
):
    mark = f"MANIFED_TEST_MARK={uuid.uuid4().hex}"
    with TemporaryDirectory(prefix="mf-", dir="/tmp") as homes:  # a short name, as Ray asks for
        monkeypatch.setenv("TMPDIR", homes)
        code, started, _ = interrupted(
            "run", tiny_project, tmp_path / "out", signal.SIGKILL, until, after, mark
        )
        assert code == -signal.SIGKILL
        assert started
        soon(lambda: not family(mark, ()), 4.0)
        assert list(Path(homes).iterdir()) == []
