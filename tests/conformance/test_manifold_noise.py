"""Coordinates become the isotropic tangent Gaussian of the metric, on every manifold of CASES."""

import math

import pytest
import torch

from tests.conformance.manifold_marks import ALL, drawn
from tests.tensors import assert_near, generator, normals


def orthonormal_basis(case, x, seed):
    """A metric-orthonormal basis of T_xM by Gram-Schmidt, twice, on projected ambient normals."""
    m = case.manifold
    basis = []
    for g in case.ambient(seed, m.dim(case.shape)):
        u = m.proju(x, g)
        for _ in range(2):
            for e in basis:
                u = u - m.inner(x, e, u, keepdim=True) * e
            u = u / m.norm(x, u, keepdim=True)
        basis.append(u)
    return basis


@ALL
@pytest.mark.parametrize("seed", [11, 12])
def test_from_coords_is_an_isometry_onto_the_tangent_space(case, seed):
    """J J^T = I in a metric-orthonormal basis: i.i.d. normals become N_x(0, 1)."""
    m = case.manifold
    x = case.points(seed)
    size = m.coords_shape(case.shape)
    count = math.prod(size)
    columns = m.from_coords(x, torch.eye(count).double().reshape(count, *size))
    assert m.check_vector_on_tangent(x, columns, atol=1e-12, rtol=1e-12)
    basis = torch.stack(orthonormal_basis(case, x, seed))
    jacobian = m.inner(x, basis.unsqueeze(1), columns.unsqueeze(0))
    dim = m.dim(case.shape)
    assert jacobian.shape == (dim, count)
    case.close(jacobian @ jacobian.mT, torch.eye(dim).double(), 1e-12)
    case.close((jacobian**2).sum(0), m.inner(x, columns), 1e-12)
    assert torch.linalg.matrix_rank(jacobian) == dim


@ALL
@drawn
def test_to_coords_is_the_adjoint_of_from_coords(case, seed, lead):
    """At hard points to the rounding that a norm has there: none of it is due to coordinates."""
    m = case.manifold
    hard = () if case.hard_points is None else (case.hard_points(seed),)
    for x, slack in [(case.points(seed, *lead), 0.0), *((x, m.norm_slack(x)) for x in hard)]:
        u = case.tangents(x, seed + 1)
        coords = m.to_coords(x, u)
        c = normals(seed + 2, *coords.shape)
        dims = tuple(range(len(x.shape) - m.ndim, coords.dim()))
        gap = m.inner(x, m.from_coords(x, c), u) - (c * coords).sum(dims)
        tolerance = case.tolerance * (1e-12 + slack)
        assert (gap.abs() <= tolerance * c.square().sum(dims).sqrt()).all()
        assert ((coords.square().sum(dims).sqrt() - 1).abs() <= tolerance).all()


@ALL
def test_tangent_noise_is_so_many_standard_normals_for_coordinates(case):
    m = case.manifold
    x = case.points(21, 3)
    coords = normals(22, 3, *m.coords_shape(case.shape))
    assert_near(m.tangent_gaussian(x, 0.3, generator(22)), m.from_coords(x, 0.3 * coords), 1e-14)
