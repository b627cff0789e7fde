"""Guarded apps with BatchNorm under Flower's own simulation, in a process of their own."""

import json
import subprocess
import sys

import pytest

from manifed.privacy.statement import audit_ledger

pytestmark = [pytest.mark.ray, pytest.mark.slow]

APP = """
import json, sys
from pathlib import Path
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAdam, FedAvg
from flwr.simulation import run_simulation
from torch import nn
from manifed.flower.guard import guard
from manifed.flower.guard_mod import guard_mod

folder, kind = Path(sys.argv[1]), sys.argv[2]
frozen = ("*running_*", "*num_batches_tracked")
common = {"clip": 1.0, "noise_multiplier": 1.0, "delta": 1e-5, "frozen": frozen}


def network():
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


client = ClientApp(mods=[guard_mod(ledger=folder / "ledger.jsonl", **common)][: kind == "mod"])
server = ServerApp()


@client.train()
def train(message, context):
    model = network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x = torch.randn(16, 4)
    nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long()).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    metrics = MetricRecord({"num-examples": 16.0, "loss": 3.0})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)


@server.main()
def main(grid, context):
    inner = (FedAdam if kind == "fixed-size" else FedAvg)(
        fraction_train=0.5, fraction_evaluate=0.0
    )
    strategy = inner
    if kind != "mod":
        strategy = guard(
            inner, population=4, cohort=kind, ledger=folder / "ledger.jsonl", **common
        )
    arrays = ArrayRecord(network().state_dict())
    found = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=2)
    network().load_state_dict(found.arrays.to_torch_state_dict())
    said = {"metrics": [dict(one) for one in found.train_metrics_clientapp.values()]}
    if kind != "mod":
        said["zeroed"] = strategy.zeroed
        strategy.close()
    (folder / "said.json").write_text(json.dumps(said))


run_simulation(server_app=server, client_app=client, num_supernodes=4)
"""


@pytest.mark.parametrize(
    ("kind", "unit_price"), [("poisson", 4.854), ("fixed-size", None), ("mod", None)]
)
def test_an_app_with_batch_norm_trains_under_guard(kind, unit_price, tmp_path):
    (tmp_path / "app.py").write_text(APP)
    ran = subprocess.run(
        [sys.executable, "app.py", str(tmp_path), kind],
        cwd=tmp_path, check=False, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    said = json.loads((tmp_path / "said.json").read_text())
    told = audit_ledger(tmp_path / "ledger.jsonl", 1e-5)
    assert told["label"] == "release"
    if kind == "mod":
        assert said["metrics"] == [{}, {}]  # no loss of a client
        assert told["charges"] == 4  # two nodes in two rounds, on one ledger of one data set
    else:
        assert said["zeroed"] == []
        assert told["charges"] == 2
        (paid,) = (one["epsilon"] for one in told["adversaries"])
        assert said["metrics"][-1] == {"epsilon": pytest.approx(paid)}
        assert unit_price is None or paid == pytest.approx(unit_price, abs=1e-3)
