"""What a record adds, or is judged by, has the same bits whatever else is computed with it.

`Spy` wraps the rule of a sum and notes what every watched record adds to each sum that is used. A
record must have one value in shards of any size and order, beside a record that fails, in any
stack of clients, and with any number of threads.
"""

import math
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from manifed.federation import stack
from manifed.federation.held_out import judged
from manifed.manifolds import SPD, Lorentz, Manifold, Sphere, Stiefel
from manifed.oracles.integer_sums import SEED, IntegerSum
from manifed.oracles.minibatch import Ask, Query
from manifed.oracles.sums import (
    correction_sum,
    gradient_sum,
    keeps_rows_apart,
    share_below,
    sum_of_good,
)
from manifed.privacy.integers import Coding
from manifed.privacy.mechanism import ExampleMechanism
from manifed.problems.examples import Examples
from manifed.problems.linear import LeastSquares, LinearModel
from manifed.problems.rows import squared_norms
from tests.conformance.isolation_cases import (
    CASES,
    WATCHED,
    Borrower,
    Spy,
    bits,
    broken,
    empty_log,
    names_of,
    shard,
)
from tests.conformance.manifold_marks import of
from tests.tensors import generator, normals

EITHER = pytest.mark.parametrize("form", ["each", "difference"])
ONE_OR_TWO = pytest.mark.parametrize("count", [1, 2])
FEW = (1, 7, 31, 33)
DEAR = (1, 2, 3, 31, 32, 33, 63, 64, 65, 255, 257)
MANY = (*range(4, 10), 15, 16, 17, 30, 47, 48, 49, 70, 97, 129, 256, 767, 1023, 1024, *DEAR)
"""Around the sizes of blocks and the widths of vector instructions."""
CLIP = 5.0


@pytest.fixture(autouse=True)
def _sums_as_they_are_added_up(monkeypatch):
    """Without the projection of a whole sum, which is linear and may round by who is in a stack."""
    for kind in (Manifold, Sphere):
        monkeypatch.setattr(kind, "tangent_part", lambda self, x, u: u)


@contextmanager
def threads(count):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def query_of(form, l1=None):
    mechanism = ExampleMechanism(l2_norm_clip=CLIP, l1_norm_clip=l1)
    return Query.of(mechanism, Ask(form=form), 10)


def shards_of(case, examples, sizes):
    for i, size in enumerate(sizes):
        yield shard(examples, size, 10 * i)
        if i % 3 == 0:
            yield shard(examples, size, 10 * i, broken(case, examples))


def cohorts(case, examples, points, counts):
    """Clients of other lengths, with points in one place, or in as many as there are clients."""
    for count in counts:
        bad = broken(case, examples) if count % 2 else None
        each = [shard(examples, 3 + (5 * i) % 37, 7 * i, bad) for i in range(count)]
        cohort = Examples.stack(each)
        yield cohort, [p.expand(count, *p.shape) for p in points]
        yield cohort, [p.repeat(count, *[1] * p.dim()) for p in points]


def assert_sums_alike(case, rule, query, sizes=FEW, counts=(3,)):
    problem, x, examples = case.made()
    size = None
    if rule is share_below:  # a clip at the norm of a record: an ulp of it would turn its bit
        watched = shard(examples, 1, 0)
        clip = float(problem.gradients(x, watched).norms[0])
        size, query = 1, replace(query, form="below", clip=clip)
    if rule is IntegerSum:  # which tell numbers apart by 2^-49 of the clip
        size = math.prod(problem.manifold.coords_of(x))
        rule = IntegerSum(Coding(1, size, 64, 2**50, 2**49, 16, CLIP, 1))
        seeds = torch.rand(len(examples), generator=generator(1), dtype=torch.float64)
        examples = examples.beside(SEED, seeds)
    spy = Spy(rule, empty_log(examples))
    coords = normals(0, *problem.manifold.coords_shape(x.shape))
    other = problem.manifold.retr(x, 0.1 * problem.manifold.from_coords(x, coords))
    points = (x, other) if rule is correction_sum else (x,)
    for own in shards_of(case, examples, sizes):
        sum_of_good(spy, problem, query, points, own, torch.ones(len(own)).double(), size)
    for cohort, each in cohorts(case, examples, points, counts):
        present = torch.arange(len(cohort)) < cohort.counts.unsqueeze(-1)
        sum_of_good(spy, problem, query, tuple(each), cohort, present.double(), size)
    assert_alike(spy.seen)


def assert_judged_alike(case, sizes=FEW, counts=(3,)):
    problem, x, examples = case.made()
    seen = empty_log(examples)

    def note(own, losses, answers):
        for j, name in enumerate(names_of(own)):
            if name in seen:
                seen[name].add(bits(torch.stack([losses[j], answers[j]])))

    for own in shards_of(case, examples, sizes):
        note(own, *judged(problem, x, own, worst=3.0))
    for cohort, (points,) in cohorts(case, examples, (x,), counts):
        for c, found in enumerate(zip(*judged(problem, points, cohort, worst=3.0), strict=True)):
            note(cohort.of_client(c), *found)
    assert_alike(seen)


def assert_alike(seen):
    assert len(seen) == WATCHED
    assert {len(values) for values in seen.values()} == {1}


def all_of(case, count):
    """Sizes of shards and of cohorts with so many threads: fewer where each takes long."""
    if count > 1:
        return (1, 3, 33, 65, 257), (1, 3)
    is_dear = case.is_dear or case.name.startswith("module")
    return (DEAR, (1, 2, 3)) if is_dear else (MANY, (1, 2, 3, 50))


# -- sums ----------------------------------------------------------------------------------------
@of([c for c in CASES if not c.is_dear])
def test_a_record_adds_the_same_bits_whatever_is_summed_with_it(case):
    assert_sums_alike(case, gradient_sum, query_of("gradient"))


@of([c for c in CASES if not c.is_dear])
def test_a_record_is_counted_alike_below_a_clip_whatever_is_counted_with_it(case):
    assert_sums_alike(case, share_below, query_of("gradient"), (1, 7, 33), (2, 3))


@of([c for c in CASES if c.name in {"pca", "kpca-stiefel", "mean-lorentz", "module-relu"}])
def test_a_record_adds_the_same_integers_whatever_is_summed_with_it(case):
    assert_sums_alike(case, IntegerSum, query_of("gradient"), (1, 7, 33), (2,))


@pytest.mark.slow
@pytest.mark.one_week_in(3)
@of(CASES)
def test_a_record_adds_the_same_integers_in_any_batch(case):
    assert_sums_alike(case, IntegerSum, query_of("gradient"), (1, 3, 33, 65, 257), (1, 3))


@pytest.mark.slow
@pytest.mark.one_week_in(3)
@ONE_OR_TWO
@of(CASES)
def test_a_record_adds_the_same_bits_in_any_batch_and_any_stack(case, count):
    with threads(count):
        assert_sums_alike(case, gradient_sum, query_of("gradient"), *all_of(case, count))


CORRECTED = [c for c in CASES if c.name in {"logistic", "pca", "mean-sphere", "mlp-relu"}]


@EITHER
@of(CORRECTED)
def test_a_record_adds_the_same_bits_to_a_correction(case, form):
    assert_sums_alike(case, correction_sum, query_of(form), (1, 7, 33), (2,))


TRANSPORTED = [c for c in CASES if not c.name.startswith(("module", "second", "gram", "label"))]


@pytest.mark.slow
@pytest.mark.one_week_in(3)
@EITHER
@of(TRANSPORTED)
def test_a_record_adds_the_same_bits_to_any_correction(case, form):
    assert_sums_alike(case, correction_sum, query_of(form), DEAR, (1, 3))


FLAT = [c for c in CASES if c.name in {"least-squares", "logistic-odd", "mlp-tanh", "borrower"}]


@of(FLAT)
def test_a_record_adds_the_same_bits_clipped_in_l1_and_where_steep_ones_are_left_out(case):
    assert_sums_alike(case, gradient_sum, query_of("gradient", CLIP))
    if isinstance(case.build(), LinearModel):
        assert_sums_alike(case, gradient_sum, replace(query_of("gradient"), lipschitz=40.0))


BORROWED = next(c for c in CASES if c.name == "borrower")


def add_up_borrowed(rule, problem, size):
    _, x, examples = BORROWED.made()
    ones = torch.ones(size).double()
    sum_of_good(rule, problem, query_of("gradient"), (x,), shard(examples, size, size), ones)


def test_a_class_that_inherits_from_one_that_keeps_rows_apart_is_computed_in_blocks():
    assert not keeps_rows_apart(Borrower())
    assert keeps_rows_apart(LeastSquares())


def test_a_class_that_looks_at_all_rows_is_asked_about_one_at_a_time():
    """Of rows that it would take for others', had it more than one."""
    sizes = list[int]()

    class Looks(Borrower):
        looks_at_all_rows = True

        def slopes(self, x, examples):
            sizes.append(len(examples))
            return super().slopes(x, examples)

    add_up_borrowed(gradient_sum, Looks(), 64)
    assert set(sizes) == {1}


def test_blocks_of_a_size_that_gives_other_bits_are_not_mixed_with_others():
    class BySize(Borrower):
        def slopes(self, x, examples):
            return super().slopes(x, examples) + 1e-9 * (len(examples) > 32)

    spy = Spy(gradient_sum, empty_log(BORROWED.made()[2]))
    problem = BySize()
    for size in (7, 64, 96):
        add_up_borrowed(spy, problem, size)
    assert_alike(spy.seen)


# -- private evaluation --------------------------------------------------------------------------
JUDGED = [c for c in CASES if hasattr(c.build(), "correct") and "dropout" not in c.name]


@of([c for c in JUDGED if not c.is_dear])
def test_a_record_is_judged_by_the_same_bits_whatever_is_judged_with_it(case):
    assert_judged_alike(case)


@pytest.mark.slow
@pytest.mark.one_week_in(3)
@ONE_OR_TWO
@of(JUDGED)
def test_a_record_is_judged_by_the_same_bits_in_any_batch_and_any_stack(case, count):
    with threads(count):
        assert_judged_alike(case, *all_of(case, count))


# -- what is prepared, and what a server clips ---------------------------------------------------
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [3, 8, 30, 123])
def test_squared_lengths_are_those_of_a_row_alone(width, dtype):
    rows = normals(0, 300, width).to(dtype)
    whole = squared_norms(rows)
    for n in (1, 2, 3, 5, 64, 257):
        assert torch.equal(squared_norms(rows[7 : 7 + n].clone()), whole[7 : 7 + n])


@pytest.mark.parametrize(
    ("manifold", "shape"),
    [(Sphere(), (5,)), (Stiefel(), (7, 3)), (SPD(), (3, 3)), (Lorentz(), (5,))],
    ids=lambda value: getattr(value, "name", ""),
)
def test_an_upload_has_the_same_length_whoever_else_sends_one(manifold, shape):
    x = manifold.random(*shape, generator=generator(1))
    drawn = normals(2, 70, *manifold.coords_shape(shape))
    uploads = manifold.from_coords(x, drawn)
    lengths = set[bytes]()
    for n in range(1, 71):
        order = torch.randperm(69, generator=generator(n))[: n - 1] + 1
        place = n // 2
        rows = torch.cat([order[:place], torch.tensor([0]), order[place:]])
        lengths.add(bits(manifold.norm_bound(x.unsqueeze(0), uploads[rows])[min(place, n - 1)]))
    assert len(lengths) == 1


def test_where_a_client_is_the_unit_each_is_computed_alone(monkeypatch):
    monkeypatch.setattr(stack, "_clients_at_once", lambda *_, **__: (9, False))
    side = SimpleNamespace(unit="client", shards=[None] * 9, rate=1.0)
    made = stack.Chunking.of(side, "cpu", 64, None)
    assert (made.in_a_stack, made.at_once) == (1, 1)
