import json
import math
import os
import subprocess
from pathlib import Path

import pytest
import torch

from manifed.durable import create_atomically, is_draft, remove_drafts, write_atomically
from manifed.runs.folder import FORMAT, Final, RunFolder
from manifed.runs.manifest import git_state

CONFIG = Path(__file__).parents[2] / "configs" / "quickstart.toml"
FINAL = {
    "label": "release",
    "relative_cost_gap": 1e-3,
    "gradient_norm": 2e-3,
    "epsilon": 1.5,
    "delta": 1e-5,
    "rounds": 3,
    "seconds": 0.5,
}


def manifest(**changes):
    config = {"federation": {"num_rounds": 3}}
    return {"format": FORMAT, "config": config, "privacy": {"kind": "none"}, **changes}


def created(directory):
    folder = RunFolder.claim(directory)
    folder.begin(manifest())
    return folder


@pytest.fixture
def folder(tmp_path):
    return created(tmp_path / "runs" / "one")


def refuse_constant(word):
    raise AssertionError(f"{word} is not JSON")


def strict_json(path):
    return json.loads(path.read_text(), parse_constant=refuse_constant)


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
    assert columns["cost"][:2] == [1 / 3, -1e-300]
    assert math.isnan(columns["cost"][2])
    assert columns["epsilon"] == [None, math.inf, 0.1]


@pytest.mark.parametrize("row", [{"round": 1}, {"round": 1, "cost": 0.0, "gap": 0.0}])
def test_columns_are_fixed_by_the_first_row(folder, row):
    folder.append_metrics({"round": 0, "cost": 1.0})
    before = folder.metrics_path.read_bytes()
    with pytest.raises(ValueError, match=r"columns \['round', 'cost'\], got"):
        folder.append_metrics(row)
    assert folder.metrics_path.read_bytes() == before


def test_a_resumed_run_forgets_the_rows_beyond_its_checkpoint(folder):
    rows = [{"cost": 1 / (server_round + 1), "round": server_round} for server_round in range(6)]
    for row in rows:
        folder.append_metrics(row)
    whole = folder.metrics_path.read_text()
    folder.drop_metrics_after(3)
    assert folder.metrics()["round"] == [0, 1, 2, 3]
    for row in rows[4:]:
        folder.append_metrics(row)
    assert folder.metrics_path.read_text() == whole


def test_tensors_come_back_bit_for_bit_views_included_or_not_at_all(folder):
    base = torch.randn(4, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    saved = {"x": base, "row": base[1], "transposed": base.T, "scalar": torch.tensor(2.5)}
    path = folder.save_tensors("model", saved)
    torch.testing.assert_close(folder.load_tensors("model"), saved, rtol=0, atol=0)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="expected whole safetensors"):
        folder.load_tensors("model")


def test_final_is_the_last_key_with_the_promised_keys_in_order(folder):
    folder.finish(dict(reversed(FINAL.items())), {"bytes_up": 12})
    written = strict_json(folder.manifest_path)
    assert list(written)[-2:] == ["bytes_up", "final"]
    assert list(written["final"]) == list(Final.model_fields)
    assert written["final"] == FINAL
    assert written["config"] == {"federation": {"num_rounds": 3}}


def test_json_holds_null_for_nan_and_words_for_infinity(folder):
    folder.finish(
        {**FINAL, "epsilon": math.inf, "relative_cost_gap": math.nan, "gradient_norm": None}, {}
    )
    final = strict_json(folder.manifest_path)["final"]
    assert final["epsilon"] == "infinity"
    assert final["relative_cost_gap"] is None
    assert final["gradient_norm"] is None


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
    assert clean is not None
    assert len(str(clean["commit"])) == 40
    assert clean["is_dirty"] is False
    (tmp_path / "inner" / "file").write_text("2")
    dirty = git_state(tmp_path)
    assert dirty == {"commit": clean["commit"], "is_dirty": True}
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
