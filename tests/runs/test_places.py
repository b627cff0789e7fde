"""Where a command may not write, it says so in one line before it runs, and leaves nothing."""

import errno
import os
import resource
import stat
import subprocess
import sys

import pytest

from manifed.cli import launch as launching
from manifed.cli.launch import Request, RunEnded, launch
from manifed.cli.main import main, simulation
from manifed.privacy.account import Account
from manifed.runs.report.apart import draw_apart
from manifed.runs.report.public import export
from manifed.runs.run_folder import RunFolder
from tests.runs.folder_damage import everything
from tests.runs.test_cli import QUICKSTART
from tests.runs.test_refusals import SETS

SMALL = ["--plain", *(word for item in SETS for word in ("--set", item))]


def a_file(root):
    (root / "file").write_text("mine")
    return root / "file"


def below_a_file(root):
    return a_file(root) / "run"


def far_below_a_file(root):
    return a_file(root) / "a" / "b"


def a_full_folder(root):
    (root / "full").mkdir()
    (root / "full" / "mine").write_text("mine")
    return root / "full"


def a_loop(root):
    (root / "loop").symlink_to("loop")
    return root / "loop" / "run"


def a_link_to_a_file(root):
    (root / "link").symlink_to(a_file(root))
    return root / "link"


def a_long_name(root):
    return root / ("x" * 256)


def a_long_path(root):
    return root.joinpath(*["x" * 200] * 25)


def an_inner_path_that_is_too_long(root):
    room = 4095 - len(os.fsencode(root)) - 10
    deep, rest = divmod(room, 201)
    return root.joinpath(*["x" * 200] * deep, "y" * max(rest - 1, 1))


PLACES = [
    a_file, below_a_file, far_below_a_file, a_loop, a_link_to_a_file, a_long_name, a_long_path,
    an_inner_path_that_is_too_long, lambda _: "/dev/null", lambda _: "/proc/run",
    lambda _: "/proc/self/run", lambda _: "/dev/null/run", lambda _: "/sys/run",
]  # fmt: skip


FOR_A_FIGURE = {a_file, a_link_to_a_file, an_inner_path_that_is_too_long}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    root = tmp_path_factory.mktemp("places")
    launch(Request(QUICKSTART, SETS, out=root / "run", plain=True))
    return root / "run"


def undated(found):
    return {path: (mode, content) for path, (mode, _, content) in found.items()}


def refusal(capsys, root, call, words, code=2):
    before = everything(root)
    with pytest.raises(SystemExit) as caught:
        call([str(word) for word in words])
    shown = capsys.readouterr()
    assert caught.value.code == code, shown
    assert shown.out == ""
    assert shown.err.startswith("error: ")
    assert shown.err.count("\n") == 1
    assert len(shown.err) < 1000
    assert undated(everything(root)) == undated(before)
    return shown.err


@pytest.mark.parametrize("place", [*PLACES, a_full_folder])
def test_a_run_is_refused_a_place_where_it_cannot_write(place, tmp_path, capsys):
    words = [QUICKSTART, *SMALL, "--out", place(tmp_path)]
    assert "--out" in refusal(capsys, tmp_path, simulation, words)


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_a_run_is_its_owners_alone_whatever_the_umask_and_an_export_is_not(tmp_path, umask):
    here = tmp_path / "here"
    here.mkdir()
    here.chmod(0o777)
    before = os.umask(umask)
    try:
        for out, plots in ((tmp_path / "new", umask == 0), (here, False)):
            launch(Request(QUICKSTART, SETS, out=out, plain=True))
            drawn = draw_apart(out) if plots else []
            assert {path.name for path in out.glob("*.png")} == set(drawn)
        export(here, tmp_path / "public")
    finally:
        os.umask(before)
    found = {path: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    folders = {path.name: mode for path, mode in found.items() if path.is_dir()}
    assert folders == {"new": 0o700, "here": 0o755, "public": 0o777 & ~umask}
    files = {path: mode for path, mode in found.items() if path.is_file()}
    assert {"ledger.jsonl", "checkpoint.safetensors", "metrics.csv"} <= {p.name for p in files}
    for path, mode in files.items():
        assert mode == (0o666 & ~umask if path.parent.name == "public" else 0o600), path


@pytest.mark.parametrize("place", [*PLACES, a_full_folder])
def test_an_export_is_refused_one_too(place, tmp_path, capsys, finished):
    words = ["export", finished, "--out", place(tmp_path)]
    assert "--out" in refusal(capsys, tmp_path, main, words)


@pytest.mark.parametrize("place", PLACES)
def test_a_report_is_refused_one_too(place, tmp_path, capsys, finished):
    words = ["report", finished, "--out", place(tmp_path)]
    assert "--out" in refusal(capsys, tmp_path, main, words)


@pytest.mark.parametrize("place", [place for place in PLACES if place not in FOR_A_FIGURE])
def test_a_figure_is_refused_one_too(place, tmp_path, capsys):
    words = ["privacy", "curve", QUICKSTART, "--plot", place(tmp_path)]
    assert "--plot" in refusal(capsys, tmp_path, main, words)
    (tmp_path / "folder").mkdir()
    words = ["privacy", "curve", QUICKSTART, "--plot", tmp_path / "folder"]
    assert "--plot" in refusal(capsys, tmp_path, main, words)


def test_a_figure_of_a_report_that_is_a_folder_is_refused(tmp_path, capsys, finished):
    (tmp_path / "cost-by-round.png").mkdir()
    words = ["report", finished, "--out", tmp_path, "--as-server"]
    assert "cost-by-round.png" in refusal(capsys, tmp_path, main, words)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EACCES])
def test_a_disk_that_refuses_from_the_start_is_one_line(number, tmp_path, capsys, monkeypatch):
    create = os.open

    def refuses(path, flags, *rest, **more):
        if flags & os.O_CREAT and str(path).startswith(str(tmp_path)):
            raise OSError(number, os.strerror(number))
        return create(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", refuses)
    words = [QUICKSTART, *SMALL, "--out", tmp_path / "run"]
    assert os.strerror(number) in refusal(capsys, tmp_path, simulation, words)
    assert not (tmp_path / "run").exists()


def test_an_export_onto_a_disk_that_fills_leaves_nothing(tmp_path, capsys, monkeypatch, finished):
    from manifed.runs.report import public

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(public, "write_atomically", full)
    assert "No space" in refusal(
        capsys, tmp_path, main, ["export", finished, "--out", tmp_path / "o"]
    )


@pytest.mark.slow
def test_a_run_whose_disk_fills_says_how_to_go_on(tmp_path):
    """Files of at most 3 kB in a real process: the checkpoint or the ledger does not fit."""
    words = [sys.executable, "simulation.py", QUICKSTART, *SMALL, "--out", str(tmp_path / "run")]
    done = subprocess.run(
        words,
        check=False,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000)),
    )
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: run failed: ")
    assert last.endswith(f"--resume {tmp_path / 'run'}")
    assert "Traceback" not in done.stderr
    launch(Request(QUICKSTART, resume=tmp_path / "run", plain=True))


def test_a_device_that_is_not_there_is_refused(tmp_path, capsys, monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    words = [QUICKSTART, *SMALL, "--out", tmp_path / "run", "--set", "engine.device=cuda"]
    assert "engine.device" in refusal(capsys, tmp_path, simulation, words)


# -- errors that nothing foresaw -----------------------------------------------------------------
def fails_in_round_3(monkeypatch, error):
    charge = Account.charge

    def charged(self, server_round, *rest):
        if server_round == 3:
            raise error
        charge(self, server_round, *rest)

    monkeypatch.setattr(Account, "charge", charged)


@pytest.mark.parametrize(
    "error",
    [MemoryError("no room"), RecursionError("too deep"), OSError(5, "I/O"), ZeroDivisionError("x")],
)
def test_an_unexpected_error_in_a_run_is_one_line_that_names_it(
    error, tmp_path, capsys, monkeypatch
):
    fails_in_round_3(monkeypatch, error)
    words = [QUICKSTART, *SMALL, "--out", str(tmp_path / "it's")]
    with pytest.raises(SystemExit) as caught:
        simulation(words)
    assert caught.value.code == 1
    shown = capsys.readouterr().err
    line = shown.splitlines()[-1]
    assert line.startswith("error: run failed: ")
    assert str(error.args[-1]) in line
    assert "--resume" in line
    if not isinstance(error, OSError):
        assert type(error).__name__ in line
        assert "MANIFED_DEBUG=1" in line
    assert "Traceback" not in shown
    monkeypatch.undo()
    folder = launch(Request(QUICKSTART, resume=tmp_path / "it's", plain=True))
    assert folder.metrics()["round"] == list(range(6))


def test_under_debug_an_unexpected_error_is_not_caught(tmp_path, monkeypatch):
    fails_in_round_3(monkeypatch, ZeroDivisionError("x"))
    monkeypatch.setenv("MANIFED_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        simulation([QUICKSTART, *SMALL, "--out", str(tmp_path / "run")])


def test_an_unexpected_error_outside_a_run_is_one_line(capsys, monkeypatch, tmp_path):
    def fails(*_, **__):
        raise ZeroDivisionError("planted\nin two lines")

    monkeypatch.setattr(launching, "check_parts", fails)
    line = refusal(capsys, tmp_path, main, ["privacy", "statement"], code=1)
    assert "ZeroDivisionError: planted in two lines" in line
    assert "MANIFED_DEBUG=1" in line
    monkeypatch.setenv("MANIFED_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        main(["privacy", "statement"])


def test_what_a_run_raises_for_bad_input_stays_what_it_is(tmp_path, monkeypatch):
    fails_in_round_3(monkeypatch, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    with pytest.raises(RunEnded, match="nothing that was written is lost") as caught:
        launch(Request(QUICKSTART, SETS, out=tmp_path / "run", plain=True))
    assert caught.value.code == 1
    assert RunFolder(tmp_path / "run").experiment_path.is_file()
