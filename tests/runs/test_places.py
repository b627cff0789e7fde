"""Where a command may not write, it says so in one line before it runs, and leaves nothing."""

import errno
import os
import resource
import stat
import subprocess
import sys

import pytest

from manifed.cli import launch as launching
from manifed.runs import export as public
from manifed.runs.export import export
from tests.command import invoke
from tests.runs.running import QUICKSTART, everything, fails_in_round, go_on, refused, run_in
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
    "a full folder": lambda root: a_file(root).parent,
    "below a file": lambda root: a_file(root) / "run",
    "far below a file": lambda root: a_file(root) / "a" / "b",
    "a loop": lambda root: a_link(root, "loop", "loop") / "run",
    "a long name": lambda root: root / ("x" * 256),
    "a long path": lambda root: root.joinpath(*["x" * 200] * 25),
    **{place: lambda _, place=place: place for place in (
        "/dev/null", "/proc/run", "/proc/self/run", "/dev/null/run", "/sys/run")},
}  # fmt: skip
WRITERS = {
    "run": (["run", QUICKSTART, *SMALL, "--out"], PLACES),
    "export": (["export", "RUN", "--out"], PLACES),
    "report": (["report", "RUN", "--out"], [*PLACES][:3] + [*PLACES][4:]),
    "figure": (["privacy", "curve", QUICKSTART, "--plot"], [*PLACES][4:]),
}
"""The words of what writes, and where it may not: a figure replaces a file."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return run_in(tmp_path_factory.mktemp("places") / "run", *SETS).directory


def undated(root):
    return {path: (mode, content) for path, (mode, _, content) in everything(root).items()}


def refusal(root, *words, **more):
    before = undated(root)
    line = refused(*words, **more)
    assert len(line) < 1000
    assert undated(root) == before
    return line


@pytest.mark.parametrize(
    ("writer", "place"), [(name, place) for name, found in WRITERS.items() for place in found[1]]
)
def test_what_writes_is_refused_a_place_where_it_cannot(writer, place, tmp_path, finished):
    words = [finished if word == "RUN" else word for word in WRITERS[writer][0]]
    assert words[-1] in refusal(tmp_path, *words, PLACES[place](tmp_path))


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_a_run_is_its_owners_alone_whatever_the_umask_and_an_export_is_not(tmp_path, umask):
    here = tmp_path / "here"
    here.mkdir()
    here.chmod(0o777)
    before = os.umask(umask)
    try:
        for out in (tmp_path / "new", here):
            run_in(out, *SETS)
        assert invoke("report", here).exit_code == 0
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


def test_a_folder_in_the_place_of_a_page_or_a_figure_is_refused(tmp_path, finished):
    page = tmp_path / "report.html"
    page.mkdir()
    assert "report.html" in refusal(tmp_path, "report", finished, "--out", tmp_path)
    assert "--plot" in refusal(tmp_path, "privacy", "curve", QUICKSTART, "--plot", page)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EACCES])
def test_a_disk_that_refuses_from_the_start_is_one_line(number, tmp_path, monkeypatch):
    create = os.open

    def refuses(path, flags, *rest, **more):
        if flags & os.O_CREAT and str(path).startswith(str(tmp_path)):
            raise OSError(number, os.strerror(number))
        return create(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", refuses)
    assert os.strerror(number) in refusal(
        tmp_path, "run", QUICKSTART, *SMALL, "--out", tmp_path / "run"
    )
    assert not (tmp_path / "run").exists()


def test_an_export_onto_a_disk_that_fills_leaves_nothing(tmp_path, monkeypatch, finished):
    monkeypatch.setattr(public, "write_atomically", raises(FULL))
    assert "No space" in refusal(tmp_path, "export", finished, "--out", tmp_path / "o")


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


def test_a_device_that_is_not_there_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    words = ["run", QUICKSTART, "--out", tmp_path / "run", "--set", "engine.device=cuda"]
    assert "engine.device" in refusal(tmp_path, *words)


# -- errors that nothing foresaw -----------------------------------------------------------------
@pytest.mark.parametrize(
    "error",
    [MemoryError("no room"), RecursionError("too deep"), OSError(5, "I/O"), ZeroDivisionError("x")],
)
def test_an_unexpected_error_in_a_run_is_one_line_that_names_it(error, tmp_path, monkeypatch):
    fails_in_round(3, error, monkeypatch)
    done = invoke("run", QUICKSTART, *SMALL, "--out", tmp_path / "it's")
    assert done.exit_code == 1
    line = done.stderr.splitlines()[-1]
    assert line.startswith("error: run failed: ")
    assert str(error.args[-1]) in line
    assert "--resume" in line
    if isinstance(error, OSError):
        assert "nothing that was written is lost" in line
    else:
        assert type(error).__name__ in line
        assert "MANIFED_DEBUG=1" in line
    assert "Traceback" not in done.stderr
    monkeypatch.undo()
    assert go_on(tmp_path / "it's").metrics()["round"] == list(range(6))


def test_an_unexpected_error_outside_a_run_is_one_line(monkeypatch, tmp_path):
    error = ZeroDivisionError("planted\nin two lines")
    monkeypatch.setattr(launching, "check_parts", raises(error))
    line = refusal(tmp_path, "privacy", "statement", code=1)
    assert "ZeroDivisionError: planted in two lines" in line
    assert "MANIFED_DEBUG=1" in line
    monkeypatch.setenv("MANIFED_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        invoke("privacy", "statement")
