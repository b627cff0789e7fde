"""N_i is public and fixed; how many rows a client really has is its secret (add-or-remove)."""

import pytest
import torch

from manifed.algorithms.payloads import Point
from manifed.algorithms.rsgd import RSGD
from manifed.federation.client import ClientSide
from manifed.federation.exchange import Asked, Header
from manifed.federation.stack import StackTransport
from manifed.oracles.minibatch import Ask, Full, Poisson, Query, WithoutReplacement, WrongSize
from manifed.oracles.noisy_oracle import Draws, Oracle
from manifed.privacy.mechanism import ExampleMechanism
from manifed.privacy.random_numbers import NoiseSource
from manifed.problems.examples import Examples
from manifed.problems.pca import PrincipalEigenvector
from tests.conformance.client_cases import CASES, ClientCase, play, setup_of, start
from tests.conformance.federated_loop import stacked
from tests.conformance.manifold_marks import of
from tests.tensors import assert_near, normals

SOURCE = NoiseSource.from_seed(11)
DECLARED = 12
CLIP = 0.5


REPLACED = ExampleMechanism(l2_norm_clip=CLIP, neighboring_relation="replace-one")
SUBSETS = RSGD(step_size=0.1, minibatch=WithoutReplacement(batch_size=5))
EXACT = [
    *(case for case in CASES if case.mechanism.neighboring_relation == "replace-one"),
    ClientCase("rsgd-replace-one-full", RSGD(step_size=0.1, minibatch=Full()), REPLACED),
    ClientCase("rsgd-subsets-without-privacy", SUBSETS, ExampleMechanism()),
]
ANY_SIZE = [case for case in CASES if case not in EXACT]


def rows(count, silent=0):
    """So many rows of length one or more, then ``silent`` ones whose gradient is zero."""
    z = normals(5, 40, 6)
    z = torch.cat([3 * z[:count] / z[:count].norm(dim=1, keepdim=True), torch.zeros(silent, 6)])
    return Examples({"z": z})


def uploads(case, shard, server_round=1):
    return play(case, 0, start(), shard, DECLARED, SOURCE, server_round).up


@of(ANY_SIZE)
def test_rows_that_say_nothing_change_nothing_however_many_they_are(case):
    """Neither a normaliser nor a rate of a batch follows the rows that are there."""
    for server_round, more in ((1, 1), (2, 28)):
        alone = uploads(case, rows(9), server_round)
        for name, u in uploads(case, rows(9, more), server_round).items():
            assert_near(u, alone[name], 1e-12)


@of(ANY_SIZE)
def test_a_cohort_with_any_number_of_rows_is_its_clients_one_by_one(case):
    everybody = [rows(n) for n in (12, 0, 5, 31)]
    x = start().expand(4, -1)
    stack = Examples.stack(everybody)
    together = play(case, (0, 1, 2, 3), x, stack, [DECLARED] * 4, SOURCE, 1).up
    for i, shard in enumerate(everybody):
        for name, u in play(case, i, start(), shard, DECLARED, SOURCE, 1).up.items():
            assert torch.isfinite(u).all()
            assert_near(together[name][i], u, 1e-12)


@pytest.mark.parametrize("minibatch", [Full(), Poisson(batch_size=4)], ids=lambda m: m.kind)
def test_a_row_more_moves_an_answer_by_the_clip_over_the_public_size(minibatch):
    mechanism = ExampleMechanism(l2_norm_clip=CLIP)
    x = start()
    anchor = torch.linspace(-1.0, 1.0, 6, dtype=torch.float64)
    anchor = anchor / anchor.norm()
    asks = (Ask(minibatch), Ask(minibatch, label="correction", form="each"))
    queries = tuple(Query.of(mechanism, ask, DECLARED) for ask in asks)
    moves = []
    for server_round in range(1, 5):
        answers = []
        for count in range(40):
            draws = Draws(SOURCE, 0, server_round)
            oracle = Oracle(PrincipalEigenvector(), rows(count), [queries], draws)
            answers.append(torch.stack([oracle.gradient(x), oracle.correction(x, anchor)]))
        moves.append(torch.stack(answers).diff(dim=0).norm(dim=-1))
    largest = torch.cat(moves).amax(0) / (CLIP / queries[0].expected_size)
    assert 0.99 < float(largest[0]) <= 1 + 1e-9  # every one of the rows may be as long as the clip
    assert 0.99 < float(largest[1]) <= 2 * (1 + 1e-9)


@of(EXACT)
def test_where_neighbours_have_one_size_another_is_refused(case):
    uploads(case, rows(DECLARED))
    for count in (DECLARED - 1, DECLARED + 1):
        with pytest.raises(
            WrongSize, match=f"the declared {DECLARED} rows, got {count}"
        ) as refused:
            uploads(case, rows(count))
        assert "\n" not in str(refused.value)


@of([ANY_SIZE[1], EXACT[0]])
def test_both_transports_in_memory_divide_by_the_public_size(case):
    shards = [rows(n) for n in (12, 9, 0)]
    side = ClientSide(setup_of(case), shards, (6,), SOURCE, num_examples=(12, 12, 12))
    (phase,) = case.training.phases
    asked = Asked(Header("", 1, 0, "train", 0), phase, Point(start()), (0, 1, 2), {})
    found = [way.exchange(asked) for way in (StackTransport(side), stacked(side))]
    assert_near(*[replies.uploads.u for replies in found], atol=1e-12)
    absent = {1, 2} if case in EXACT else set()
    for replies in found:
        assert set(replies.failures) == absent == {0, 1, 2} - set(replies.partitions)
