import math

import pytest
import torch
from safetensors.torch import save_file

from manifed.runs.checkpoint import Meta, Tally, load, save
from manifed.runs.folder import FolderDamaged

META = Meta(
    config_sha256="ab",
    ledger_run_id="cd",
    ledger_head="1:" + "0" * 64,
    last_accepted={"1": 1},
    tally=Tally.of_nothing(),
    judged={},
)


def tensors():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    return {
        "x": x,
        "transposed": x.T,
        "scalar": torch.tensor(1.5, dtype=torch.float64),
        "single": torch.linspace(0, 1, 7, dtype=torch.float32),
        "empty": torch.zeros(0, 3),
        "index": torch.arange(5),
    }


def test_a_checkpoint_comes_back_bit_for_bit(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    given = tensors()
    save(path, 12, given, META)
    found = load(path)
    assert found.server_round == 12
    assert found.meta == META
    torch.testing.assert_close(dict(found.tensors), given, rtol=0, atol=0)


def test_a_newer_checkpoint_replaces_the_older_unless_it_cannot_be_written(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    save(path, 1, tensors(), META)
    save(path, 2, tensors(), META)
    with pytest.raises(ValueError, match="finite tensors"):
        save(path, 3, {"x": torch.full((2,), math.nan)}, META)
    assert load(path).server_round == 2
    assert list(tmp_path.iterdir()) == [path]


def flipped(whole, position):
    return whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :]


def test_a_checkpoint_cut_at_any_length_or_with_any_bit_flipped_is_refused(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    save(path, 1, {"x": torch.ones(3, dtype=torch.float64)}, META)
    whole = path.read_bytes()
    for position in range(len(whole)):
        for damaged in (whole[:position], flipped(whole, position)):
            path.write_bytes(damaged)
            with pytest.raises(match="expected a whole checkpoint, got"):
                load(path)


def test_a_foreign_safetensors_file_and_a_missing_one_are_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    with pytest.raises(FolderDamaged, match="expected a whole checkpoint, got none"):
        load(path)
    save_file({"x": torch.ones(2)}, path)
    with pytest.raises(match=r"metadata keys \[\]"):
        load(path)
