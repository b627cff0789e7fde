"""What dies in the middle of a run is missed as the policy says, comes back, and loses nothing."""

import os
import threading

import pytest
import torch
from flwr.app import Error, Message
from flwr.common.constant import ErrorCode

from app import deployment
from manifed.experiment.assembly import initial_point, plan_of
from manifed.experiment.load import load
from manifed.federation.rounds import free, run_rounds
from manifed.flower.client import client_app_of
from manifed.flower.grids import InlineGrid
from manifed.flower.handshake import meet
from manifed.flower.run_config import run_config_of
from manifed.runs.folder import RunFolder
from tests.deployment.kills import end, program_under, rounds_done, soon
from tests.fresh import QUICKSTART, ROOT
from tests.tensors import assert_near

SETS = (
    "federation.num_clients=2", "evaluation.every=1", "engine.kind=deployment",
    "output.checkpoint_every=1",
)  # fmt: skip
PROJECTED = (
    "federation.num_rounds=5", "privacy={kind='none'}",
    "training={kind='projected-partial',step_size=0.001,local_steps=2}",
)  # fmt: skip
pytestmark = [pytest.mark.deployment, pytest.mark.slow]


def inline_model(config, missed):
    """The model of a run in one process whose client 1 does not hear of some rounds."""

    class Deaf(InlineGrid):
        def _deliver(self, message):
            is_out = message.metadata.group_id in {str(r) for r in missed}
            if message.metadata.dst_node_id == 3 and is_out:
                return Message(Error(ErrorCode.NODE_UNAVAILABLE, "out"), reply_to=message)
            return super()._deliver(message)

    plan = plan_of(config)
    grid = Deaf(client_app_of(lambda _: config), 2, {})
    state = plan.server_update.start(initial_point(config))
    transport = meet(grid, plan)
    *_, last = run_rounds(plan, state, transport, free, num_rounds=config.federation.num_rounds)
    return plan.server_update.model(last.state, plan.manifold)


@pytest.mark.one_week_in(2)
@pytest.mark.usefixtures("leaves_nothing")
def test_a_killed_supernode_is_missed_comes_back_and_goes_on_with_its_memory(
    tmp_path,
):
    out = tmp_path / "run"
    lines = list[str]()
    config = load(QUICKSTART, [*SETS, *PROJECTED], {"output.directory": str(out)})

    def kill():
        soon(lambda: rounds_done(out) >= 1)
        end(program_under(os.getpid(), "flower-supernode", "partition-id=1"))

    killing = threading.Thread(target=kill, daemon=True)
    killing.start()
    deployment.run(
        run_config=run_config_of(config), num_supernodes=2, project=ROOT, timeout=600.0,
        on_line=lines.append,
    )  # fmt: skip
    killing.join()
    folder = RunFolder.open(out)
    ((kind, [[first, last]]),) = folder.manifest()["replies"]["missed"]["1"].items()
    assert (kind, first) == ("unavailable", 2)
    assert last < 5
    assert sum(line.startswith("supernode-1 ended with -9") for line in lines) == 1
    assert "supernode-1 is back" in lines
    expected = inline_model(config, set(range(first, last + 1)))
    assert not torch.equal(expected, inline_model(config, set()))
    assert_near(folder.load_tensors("model")["x"], expected, 1e-12)
