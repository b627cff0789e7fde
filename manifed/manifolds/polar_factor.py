"""The orthonormal polar factor, by the cheapest route that keeps the digits of an SVD.

Stacks of frames near orthonormal, as after a step of a projected method, go through a binomial
series of their Gram matrices; other well-conditioned stacks through an eigendecomposition of them;
everything else through an SVD.
"""

import math
from typing import Any

import torch
from torch import Tensor

from manifed.manifolds.linalg import identity_like, skew


class _Polar(torch.autograd.Function):
    """Polar factor P = U V^T; backward by the Lyapunov equation of its differential.

    dP = P V (2 skew(V^T P^T dX V) / (s_i + s_j)) V^T + (I - P P^T) dX H^{-1}, H = V s V^T.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        u, s, vt = torch.linalg.svd(x, full_matrices=False)
        return u @ vt, s, vt

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(output[1], output[2])
        ctx.save_for_backward(*output)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Tensor:
        p, s, vt = ctx.saved_tensors
        gradient = grad_outputs[0]
        along = p.mT @ gradient
        turn = 2 * skew(vt @ along @ vt.mT) / (s.unsqueeze(-1) + s.unsqueeze(-2))
        across = (gradient - p @ along) @ (vt.mT / s.unsqueeze(-2)) @ vt
        return p @ (vt.mT @ turn @ vt) + across


_GRAM_CONDITION = 4.0
"""Largest condition number of x^T x for which its error is not seen beside rounding."""
_LONGEST_SERIES = 8
"""Degree from which an eigendecomposition is cheaper."""


def polar(x: Tensor) -> Tensor:
    """The orthonormal polar factor of ``x`` (..., n, k), n >= k: the nearest point of St(n, k).

    Accurate to rounding whatever the condition number. Stacks of well-conditioned frames go through
    their Gram matrices, x (x^T x)^{-1/2}, whose error is eps * condition^2; all others through an
    SVD. Differentiable where x has rank k.
    """
    if x.requires_grad:
        return _Polar.apply(x)[0]  # pyright: ignore[reportOptionalSubscript]
    if x.dim() > 2 and x.numel() and _may_be_mild(x[(0,) * (x.dim() - 2)]):
        factor = _inverse_root(x.mT @ x)
        if factor is not None:
            return x @ factor
    u, _, vt = torch.linalg.svd(x, full_matrices=False)
    return u @ vt


def _inverse_root(gram: Tensor) -> Tensor | None:
    """G^{-1/2} of a stack (..., k, k) of conditions below `_GRAM_CONDITION`, else None.

    Near the identity by the series of (I + E)^{-1/2}, to where its remainder is below rounding.
    """
    eye = identity_like(gram)
    excess = gram - eye
    degree = _degree(float(torch.linalg.matrix_norm(excess).max()))
    if degree is not None:
        root = excess * _BINOMIALS[degree]
        for coefficient in reversed(_BINOMIALS[1:degree]):
            root = (root + eye * coefficient) @ excess
        return root + eye
    w, v = torch.linalg.eigh(gram)
    if bool((w[..., 0] * _GRAM_CONDITION > w[..., -1]).all()):
        return (v * w.rsqrt().unsqueeze(-2)) @ v.mT
    return None


def _binomials(count: int) -> tuple[float, ...]:
    """The coefficients of (1 + e)^{-1/2}: 1, -1/2, 3/8, ..."""
    found = [1.0]
    for j in range(1, count):
        found.append(found[-1] * (0.5 - j) / j)
    return tuple(found)


_BINOMIALS = _binomials(_LONGEST_SERIES + 2)


def _degree(size: float) -> int | None:
    """The degree whose remainder, at most |c_{n+1}| e^{n+1} / (1 - e), is below eps / 4."""
    if not size < 0.5:
        return None
    for n in range(1, _LONGEST_SERIES + 1):
        if abs(_BINOMIALS[n + 1]) * size ** (n + 1) < math.ldexp(1 - size, -54):
            return n
    return None


def _may_be_mild(x: Tensor) -> bool:
    """False if the Gram matrix of ``x`` (n, k) surely has a condition above `_GRAM_CONDITION`.

    Eigenvalues of mean m within [a, 4 a] have variance <= (4 a - m)(m - a) <= 9/16 m^2 (Bhatia and
    Davis 2000). One frame speaks for its stack, so that hopeless stacks do not pay for a try.
    """
    gram = x.mT @ x
    entries = gram.flatten()
    return float(entries.dot(entries)) * x.shape[-1] <= (1 + 9 / 16) * float(gram.trace()) ** 2
