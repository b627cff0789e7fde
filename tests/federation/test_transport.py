"""Three ways to the clients, one round: in this process one by one, stacked, as Flower messages."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from manifed.algorithms.payloads import PerClient, Point
from manifed.experiment.assembly import client_side, initial_point, plan_of
from manifed.experiment.load import load
from manifed.federation.replies import Header
from manifed.federation.stack import Asked, StackTransport
from manifed.flower.client import client_app_of
from manifed.flower.inline import InlineGrid
from manifed.flower.transport import MessageTransport
from tests.conformance.federated_loop import stacked

QUICKSTART = Path(__file__).resolve().parents[2] / "configs" / "quickstart.toml"
SETS = ("federation.num_clients=4", "training.local_steps=2")
REMEMBERS = (
    "privacy={kind='none'}",
    "problem={kind='kpca'}",
    "training={kind='projected',step_size=1e-3,local_steps=2}",
)
WAYS = ("memory", "stacked", "messages")


def transport_of(way, config):
    if way == "memory":
        return StackTransport(client_side(config))
    if way == "stacked":
        return stacked(client_side(config))
    grid = InlineGrid(client_app_of(lambda _: config), 4, {})
    return MessageTransport.meet(grid, plan_of(config))


@pytest.mark.parametrize("way", WAYS)
def test_what_goes_down_may_differ_by_client(way):
    config = load(QUICKSTART, SETS)
    header = Header(plan_of(config).config_sha256, 1, 0, "train", -1)
    phase = config.training.phases[0]
    x = initial_point(config)
    points = torch.stack([x, -x, 1000 * x, x.flip(0)])
    asked = Asked(header, phase, PerClient(Point(points)), (3, 1, 0, 2), {})
    replies = transport_of(way, config).exchange(asked)
    assert replies.partitions == (3, 1, 2)
    assert "BadBroadcast: Expected the broadcast x on Sphere" in replies.failures[0].text
    assert replies.bytes_down == points.numel() * 8
    for row, (client, point) in enumerate(zip((3, 1, 2), points[[0, 1, 3]], strict=True)):
        alone = asked._replace(down=Point(point), partitions=(client,))
        alone = transport_of("memory", config).exchange(alone)
        torch.testing.assert_close(replies.uploads.u[row], alone.uploads.u[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("way", WAYS)
def test_memory_of_a_round_that_was_not_accepted_is_not_gone_on_with(way):
    config = load(QUICKSTART, [*SETS, *REMEMBERS])
    phase = config.training.phases[0]
    x = initial_point(config)
    header = Header(plan_of(config).config_sha256, 1, 0, phase.name, -1)
    transport = transport_of(way, config)

    def uploaded(server_round, accepted):
        mine = replace(header, server_round=server_round)
        return transport.exchange(Asked(mine, phase, Point(x), (0,), accepted)).uploads.u

    uploaded(1, {})
    forgot = uploaded(2, {})
    asked = Asked(replace(header, server_round=2), phase, Point(x), (0,), {})
    fresh = transport_of(way, config).exchange(asked)
    torch.testing.assert_close(forgot, fresh.uploads.u, rtol=0, atol=1e-12)
    assert float((uploaded(3, {0: 2}) - forgot).norm()) > 1e-6
