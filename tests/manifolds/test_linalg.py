"""Matrix functions: accuracy against scipy, gradients at the corners, errors."""

import math

import pytest
import torch
from geoopt import ManifoldTensor
from scipy import linalg as scipy_linalg

from manifed.manifolds.linalg import (
    EXP,
    LOG,
    RSQRT,
    SQRT,
    as_arrays,
    by_small,
    divided_differences,
    expm,
    logm_rotation,
    minus_along,
    minus_product,
    polar,
    positive_qr,
    skew,
    standard_normal,
    sym,
    sym_function,
)


def normals(seed: int, *size: int) -> torch.Tensor:
    return standard_normal(size, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("scale", [1e-12, 1e-3, 0.03, 0.3, 3.0, 30.0])
def test_expm_agrees_with_scipy_for_every_norm(scale: float):
    a = skew(normals(1, 6, 5, 5))
    a = a * scale / torch.linalg.matrix_norm(a, keepdim=True)
    for matrix in (a, sym(normals(2, 6, 5, 5)) * scale / 5):
        expected = torch.stack([torch.from_numpy(scipy_linalg.expm(m.numpy())) for m in matrix])
        gap = (expm(matrix) - expected).abs().max() / expected.abs().max()
        assert gap <= 4e-15 * (1 + scale)
    single = torch.from_numpy(scipy_linalg.expm(a[0].numpy()))
    assert (expm(a[0]) - single).abs().max() <= 4e-15 * (1 + scale)


def test_expm_refuses_infinite_matrices():
    with pytest.raises(ValueError, match="finite"):
        expm(torch.full((2, 2), math.inf, dtype=torch.float64))


@pytest.mark.parametrize("scale", [1e-12, 1e-6, 0.1, 1.0, 3.0])
def test_logm_of_a_rotation_inverts_expm_to_relative_accuracy(scale: float):
    a = skew(normals(3, 7, 6, 6))
    a = a * scale / torch.linalg.matrix_norm(a, keepdim=True)
    assert (logm_rotation(expm(a)) - a).abs().max() <= 4e-15 * scale


@pytest.mark.parametrize(("gap", "tolerance"), [(1e-2, 1e-12), (1e-4, 1e-10), (1e-6, 1e-8)])
def test_logm_near_the_angle_pi_loses_only_the_digits_it_must(gap: float, tolerance: float):
    plane = torch.zeros(5, 5, dtype=torch.float64)
    plane[0, 1], plane[1, 0], plane[2, 3], plane[3, 2] = math.pi - gap, gap - math.pi, 1.0, -1.0
    q = positive_qr(normals(4, 5, 5))[0]
    a = q @ plane @ q.mT
    assert (logm_rotation(expm(a)) - a).abs().max() <= tolerance


@pytest.mark.parametrize("condition", [1.0, 1e4, 1e8, 1e12])
@pytest.mark.parametrize("lead", [(), (3,)])
def test_polar_factor_is_accurate_at_every_condition_number(condition: float, lead):
    u = positive_qr(normals(5, *lead, 40, 5))[0]
    v = positive_qr(normals(6, *lead, 5, 5))[0]
    singular = torch.logspace(0, -math.log10(condition), 5, dtype=torch.float64)
    p = polar((u * singular) @ v.mT)
    assert (p.mT @ p - torch.eye(5, dtype=torch.float64)).abs().max() <= 1e-14
    assert (p - u @ v.mT).abs().max() <= 4e-15 * condition


def test_polar_factor_of_zero_is_orthonormal():
    p = polar(torch.zeros(6, 3, dtype=torch.float64))
    assert (p.mT @ p - torch.eye(3, dtype=torch.float64)).abs().max() <= 4e-15


@pytest.mark.parametrize("kind", ["generic", "orthonormal", "eye"])
def test_polar_factor_has_the_exact_gradient_at_orthonormal_matrices(kind: str):
    x = {
        "generic": normals(7, 4, 2),
        "orthonormal": positive_qr(normals(7, 4, 2))[0],
        "eye": torch.eye(4, 2, dtype=torch.float64),
    }[kind].requires_grad_()
    assert torch.autograd.gradcheck(polar, (x,), eps=1e-6, atol=1e-7)


@pytest.mark.parametrize("function", [EXP, LOG, SQRT, RSQRT], ids=["exp", "log", "sqrt", "rsqrt"])
def test_symmetric_functions_have_gradients_at_repeated_eigenvalues(function):
    q = positive_qr(normals(8, 3, 3))[0]
    for w in ([1.0, 2.0, 3.0], [2.0, 2.0, 2.0], [1.0, 3.0, 3.0 + 1e-9]):
        a = (q * torch.tensor(w, dtype=torch.float64)) @ q.mT

        def f(b: torch.Tensor) -> torch.Tensor:
            return sym_function(sym(b), function)

        assert torch.autograd.gradcheck(f, (a.requires_grad_(),), eps=1e-6, atol=1e-6)


@pytest.mark.parametrize("function", [EXP, LOG, SQRT, RSQRT], ids=["exp", "log", "sqrt", "rsqrt"])
def test_divided_differences_do_not_cancel(function):
    a, b = 1.7, 0.6
    w = torch.tensor([a, a * (1 + 1e-9), b], dtype=torch.float64)
    d = divided_differences(w, function)
    t = torch.tensor(a, dtype=torch.float64, requires_grad=True)
    slope = torch.autograd.grad(function.value(t), t)[0]
    assert abs(d[0, 1] / slope - 1) <= 1e-8
    assert abs(d[0, 0] / slope - 1) <= 1e-15
    quotient = (function.value(w[0]) - function.value(w[2])) / (w[0] - w[2])
    assert abs(d[0, 2] / quotient - 1) <= 1e-14


def test_symmetric_functions_differentiate_under_vmap():
    a = sym(normals(9, 5, 3, 3))
    batched = torch.func.vmap(torch.func.grad(lambda b: sym_function(b, EXP).sum()))(a)
    x = a.clone().requires_grad_()
    expected = torch.autograd.grad(sym_function(x, EXP).sum(), x)[0]
    assert (batched - expected).abs().max() <= 1e-13


def test_normals_need_a_generator():
    with pytest.raises(ValueError, match="Generator"):
        standard_normal((3,), None)


def along(u, x):
    return minus_along(u, x, lambda s: s + s.mT, 0.5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("transposed", [False, True])
def test_stacks_that_numpy_multiplies_come_out_as_torchs_do(dtype: torch.dtype, transposed: bool):
    u, x, s = (normals(1, 9, 50, 4).to(dtype), normals(2, 9, 50, 4).to(dtype), normals(3, 9, 4, 4))
    s, u = s.to(dtype), u.mT.contiguous().mT if transposed else u
    assert as_arrays(u, x, s) is not None
    single = [along(u[i], x[i]) for i in range(9)]
    for found, expected in (
        (along(u, x), torch.stack(single)),
        (minus_product(u, x, s, -2.0), u + 2 * x @ s),
        (by_small(u, s), u @ s),
    ):
        torch.testing.assert_close(found, expected)
        assert found.data_ptr() % 64 == 0  # what the bits of MKL's products depend on
        assert found.numpy().flags.writeable
    assert along(u, x).stride() == u.stride()
    assert by_small(u, s).is_contiguous()


def test_torch_keeps_what_is_differentiated_mapped_traced_or_elsewhere():
    u, x = normals(1, 9, 50, 4), normals(2, 9, 50, 4)
    plain = along(u, x)
    leaf = u.clone().requires_grad_()
    assert as_arrays(leaf, x) is None
    assert along(leaf, x).requires_grad
    torch.testing.assert_close(torch.func.vmap(along)(u, x), plain)
    torch.testing.assert_close(torch.func.jvp(along, (u, x), (u, 0 * x))[1], plain)
    assert along(u.to("meta"), x.to("meta")).device.type == "meta"
    assert along(u.bfloat16(), x.bfloat16()).dtype == torch.bfloat16
    with torch._subclasses.FakeTensorMode() as mode:
        assert along(mode.from_tensor(u), mode.from_tensor(x)).shape == u.shape
    traced = torch.fx.experimental.proxy_tensor.make_fx(along)(u, x)
    torch.testing.assert_close(traced(2 * u, x), 2 * plain)
    assert torch.equal(along(u.as_subclass(ManifoldTensor), x), plain)
    with torch.inference_mode():
        assert torch.equal(along(u + 0, x + 0), plain)
    with pytest.raises(RuntimeError):
        along(u, x.float())
