"""Three ways to the clients, one round: in this process one by one, stacked, as Flower messages."""

import torch

from manifed.algorithms.payloads import PerClient, Point
from manifed.experiment.assembly import initial_point, plan_of
from manifed.experiment.load import load
from manifed.federation.exchange import Asked, Header
from tests.algorithms.gossip_runs import EVERY_WAY, transport_of
from tests.fresh import QUICKSTART
from tests.tensors import assert_near

SETS = ("federation.num_clients=4", "training.local_steps=2")


@EVERY_WAY
def test_what_goes_down_may_differ_by_client(way):
    config = load(QUICKSTART, SETS)
    (phase,) = config.training.phases
    header = Header(plan_of(config).config_sha256, 1, 0, phase.name, -1)
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
        assert_near(replies.uploads.u[row], alone.uploads.u[0], 1e-12)


@EVERY_WAY
def test_memory_of_a_round_that_was_not_accepted_is_not_gone_on_with(way):
    projected = "training={kind='projected',step_size=1e-3,local_steps=2}"
    config = load(QUICKSTART, [*SETS, "privacy={kind='none'}", "problem={kind='kpca'}", projected])
    phase = config.training.phases[0]
    x = initial_point(config)
    header = Header(plan_of(config).config_sha256, 1, 0, phase.name, -1)
    one, other = (transport_of(way, config) for _ in range(2))

    def uploaded(transport, server_round, accepted):
        mine = header._replace(server_round=server_round)
        return transport.exchange(Asked(mine, phase, Point(x), (0,), accepted)).uploads.u

    uploaded(one, 1, {})
    forgot = uploaded(one, 2, {})
    assert_near(forgot, uploaded(other, 2, {}), 1e-12)
    assert float((uploaded(one, 3, {0: 2}) - forgot).norm()) > 1e-6
