"""A sum of integers is that of each example's own, whoever is added with it."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from manifed.oracles import blocks
from manifed.oracles.integer_sums import IntegerOracle
from manifed.oracles.minibatch import Ask, Full, Poisson, Query, WithoutReplacement
from manifed.oracles.noisy_oracle import Draws, Oracle
from manifed.oracles.sums import say_that_nothing_counts
from manifed.privacy.integers import Coding, SumNumbers
from manifed.privacy.mechanism import ExampleMechanism
from manifed.privacy.random_numbers import NoiseSource, Stream
from manifed.problems.examples import KEY, Examples
from manifed.problems.linear import LeastSquares
from manifed.problems.pca import PrincipalEigenvector
from manifed.problems.statistics import SecondMoments
from tests.conformance.isolation_cases import CASES
from tests.conformance.manifold_marks import of
from tests.tensors import normals

SOURCE = NoiseSource.from_seed(5)
CLIP = 0.5
NAMES = {
    "pca", "kpca-stiefel", "logistic", "mean-sphere", "mean-spd", "mean-lorentz", "class-means",
    "second-moments", "log-sums", "module-relu", "module-dropout", "module-orthogonal",
}  # fmt: skip
SOME = of([case for case in CASES if case.name in NAMES])


def coding_of(problem, x):
    declared = SumNumbers(
        unit="example", neighboring_relation="add-or-remove", l2_norm_clip=CLIP, multiplier=4.0,
        most=2000,
    )  # fmt: skip
    return declared.of(10, math.prod(problem.manifold.coords_of(x)))


def queries_of(batch, size, labels=("gradient",), **asked):
    mechanism = ExampleMechanism(l2_norm_clip=CLIP)
    return [Query.of(mechanism, Ask(batch, label=label, **asked), size) for label in labels]


def oracle_of(problem, x, examples, batch=Full(), partition=0, **asked):  # noqa: B008
    sizes = [len(examples)] if examples.counts is None else examples.counts.tolist()
    queries = [queries_of(batch, size, **asked) for size in sizes]
    draws = Draws(SOURCE, partition, 1)
    return IntegerOracle.of(Oracle(problem, examples, queries, draws), coding_of(problem, x))


def alone(problem, x, examples, place, partition=0, step=0):
    """The integers of the example at a place of a shard: of one, with the seed of that place."""
    manifold = problem.manifold
    at = {"partition": partition, "server_round": 1, "step": step}
    if problem.needs_keys:
        keys = SOURCE.uniforms((len(examples),), stream=Stream.DROPOUT, **at)
        examples = examples.beside(KEY, keys)
    seeds = SOURCE.uniforms((len(examples),), stream=Stream.ROUNDING, **at)
    u = problem.rgrads(x, examples.take(torch.tensor([place])))[0]
    u = u * min(1.0, CLIP / float(manifold.norm_bound(x, u)))
    return coding_of(problem, x).encode(manifold.to_coords(x, u).reshape(1, -1), seeds[[place]])[0]


def without_key(examples):
    return Examples({key: t for key, t in examples.tensors.items() if key != KEY})


def made(case, size):
    problem, x, examples = case.made()
    return problem, x, without_key(examples.take(torch.arange(size)))


# -- the sum -----------------------------------------------------------------------------------
@SOME
@pytest.mark.parametrize("batch", [Full(), Poisson(batch_size=9)], ids=["full", "poisson"])
def test_a_sum_is_that_of_the_integers_of_each_example(case, batch):
    problem, x, examples = made(case, 40)
    oracle = oracle_of(problem, x, examples, batch)
    found = oracle.gradient(x.float())
    assert found.dtype is torch.float32
    assert not found.any()
    assert found.shape == x.shape
    assert oracle.queries == {"gradient": 1}
    oracle.gradient(x)
    chosen = range(40)
    if batch.kind == "poisson":
        at = {"stream": Stream.MINIBATCH, "partition": 0, "server_round": 1, "step": 1}
        chosen = SOURCE.coins(40, 9 / 40, **at).nonzero().flatten().tolist()
        assert 0 < len(chosen) < 20
    each = [alone(problem, x, examples, place, step=1) for place in chosen]
    assert oracle.total.dtype is torch.float64
    assert torch.equal(oracle.total, torch.stack(each).sum(0))
    bound = oracle.coding.bound
    assert all(float(q.square().sum()) <= bound**2 for q in each)
    assert oracle.total.any()


@SOME
def test_a_sum_stands_for_the_clipped_gradients(case):
    """It is decoded to what an oracle without noise adds up, up to the rounding of 40 examples."""
    problem, x, examples = made(case, 40)
    oracle = oracle_of(problem, x, examples)
    oracle.gradient(x)
    found = oracle.coding.decode(oracle.total.long().numpy())
    found = problem.manifold.from_coords(x, found.reshape(problem.manifold.coords_of(x)))
    plain = Oracle(problem, examples, [queries_of(Full(), 40)], Draws(SOURCE, 0, 1))
    right = 40 * plain.answer("gradient", x)
    size = oracle.coding.size
    gap = float(problem.manifold.norm(x, found - right)) / CLIP * oracle.coding.inner
    assert gap <= 5 * math.sqrt(40 * size / 4) + 1e-3


def test_a_stack_gives_each_client_the_sum_that_it_has_alone():
    problem, x, examples = made(CASES[5], 60)
    shards = [examples.take(torch.arange(i, i + n)) for i, n in ((0, 7), (7, 40), (47, 1))]
    places = (4, 0, 9)
    for batch in (Full(), Poisson(batch_size=4)):
        stack = oracle_of(problem, x, Examples.stack(shards), batch, places)
        stack.gradient(x.expand(3, *x.shape))
        for row, shard, place in zip(stack.total, shards, places, strict=True):
            one = oracle_of(problem, x, shard, batch, place)
            one.gradient(x)
            assert torch.equal(row, one.total)


def test_a_subset_of_fixed_size_and_a_statistic_are_summed():
    _, x, examples = made(CASES[5], 30)
    problem = PrincipalEigenvector()
    origin = x.new_zeros(13 * 14 // 2)
    oracle = oracle_of(problem, origin, examples, WithoutReplacement(batch_size=4), labels=("s",))
    found = oracle.statistic(origin, "s", SecondMoments)
    words = SOURCE.words(30, stream=Stream.MINIBATCH, partition=0, server_round=1)
    each = [alone(SecondMoments(), origin, examples, int(i)) for i in (words >> 1).argsort()[:4]]
    assert torch.equal(oracle.total, torch.stack(each).sum(0))
    assert (found.shape, oracle.queries) == (origin.shape, {"s": 1})


@settings(max_examples=60, derandomize=True, deadline=None)
@given(
    entries=st.lists(st.floats(), min_size=3, max_size=3),
    target=st.floats(),
    place=st.integers(0, 4),
)
def test_a_record_moves_a_sum_by_its_own_integers_whatever_it_holds(entries, target, place):
    """Against the sum with a record in its place that adds nothing."""
    problem, x = LeastSquares(), normals(1, 3)
    kept = Examples({"feature": normals(2, 5, 3), "target": normals(3, 5)})
    totals = []
    for row, value in ((entries, target), ([0.0] * 3, 0.0)):
        feature, targets = kept["feature"].clone(), kept["target"].clone()
        feature[place], targets[place] = torch.tensor(row).double(), value
        oracle = oracle_of(problem, x, Examples({"feature": feature, "target": targets}))
        oracle.gradient(x)
        totals.append(oracle.total)
    moved = totals[0] - totals[1]
    assert float(moved.square().sum()) <= oracle.coding.bound**2
    if not math.isfinite(target):
        assert not moved.any()


def test_a_batch_of_which_nothing_is_finite_gives_zeros_and_says_so(caplog):
    say_that_nothing_counts.cache_clear()
    problem, x, examples = made(CASES[5], 4)
    oracle = oracle_of(problem, x, Examples({"z": torch.full_like(examples["z"], math.nan)}))
    oracle.gradient(x)
    assert not oracle.total.any()
    assert oracle.queries == {"gradient": 1}
    assert "no record of a batch has a finite gradient" in caplog.text


@pytest.mark.parametrize(
    "ask",
    [
        lambda oracle, x: oracle.gradient(x, masks=x),
        lambda oracle, x: oracle.correction(x, x),
        lambda oracle, x: oracle.correlated(x, x),
    ],
    ids=["masks", "correction", "normals"],
)
def test_what_integers_cannot_answer_is_refused(ask):
    problem, x, examples = made(CASES[5], 4)
    oracle = oracle_of(problem, x, examples, labels=("gradient", "correction"))
    with pytest.raises(ValueError, match="Expected one point for a sum of integers"):
        ask(oracle, x)
    assert not oracle.queries


def test_blocks_hold_no_more_numbers_at_once_than_blocks_of_other_sums(monkeypatch):
    """Also of a problem that holds no vector of an example when it adds up plain gradients."""
    held = list[int]()
    rgrads = LeastSquares.rgrads

    def watched(self, x, examples):
        held.append(len(examples) * x.numel())
        return rgrads(self, x, examples)

    monkeypatch.setattr(LeastSquares, "rgrads", watched)
    monkeypatch.setattr(blocks, "_are_alike", lambda *_: True)
    x = normals(1, 20_000)
    examples = Examples({"feature": normals(2, 200, 20_000), "target": normals(3, 200)})
    oracle_of(LeastSquares(), x, examples).gradient(x)
    assert 12 * max(held) <= 2**24
    assert sum(held) < 2 * 200 * 20_000


def test_coordinates_of_another_size_than_the_coding_are_refused():
    problem, x, examples = made(CASES[5], 4)
    oracle = oracle_of(problem, x, examples)
    oracle.coding = Coding(10, 12, 32, 2**16, 65532, 10**9, CLIP, 1)
    with pytest.raises(ValueError, match="Expected coordinates of shape"):
        oracle.gradient(x)
