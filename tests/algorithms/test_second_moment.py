"""One second moment a client, and the components that follow; its bound is one of all sums'."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from manifed.algorithms.algorithm import Collected
from manifed.algorithms.one_shot import SecondMoment
from manifed.manifolds.linalg import packed, packed_size, unpacked
from manifed.problems.pca import KPCA, PrincipalEigenvector, principal_angle
from tests.conformance.client_cases import shards
from tests.conformance.federated_loop import federate, last
from tests.federation.steps import step
from tests.tensors import float64, normals

ONE_SHOT = SecondMoment()


# -- coordinates ---------------------------------------------------------------------------------
@settings(max_examples=40, derandomize=True, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 7))
def test_coordinates_of_symmetric_matrices_are_an_isometry(seed, order):
    a, b = normals(seed, 2, order, order)
    a = a + a.mT
    b = b + b.mT
    torch.testing.assert_close(packed(a) @ packed(b), (a * b).sum(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(unpacked(packed(a)), a, rtol=1e-14, atol=1e-14)
    assert packed(a).shape == (packed_size(order),)
    with pytest.raises(ValueError, match="coordinates of a symmetric matrix, got"):
        unpacked(torch.zeros(packed_size(order + 1) + 1))


# -- components ----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "problem",
    [PrincipalEigenvector(), KPCA(1), KPCA(2), KPCA(3, "grassmann")],
    ids=["sphere", "one-component", "stiefel", "grassmann"],
)
def test_without_noise_it_is_the_optimum_of_the_weighted_objective(problem):
    data = shards()
    shape = problem.point_shape(shards()[0])
    x = torch.eye(6).double()[:, : shape[-1]] if len(shape) == 2 else torch.eye(6)[0].double()
    done = last(federate(problem, data, ONE_SHOT, ONE_SHOT, x, 1)).state
    best = problem.optimum(data)
    value = float(problem.objective(done["x"], data))
    assert value == pytest.approx(best.value, rel=1e-12)
    assert problem.gradient_norm(done["x"], data) <= 1e-12
    both = [v if v.dim() == 2 else v[:, None] for v in (done["x"], best.x)]
    assert float(principal_angle(*both)) <= 1e-7
    largest = both[0].gather(0, both[0].abs().argmax(0, keepdim=True))
    assert (largest > 0).all()


def test_negative_eigenvalues_do_not_lead():
    a = torch.diag(float64([-9.0, 1.0, 2.0]))
    frame = ONE_SHOT.solve(packed(a), torch.zeros(3, 2).double())
    assert frame.tolist() == [[0.0, 0.0], [0.0, 1.0], [1.0, 0.0]]


def test_a_mean_without_eigenvectors_is_no_state():
    collected = Collected({"u": torch.full((21,), torch.nan)}, None, (), 1, lambda: 0.5)
    state = ONE_SHOT.start(torch.eye(6).double()[0])
    with pytest.raises(torch.linalg.LinAlgError):
        step(ONE_SHOT, state, "train", collected, 1, PrincipalEigenvector().manifold)


# -- configs -------------------------------------------------------------------------------------
