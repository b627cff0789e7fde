"""Where a command may not write, it says so in one line before it runs, and leaves nothing."""

import errno
import os
import resource
import stat
import subprocess
import sys

import pytest

from manifed.cli import launch as launching
from manifed.cli.main import main, simulation
from manifed.errors import RunEnded
from manifed.privacy.account import Account
from manifed.runs import export as public
from manifed.runs.export import export
from manifed.runs.folder import RunFolder
from manifed.runs.report import curves_of, read, write_figures
from tests.runs.running import QUICKSTART, ended, everything, go_on, refused, run_in
from tests.runs.test_refusals import SETS

SMALL = ["--plain", *(word for item in SETS for word in ("--set", item))]


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def raises(error):
    def fails(*_, **__):
        raise error

    return fails


def a_file(root):
    (root / "file").write_text("mine")
    return root / "file"


def a_full_folder(root):
    (root / "full").mkdir()
    (root / "full" / "mine").write_text("mine")
    return root / "full"


def a_link(root, name, target):
    (root / name).symlink_to(target)
    return root / name


def an_inner_path_that_is_too_long(root):
    room = 4095 - len(os.fsencode(root)) - 10
    deep, rest = divmod(room, 201)
    return root.joinpath(*["x" * 200] * deep, "y" * max(rest - 1, 1))


PLACES = {
    "a file": a_file,
    "a link to a file": lambda root: a_link(root, "link", a_file(root)),
    "an inner path that is too long": an_inner_path_that_is_too_long,
    "a full folder": a_full_folder,
    "below a file": lambda root: a_file(root) / "run",
    "far below a file": lambda root: a_file(root) / "a" / "b",
    "a loop": lambda root: a_link(root, "loop", "loop") / "run",
    "a long name": lambda root: root / ("x" * 256),
    "a long path": lambda root: root.joinpath(*["x" * 200] * 25),
    **{place: lambda _, place=place: place for place in (
        "/dev/null", "/proc/run", "/proc/self/run", "/dev/null/run", "/sys/run")},
}  # fmt: skip
WRITERS = {
    "run": (simulation, [QUICKSTART, *SMALL, "--out"], PLACES),
    "export": (main, ["export", "RUN", "--out"], PLACES),
    "report": (main, ["report", "RUN", "--out"], [*PLACES][:3] + [*PLACES][4:]),
    "figure": (main, ["privacy", "curve", QUICKSTART, "--plot"], [*PLACES][4:]),
}
"""The words of what writes, and where it may not: a figure replaces a file."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return run_in(tmp_path_factory.mktemp("places") / "run", *SETS).directory


def undated(root):
    return {path: (mode, content) for path, (mode, _, content) in everything(root).items()}


def refusal(capsys, root, call, words, code=2):
    before = undated(root)
    line = refused(capsys, call, words, code)
    assert len(line) < 1000
    assert undated(root) == before
    return line


@pytest.mark.parametrize(
    ("writer", "place"), [(name, place) for name, found in WRITERS.items() for place in found[2]]
)
def test_what_writes_is_refused_a_place_where_it_cannot(writer, place, tmp_path, capsys, finished):
    call, words, _ = WRITERS[writer]
    words = [finished if word == "RUN" else word for word in words]
    assert words[-1] in refusal(capsys, tmp_path, call, [*words, PLACES[place](tmp_path)])


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_a_run_is_its_owners_alone_whatever_the_umask_and_an_export_is_not(tmp_path, umask):
    here = tmp_path / "here"
    here.mkdir()
    here.chmod(0o777)
    before = os.umask(umask)
    try:
        for out, plots in ((tmp_path / "new", umask == 0), (here, False)):
            run_in(out, *SETS)
            drawn = write_figures(curves_of([read(out)]), out) if plots else []
            assert set(out.glob("*.png")) == set(drawn)
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


def test_a_folder_in_the_place_of_a_page_or_a_figure_is_refused(tmp_path, capsys, finished):
    (tmp_path / "report.html").mkdir()
    words = ["report", finished, "--out", tmp_path]
    assert "report.html" in refusal(capsys, tmp_path, main, words)
    words = ["privacy", "curve", QUICKSTART, "--plot", tmp_path / "report.html"]
    assert "--plot" in refusal(capsys, tmp_path, main, words)


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
    monkeypatch.setattr(public, "write_atomically", raises(FULL))
    words = ["export", finished, "--out", tmp_path / "o"]
    assert "No space" in refusal(capsys, tmp_path, main, words)


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
    go_on(tmp_path / "run")


def test_a_device_that_is_not_there_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
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
    words = [QUICKSTART, *SMALL, "--out", tmp_path / "it's"]
    code, _, shown = ended(simulation, words, capsys)
    assert code == 1
    line = shown.splitlines()[-1]
    assert line.startswith("error: run failed: ")
    assert str(error.args[-1]) in line
    assert "--resume" in line
    if not isinstance(error, OSError):
        assert type(error).__name__ in line
        assert "MANIFED_DEBUG=1" in line
    assert "Traceback" not in shown
    monkeypatch.undo()
    folder = go_on(tmp_path / "it's")
    assert folder.metrics()["round"] == list(range(6))


def test_an_unexpected_error_outside_a_run_is_one_line(capsys, monkeypatch, tmp_path):
    error = ZeroDivisionError("planted\nin two lines")
    monkeypatch.setattr(launching, "check_parts", raises(error))
    line = refusal(capsys, tmp_path, main, ["privacy", "statement"], code=1)
    assert "ZeroDivisionError: planted in two lines" in line
    assert "MANIFED_DEBUG=1" in line
    monkeypatch.setenv("MANIFED_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        main(["privacy", "statement"])


def test_what_a_run_raises_for_bad_input_stays_what_it_is(tmp_path, monkeypatch):
    fails_in_round_3(monkeypatch, FULL)
    with pytest.raises(RunEnded, match="nothing that was written is lost") as caught:
        run_in(tmp_path / "run", *SETS)
    assert caught.value.exit_code == 1
    assert RunFolder(tmp_path / "run").experiment_path.is_file()
