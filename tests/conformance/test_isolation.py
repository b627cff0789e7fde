"""What a record adds, or is judged by, has the same bits whatever else is computed with it.

`Spy` wraps the rule of a sum and notes what every watched record adds to each sum that is used. A
record must have one value in shards of any size and order, beside a record that fails, in any
stack of clients, and with any number of threads.
"""

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from manifed.federation import stack
from manifed.federation.held_out import judged
from manifed.manifolds.base import Manifold
from manifed.manifolds.hyperbolic import Lorentz
from manifed.manifolds.spd import SPD
from manifed.manifolds.sphere import Sphere
from manifed.manifolds.stiefel import Stiefel
from manifed.oracles.minibatch import Ask, Query
from manifed.oracles.sums import correction_sum, gradient_sum, keeps_rows_apart, sum_of_good
from manifed.privacy.mechanism import ExampleMechanism
from manifed.problems import own_files
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
    lipschitz,
    names_of,
    normal,
    seeded,
    shard,
)

FEW = (1, 7, 31, 33)
MANY = (*range(1, 71), 255, 256, 257, 767, 1023, 1024)
DEAR = (1, 2, 3, 31, 32, 33, 63, 64, 65, 255, 257)
CLIP = 5.0


@pytest.fixture(autouse=True)
def _sums_as_they_are_added_up(monkeypatch):
    """Without the projection of a whole sum, which is linear and may round by who is in a stack."""
    monkeypatch.setattr(Manifold, "tangent_part", lambda self, x, u: u)


@contextmanager
def threads(count):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def query_of(form, *, l1=False):
    mechanism = ExampleMechanism(l2_norm_clip=CLIP, l1_norm_clip=CLIP if l1 else None)
    return Query.of(mechanism, Ask(form=form), 10)


def shards_of(case, examples, sizes):
    for i, size in enumerate(sizes):
        yield shard(examples, size, 10 * i)
        if i % 3 == 0:
            yield shard(examples, size, 10 * i, broken(case, examples))


def stacks_of(case, examples, counts):
    """Cohorts whose clients have other lengths."""
    for count in counts:
        bad = broken(case, examples) if count % 2 else None
        each = [shard(examples, 3 + (5 * i) % 37, 7 * i, bad) for i in range(count)]
        yield Examples.stack(each)


def spied(case, rule, query, sizes, counts):
    problem, x, examples = case.made()
    spy = Spy(rule, empty_log(examples))
    other = problem.manifold.retr(
        x, 0.1 * problem.manifold.from_coords(x, normal(*problem.manifold.coords_shape(x.shape)))
    )
    points = (x, other) if rule is correction_sum else (x,)
    for own in shards_of(case, examples, sizes):
        sum_of_good(spy, problem, query, points, own, torch.ones(len(own), dtype=torch.float64))
    for cohort in stacks_of(case, examples, counts):
        assert cohort.counts is not None
        clients = len(cohort.counts)
        present = torch.arange(len(cohort)) < cohort.counts.unsqueeze(-1)
        for spread in (False, True):  # one point in one place, or in as many as there are clients
            each = tuple(p.expand(clients, *p.shape) for p in points)
            if spread:
                each = tuple(p.contiguous() for p in each)
            sum_of_good(spy, problem, query, each, cohort, present.to(torch.float64))
    return spy.seen


def assert_sums_alike(case, rule, query, sizes, counts):
    assert_alike(spied(case, rule, query, sizes, counts))


def judgements(case, sizes, counts):
    problem, x, examples = case.made()
    seen = empty_log(examples)

    def note(own, losses, answers):
        for j, name in enumerate(names_of(own)):
            if name in seen:
                seen[name].add(bits(torch.stack([losses[j], answers[j]])))

    for own in shards_of(case, examples, sizes):
        note(own, *judged(problem, x, own, worst=3.0))  # pyright: ignore[reportArgumentType]
    for cohort in stacks_of(case, examples, counts):
        assert cohort.counts is not None
        clients = len(cohort.counts)
        for points in (x.expand(clients, *x.shape), x.repeat(clients, *[1] * x.dim())):
            found = judged(problem, points, cohort, worst=3.0)  # pyright: ignore[reportArgumentType]
            for c in range(clients):
                one = cohort.of_client(c)
                note(one, found[0][c], found[1][c])
    return seen


def assert_alike(seen):
    assert len(seen) == WATCHED
    assert {len(values) for values in seen.values()} == {1}


# -- sums ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("case", [c for c in CASES if not c.is_dear], ids=str)
def test_a_record_adds_the_same_bits_whatever_is_summed_with_it(case):
    assert_sums_alike(case, gradient_sum, query_of("gradient"), FEW, (3,))


def sizes_of(case):
    return DEAR if case.is_dear else MANY


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_record_adds_the_same_bits_in_any_batch_and_any_stack(case, count):
    stacks = (1, 2, 3) if case.is_dear else (1, 2, 3, 50)
    with threads(count):
        assert_sums_alike(case, gradient_sum, query_of("gradient"), sizes_of(case), stacks)


CORRECTED = [c for c in CASES if c.name in {"logistic", "pca", "mean-sphere", "mlp-relu"}]


@pytest.mark.parametrize("form", ["each", "difference"])
@pytest.mark.parametrize("case", CORRECTED, ids=str)
def test_a_record_adds_the_same_bits_to_a_correction(case, form):
    assert_sums_alike(case, correction_sum, query_of(form), (1, 7, 33), (2,))


TRANSPORTED = [c for c in CASES if not c.name.startswith(("module", "second", "gram", "label"))]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["each", "difference"])
@pytest.mark.parametrize("case", TRANSPORTED, ids=str)
def test_a_record_adds_the_same_bits_to_any_correction(case, form):
    assert_sums_alike(case, correction_sum, query_of(form), DEAR, (1, 3))


FLAT = [c for c in CASES if c.name in {"least-squares", "logistic-odd", "mlp-tanh", "borrower"}]


@pytest.mark.parametrize("case", FLAT, ids=str)
def test_a_record_adds_the_same_bits_under_a_clip_in_l1(case):
    assert_sums_alike(case, gradient_sum, query_of("gradient", l1=True), FEW, (3,))


@pytest.mark.parametrize("case", [c for c in FLAT if c.name != "mlp-tanh"], ids=str)
def test_a_record_adds_the_same_bits_where_steep_ones_are_left_out(case):
    assert isinstance(case.build(), LinearModel)
    assert_sums_alike(case, gradient_sum, lipschitz(query_of("gradient")), FEW, (3,))


def test_a_class_that_inherits_from_one_that_keeps_rows_apart_is_computed_in_blocks():
    assert not keeps_rows_apart(Borrower())
    assert keeps_rows_apart(LeastSquares())


def test_a_class_that_looks_at_all_rows_is_asked_about_one_at_a_time():
    """Of rows that it would take for others', had it more than one."""
    case = next(c for c in CASES if c.name == "borrower")
    sizes = list[int]()

    class Looks(Borrower):
        looks_at_all_rows = True

        def slopes(self, x, examples):
            sizes.append(len(examples))
            return super().slopes(x, examples)

    _, x, examples = case.made()
    ones = torch.ones(64, dtype=torch.float64)
    sum_of_good(gradient_sum, Looks(), query_of("gradient"), (x,), shard(examples, 64, 0), ones)
    assert set(sizes) == {1}


# -- private evaluation --------------------------------------------------------------------------
JUDGED = [c for c in CASES if hasattr(c.build(), "correct") and "dropout" not in c.name]


@pytest.mark.parametrize("case", [c for c in JUDGED if not c.is_dear], ids=str)
def test_a_record_is_judged_by_the_same_bits_whatever_is_judged_with_it(case):
    assert_alike(judgements(case, FEW, (3,)))


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("case", JUDGED, ids=str)
def test_a_record_is_judged_by_the_same_bits_in_any_batch_and_any_stack(case, count):
    with threads(count):
        assert_alike(judgements(case, sizes_of(case), (1, 2, 3) if case.is_dear else (1, 2, 3, 50)))


# -- what is prepared, and what a server clips ---------------------------------------------------
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [3, 8, 30, 123])
def test_squared_lengths_are_those_of_a_row_alone(width, dtype):
    rows = normal(300, width).to(dtype)
    whole = squared_norms(rows)
    for n in (1, 2, 3, 5, 64, 257):
        assert torch.equal(squared_norms(rows[7 : 7 + n].clone()), whole[7 : 7 + n])


@pytest.mark.parametrize(
    "rule",
    [
        own_files.directions,
        lambda rows: own_files.shortened(rows, 2.0),
        lambda rows: own_files.to_hyperboloid(rows, "hyperboloid", 2.0),
        lambda rows: own_files.to_hyperboloid(rows / 20, "poincare", 2.0),
        lambda rows: own_files.positive_definite(rows[:, :16].reshape(-1, 4, 4), None),
        lambda rows: (own_files.covariances(rows[:, :16].reshape(-1, 4, 4), 0.1, is_centred=True),),
    ],
)
def test_a_row_of_a_file_becomes_the_same_whatever_stands_beside_it(rule):
    rows = normal(300, 17).numpy()
    whole = rule(rows)
    for n in (1, 2, 3, 5, 31, 64, 257):
        for one, all_of_them in zip(rule(rows[7 : 7 + n].copy()), whole, strict=True):
            assert (one == all_of_them[7 : 7 + n]).all()


@pytest.mark.parametrize(
    ("manifold", "shape"),
    [(Sphere(), (5,)), (Stiefel(), (7, 3)), (SPD(), (3, 3)), (Lorentz(), (5,))],
    ids=lambda value: getattr(value, "name", ""),
)
def test_an_upload_has_the_same_length_whoever_else_sends_one(manifold, shape):
    x = manifold.random(*shape, generator=seeded(1))
    drawn = normal(70, *manifold.coords_shape(shape), seed=2)
    uploads = manifold.from_coords(x, drawn)
    lengths = set[bytes]()
    for n in range(1, 71):
        order = torch.randperm(69, generator=seeded(n))[: n - 1] + 1
        place = n // 2
        rows = torch.cat([order[:place], torch.tensor([0]), order[place:]])
        lengths.add(bits(manifold.norm_bound(x.unsqueeze(0), uploads[rows])[min(place, n - 1)]))
    assert len(lengths) == 1


def test_blocks_of_a_size_that_gives_other_bits_are_not_mixed_with_others():
    class BySize(Borrower):
        def slopes(self, x, examples):
            return super().slopes(x, examples) + 1e-9 * (len(examples) > 32)

    case = next(c for c in CASES if c.name == "borrower")
    _, x, examples = case.made()
    spy = Spy(gradient_sum, empty_log(examples))
    problem = BySize()
    for size in (7, 64, 96):
        ones = torch.ones(size, dtype=torch.float64)
        own = shard(examples, size, size)
        sum_of_good(spy, problem, query_of("gradient"), (x,), own, ones)
    assert_alike(spy.seen)


def test_where_a_client_is_the_unit_each_is_computed_alone(monkeypatch):
    monkeypatch.setattr(stack, "_clients_at_once", lambda *_: 9)
    side: Any = SimpleNamespace(unit="client", shards=[None] * 9, rate=1.0)
    made = stack.Chunking.of(side, "cpu", 64, None)
    assert (made.in_a_stack, made.at_once) == (1, 1)
