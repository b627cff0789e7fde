"""The best rank-r approximation of a matrix as orthonormal factors, differentiable.

Feppon and Lermusiaux: A Geometric Approach to Dynamical Model Order Reduction (2018), for the
derivative of the truncation; it exists while the r-th singular value exceeds the next one,
whatever the multiplicities inside the two groups, where torch's svd gradient is NaN.
"""

from typing import Any

import torch
from torch import Tensor

from manifed.manifolds.polar_factor import polar

Factors = tuple[Tensor, Tensor, Tensor]
"""(left, right, core): left (..., m, r) and right (..., n, r) orthonormal, core (..., r, r)."""


class _Truncate(torch.autograd.Function):
    """U_r s_r V_r^T, whose differential is symmetric and so its own adjoint.

    With z = U^T G V it is P_T(G) plus, for i <= r < j, at (i, j) of U . V^T the entry
    (s_j^2 z_ij + s_i s_j z_ji) / (s_i^2 - s_j^2), and at (j, i) the same with z transposed.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(matrix: Tensor, rank: int) -> Factors:
        u, s, vt = torch.linalg.svd(matrix, full_matrices=False)
        return (u[..., :rank] * s[..., None, :rank]) @ vt[..., :rank, :], u, vt

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Factors) -> None:
        ctx.rank = inputs[1]
        ctx.mark_non_differentiable(output[1], output[2])
        ctx.save_for_backward(inputs[0], output[1], output[2])

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        matrix, u, vt = ctx.saved_tensors
        rank, gradient = ctx.rank, grad_outputs[0]
        s = ((u.mT @ matrix) * vt).sum(-1)
        kept, dropped = s[..., :rank, None], s[..., None, rank:]
        gap = kept.square() - dropped.square()
        z = u.mT @ gradient @ vt.mT
        upper, lower = z[..., :rank, rank:], z[..., rank:, :rank].mT
        above = (dropped.square() * upper + kept * dropped * lower) / gap
        below = (dropped.square() * lower + kept * dropped * upper) / gap
        left, right = u[..., :rank], vt[..., :rank, :].mT
        along = gradient @ right
        tangent = along @ right.mT + left @ (left.mT @ (gradient - along @ right.mT))
        across = left @ above @ vt[..., rank:, :] + u[..., rank:] @ below.mT @ right.mT
        return tangent + across, None


def truncate(matrix: Tensor, rank: int) -> Factors:
    """(left, right, core) with left core right^T the rank-r matrix nearest to ``matrix``."""
    if not matrix.requires_grad:
        u, s, vt = torch.linalg.svd(matrix, full_matrices=False)
        return u[..., :rank], vt[..., :rank, :].mT, torch.diag_embed(s[..., :rank])
    nearest, u, vt = _Truncate.apply(matrix, rank)  # pyright: ignore[reportGeneralTypeIssues]
    left = polar(nearest @ vt[..., :rank, :].mT)
    right = polar(nearest.mT @ u[..., :rank])
    return left, right, left.mT @ nearest @ right


def turned_towards(factors: Factors, left: Tensor, right: Tensor) -> Factors:
    """The factors of the same matrix whose bases are nearest to ``left`` and ``right``."""
    new_left, new_right, core = factors
    turn_left, turn_right = polar(new_left.mT @ left), polar(new_right.mT @ right)
    return new_left @ turn_left, new_right @ turn_right, turn_left.mT @ core @ turn_right
