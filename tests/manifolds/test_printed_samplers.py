"""Each printed sampler has the wrong law, by the amounts of the corrections beside it."""

import pytest
import torch

from manifed.manifolds.base import Manifold
from manifed.manifolds.hyperbolic import Lorentz
from manifed.manifolds.poincare import PoincareBall
from manifed.manifolds.spd import SPD, SPDBuresWasserstein, SPDLogEuclidean
from manifed.manifolds.sphere import Sphere
from reproduction import printed_samplers as paper

CORRECTED = [
    (SPD(), (4, 4), paper.corrected_affine_invariant),
    (SPDBuresWasserstein(), (4, 4), paper.corrected_bures_wasserstein),
    (SPDLogEuclidean(), (5, 5), paper.corrected_log_euclidean),
    (PoincareBall(), (5,), paper.corrected_poincare),
    (Lorentz(), (6,), paper.corrected_lorentz),
    (Sphere(), (6,), paper.corrected_sphere),
]


def point(manifold: Manifold, shape: tuple[int, ...], seed: int = 3) -> torch.Tensor:
    return manifold.random(*shape, generator=torch.Generator().manual_seed(seed))


def gram(manifold: Manifold, x: torch.Tensor, sampler) -> torch.Tensor:
    """Inner products of the images of the unit coordinates: I for a correct sampler."""
    count = manifold.dim(tuple(x.shape))
    images = sampler(x, torch.eye(count, dtype=torch.float64))
    return manifold.inner(x, images.unsqueeze(0), images.unsqueeze(1))


@pytest.mark.parametrize(("manifold", "shape", "sampler"), CORRECTED)
def test_the_corrected_forms_are_isometries(manifold, shape, sampler):
    for seed in (1, 2, 3):
        x = point(manifold, shape, seed)
        matrix = gram(manifold, x, sampler)
        assert float((matrix - torch.eye(len(matrix))).abs().max()) <= 2e-13


@pytest.mark.parametrize(
    ("m", "shape", "sampler", "factor"),
    [
        (SPDBuresWasserstein(), (4, 4), paper.printed_bures_wasserstein, 2),
        (PoincareBall(), (5,), paper.printed_poincare, 0.5),
    ],
)
def test_printed_bures_wasserstein_doubles_and_printed_poincare_halves_the_noise(
    m, shape, sampler, factor
):
    matrix = gram(m, point(m, shape), sampler)
    assert torch.allclose(matrix, factor**2 * torch.eye(len(matrix)).double(), atol=1e-13)


def test_printed_log_euclidean_is_no_isometry():
    """The printed kernel at eigenvalues l against dlog_ij: 1 only by accident."""
    m = SPDLogEuclidean()
    w = torch.diag(torch.tensor([0.2, 1.0, 4.0]).double())
    spectrum = torch.linalg.eigvalsh(gram(m, w, paper.printed_log_euclidean))
    diagonal = torch.tensor([0.2, 1.0, 4.0]).double()
    assert torch.isclose(spectrum[0], (torch.exp(-diagonal[2]) / diagonal[2]) ** 2)
    assert torch.isclose(spectrum[-1], (torch.exp(-diagonal[0]) / diagonal[0]) ** 2)
    assert float(spectrum[0]) < 1e-4
    assert float(spectrum[-1]) > 10


def test_printed_lorentz_is_not_tangent_and_its_gram_matrix_is_indefinite():
    m = Lorentz()
    w = m.expmap(m.origin(6), torch.tensor([0.0, 2.0, 0, 0, 0, 0]).double())
    images = paper.printed_lorentz(w, torch.eye(5).double())
    assert not m.check_vector_on_tangent(w, images)
    signature = torch.diag(torch.tensor([-1.0, 1, 1, 1, 1, 1]).double())
    spectrum = torch.linalg.eigvalsh(images @ signature @ images.mT)
    assert float(spectrum[0]) < -0.5


def test_printed_sphere_under_samples_the_direction_of_the_pole():
    """Gram = I - w w^T of the last entries: smallest eigenvalue w_1^2."""
    m, w = Sphere(), point(Sphere(), (6,))
    matrix = gram(m, w, paper.printed_sphere)
    assert torch.allclose(matrix, torch.eye(5).double() - torch.outer(w[1:], w[1:]), atol=1e-15)
    spectrum = torch.linalg.eigvalsh(matrix)
    assert torch.isclose(spectrum[0], w[0] ** 2)
    assert float(spectrum[0]) < 0.9


def test_corrected_sphere_is_exact_at_both_poles():
    for sign in (1.0, -1.0):
        w = torch.tensor([sign, 0, 0, 0]).double()
        assert torch.allclose(gram(Sphere(), w, paper.corrected_sphere), torch.eye(3).double())


def test_printed_clip_lets_long_vectors_through_and_shrinks_short_ones():
    v = torch.tensor([[3.0, 4.0], [0.3, 0.4]]).double()
    norm = v.norm(dim=-1, keepdim=True)
    printed = paper.printed_clip(v, norm, 1.0).norm(dim=-1)
    corrected = paper.corrected_clip(v, norm, 1.0).norm(dim=-1)
    assert torch.allclose(printed, torch.tensor([5.0, 0.25]).double())
    assert torch.allclose(corrected, torch.tensor([1.0, 0.5]).double())
