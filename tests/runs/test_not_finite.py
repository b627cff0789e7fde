"""A state that is not finite is never saved, written as a model or called final."""

import json
import math

import pytest
import torch

from manifed.algorithms.tangent_mean import TangentMean
from manifed.errors import RoundFailed
from manifed.runs import checkpoint
from manifed.runs.report import read
from tests.runs.running import run_in

SETS = (
    "federation.num_clients=2",
    "federation.num_rounds=6",
    "evaluation.is_enabled=false",
    "output.checkpoint_every=2",
)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("name", ["x", "other"])
def test_a_state_that_is_not_finite_fails_the_round_and_the_last_good_one_stays(
    tmp_path, monkeypatch, value, name
):
    good = {}
    server = TangentMean.server

    def breaks_in_round_4(self, state, mean, here):
        after = server(self, state, mean, here)
        good[here.round] = after["x"]
        bad = torch.cat([torch.tensor([value]), after["x"][1:]])
        return after | {name: bad} if here.round == 4 else after

    monkeypatch.setattr(TangentMean, "server", breaks_in_round_4)
    with pytest.raises(RoundFailed, match=rf"Round 4: .* 1 of 64 numbers in {name}") as caught:
        run_in(tmp_path / "run", *SETS)
    assert "\n" not in str(caught.value)
    assert json.loads((tmp_path / "run" / "error.json").read_text())["is_computed"] is True
    saved = checkpoint.load(tmp_path / "run" / "checkpoint.safetensors")
    assert saved.server_round == 3
    assert torch.equal(saved.tensors["x"], good[3])
    run = read(tmp_path / "run")
    assert run.final == {}
    assert list(run.columns["round"]) == [0, 1, 2, 3]
    assert not (tmp_path / "run" / "model.safetensors").exists()
