"""Few numbers go through numpy: the same numbers, shapes and types as torch's own way."""

import math
import warnings

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from manifed.manifolds import Lorentz, Manifold, Oblique, PoincareBall, Sphere
from manifed.manifolds.arrays import on_arrays
from manifed.manifolds.base import as_point

POINTS = {
    "lorentz": (Lorentz(), (6,)),
    "ball": (PoincareBall(), (5,)),
    "sphere": (Sphere(), (6,)),
    "oblique": (Oblique(), (6, 3)),
}
OPERATIONS = ("expmap", "logmap", "dist", "inner", "transp", "proju", "egrad2rgrad", "from_coords")


def drawn(m: Manifold, shape: tuple[int, ...], *lead: int, dtype: torch.dtype) -> dict[str, tuple]:
    generator = torch.Generator().manual_seed(3)
    x = m.random(*lead, *shape, generator=generator)
    c = torch.randn((2, *lead, *m.coords_shape(shape)), generator=generator, dtype=torch.float64)
    u, v = m.from_coords(x, c)
    x, y, u, v, c = (t.to(dtype) for t in (x, m.expmap(x, u), u, v, c[0]))
    ends = {"expmap": (x, u), "logmap": (x, y), "dist": (x, y), "inner": (x, u, v)}
    return ends | {
        "transp": (x, y, v),
        "proju": (x, v),
        "egrad2rgrad": (x, v),
        "from_coords": (x, c),
    }


class Watched(TorchDispatchMode):
    """Sees every call of torch, which keeps numpy away."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", POINTS)
def test_arrays_say_what_tensors_say(name: str, dtype: torch.dtype):
    m, shape = POINTS[name]
    digits = (
        {"rtol": 2e-13, "atol": 2e-14} if dtype == torch.float64 else {"rtol": 3e-5, "atol": 1e-5}
    )
    for lead in ((), (4,), (2, 3), (0,)):
        for operation, arguments in drawn(m, shape, *lead, dtype=dtype).items():
            method = getattr(m, operation)
            found, placed = method(*arguments), method(as_point(arguments[0], m), *arguments[1:])
            with Watched():
                expected = method(*arguments)
            assert found.shape == expected.shape, operation
            assert type(found) is torch.Tensor, operation
            assert found.dtype == dtype, operation
            assert torch.allclose(found, expected, **digits), operation
            assert torch.equal(found, placed), operation


@pytest.mark.parametrize("name", POINTS)
def test_one_point_beside_a_stack_is_its_row(name: str):
    m, shape = POINTS[name]
    stacks = drawn(m, shape, 4, dtype=torch.float64)
    for operation, (x, *others) in stacks.items():
        method = getattr(m, operation)
        near = [other if operation == "from_coords" else m.proju(x[0], other) for other in others]
        if operation in ("logmap", "dist", "transp"):
            near[0] = others[0]
        found = method(x[0], *near)
        for row, end in enumerate(found):
            expected = method(x[0], *[other[row] for other in near])
            assert torch.allclose(end, expected, rtol=1e-12, atol=1e-14), operation


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e200, 0.0])
@pytest.mark.parametrize("name", POINTS)
def test_what_is_no_point_ends_as_in_torch_and_warns_nobody(name: str, bad: float):
    m, shape = POINTS[name]
    for lead in ((), (3,)):
        for operation, (x, *others) in drawn(m, shape, *lead, dtype=torch.float64).items():
            spoilt = [torch.full_like(others[0], bad), *others[1:]]
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                found = getattr(m, operation)(x, *spoilt)
            with Watched():
                expected = getattr(m, operation)(x, *spoilt)
            if bad == 0.0:
                assert torch.allclose(found, expected, rtol=1e-12, atol=1e-14, equal_nan=True), (
                    operation
                )
            assert torch.equal(found.isfinite(), expected.isfinite()), operation


@pytest.mark.parametrize("name", POINTS)
def test_memory_with_the_other_sign_is_read_as_what_it_stands_for(name: str):
    m, shape = POINTS[name]
    z = torch.randn((4, *shape), generator=torch.Generator().manual_seed(3), dtype=torch.complex128)
    x = z.conj().imag
    assert x.is_neg()
    assert torch.allclose(m.projx(x), m.projx(x.resolve_neg()), rtol=1e-14, atol=1e-15)


def test_torch_keeps_what_is_differentiated_mapped_or_watched():
    kinds = []

    def formula(x):
        kinds.append(type(x))
        return x * 2

    x = torch.ones(3, dtype=torch.float64)
    assert torch.equal(on_arrays(formula, x), 2 * x)
    assert kinds.pop() is np.ndarray
    on_arrays(formula, x.clone().requires_grad_())
    torch.func.vmap(lambda row: on_arrays(formula, row))(x[None])
    torch.func.grad(lambda row: on_arrays(formula, row).sum())(x)
    torch.func.jvp(lambda row: on_arrays(formula, row), (x,), (x,))
    on_arrays(formula, x.to(torch.bfloat16))
    on_arrays(formula, x.to("meta"))
    on_arrays(formula, torch.ones(1 << 16, 3))
    with Watched() as seen:
        on_arrays(formula, x)
    assert seen.calls == 1
    assert len(kinds) == 8
    assert np.ndarray not in kinds
