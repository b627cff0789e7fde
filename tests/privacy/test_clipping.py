"""What is clipped is at most the bound; what is inside is untouched; NaN never passes."""

import math

import pytest
import torch

from manifed.manifolds.base import clip_factors, clipped
from tests.tensors import float64

INF = math.inf
NAN = math.nan
NORMS = float64([0.0, 1e-300, 0.5, 2.0, math.nextafter(2.0, 3.0), 4.0, 1e308])


@pytest.mark.parametrize("bound", [2.0, float64(2.0)])
def test_norms_inside_the_bound_keep_factor_one_and_the_rest_reach_it(bound):
    factors = clip_factors(NORMS, bound)
    assert (factors[:4] == 1.0).all()
    assert (factors[5:] < 1.0).all()
    assert torch.allclose(factors[4:] * NORMS[4:], torch.full((3,), 2.0, dtype=torch.float64))
    assert (factors * NORMS <= 2.0 * (1 + 1e-15)).all()


@pytest.mark.parametrize("bad", [NAN, INF])
def test_a_norm_that_is_not_finite_has_factor_zero(bad):
    for bound in (3.0, INF):
        assert clip_factors(torch.tensor([1.0, bad]), bound).tolist() == [1.0, 0.0]


def test_vectors_that_are_not_finite_become_zero():
    vectors = torch.tensor([[3.0, 4.0], [NAN, 1.0], [INF, 0.0], [0.0, 0.0]])
    result = clipped(vectors, vectors.norm(dim=-1), 1.0)
    expected = torch.tensor([[0.6, 0.8], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    assert torch.allclose(result, expected)


def test_vectors_are_clipped_in_the_metric_of_the_norms_and_not_in_place():
    vectors = torch.arange(24, dtype=torch.float64).reshape(2, 3, 2, 2)
    before = vectors.clone()
    norms = 5.0 * torch.linalg.matrix_norm(vectors)  # a metric 25 times the Euclidean one
    result = clipped(vectors, norms, 7.0)
    assert torch.equal(vectors, before)
    again = 5.0 * torch.linalg.matrix_norm(result)
    assert torch.allclose(again, torch.minimum(norms, float64(7.0)))


def test_a_bound_per_vector_broadcasts():
    factors = clip_factors(float64([2.0, 2.0]), torch.tensor([1.0, 4.0]))
    assert factors.tolist() == [0.5, 1.0]


@pytest.mark.parametrize("bound", [0.0, -1.0, NAN, torch.tensor([1.0, 0.0]), torch.tensor(NAN)])
def test_a_bound_that_is_not_positive_is_refused(bound):
    with pytest.raises(ValueError, match="l2_norm_clip > 0"):
        clip_factors(torch.ones(2), bound)
