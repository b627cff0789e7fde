"""A node whose process is new in every round goes on with what its client remembered."""

import sys

import pytest
import torch
from flwr.app import Context, RecordDict

from manifed.experiment.assembly import initial_point, plan_of
from manifed.experiment.load import load
from manifed.federation.rounds import RoundFailed, free, run_rounds
from manifed.flower.grids import InlineGrid
from manifed.flower.handshake import meet
from tests.algorithms.gossip_runs import grid_of
from tests.fresh import QUICKSTART

PROJECTED = (
    "federation.num_clients=2",
    "training={kind='projected',step_size=0.001,local_steps=2}",
    "privacy={kind='none'}",
)


class RestartedNodes(InlineGrid):
    """Every message finds a node that has just been started."""

    def _deliver(self, message):
        node = message.metadata.dst_node_id
        old = self._contexts[node]
        fresh = Context(old.run_id, node, old.node_config, RecordDict(), old.run_config)
        self._contexts[node] = fresh
        return super()._deliver(message)


def model(grid, node_config=lambda _: {}, *, before_last=None):
    """The point after three rounds of projected learning with memory."""
    config = load(QUICKSTART, PROJECTED)
    plan = plan_of(config)
    made = grid_of(config, grid, node_config=node_config)
    start = plan.server_update.start(initial_point(config))
    reports = run_rounds(plan, start, meet(made, plan), free, num_rounds=3)
    next(reports), next(reports)
    if before_last is not None:
        before_last()
    (last,) = reports
    assert not last.failures
    return last.state["x"]


@pytest.fixture(scope="module")
def lived():
    return model(InlineGrid)


def folders(root):
    return lambda i: {"state-dir": str(root / str(i))}


def test_restarted_nodes_end_where_nodes_that_lived_end(tmp_path, caplog, lived):
    assert torch.equal(model(RestartedNodes, folders(tmp_path)), lived)
    assert not caplog.messages
    assert not torch.equal(model(RestartedNodes), lived)
    assert "client 1 starts round 3, attempt 0 from its initial memory" in caplog.text


def test_a_deployed_node_keeps_its_memory_in_its_flower_home(tmp_path, monkeypatch, lived):
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    assert torch.equal(model(InlineGrid), lived)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(sys, "argv", ["/bin/flwr-clientapp"])
    assert torch.equal(model(RestartedNodes), lived)
    assert len(list((tmp_path / "manifed" / "memory").iterdir())) == 2


def test_a_node_whose_file_is_damaged_goes_on_from_its_initial_memory(tmp_path, caplog, lived):
    def cut():
        (path,) = (tmp_path / "1" / "memory").iterdir()
        path.write_bytes(path.read_bytes()[:-1])

    assert not torch.equal(model(RestartedNodes, folders(tmp_path), before_last=cut), lived)
    assert "does not match its SHA-256" in caplog.text
    assert "client 1 starts round 3" in caplog.text
    assert "client 0 starts" not in caplog.text


@pytest.mark.parametrize("named", ["relative", 3, ""])
def test_a_state_dir_that_is_no_absolute_path_is_in_the_nodes_own_log(named, caplog):
    with pytest.raises(RoundFailed, match="this node is absent") as failed:
        model(InlineGrid, lambda _: {"state-dir": named})
    assert "state-dir" not in str(failed.value)
