"""A client refuses what comes down from elsewhere than its phase says, and shows no data."""

import itertools

import pytest
import torch
from flwr.app import Message, MessageType

from manifed.algorithms.algorithm import Phase
from manifed.algorithms.payloads import (
    BadBroadcast,
    Displacement,
    Point,
    check_broadcast,
    check_tangent,
)
from manifed.experiment.load import load
from manifed.experiment.schema import sha256
from manifed.federation.exchange import Header
from manifed.flower.records import pack
from manifed.manifolds import Euclidean, Lorentz, Sphere, Stiefel
from tests.algorithms.gossip_runs import grid_of
from tests.conformance.client_cases import CASES, broadcast, start
from tests.conformance.manifold_marks import of
from tests.fresh import QUICKSTART
from tests.tensors import float64, generator

CONFIG = load(str(QUICKSTART), ["federation.num_clients=4", "evaluation.is_enabled=false"])


def honest():
    return Sphere().random(64, generator=generator(1))


def answered(x):
    """What client 0 replies to the broadcast x, through the app."""
    header = Header(sha256(CONFIG), 1, 0, "train", 0)
    message = Message(pack(header, Point(x)), dst_node_id=2, message_type=MessageType.TRAIN)
    (reply,) = grid_of(CONFIG).send_and_receive([message])
    return reply


@pytest.mark.parametrize("size", [1000.0, 1 + 1e-3, 1 + 1e-5, 0.0, 1e150, 1e308])
def test_a_point_off_the_sphere_is_refused_before_any_record_is_read(size):
    """With |x| = 1000 one record separates two uploads by 100 standard deviations."""
    reply = answered(size * honest())
    assert reply.has_error()
    assert reply.error.reason.startswith("BadBroadcast: Expected the broadcast x ")
    assert reply.error.reason.endswith("nothing was computed")
    assert len(reply.error.reason) < 200


@pytest.mark.parametrize("size", [1.0, 1 + 1e-9])
def test_a_point_on_the_sphere_to_rounding_is_answered(size):
    assert not answered(size * honest()).has_error()


@of(CASES)
def test_every_phase_says_where_its_fields_lie_and_honest_ones_pass(case):
    for phase in case.training.phases:
        assert len(phase.places) == len(phase.down.names())
        down = broadcast(phase, start())
        check_broadcast(phase.places, down, Sphere())
        for position in range(len(phase.places)):
            fields = list(down.tensors().values())
            fields[position] = 1e101 * fields[position]
            with pytest.raises(BadBroadcast, match="norm at most 1e\\+100"):
                check_broadcast(phase.places, phase.down(*fields), Sphere())
        if "tangent" in phase.places:
            continue
        far = phase.down(*[0.5 * field for field in down.tensors().values()])
        if phase.places[0] == "point":
            with pytest.raises(BadBroadcast, match="on Sphere within 1e-06"):
                check_broadcast(phase.places, far, Sphere())
        else:
            check_broadcast(phase.places, far, Sphere())
            nowhere = phase.down(*[0 * field for field in down.tensors().values()])
            with pytest.raises(BadBroadcast, match="the projection of the broadcast x"):
                check_broadcast(phase.places, nowhere, Sphere())


def test_a_broadcast_vector_with_a_normal_part_is_refused():
    m = Lorentz()
    x = Lorentz().origin(4)
    u = m.from_coords(x, torch.ones(3).double())
    check_tangent("gradient", x, u, m)
    with pytest.raises(BadBroadcast, match="the broadcast gradient tangent"):
        check_tangent("gradient", x, u + 1e-3 * x, m)
    with pytest.raises(BadBroadcast):
        check_tangent("gradient", x, torch.nan * u, m)


GOOD = {
    "sphere": (Sphere(), float64([0.6, 0.8, 0.0])),
    "flat": (Euclidean(), float64([3.0, -4.0, 1e50])),
    "frames": (Stiefel(), torch.eye(3, 2).double()),
}
SPOILS = {
    "none": lambda x: x,
    "nan": lambda x: x * float("nan"),
    "infinite": lambda x: x / 0.0,
    "too long": lambda x: x * 1e160,
    "off": lambda x: x * 1.001,
    "a little off": lambda x: x * (1 + 1e-12),
}


def passes(phase, x, manifold):
    try:
        check_broadcast(phase.places, Point(x), manifold)
    except BadBroadcast:
        return False
    return True


@pytest.mark.parametrize("place", ["point", "point-nearby", "ambient"])
@pytest.mark.parametrize("name", GOOD)
def test_rows_pass_together_only_if_each_passes(name, place):
    manifold, x = GOOD[name]
    phase = Phase("train", Point, Displacement, (place,))
    for first, second in itertools.product(SPOILS.values(), repeat=2):
        rows = [first(x), x, second(x)]
        each = all(passes(phase, row, manifold) for row in rows)
        assert passes(phase, torch.stack(rows), manifold) == each
