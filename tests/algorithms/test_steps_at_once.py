"""K full-gradient steps of least squares are one affine map: the same steps, where safe."""

import pytest
import torch

from manifed.algorithms.rsgd import RSGD
from manifed.federation.client import ClientSetup, ClientSide
from manifed.oracles.minibatch import Full, Poisson
from manifed.oracles.oracle import POINTS_AT_ONCE, Draws, Oracle
from manifed.privacy.mechanism import ExampleMechanism, RelativeNoise
from manifed.privacy.noise import NoiseSource
from manifed.problems.base import Examples
from manifed.problems.least_squares import LeastSquares
from manifed.problems.logistic import Logistic

STEP, STEPS, DIM = 0.05, 10, 4
BARE = ExampleMechanism()
FULL = RSGD(step_size=STEP, local_steps=STEPS, minibatch=Full())


def shards(sizes, dim=DIM):
    generator = torch.Generator().manual_seed(7)
    ndims = {"feature": 1, "target": 0}

    def drawn(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return [Examples({"feature": drawn(n, dim), "target": drawn(n)}, ndims) for n in sizes]


def oracle_of(examples, sizes, *, problem=None, mechanism=BARE, training=FULL):
    partition = tuple(range(len(sizes))) if examples.counts is not None else 0
    draws = Draws(NoiseSource.from_seed(5), partition, 1)
    queries = [training.queries(mechanism, size) for size in sizes]
    return Oracle(problem or LeastSquares(), examples, queries, draws)


def step_by_step(oracle, x):
    y = x
    for _ in range(STEPS):
        y = y - STEP * oracle.gradient(y)
    return y - x


@pytest.mark.parametrize("ridge", [0.0, 0.3])
@pytest.mark.parametrize("is_shared", [True, False])
def test_a_cohort_with_padding_ends_where_its_steps_lead(ridge, is_shared):
    sizes, problem = (6, 11, 9), LeastSquares(ridge)
    examples = Examples.stack(shards(sizes))
    points = torch.randn(3, DIM, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x = points[0].expand(3, DIM) if is_shared else points
    walked, asked = (oracle_of(examples, sizes, problem=problem) for _ in range(2))
    found = walked.descended(x, STEP, STEPS)
    torch.testing.assert_close(found, step_by_step(asked, x), rtol=1e-12, atol=1e-13)
    assert walked.queries == asked.queries


def test_one_client_alone_ends_where_the_cohort_does():
    sizes, x = (6, 11, 9), torch.ones(DIM, dtype=torch.float64)
    each = shards(sizes)
    stacked = oracle_of(Examples.stack(each), sizes).descended(x.expand(3, DIM), STEP, STEPS)
    alone = [oracle_of(s, [len(s)]).descended(x, STEP, STEPS) for s in each]
    torch.testing.assert_close(stacked, torch.stack(alone), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    "mechanism",
    [
        ExampleMechanism(l2_norm_clip=0.5),
        ExampleMechanism(l2_norm_clip=0.5, noise=RelativeNoise(multiplier=1.0)),
    ],
)
def test_who_is_protected_is_asked_step_by_step(mechanism):
    (shard,), x = shards((8,)), torch.ones(DIM, dtype=torch.float64)
    oracle = oracle_of(shard, [8], mechanism=mechanism)
    assert oracle.descended(x, STEP, STEPS) is None
    assert not oracle.queries


class Bent(LeastSquares):
    """Inherits from a quadratic problem and is none."""

    def slopes(self, x, examples):
        return super().slopes(x, examples).tanh()


def test_what_is_not_affine_or_not_cheaper_is_asked_step_by_step():
    (shard,), x = shards((8,)), torch.ones(DIM, dtype=torch.float64)
    drawn = RSGD(step_size=STEP, local_steps=STEPS, minibatch=Poisson(batch_size=4))
    assert oracle_of(shard, [8], training=drawn).descended(x, STEP, STEPS) is None
    assert oracle_of(shard, [8], problem=Bent()).descended(x, STEP, STEPS) is None
    assert oracle_of(shard, [8], problem=Logistic()).descended(x, STEP, STEPS) is None
    assert oracle_of(shard, [8]).descended(x, STEP, 1) is None
    (few,) = shards((3,))
    assert oracle_of(few, [3]).descended(x, STEP, STEPS) is None


def test_the_memory_budget_knows_what_steps_at_once_hold():
    shard = shards((8,))[0]

    def held(mechanism):
        setup = ClientSetup(LeastSquares(), FULL, mechanism)
        return ClientSide(setup, [shard], (DIM,), None).gradients_in_a_step(8)

    assert held(BARE) == POINTS_AT_ONCE * DIM
    assert held(ExampleMechanism(l2_norm_clip=0.5)) == 0.0


def test_stacks_in_turn_keep_their_maps_and_those_that_are_gone_keep_none():
    setup = ClientSetup(LeastSquares(), FULL, BARE)
    first, second = (Examples.stack(shards((6, n))) for n in (8, 9))
    draws, x = Draws(NoiseSource.from_seed(5), (0, 1), 1), torch.ones(2, DIM, dtype=torch.float64)

    def known(stack, sizes):
        oracle = setup.oracle(stack, sizes, draws)
        oracle.descended(x, STEP, STEPS)
        return oracle._known

    kept = known(first, (6, 8))
    other = known(second, (6, 9))
    assert known(first, (6, 8)) is kept
    assert known(second, (6, 9)) is other
    assert known(second, (6, 7)) is not other  # another public size is another normaliser
    del second
    known(Examples.stack(shards((5, 5))), (5, 5))
    assert len(setup._known) == 1
    budget = ClientSide(setup, shards((8,)), (DIM,), None).bytes_of_answers(8)
    turn, shift = next(iter(kept.walks.values()))
    assert budget == 8 * 8 + (turn.nbytes + shift.nbytes) / 2
