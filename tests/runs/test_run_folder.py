import errno
import json
import math
import os
import subprocess
from pathlib import Path

import pytest

from manifed.durable import create_atomically, is_draft, remove_drafts, write_atomically
from manifed.runs.folder import FORMAT, Final, RunFolder
from manifed.runs.manifest import git_state

FINAL = {
    "label": "release",
    "relative_cost_gap": 1e-3,
    "gradient_norm": 2e-3,
    "epsilon": 1.5,
    "delta": 1e-5,
    "rounds": 3,
    "seconds": 0.5,
}


CONFIG = {"federation": {"num_rounds": 3}}


def created(directory):
    folder = RunFolder.claim(directory)
    folder.begin({"format": FORMAT, "name": "a", "config": CONFIG, "privacy": {"kind": "none"}})
    return folder


@pytest.fixture
def folder(tmp_path):
    return created(tmp_path / "runs" / "one")


def strict_json(path):
    return json.loads(path.read_text(), parse_constant=lambda word: pytest.fail(f"{word} in JSON"))


def test_an_empty_folder_is_accepted_and_no_other(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"run folder with manifest\.json"):
        RunFolder.open(tmp_path)
    path = created(tmp_path).manifest_path
    before = path.read_bytes()
    with pytest.raises(FileExistsError, match=r"new or empty run folder, got .*--out"):
        created(tmp_path)
    assert (list(tmp_path.iterdir()), path.read_bytes()) == ([path], before)
    with pytest.raises(NotADirectoryError, match="Not a directory"):
        created(path)


def test_metrics_read_back_exactly_as_appended(folder):
    rows = [
        {"round": 0, "cost": 1 / 3, "epsilon": None},
        {"round": 1, "cost": -1e-300, "epsilon": math.inf},
        {"epsilon": 0.1, "round": 2, "cost": math.nan},
    ]
    for number, row in enumerate(rows, 2):
        folder.append_metrics(row)
        assert folder.metrics_path.read_bytes().count(b"\n") == number  # on disk at once
    columns = RunFolder.open(folder.directory).metrics()
    assert list(columns) == ["round", "cost", "epsilon"]
    assert columns["round"] == [0, 1, 2]
    assert columns["cost"] == pytest.approx([1 / 3, -1e-300, math.nan], rel=0, abs=0, nan_ok=True)
    assert columns["epsilon"] == [None, math.inf, 0.1]


@pytest.mark.parametrize("row", [{"round": 1}, {"round": 1, "cost": 0.0, "gap": 0.0}])
def test_columns_are_fixed_by_the_first_row(folder, row):
    folder.append_metrics({"round": 0, "cost": 1.0})
    before = folder.metrics_path.read_bytes()
    with pytest.raises(ValueError, match=r"columns \['round', 'cost'\], got"):
        folder.append_metrics(row)
    assert folder.metrics_path.read_bytes() == before


def test_a_row_is_all_or_nothing_and_a_resumed_run_forgets_those_it_makes_again(
    folder, monkeypatch
):
    rows = [{"cost": 1 / (server_round + 1), "round": server_round} for server_round in range(6)]
    for row in rows:
        folder.append_metrics(row)
    whole = folder.metrics_path.read_bytes()
    write = os.write

    def half(descriptor, data):
        if len(data) > 1:
            return write(descriptor, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half)
        with pytest.raises(OSError, match="No space left"):
            folder.append_metrics({"cost": 0.25, "round": 6})
    assert folder.metrics_path.read_bytes() == whole
    folder.metrics_path.write_bytes(whole + b"0.2,6")
    assert folder.metrics()["round"] == list(range(6))
    folder.drop_metrics_after(3)
    assert folder.metrics()["round"] == list(range(4))
    for row in rows[4:]:
        folder.append_metrics(row)
    assert folder.metrics_path.read_bytes() == whole


def test_final_is_the_last_key_with_the_promised_keys_in_order_and_words_for_infinity(folder):
    odd = {**FINAL, "epsilon": math.inf, "relative_cost_gap": math.nan, "gradient_norm": None}
    folder.finish(dict(reversed(odd.items())), {"bytes_up": 12})
    written = strict_json(folder.manifest_path)
    assert list(written)[-2:] == ["bytes_up", "final"]
    assert list(written["final"]) == list(Final.model_fields)
    assert written["final"] == {**odd, "epsilon": "infinity", "relative_cost_gap": None}
    assert written["config"] == CONFIG


def test_a_failed_write_leaves_the_old_file_and_no_rubbish(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def fail(_self, _target):
        raise OSError("disk on fire")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="disk on fire"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_git_state_tells_commit_and_dirt_and_ignores_enclosing_repositories(tmp_path):
    def git(*words):
        identity = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "core.hooksPath=/dev/null"]
        subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True)

    assert git_state(tmp_path) is None
    git("init")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "file").write_text("1")
    git("add", ".")
    git("commit", "-m", "one")
    clean = git_state(tmp_path)
    assert (len(clean["commit"]), clean["is_dirty"]) == (40, False)
    (tmp_path / "inner" / "file").write_text("2")
    assert git_state(tmp_path) == clean | {"is_dirty": True}
    assert git_state(tmp_path / "inner") is None


@pytest.mark.parametrize("write", [write_atomically, create_atomically])
def test_what_a_crash_left_of_a_write_is_a_draft(tmp_path, write, monkeypatch):
    for name in ("replace", "link", "unlink"):  # the process is gone: nothing is cleaned up
        monkeypatch.setattr(os, name, lambda *_, **__: None)
    write(tmp_path / "ledger.jsonl", b"2\n")
    monkeypatch.undo()
    (left,) = tmp_path.iterdir()
    assert is_draft(left)
    for name in ("ledger.jsonl.new-7", "ledger.jsonl.head.new-7", "other.new-1"):  # the old way
        (tmp_path / name).write_bytes(b"")
    remove_drafts(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["other.new-1"]
