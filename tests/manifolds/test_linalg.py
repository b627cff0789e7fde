"""Matrix functions: accuracy against scipy, gradients at the corners, errors."""

import math

import pytest
import torch
from scipy import linalg as scipy_linalg

from manifed.manifolds.linalg import (
    EXP,
    LOG,
    RSQRT,
    SQRT,
    expm,
    logm_rotation,
    polar,
    skew,
    sym,
    sym_function,
)
from tests.tensors import assert_near, float64, normals

FUNCTIONS = pytest.mark.parametrize("function", [EXP, LOG, SQRT, RSQRT])


@pytest.mark.parametrize("scale", [1e-12, 1e-3, 0.03, 0.3, 3.0, 30.0])
def test_expm_agrees_with_scipy_for_every_norm(scale):
    a = skew(normals(1, 6, 5, 5))
    a = a * scale / torch.linalg.matrix_norm(a, keepdim=True)
    for matrix in (a, sym(normals(2, 6, 5, 5)) * scale / 5, a[0]):
        expected = torch.from_numpy(scipy_linalg.expm(matrix.numpy()))
        gap = (expm(matrix) - expected).abs().max() / expected.abs().max()
        assert gap <= 4e-15 * (1 + scale)


def test_expm_refuses_infinite_matrices():
    with pytest.raises(ValueError, match="finite"):
        expm(torch.full((2, 2), math.inf, dtype=torch.float64))


@pytest.mark.parametrize("scale", [1e-12, 1e-6, 0.1, 1.0, 3.0])
def test_logm_of_a_rotation_inverts_expm_to_relative_accuracy(scale):
    a = skew(normals(3, 7, 6, 6))
    a = a * scale / torch.linalg.matrix_norm(a, keepdim=True)
    assert_near(logm_rotation(expm(a)), a, 4e-15 * scale)


@pytest.mark.parametrize(("gap", "tolerance"), [(1e-2, 1e-12), (1e-4, 1e-10), (1e-6, 1e-8)])
def test_logm_near_the_angle_pi_loses_only_the_digits_it_must(gap, tolerance):
    plane = torch.zeros(5, 5).double()
    plane[0, 1], plane[1, 0], plane[2, 3], plane[3, 2] = math.pi - gap, gap - math.pi, 1.0, -1.0
    q = torch.linalg.qr(normals(4, 5, 5))[0]
    a = q @ plane @ q.mT
    assert_near(logm_rotation(expm(a)), a, tolerance)


@pytest.mark.parametrize("kind", ["generic", "orthonormal", "eye"])
def test_polar_factor_has_the_exact_gradient_at_orthonormal_matrices(kind):
    x = {
        "generic": normals(7, 4, 2),
        "orthonormal": torch.linalg.qr(normals(7, 4, 2))[0],
        "eye": torch.eye(4, 2).double(),
    }[kind].requires_grad_()
    assert torch.autograd.gradcheck(polar, (x,), eps=1e-6, atol=1e-7)


@FUNCTIONS
def test_symmetric_functions_have_gradients_at_repeated_eigenvalues(function):
    q = torch.linalg.qr(normals(8, 3, 3))[0]
    for w in ([1.0, 2.0, 3.0], [2.0, 2.0, 2.0], [1.0, 3.0, 3.0 + 1e-9]):
        a = (q * float64(w)) @ q.mT

        def f(b):
            return sym_function(sym(b), function)

        assert torch.autograd.gradcheck(f, (a.requires_grad_(),), eps=1e-6, atol=1e-6)


@FUNCTIONS
def test_divided_differences_do_not_cancel(function):
    a = 1.7
    b = 0.6
    w = float64([a, a * (1 + 1e-9), b])
    d = function.divided_difference(w[:, None], w)
    t = torch.tensor(a, dtype=torch.float64, requires_grad=True)
    slope = torch.autograd.grad(function.value(t), t)[0]
    assert abs(d[0, 1] / slope - 1) <= 1e-8
    assert abs(d[0, 0] / slope - 1) <= 1e-15
    quotient = (function.value(w[0]) - function.value(w[2])) / (w[0] - w[2])
    assert abs(d[0, 2] / quotient - 1) <= 1e-14
