"""A torch module of one's own by config: one trajectory on every engine, no optimum, one hash."""

from functools import partial
from pathlib import Path

import pytest
import torch
from flwr.app import Context, RecordDict

from manifed.audit.bound import find_strongest
from manifed.audit.of_config import attacks_of
from manifed.errors import ConfigError
from manifed.experiment.assembly import client_side, initial_point, plan_of
from manifed.experiment.load import load
from manifed.experiment.schema import sha256
from manifed.federation.rounds import run_rounds
from manifed.federation.stack import StackTransport
from manifed.flower.apps import server_app_of
from manifed.flower.client import client_app_of
from manifed.flower.inline import InlineGrid
from manifed.problems.examples import Examples
from manifed.runs.folder import RunFolder
from manifed.torch import load as load_state
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
plots = false
"""

GROUPS = ['problem.clip_shares={frame=3.0, "head."=4.0}', 'problem.compute="float32"']


@pytest.fixture
def own(tmp_path, monkeypatch):
    monkeypatch.setenv("MANIFED_PLUGINS", "tests")
    path = tmp_path / "own.toml"
    path.write_text(CONFIG)
    return path


def model_by(config, transport):
    plan = plan_of(config)
    state = plan.server_update.start(initial_point(config))
    *_, last = run_rounds(
        plan, state, transport(client_side(config)), num_rounds=config.federation.num_rounds
    )
    return plan.server_update.model(last.state, plan.manifold)


def test_memory_cohort_and_messages_give_one_trajectory(own, tmp_path):
    config = load(own, [f'output.directory="{tmp_path / "run"}"'])
    cohort = partial(StackTransport, at_once=None, memory_budget_mb=512)
    in_memory, stacked = (model_by(config, way) for way in (StackTransport, cohort))
    torch.testing.assert_close(stacked, in_memory, rtol=0, atol=1e-10)

    grid = InlineGrid(client_app_of(lambda _: config), config.federation.num_clients, {})
    server_app_of(lambda _: config)(grid, Context(1, 1, {}, RecordDict(), {}))
    folder = RunFolder.open(Path(config.output.directory))
    torch.testing.assert_close(folder.load_tensors("model")["x"], in_memory, rtol=0, atol=1e-10)
    model = orthogonal()
    model.load_state_dict(load_state(folder.directory, model), strict=True)
    frame = model.frame.detach()
    torch.testing.assert_close(
        frame.mT @ frame, torch.eye(4, dtype=frame.dtype), atol=1e-10, rtol=0
    )
    header, *rows = (folder.directory / "metrics.csv").read_text().splitlines()
    columns = dict(zip(header.split(","), rows[-1].split(","), strict=True))
    assert "cost_gap" not in columns, "nobody knows the optimum of a module"
    assert 0 <= float(columns["accuracy"]) <= 1
    assert float(columns["cost"]) > 0


def test_where_it_starts_is_the_seed_of_the_model(own):
    first, again = (initial_point(load(own)) for _ in range(2))
    assert torch.equal(first, again)
    other = initial_point(load(own, ["problem.model_seed=1"]))
    assert not torch.equal(first, other)
    assert sha256(load(own)) != sha256(load(own, ["problem.model_seed=1"]))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mixing", "BatchNorm1d.*GroupNorm"),
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
    frame = said["model"].frame.detach().to(torch.float64)
    torch.testing.assert_close(
        frame.mT @ frame, torch.eye(frame.shape[1], dtype=frame.dtype), atol=1e-5, rtol=0
    )


@pytest.mark.slow
@pytest.mark.parametrize("groups", [[], GROUPS], ids=["one clip", "one clip a group"])
def test_the_audit_proves_no_more_than_is_claimed(own, groups):
    """With groups, the worst record that is looked for moves all of them by their bounds."""
    small = ["data.num_examples=48", 'training.minibatch={kind="full"}', *groups]
    config = load(own, [*small, 'training.maps="retraction"'])
    _, found = find_strongest(attacks_of(config, 300))
    assert any("own problem" in finding.audited.how for finding in found)
    assert not any(finding.verdict.is_violated for finding in found)


def test_no_record_changes_what_the_labels_of_others_mean(own):
    spec = load(own).problem
    labels = torch.tensor([0.0, 1.0, 2.0, 5.0], dtype=torch.float64)
    rows = Examples({"z": torch.ones(4, 64).double(), "label": labels}, {"z": 1, "label": 0})
    worse = Examples({**rows.tensors, "label": torch.tensor([0.0, 1.0, 2.0, -1.0]).double()},
                     rows.feature_ndim)  # fmt: skip
    here, there = (spec.prepare(one, {})["label"] for one in (rows, worse))
    assert here.tolist() == labels.tolist()
    assert there.tolist() == [0.0, 1.0, 2.0, 0.0]
