from pathlib import Path

import pytest

from app.processes import environment, private_flower
from manifed.errors import EngineFailed


def test_the_environment_depends_on_no_flower_or_ray_variable_and_no_proxy_of_the_user():
    user = {"FLWR_HOME": "/home/u/.flwr", "FLWR_OIDC_ENABLED": "1", "RAY_ADDRESS": "10.0.0.1:6379"}
    user |= {
        "MANIFED_DATA": "/data",
        "PATH": "/bin",
        "http_proxy": "http://p:1",
        "NO_PROXY": "corp",
    }
    env = environment(Path("/tmp/mf-x"), "m", user)
    assert env["NO_PROXY"] == env["no_proxy"] == "corp,127.0.0.1,localhost"
    assert "FLWR_OIDC_ENABLED" not in env
    assert (env["FLWR_HOME"], env["RAY_ADDRESS"]) == ("/tmp/mf-x/flwr", "local")
    assert env["MANIFED_DATA"] == "/data"
    assert env["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    assert env["FLWR_TELEMETRY_ENABLED"] == env["RAY_USAGE_STATS_ENABLED"] == "0"


def test_the_home_is_short_enough_for_rays_sockets_and_removed(tiny_project, monkeypatch, tmp_path):
    deep = tmp_path / ("a" * 60)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    with private_flower(tiny_project) as flower:
        home = flower.home
        session = "ray/session_2025-01-01_00-00-00_000000_1000000/sockets/plasma_store"
        assert len(str(home / session)) < 107
        assert home.stat().st_mode & 0o777 == 0o700
    assert not home.exists()


def test_an_error_in_the_block_ends_its_processes_and_removes_the_home(tiny_project):
    def fail():
        with private_flower(tiny_project) as flower:
            link = flower.start("link", "python", "-c", "import time; time.sleep(600)")
            seen.append((flower.home, link.process))
            raise RuntimeError("boom")

    seen = []
    with pytest.raises(RuntimeError, match="boom"):
        fail()
    ((home, process),) = seen
    assert process.returncode is not None
    assert not home.exists()


def test_a_service_that_ends_is_reported_with_its_last_words(tiny_project):
    with private_flower(tiny_project) as flower:
        service = flower.start("node", "python", "-c", "raise SystemExit('no such option')")
        with pytest.raises(EngineFailed, match=r"node exited with 1(.|\n)*no such option"):
            service.wait_for("SuperNode ID:", 60)


def test_a_short_command_that_fails_or_hangs_is_reported(tiny_project):
    with private_flower(tiny_project) as flower:
        with pytest.raises(EngineFailed, match="no such run"):
            flower.call("python", "-c", "raise SystemExit('no such run')")
        with pytest.raises(EngineFailed, match=r"sleep\(60\): 0\.5 s") as caught:
            flower.call("python", "-c", "import time; time.sleep(60)", timeout=0.5)
        assert caught.value.status == "timeout"
        assert flower.call("python", "-c", "print('said')") == "said\n"
