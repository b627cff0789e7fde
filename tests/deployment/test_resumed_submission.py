"""A submission that would go on with a finished run is refused before anything is started."""

from pathlib import Path

from app import superlink
from manifed.cli.launch import Request, launch
from tests.command import invoke

QUICKSTART = str(Path(__file__).parents[2] / "configs" / "quickstart.toml")
SMALL = ("federation.num_clients=2", "federation.num_rounds=1")


def test_a_finished_run_is_one_line_and_exit_code_2_before_any_node_is_asked(tmp_path, monkeypatch):
    out = tmp_path / "run"
    launch(Request(QUICKSTART, SMALL, out=out, plain=True))

    def never(*_):
        raise AssertionError("something was started")

    monkeypatch.setattr(superlink, "private_flower", never)
    sets = [word for one in (*SMALL, "output.resume=true") for word in ("--set", one)]
    given = ["127.0.0.1:1", "--insecure", "--experiment", QUICKSTART, "--out", str(out), *sets]
    done = invoke(*given, call=superlink.main)
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "expected an unfinished run, got a finished one" in done.stderr
