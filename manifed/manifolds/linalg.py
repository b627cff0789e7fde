r"""Matrix functions that several manifolds share, batched over leading dimensions.

Symmetric matrix functions differentiate by the Daleckii–Krein formula with closed divided
differences, so their gradients are finite and exact at repeated eigenvalues, where torch's eigh
gradient is NaN. The polar factor takes the cheapest route that keeps the digits of an SVD.

Symmetric matrices as vectors: coordinates in an orthonormal basis of Sym(d).

The basis is e_i e_i^T and (e_i e_j^T + e_j e_i^T) / sqrt(2), i < j, orthonormal for the Frobenius
product: a diagonal entry is its own coordinate, an entry above it is multiplied by sqrt(2). The map
is an isometry onto R^{d(d+1)/2}, so that i.i.d. normals in these coordinates are the isotropic
Gaussian on Sym(d): variance sigma^2 on the diagonal and sigma^2 / 2 beside it.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, linalg

Shape = tuple[int, ...]
Tensors = Mapping[str, Tensor]
"""Tensors by name."""
TINY = {torch.float64: 1e-150, torch.float32: 1e-18}
"""Lower bound of a divisor whose quotient (sin t / t, ...) is exact there, with a normal square."""


def standard_normal(
    size: Shape,
    generator: torch.Generator | None,
    dtype: torch.dtype = torch.float64,
    device: Any = None,
) -> Tensor:
    """Draws i.i.d. standard normals of shape ``size`` from ``generator``.

    Raises:
        ValueError: if there is no generator (no global randomness).
    """
    if generator is None:
        raise ValueError("Expected a torch.Generator, got None: pass generator=...")
    device = device or generator.device
    return torch.randn(size, generator=generator, dtype=dtype, device=device)


def above_zero(t: Tensor, power: int = 1) -> Tensor:
    """Raises t >= 0 to at least `TINY` to that power, as a divisor of quotients exact there."""
    return t.clamp_min(TINY[t.dtype] ** power)


def dot(u: Tensor, v: Tensor) -> Tensor:
    """Returns u . v over the last dimension, which is kept."""
    return (u * v).sum(-1, keepdim=True)


def length(u: Tensor, dim: int = -1) -> Tensor:
    """Returns |u| over one dimension, which is kept."""
    return linalg.vector_norm(u, dim=dim, keepdim=True)


def sym(a: Tensor) -> Tensor:
    """The symmetric part (a + a^T) / 2, shape (..., k, k)."""
    return (a + a.mT) / 2


def skew(a: Tensor) -> Tensor:
    """The skew part (a - a^T) / 2, shape (..., k, k)."""
    return (a - a.mT) / 2


def identity_like(a: Tensor) -> Tensor:
    """The k x k identity with the dtype and device of ``a`` (..., k, k)."""
    return torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)


def spectral(v: Tensor, values: Tensor) -> Tensor:
    """V diag(values) V^T, shape (..., k, k)."""
    return (v * values.unsqueeze(-2)) @ v.mT


def quotient(numerator: Callable[[Tensor], Tensor], t: Tensor) -> Tensor:
    """Returns numerator(t) / t for an odd numerator of slope 1 at 0 such as sinh; 1 at t = 0."""
    t = above_zero(t.abs())
    return numerator(t) / t


@dataclass(frozen=True)
class ScalarFunction:
    """A scalar function with its divided difference (f(a) - f(b)) / (a - b), f'(a) at a = b."""

    value: Callable[[Tensor], Tensor]
    divided_difference: Callable[[Tensor, Tensor], Tensor]


EXP = ScalarFunction(
    torch.exp, lambda a, b: ((a + b) / 2).exp() * quotient(torch.sinh, (a - b) / 2)
)
LOG = ScalarFunction(torch.log, lambda a, b: 2 * quotient(torch.atanh, (a - b) / (a + b)) / (a + b))
SQRT = ScalarFunction(torch.sqrt, lambda a, b: 1 / (a.sqrt() + b.sqrt()))
RSQRT = ScalarFunction(torch.rsqrt, lambda a, b: -1 / ((a * b).sqrt() * (a.sqrt() + b.sqrt())))


class _SymFunction(torch.autograd.Function):
    """V f(w) V^T; backward V (f[w_i, w_j] o V^T sym(G) V) V^T (Higham 2008, Theorem 3.11)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, function: ScalarFunction) -> tuple[Tensor, Tensor, Tensor]:
        w, v = linalg.eigh(a)
        return spectral(v, function.value(w)), w, v

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.function = inputs[1]
        ctx.mark_non_differentiable(output[1], output[2])
        ctx.save_for_backward(output[1], output[2])

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        w, v = ctx.saved_tensors
        slopes = ctx.function.divided_difference(w.unsqueeze(-1), w.unsqueeze(-2))
        return v @ (slopes * (v.mT @ sym(grad_outputs[0]) @ v)) @ v.mT, None


def sym_function(a: Tensor, function: ScalarFunction) -> Tensor:
    """f(a) of a symmetric matrix, shape (..., k, k); differentiable once, everywhere.

    Only the lower triangle of ``a`` is read.
    """
    k = a.shape[-1]
    found: Any = _SymFunction.apply(_evened(a), function)
    return found[0][..., :k, :k]


def congruence(factor: Tensor, a: Tensor, function: ScalarFunction) -> Tensor:
    """L f(a) L^T for L = ``factor`` and symmetric ``a``, exactly symmetric, shape (..., k, k)."""
    if a.requires_grad or factor.requires_grad:
        return sym(sandwich(factor, sym_function(a, function)))
    k = a.shape[-1]
    w, v = linalg.eigh(_evened(a))
    rows = _evened(factor) @ v
    return sym(spectral(rows, function.value(w)))[..., :k, :k]


def sandwich(a: Tensor, b: Tensor) -> Tensor:
    """Returns a b a^T, shape (..., k, k)."""
    outer, k = _evened(a), a.shape[-1]
    return (outer @ _evened(b) @ outer.mT)[..., :k, :k]


def _evened(a: Tensor) -> Tensor:
    """Block diagonal of a (..., k, k) and its first entry where k is odd and above 3; else a.

    In a stack of matrices of odd size not every one begins at a multiple of 16 bytes, and kernels
    give other bits there: a record's would depend on its place. The entry is no larger than a, so
    that eigenvalues of a keep their digits.
    """
    k = a.shape[-1]
    if k < 5 or k % 2 == 0:
        return a
    wider = torch.nn.functional.pad(a, (0, 1, 0, 1))
    wider[..., -1, -1] = a[..., 0, 0]
    return wider


def whiten(factor: Tensor, u: Tensor) -> Tensor:
    """L^{-1} u L^{-T} for lower triangular L = ``factor``, shape (..., k, k)."""
    half = linalg.solve_triangular(factor, u, upper=False)
    return linalg.solve_triangular(factor.mT, half, upper=True, left=False)


# -- exponential and rotations -----------------------------------------------------------------
_DEGREE_18 = torch.tensor((
    (0, -0.100365581030144618291, -8.02924648241156932449e-3, -8.92138498045729985177e-4, 0),
    (0, 0.397849749499645077844, 1.36783778460411720168, 0.498289622525382669416,
     -6.37898194594723280150e-4),
    (-10.9676396052962061844, 1.68015813878906206114, 0.0571779846478865511061,
     -6.98210122488052056106e-3, 3.34975017086070470649e-5),
    (-0.0904316832390810593223, -0.0676404519071381882256, 0.0675961301770459654925,
     0.0295552570429315521194, -1.39180257516060693404e-5),
    (0, 0, -0.0923364619367118555360, -0.0169364939002081722752, -1.40086798182036094347e-5),
), dtype=torch.float64)  # fmt: skip


def expm(a: Tensor) -> Tensor:
    """The exponential of square matrices ``a`` (..., k, k), to rounding.

    Taylor polynomial of degree 18 in five products, then squaring (Bader, Blanes and Casas,
    Mathematics 7, 2019, (17)-(19)). The largest norm is read by the host to count the squarings.
    torch.linalg.matrix_exp is wrong by 3e-12 for one matrix of norm 0.03.
    """
    largest = float(a.detach().abs().sum(-2).max()) if a.numel() else 0.0
    if not math.isfinite(largest):
        raise ValueError(f"Expected a finite matrix, got a 1-norm of {largest}")
    squarings = max(0, math.ceil(math.log2(max(largest, 1.09) / 1.09)))  # none up to 1.09
    a = a * 0.5**squarings
    squared = a @ a
    cubed = squared @ a
    powers = torch.stack((identity_like(a).expand_as(a), a, squared, cubed, cubed @ cubed))
    b = (_DEGREE_18.to(a) @ powers.flatten(1)).view(powers.shape).unbind()
    ninth = b[0] @ b[4] + b[3]
    e = b[1] + (b[2] + ninth) @ ninth
    for _ in range(squarings):
        e = e @ e
    return e


def logm_rotation(r: Tensor) -> Tensor:
    """The principal (skew) logarithm of rotations ``r`` (..., k, k), by one symmetric eigh.

    sym(R) = V cos(t) V^T and skew(R) = W with |W v_i| = sin t_i, so log R = V (t / sin t) V^T W.
    Relative accuracy near I; 9 digits at angle pi - 1e-6; meaningless at pi (not unique).
    """
    turn = skew(r)
    cosine, v = linalg.eigh(sym(r))
    sine = above_zero(linalg.vector_norm(turn @ v, dim=-2))
    return skew((v * (torch.atan2(sine, cosine) / sine).unsqueeze(-2)) @ (v.mT @ turn))


# -- polar factor ------------------------------------------------------------------------------
def polar(x: Tensor) -> Tensor:
    """The orthonormal polar factor of ``x`` (..., n, k), n >= k: the nearest point of St(n, k).

    Accurate to rounding whatever the condition number. Stacks of well-conditioned frames go through
    their Gram matrices, x (x^T x)^{-1/2}, whose error is eps * condition^2; all others through an
    SVD. Differentiable where x has rank k, with that error in the gradient.
    """
    if x.requires_grad:
        smooth = x @ sym_function(x.mT @ x, RSQRT)
        return smooth + (polar(x.detach()) - smooth).detach()
    if x.dim() > 2 and x.numel():
        w, v = linalg.eigh(x.mT @ x)
        # Up to a condition number of 4 its error is not seen beside rounding.
        if bool((w[..., 0] * 4 > w[..., -1]).all()):
            return x @ spectral(v, w.rsqrt())
    u, _, vt = linalg.svd(x, full_matrices=False)
    return u @ vt


def packed_size(order: int) -> int:
    """The dimension d(d+1)/2 of Sym(d)."""
    return order * (order + 1) // 2


def packed(s: Tensor) -> Tensor:
    """The coordinates of symmetric matrices (..., d, d), shape (..., d(d+1)/2).

    Reads the upper triangle, row by row.
    """
    rows, columns = torch.triu_indices(*s.shape[-2:], device=s.device)
    found = s[..., rows, columns]
    return torch.where(rows == columns, found, math.sqrt(2.0) * found)


def leading(s: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest eigenvalues of a symmetric matrix (count,), and their vectors (d, count).

    The largest entry of every vector is positive.
    """
    values, vectors = torch.linalg.eigh(s)
    frame = vectors[:, -count:].flip(-1)  # the largest eigenvalue first
    largest = frame.gather(0, frame.abs().argmax(0, keepdim=True))
    return values[-count:].flip(-1), frame * torch.sign(largest)


def unpacked(c: Tensor) -> Tensor:
    """The symmetric matrices of coordinates (..., d(d+1)/2), shape (..., d, d).

    Raises:
        ValueError: for a number of coordinates that no Sym(d) has.
    """
    size = c.shape[-1]
    order = (math.isqrt(8 * size + 1) - 1) // 2
    if packed_size(order) != size:
        raise ValueError(f"Expected d(d+1)/2 coordinates of a symmetric matrix, got {size}")
    place = torch.zeros(order, order, dtype=torch.long, device=c.device)
    rows, columns = torch.triu_indices(order, order, device=c.device)
    place[rows, columns] = place[columns, rows] = torch.arange(size, device=c.device)
    apart = torch.full((order, order), math.sqrt(2.0), dtype=c.dtype, device=c.device)
    return c[..., place] / apart.fill_diagonal_(1.0)


def flaw(name: str, value: object, shape: Shape, dtype: Any) -> str | None:
    """Returns what is wrong with one tensor (shape, type, entries that are not finite), or None."""
    if not isinstance(value, Tensor):
        kind = type(value).__name__
        return f"Expected {name} as a torch tensor of shape {shape} and {dtype}, got {kind}"
    if value.shape != shape:
        return f"Expected {name} of shape {shape}, got {tuple(value.shape)}"
    if value.dtype != dtype:
        return f"Expected {name} of dtype {dtype}, got {value.dtype}"
    if bad := int((~torch.isfinite(value)).sum()):
        return f"Expected finite entries in {name}, got {bad} of {value.numel()} not so"
    return None
