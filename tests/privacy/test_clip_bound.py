"""Whatever a record, a point or an upload holds, it adds nothing or at most the bound.

What leaves the oracle is judged: the un-noised value with one record, which without it is zero, and
the difference that one record makes among others. Its norm is evaluated with 50 digits.
"""

import mpmath as mp
import pytest
import torch

from manifed.federation.plan import ServerDraws
from manifed.manifolds import Euclidean, Lorentz, Sphere, Stiefel
from manifed.manifolds.base import clip_factors, clipped
from manifed.oracles.minibatch import Ask, Query
from manifed.oracles.noisy_oracle import Draws, Oracle
from manifed.privacy.mechanism import ClientMechanism, ExampleMechanism
from manifed.privacy.random_numbers import NoiseSource
from manifed.problems.examples import Examples
from manifed.problems.linear import LeastSquares
from manifed.problems.pca import PrincipalEigenvector
from tests.conformance.manifold_marks import of
from tests.privacy.clip_bound_cases import (
    BAD,
    DIGITS,
    SCALES,
    cases,
    exact,
    examples_of,
    frobenius,
    hostile_rows,
    judge,
    normal,
    normal_part,
    points,
    records,
)
from tests.tensors import float64, generator

TOLERANCE = mp.mpf(1) + mp.mpf(10) ** -9
SOURCE = NoiseSource.from_seed(7)
QUICK = {"geometric-median-lorentz", "nearest-mean-spd"}


def is_variant(case):
    """Whether a quick case stands for this one: the same sums in another metric."""
    return case.name.startswith(("geometric-median", "nearest-mean")) and case.name not in QUICK


EVERY = of(
    [pytest.param(case, marks=pytest.mark.slow) if is_variant(case) else case for case in cases()]
)


@pytest.fixture(autouse=True)
def digits():
    with mp.workdps(DIGITS):
        yield


def queries_of(clip, size, form="each"):
    """Full batches, no noise."""
    mechanism = ExampleMechanism(l2_norm_clip=clip)
    correction = Query.of(mechanism, Ask(label="correction", form=form), size)
    return Query.of(mechanism, Ask(), size), correction


def stacked_oracle(problem, examples, clip, form="each"):
    """A cohort in which every record is a client of its own."""
    tensors = {key: t.unsqueeze(1) for key, t in examples.tensors.items()}
    count = len(examples)
    draws = Draws(SOURCE, tuple(range(count)), 1)
    queries = [queries_of(clip, 1, form)] * count
    return Oracle(problem, Examples(tensors, examples.feature_ndim), queries, draws)


def one_client(problem, examples, clip):
    return Oracle(problem, examples, [queries_of(clip, len(examples))], Draws(SOURCE, 0, 1))


def some_of(case, count, seed=0):
    """A problem with points of it, and about ``count`` hostile records for each."""
    problem = case.spec.build()
    for index, x in enumerate(points(problem, case.shape, seed)):
        examples = records(case.spec, x, seed)
        stride = max(1, len(examples) // count)
        yield problem, x, examples.take(torch.arange(index % stride, len(examples), stride))


def alone(problem, x, examples, clip):
    """What leaves the oracle for every record on its own, shape (records, *point)."""
    oracle = stacked_oracle(problem, examples, clip)
    return oracle.gradient(x.expand(len(examples), *x.shape))


def worst(problem, x, values, clip):
    """The largest norm over the bound; infinite where a value is not finite."""
    if not bool(torch.isfinite(values).all()):
        return mp.inf
    norm = judge(problem.manifold, x)
    live = values[values.flatten(1).abs().amax(1) > 0]
    return max((norm(value) for value in live), default=mp.mpf(0)) / mp.mpf(clip)


def worst_of_case(case, seed, clips, count):
    """Over every point for about ``count`` records of each."""
    return max(
        worst(problem, x, alone(problem, x, chosen, clip), clip)
        for problem, x, chosen in some_of(case, count, seed)
        for clip in clips
    )


# -- a record alone ------------------------------------------------------------------------------
@pytest.mark.usefixtures("way")
@EVERY
def test_no_record_adds_more_than_the_bound(case):
    assert worst_of_case(case, 0, (0.03,), 12) <= TOLERANCE


@pytest.mark.slow
@pytest.mark.one_week_in(3)
@EVERY
def test_no_record_adds_more_than_any_bound(case):
    clips = (1e-139, 1e-6, 1.0, 1e6, 1e200)
    assert worst_of_case(case, 1, clips, 120) <= TOLERANCE


@pytest.mark.parametrize("target", [1e300, float("inf"), float("nan")])
def test_a_linear_gradient_that_is_not_finite_adds_zero_and_changes_nobody_elses(target):
    """Slopes are cut off, so an infinite one would count as one of the bound's length."""
    rows = [[3.0, 4.0], [1e100, 0.0], [0.3, 0.1]]
    values = [7.0, target, 0.2]
    examples = examples_of(feature=float64(rows), target=float64(values))
    finite = examples.take(torch.tensor([0, 2]))
    x = float64([0.0, 0.0])
    clip = 2.0
    each, ordinary = (alone(LeastSquares(), x, some, clip) for some in (examples, finite))
    assert torch.equal(each[1], x)
    assert torch.equal(each[::2], ordinary)
    gradients = LeastSquares().gradients(x, finite)
    factors = clip_factors(gradients.norms, clip)
    known = [gradients.sum(factors * one) for one in torch.eye(2).double()]
    assert torch.allclose(ordinary, torch.stack(known), rtol=1e-14, atol=0)


@pytest.mark.usefixtures("way")
def test_rows_that_change_in_place_are_clipped_by_the_norms_that_they_have():
    """Also by numpy on the memory that they share, which torch counts as no change."""
    rows = normal(generator(0), 4, 3)
    examples = examples_of(feature=rows, target=float64([0.0] * 4))
    for x in torch.full((2, 3), 5.0, dtype=torch.float64):
        mean = one_client(LeastSquares(), examples, 1.0).gradient(x)
        assert 0 < mean.norm() <= 1 + 1e-9
        rows.numpy()[...] *= 1e6


@pytest.mark.parametrize("clip", [5e-324, 1e-300, 1e-200])
def test_a_bound_that_is_not_a_normal_number_lets_nothing_through(clip):
    x = Sphere().random(6, generator=generator(0))
    examples = records(cases()[0].spec, x, 0)
    assert not alone(PrincipalEigenvector(), x, examples, clip).any()


# -- a record among others -----------------------------------------------------------------------
@EVERY
def test_among_others_a_record_adds_at_most_the_bound_and_leaves_theirs(case):
    """The others are those that add most of their own."""
    problem, x, examples = next(some_of(case, 16))
    clip = 0.03
    each = alone(problem, x, examples, clip)
    norms = judge(problem.manifold, x)
    others = each.flatten(1).abs().amax(1).argsort(descending=True)[:5]
    apart = each[others].sum(0)
    for index in range(1, len(examples), 4):
        chosen = torch.cat([others, torch.tensor([index])])
        sums = len(chosen) * one_client(problem, examples.take(chosen), clip).gradient(x)
        assert norms(sums - apart) <= clip * (TOLERANCE + mp.mpf(10) ** -9)


@of([c for c in cases() if c.spec.needs == "spd-matrices" and not is_variant(c)])
def test_a_record_without_a_factor_counts_as_zero_and_changes_nothing_for_others(case):
    """Zero, rank one, 1e308 I and NaN end a factorisation or an eigendecomposition."""
    problem, x, _ = next(some_of(case, 1))
    clip = 0.5
    v = float64([[1.0], [2.0], [3.0]])
    eye = torch.eye(3).double()
    bad = [v @ v.mT - eye, 1e308 * (v @ v.mT), 0 * eye, eye * BAD[0]]
    bad += [1e308 * eye] * (problem.manifold.name == "SPD")  # whose factor has a finite logarithm
    z = torch.stack([2 * eye, *bad, 3 * eye])
    n = len(z)
    both = 2 * one_client(problem, examples_of(z=z[[0, -1]]), clip).gradient(x)
    found = n * one_client(problem, examples_of(z=z), clip).gradient(x)
    torch.testing.assert_close(found, both, rtol=1e-12, atol=1e-14)


# -- tangent -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "kind", ["frechet-mean-sphere", "principal", "kpca-stiefel", "kpca-grassmann"]
)
def test_nothing_normal_to_the_manifold_leaves_the_oracle(kind):
    """Tangent noise would not cover it; logarithms of nearly parallel points off it are normal."""
    case = next(case for case in cases() if case.name.startswith(kind))
    problem, x, examples = next(some_of(case, 10**6))
    values = alone(problem, x, examples, 1.0)

    def normal_share(values):
        return max(normal_part(problem.manifold, x, value) for value in values)

    assert normal_share(values) <= mp.mpf(10) ** -14
    if kind == "frechet-mean-sphere":
        bare = problem.rgrads(x, examples)
        assert normal_share(clipped(bare, bare.norm(dim=-1), 1.0)) > 0.1


# -- corrections ---------------------------------------------------------------------------------
@pytest.mark.parametrize("is_one", [True, False])
@EVERY
def test_a_correction_is_at_most_one_bound_or_two(case, is_one):
    problem, x, examples = next(some_of(case, 12))
    clip = 0.03
    coords = problem.manifold.coords_shape(tuple(x.shape))
    step = problem.manifold.from_coords(x, normal(torch.Generator(), *coords))
    anchor = problem.manifold.retr(x, 0.1 * step)
    form = "difference" if is_one else "each"
    oracle = stacked_oracle(problem, examples, clip, form)
    at, there = (p.expand(len(examples), *p.shape) for p in (x, anchor))
    values = oracle.correction(at, there)
    assert worst(problem, x, values, clip) <= (1 if is_one else 2) * TOLERANCE


# -- float32 -------------------------------------------------------------------------------------
def test_in_float32_nothing_exceeds_the_bound_at_all():
    generator = torch.Generator().manual_seed(0)
    vectors = normal(generator, 400, 5).to(torch.float32)
    vectors[200:] = 0.03 * vectors[200:] / vectors[200:].norm(dim=1, keepdim=True)
    norms = vectors.norm(dim=-1)
    found = clipped(vectors, norms, 0.03)
    plain = vectors * (0.03 / norms).clamp_max(1.0)[:, None]
    assert max(frobenius(exact(v)) for v in found) <= mp.mpf(0.03)
    assert max(frobenius(exact(v)) for v in plain) > mp.mpf(0.03)
    assert found.dtype == torch.float32
    x = Sphere().random(6, generator=generator)
    rows = examples_of(z=hostile_rows(x, generator).to(torch.float32))
    values = alone(PrincipalEigenvector(), x.to(torch.float32), rows, 0.03)
    assert values.dtype == torch.float32
    assert max(frobenius(exact(v)) for v in values) <= mp.mpf(0.03)


def test_factors_at_the_ends_of_the_range():
    norms = float64([0.0, 5e-324, 1e-300, 1.0, 1e300, 1.7e308])
    for clip in (1e-140, 1e-30, 1.0, 1e300):
        factors = clip_factors(norms, clip)
        assert ((factors >= 0) & (factors <= 1)).all()
        for factor, norm in zip(factors.tolist(), norms.tolist(), strict=True):
            assert mp.mpf(factor) * mp.mpf(norm) <= mp.mpf(clip) * (1 + mp.mpf(10) ** -15)


@pytest.mark.parametrize("manifold", [Sphere(), Stiefel(), Lorentz(), Euclidean()], ids=str)
@pytest.mark.parametrize("space", ["tangent", "ambient"])
def test_no_upload_moves_the_servers_mean_by_more_than_the_bound(manifold, space):
    generator = torch.Generator().manual_seed(0)
    shape = (6, 2) if manifold.ndim == 2 else (6,)
    x = manifold.random(*shape, generator=generator)
    mechanism = ClientMechanism(l2_norm_clip=0.03, noise_multiplier=0.0)
    norm = judge(Euclidean() if space == "ambient" else manifold, x)
    c = normal(generator, *manifold.coords_shape(shape))
    tangent = manifold.from_coords(x, c)
    for scale in (*SCALES, *BAD):
        for upload in (scale * tangent, scale * x, scale * normal(generator, *shape)):
            mean = mechanism.noised_mean(
                upload[None], x, manifold, ServerDraws(SOURCE, 1, 0).normals,
                expected_cohort=1.0, is_tangent=space == "tangent",
            )[0]  # fmt: skip
            assert norm(mean) <= mp.mpf(0.03) * TOLERANCE
