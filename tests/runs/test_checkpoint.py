import math

import pytest
import torch
from safetensors.torch import save_file

from manifed.runs.checkpoint import Meta, Tally, load, save
from manifed.runs.folder import FolderDamaged, RunFolder
from tests.tensors import assert_near

META = Meta(
    config_sha256="ab",
    ledger_run_id="cd",
    ledger_head="1:" + "0" * 64,
    last_accepted={"1": 1},
    tally=Tally.of_nothing(),
    judged={},
)


def tensors():
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return {
        "x": x,
        "row": x[1],
        "transposed": x.T,
        "scalar": torch.tensor(1.5, dtype=torch.float64),
        "single": torch.linspace(0, 1, 7, dtype=torch.float32),
        "empty": torch.zeros(0, 3),
        "index": torch.arange(5),
    }


def test_a_checkpoint_comes_back_bit_for_bit_unless_a_newer_one_could_be_written(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    given = tensors()
    save(path, 1, {}, META)
    save(path, 12, given, META)
    with pytest.raises(ValueError, match="finite tensors"):
        save(path, 13, {"x": torch.full((2,), math.nan)}, META)
    assert list(tmp_path.iterdir()) == [path]
    found = load(path)
    assert (found.server_round, found.meta) == (12, META)
    assert_near(dict(found.tensors), given)


def test_tensors_of_a_run_folder_come_back_bit_for_bit_or_not_at_all(tmp_path):
    folder = RunFolder(tmp_path)
    path = folder.save_tensors("model", tensors())
    assert_near(folder.load_tensors("model"), tensors())
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="expected whole safetensors"):
        folder.load_tensors("model")


def flipped(whole, position):
    return whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :]


def test_no_checkpoint_a_foreign_one_a_cut_one_or_one_with_a_flipped_bit_is_refused(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    with pytest.raises(FolderDamaged, match="expected a whole checkpoint, got none"):
        load(path)
    save_file({"x": torch.ones(2)}, path)
    with pytest.raises(match=r"metadata keys \[\]"):
        load(path)
    save(path, 1, {"x": torch.ones(3, dtype=torch.float64)}, META)
    whole = path.read_bytes()
    for position in range(len(whole)):
        for damaged in (whole[:position], flipped(whole, position)):
            path.write_bytes(damaged)
            with pytest.raises(match="expected a whole checkpoint, got"):
                load(path)
