"""What every client update promises, over all cases."""

import torch

from manifed.privacy.mechanism import ExampleMechanism
from manifed.privacy.random_numbers import NoiseSource
from manifed.problems.examples import Examples
from tests.conformance.client_cases import CASES, SIZES, play, setup_of, shards, start
from tests.conformance.manifold_marks import of
from tests.tensors import assert_near

SOURCE = NoiseSource.from_seed(11)
ROUND = 4
BEFORE = 100
"""The round before, numbered so that no test plays it."""


ALL = of(CASES)
PRIVATE = of([case for case in CASES if case.mechanism.l2_norm_clip is not None])


def moved():
    """Where the broadcast point is in the round before."""
    x = start() + torch.linspace(0.1, -0.1, 6, dtype=torch.float64)
    return x / x.norm()


def single(case, i, shard, source=SOURCE, server_round=ROUND, attempt=0):
    """The round ROUND of one client that has taken part in the round before."""
    before = play(case, i, moved(), shard, len(shard), SOURCE, BEFORE)
    return play(case, i, start(), shard, len(shard), source, server_round, attempt, before.memory)


def cohort(case, members):
    all_shards = shards()
    count = len(members)
    stacked = Examples.stack([all_shards[i] for i in members])
    who = tuple(members)
    sizes = [SIZES[i] for i in members]
    before = play(case, who, moved().expand(count, -1), stacked, sizes, SOURCE, BEFORE)
    x = start().expand(count, -1)
    return play(case, who, x, stacked, sizes, SOURCE, ROUND, 0, before.memory)


@ALL
def test_a_cohort_is_its_clients_one_by_one(case):
    together = cohort(case, [0, 1, 2]).up
    for i, shard in enumerate(shards()):
        for name, u in single(case, i, shard).up.items():
            assert_near(together[name][i], u, 1e-12)


@ALL
def test_the_same_address_gives_the_same_update(case):
    shard = shards()[0]
    first = single(case, 0, shard)
    second = single(case, 0, shard)
    for name, u in first.up.items():
        assert torch.equal(u, second.up[name])


@PRIVATE
def test_another_round_attempt_or_client_draws_other_noise(case):
    shard = shards()[0]
    rounds = range(1, 7)
    base = [single(case, 0, shard, server_round=r).up["train.u"] for r in rounds]
    others = [single(case, 1, shard, server_round=r).up["train.u"] for r in rounds]
    retried = [single(case, 0, shard, server_round=r, attempt=1).up["train.u"] for r in rounds]
    drawn = torch.stack([u for u in base + others + retried if float(u.norm()) > 0])
    assert len(drawn) > 9
    assert torch.pdist(drawn).min() > 1e-3


@of([case for case in CASES if case.training.space == "tangent"])
def test_uploads_are_tangent_at_the_broadcast_point(case):
    manifold = setup_of(case).problem.manifold
    x = start()
    for u in single(case, 0, shards()[0]).up.values():
        assert (manifold.proju(x, u) - u).norm() <= 1e-12 * (1 + u.norm())


@ALL
def test_inputs_are_untouched(case):
    shard = shards()[0]
    x = start()
    before = {key: t.clone() for key, t in shard.tensors.items()}
    point = x.clone()
    first = play(case, 0, x, shard, len(shard), SOURCE, ROUND)
    kept = {} if first.memory is None else {k: t.clone() for k, t in first.memory.tensors().items()}
    play(case, 0, x, shard, len(shard), SOURCE, ROUND + 1, 0, first.memory)
    assert torch.equal(point, x)
    assert all(torch.equal(before[key], t) for key, t in shard.tensors.items())
    if first.memory is not None:
        assert all(torch.equal(kept[k], t) for k, t in first.memory.tensors().items())


@ALL
def test_what_is_charged_is_what_was_drawn(case):
    """The releases a client update states are exactly the noised queries its oracle answered."""
    queries = single(case, 0, shards()[0]).queries
    noised = {k: n for k, n in queries.items() if not k.endswith("-unnoised")}
    stated = {r.label: r.count for r in case.training.releases(case.mechanism, SIZES[0])}
    if stated.get("reference", 0) > noised.get("reference", 0):
        # As printed: each noised step covers an un-noised reference, so both are charged a step.
        assert stated.pop("reference") == noised["correction"]
    assert stated == noised


@PRIVATE
def test_nothing_unnoised_leaves_under_a_mechanism(case):
    silent = case.mechanism.model_copy(update={"noise": ExampleMechanism().noise})
    quiet_case = type(case)(case.name, case.training, silent)
    for server_round in range(1, 7):
        loud = single(case, 0, shards()[0], server_round=server_round).up
        quiet = single(quiet_case, 0, shards()[0], server_round=server_round).up
        for name, u in loud.items():
            is_broadcast_point = float(u.norm()) == 0.0
            assert is_broadcast_point or float((u - quiet[name]).norm()) > 1e-6
