import math

import pytest
import torch
from safetensors.torch import save_file

from manifed.runs.checkpoint import CheckpointError, load, save

META = {"config_sha256": "ab", "cohort": [1, 5], "epsilon": 0.1}


def tensors():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    return {
        "x": x,
        "transposed": x.T,
        "scalar": torch.tensor(1.5, dtype=torch.float64),
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
    assert set(found.tensors) == set(given)
    for name, tensor in given.items():
        assert torch.equal(found.tensors[name], tensor)
        assert found.tensors[name].dtype == tensor.dtype


def test_a_newer_checkpoint_replaces_the_older_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    save(path, 1, tensors(), META)
    save(path, 2, tensors(), META)
    assert load(path).server_round == 2
    assert list(tmp_path.iterdir()) == [path]


def test_a_checkpoint_that_cannot_be_written_leaves_the_older(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    save(path, 1, tensors(), META)
    with pytest.raises(ValueError, match="Expected JSON values"):
        save(path, 2, tensors(), {"epsilon": math.nan})
    with pytest.raises(ValueError, match="server_round >= 0 in a checkpoint, got -1"):
        save(path, -1, tensors(), META)
    assert load(path).server_round == 1


def test_a_truncated_checkpoint_is_refused_at_every_length(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    save(path, 1, tensors(), META)
    whole = path.read_bytes()
    for length in (0, 7, 8, 40, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match="Expected a whole checkpoint in"):
            load(path)


def test_a_single_flipped_bit_anywhere_is_refused(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    save(path, 1, {"x": torch.ones(3, dtype=torch.float64)}, META)
    whole = path.read_bytes()
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match="Expected a whole checkpoint in"):
            load(path)


def test_a_foreign_safetensors_file_is_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({"x": torch.ones(2)}, path)
    with pytest.raises(CheckpointError, match=r"metadata keys \[\]"):
        load(path)


def test_a_missing_checkpoint_is_one_clear_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="start a new run"):
        load(tmp_path / "none.safetensors")
