"""What every client half promises, over all cases."""

import pytest
import torch

from clients.turn import Seat, take_turn
from privacy.mechanism import ExampleLens
from privacy.noise import NoiseSource
from problems.base import Examples
from tests.conformance.client_cases import CASES, SIZES, half_of, shards, start
from wire.payloads import Point

SOURCE = NoiseSource.from_seed(11)
ROUND = 4


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request):
    return request.param


def single(case, i, shard, source=SOURCE, server_round=ROUND, attempt=0):
    half, x = half_of(case), start()
    memory = case.training.initial_memory(x)
    seat = Seat(i, server_round, attempt, case.training.phases[0].name)
    return take_turn(half, seat, Point(x), memory, shard, len(shard), source)


def cohort(case, members):
    all_shards, half = shards(), half_of(case)
    x = start().expand(len(members), -1)
    memory = case.training.initial_memory(x)
    seat = Seat(tuple(members), ROUND, 0, case.training.phases[0].name)
    stacked = Examples.stack([all_shards[i] for i in members])
    sizes = [SIZES[i] for i in members]
    return take_turn(half, seat, Point(x), memory, stacked, sizes, SOURCE)


def test_a_cohort_is_its_clients_one_by_one(case):
    together = cohort(case, [0, 1, 2]).up.tensors()
    for i, shard in enumerate(shards()):
        alone = single(case, i, shard).up.tensors()
        for name, u in alone.items():
            torch.testing.assert_close(together[name][i], u, rtol=0, atol=1e-12)


def test_grouping_does_not_matter(case):
    whole, part = cohort(case, [0, 1, 2]).up.tensors(), cohort(case, [2, 0]).up.tensors()
    for name, u in part.items():
        torch.testing.assert_close(whole[name][[2, 0]], u, rtol=0, atol=1e-12)


def test_the_same_address_gives_the_same_turn(case):
    shard = shards()[0]
    first, second = single(case, 0, shard), single(case, 0, shard)
    for name, u in first.up.tensors().items():
        assert torch.equal(u, second.up.tensors()[name])


def test_another_round_attempt_or_client_draws_other_noise(case):
    if case.lens.l2_norm_clip is None:
        pytest.skip("nothing is drawn")
    shard, rounds = shards()[0], range(1, 7)
    base = [single(case, 0, shard, server_round=r).up.tensors()["u"] for r in rounds]
    others = [single(case, 1, shard, server_round=r).up.tensors()["u"] for r in rounds]
    retried = [single(case, 0, shard, server_round=r, attempt=1).up.tensors()["u"] for r in rounds]
    drawn = torch.stack([u for u in base + others + retried if float(u.norm()) > 0])
    assert len(drawn) > 9
    assert float(torch.pdist(drawn).min()) > 1e-3


def test_uploads_are_tangent_at_the_broadcast_point(case):
    half, x = half_of(case), start()
    for u in single(case, 0, shards()[0]).up.tensors().values():
        assert (half.manifold.proju(x, u) - u).norm() <= 1e-12 * (1 + u.norm())


def test_inputs_are_untouched(case):
    shard, x = shards()[0], start()
    before = {key: t.clone() for key, t in shard.tensors.items()}
    point = x.clone()
    seat = Seat(0, ROUND, 0, case.training.phases[0].name)
    take_turn(
        half_of(case), seat, Point(x), case.training.initial_memory(x), shard, len(shard), SOURCE
    )
    assert torch.equal(point, x)
    assert all(torch.equal(before[key], t) for key, t in shard.tensors.items())


def test_what_is_charged_is_what_was_drawn(case):
    """The releases a half states are exactly the noised queries its oracle answered."""
    turn = single(case, 0, shards()[0])
    noised = {k: n for k, n in turn.queries.items() if not k.endswith("-unnoised")}
    stated = {r.label: r.count for r in case.training.releases(case.lens, SIZES[0])}
    if stated.get("reference", 0) > noised.get("reference", 0):
        # As printed: each noised step covers an un-noised reference, so both are charged a step.
        assert stated.pop("reference") == noised["correction"]
    assert stated == noised


def test_nothing_unnoised_leaves_under_a_lens(case):
    if case.lens.l2_norm_clip is None:
        pytest.skip("privacy is off")
    silent = case.lens.model_copy(update={"noise": ExampleLens().noise})
    quiet_case = type(case)(case.name, case.training, silent)
    for server_round in range(1, 7):
        loud = single(case, 0, shards()[0], server_round=server_round).up.tensors()
        quiet = single(quiet_case, 0, shards()[0], server_round=server_round).up.tensors()
        for name, u in loud.items():
            is_broadcast_point = float(u.norm()) == 0.0
            assert is_broadcast_point or float((u - quiet[name]).norm()) > 1e-6


def test_identical_clients_are_one_client_without_noise(case):
    if case.lens.l2_norm_clip is not None:
        pytest.skip("noise differs by client")
    half, x, shard = half_of(case), start(), shards()[0]
    stacked = Examples.stack([shard, shard])
    seat = Seat((0, 1), ROUND, 0, "train")
    turn = take_turn(half, seat, Point(x.expand(2, -1)), None, stacked, [12, 12], SOURCE)
    assert torch.equal(turn.up.tensors()["u"][0], turn.up.tensors()["u"][1])
