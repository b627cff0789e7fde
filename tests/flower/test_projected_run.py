"""Projected training through the app: equal to the reference loop, accounted, all present."""

import pytest

from manifed.algorithms.projected import Projected
from manifed.cli.launch import Request, launch
from manifed.errors import RoundFailed
from tests.conformance.federated_loop import broken

BASE = """
name = "run"
problem = { kind = "kpca", num_components = 2 }
data = { kind = "synthetic-pca", num_clients = 4, rows = 6, dimension = 7 }
federation = { num_clients = 4, num_rounds = 4, partition = { kind = "natural" } }
"""
STEPS = 'step_size = 0.02, local_steps = 3, minibatch = { kind = "full" }'
ALGORITHMS = {"projected": STEPS, "rfedsvrg": f'{STEPS}, maps = "retraction"'}


def write(tmp_path, kind):
    path = tmp_path / "run.toml"
    path.write_text(f'{BASE}training = {{ kind = "{kind}", {ALGORITHMS[kind]} }}\n')
    return str(path)


def run(tmp_path, kind, *sets, name="out"):
    return launch(Request(write(tmp_path, kind), sets, out=tmp_path / name, plain=True))


@pytest.mark.parametrize("execution", ["messages", "cohort"])
def test_one_missing_client_ends_a_projected_run_whatever_the_policy(
    tmp_path, execution, monkeypatch
):
    broken(monkeypatch, Projected, {2}, RuntimeError("client 2 is gone"))
    policy = "federation.replies={on_failure='proceed',min_fraction=0.1}"
    with pytest.raises(RoundFailed, match="client 2"):
        run(tmp_path, "projected", policy, f"engine.execution={execution}")
