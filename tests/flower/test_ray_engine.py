import json
import re
import signal
from pathlib import Path

import pytest

from app.engines import ray
from app.engines.processes import EngineFailed
from tests.deployment.conftest import TINY_PROJECT, leaves_nothing  # noqa: F401 - a fixture
from tests.deployment.interrupt import all_gone, interrupted

pytestmark = [pytest.mark.ray, pytest.mark.slow]


def _run(out: Path, *overrides: str, timeout: float = 300.0) -> list[str]:
    lines: list[str] = []
    ray.run(
        experiment=Path("some.toml"), overrides=["clients=4", *overrides], num_supernodes=4,
        out=out, project=TINY_PROJECT, timeout=timeout, on_line=lines.append,
    )  # fmt: skip
    return lines


@pytest.mark.usefixtures("leaves_nothing")
def test_every_virtual_client_answers_every_round_with_its_own_memory(tmp_path: Path) -> None:
    lines = _run(tmp_path / "out", "rounds=3")
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    expected = [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert [(a["partition-id"], a["count"]) for a in result["answers"]] == expected
    assert {a["num-partitions"] for a in result["answers"]} == {4}
    assert result["ray"] == str(Path(result["home"]).parent)
    assert sum(line.startswith("turn ") for line in lines) == 3


@pytest.mark.usefixtures("leaves_nothing")
def test_a_failing_serverapp_fails_the_engine_with_its_exception_text(tmp_path: Path) -> None:
    with pytest.raises(EngineFailed, match="server went boom") as caught:
        _run(tmp_path / "out", "message=server went boom")
    assert caught.value.status == "finished:failed"
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("leaves_nothing")
def test_a_run_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    with pytest.raises(EngineFailed, match="not finished after 6 s") as caught:
        _run(tmp_path / "out", "rounds=100000", timeout=6.0)
    assert caught.value.status == "timeout"


def test_sigterm_ends_ray_and_everything_else_and_removes_the_home(tmp_path: Path) -> None:
    code, started, lines = interrupted("ray", TINY_PROJECT, tmp_path / "out", signal.SIGTERM)
    assert code == 128 + signal.SIGTERM
    assert len(started) >= 6  # SuperLink, SuperExec, simulation, gcs, raylet, actors
    assert all_gone(started, 1.0)
    (home,) = set(re.findall(r"(\S*/mf-[^/]+)/flwr/apps", "".join(lines)))
    assert not Path(home).exists()
