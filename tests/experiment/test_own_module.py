"""A torch module of one's own by config: one trajectory on every engine, no optimum, one hash."""

from functools import partial
from pathlib import Path

import pytest
import torch
from flwr.app import Context, RecordDict

from manifed.audit.bound import find_all
from manifed.audit.of_config import attacks_of
from manifed.errors import ConfigError
from manifed.experiment.assembly import initial_point
from manifed.experiment.load import load
from manifed.experiment.schema import sha256
from manifed.flower.apps import server_app_of
from manifed.flower.client import inline_grid
from manifed.problems.examples import Examples
from manifed.runs.folder import RunFolder
from manifed.torch import load as load_state
from tests.algorithms.gossip_runs import reports_of
from tests.experiment.own_nets import FACTORY, orthogonal

CONFIG = f"""
[problem]
kind = "module"
model = "{FACTORY}"
[data]
kind = "digits"
has_labels = true
num_examples = 120
[federation]
num_clients = 3
num_rounds = 3
[training]
kind = "rsgd"
step_size = 0.5
local_steps = 2
[privacy]
kind = "example-level"
l2_norm_clip = 1.0
delta = 1e-3
noise = {{ kind = "multiplier", noise_multiplier = 1.0 }}
[output]
quiet = true
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    monkeypatch.setenv("MANIFED_PLUGINS", "tests")
    path = tmp_path / "own.toml"
    path.write_text(CONFIG)
    return path


def test_memory_cohort_and_messages_give_one_trajectory(own, tmp_path):
    config = load(own, [f'output.directory="{tmp_path / "run"}"'])
    in_memory, in_stacks = (reports_of(config, way)[-1].state["x"] for way in ("memory", "stacked"))
    close = partial(torch.testing.assert_close, rtol=0, atol=1e-10)
    close(in_stacks, in_memory)

    grid = inline_grid(config)
    server_app_of(lambda _: config)(grid, Context(1, 1, {}, RecordDict(), {}))
    folder = RunFolder.open(Path(config.output.directory))
    close(folder.load_tensors("model")["x"], in_memory)
    model = orthogonal()
    model.load_state_dict(load_state(folder.directory, model), strict=True)
    frame = model.frame.detach()
    close(frame.mT @ frame, torch.eye(4, dtype=frame.dtype))
    columns = folder.metrics()
    assert "cost_gap" not in columns, "nobody knows the optimum of a module"
    assert 0 <= columns["accuracy"][-1] <= 1
    assert columns["cost"][-1] > 0


def test_where_it_starts_is_the_seed_of_the_model(own):
    first, other = (load(own, sets) for sets in ([], ["problem.model_seed=1"]))
    assert torch.equal(initial_point(first), initial_point(first))
    assert not torch.equal(initial_point(first), initial_point(other))
    assert sha256(first) != sha256(other)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("broken", "raised KeyError"),
        ("number", "torch.nn.Module, got int"),
        ("absent", "function that makes a module"),
    ],
)
def test_a_factory_that_will_not_do_is_one_line_before_the_run(own, name, said):
    with pytest.raises(ConfigError, match=said) as raised:
        initial_point(load(own, [f'problem.model="tests.experiment.own_nets:{name}"']))
    assert "\n" not in str(raised.value)


@pytest.mark.slow
def test_the_first_block_of_its_page_runs_as_printed(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # it saves a figure
    page = (Path(__file__).parents[2] / "docs" / "modules.md").read_text()
    block = page.split("```python\n")[1].split("```")[0]
    said = {}
    exec(compile(block, "docs/modules.md", "exec"), said)
    accuracy = float(capsys.readouterr().out.split()[0])
    assert accuracy > 0.4, "chance is 0.1"
    frame = said["model"].frame.detach()
    torch.testing.assert_close(frame.mT @ frame, torch.eye(frame.shape[1]), atol=1e-5, rtol=0)


@pytest.mark.slow
def test_the_audit_proves_no_more_than_is_claimed(own):
    small = ["data.num_examples=48", 'training.minibatch={kind="full"}']
    small += ["problem.compute=float32", "privacy.noise_source=seed"]
    config = load(own, [*small, 'training.maps="retraction"'])
    found = list(find_all(attacks_of(config, 300)))
    assert any("own problem" in verdict.attack for verdict in found)
    assert not any(verdict.is_violated for verdict in found)


def test_no_record_changes_what_the_labels_of_others_mean(own):
    spec = load(own).problem
    z = torch.ones(4, 64)
    for last, means in ((5.0, 5.0), (-1.0, 0.0)):
        label = torch.tensor([0.0, 1.0, 2.0, last])
        found = spec.prepare(Examples({"z": z, "label": label}), {})
        assert found["label"].tolist() == [0.0, 1.0, 2.0, means]
