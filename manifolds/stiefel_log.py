"""Riemannian logarithms of the Stiefel manifold, as batched iterations on 2k x 2k matrices.

Zimmermann and Hüper: Computing the Riemannian logarithm on the Stiefel manifold (SIMAX 2022),
Algorithm 4 (canonical metric) and Section 5 (p-shooting); Mataigne, Zimmermann and Miolane:
arXiv 2403.11730 (the forward iteration for a family of metrics). Metric of a tangent vector
u = x A + Q B: beta |A|^2 + |B|^2, beta = 1/2 canonical, beta = 1 Euclidean.

Symbols: V0 completed, M N blocks of V0's first columns, Phi rotation, A B C blocks of log V.
Guarantee: what is returned satisfies expmap(x, u) = y to ``RESIDUAL``, or an error is raised.
"""

import torch
from torch import Tensor

from manifolds.linalg import expm, identity_like, largest_norm, logm_rotation, skew, sym

TOLERANCE = 2e-15
RESIDUAL = 1e-10
MAX_ITERATIONS = 60
SHOOTING_STEPS = 4
MAX_SHOTS = 200


def tangent_of_logarithm(x: Tensor, y: Tensor, beta: float) -> Tensor:
    """The tangent vector u at ``x`` with expmap(x, u) = y, shape (..., n, k).

    Raises:
        ArithmeticError: no logarithm found (y is too far from x), with the residual.
    """
    x, y = torch.broadcast_tensors(x, y)
    n, k = x.shape[-2:]
    across = min(k, n - k)
    m = x.mT @ y
    q = torch.linalg.qr(torch.cat((x, y - x @ m), -1))[0][..., k : k + across]
    completed = _completion(torch.cat((m, q.mT @ y), -2))
    a, b = _forward_iteration(completed, k, beta)
    residual = _residual(a, b, completed[..., :k], beta)
    if beta != 0.5 and not residual <= RESIDUAL:
        a, b = _shoot(completed[..., :k], beta)
        residual = _residual(a, b, completed[..., :k], beta)
    if not residual <= RESIDUAL:
        raise ArithmeticError(
            f"Stiefel logarithm did not converge: residual = {residual:.3g} > {RESIDUAL:.3g}; "
            "y is too far from x (injectivity radius: about 0.89 pi); use invretr instead"
        )
    return x @ a + q @ b


def reduced_exponential(a: Tensor, b: Tensor, beta: float, t: float = 1.0) -> Tensor:
    """Exp of [A; B] at [I; 0] in St(k + p, k), shape (..., k + p, k)."""
    k = a.shape[-1]
    corner = torch.zeros(*b.shape[:-2], b.shape[-2], b.shape[-2], dtype=b.dtype, device=b.device)
    generator = _blocks(2 * beta * a, -b.mT, b, corner)
    turned = expm(t * generator)[..., :k]
    return turned if beta == 0.5 else turned @ expm((1 - 2 * beta) * t * a)


def _blocks(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    return torch.cat((torch.cat((a, b), -1), torch.cat((c, d), -1)), -2)


def _completion(columns: Tensor) -> Tensor:
    """A rotation V0 whose first columns are given and whose corner is nearly symmetric positive.

    Raises:
        ArithmeticError: square columns of determinant -1 (the other component of O(n)).
    """
    size, k = columns.shape[-2:]
    if size == k:
        if bool((torch.linalg.det(columns) < 0).any()):
            raise ArithmeticError(
                "No Stiefel logarithm: x^T y is square with determinant -1, expected +1"
            )
        return columns
    rest = torch.linalg.qr(columns, mode="complete")[0][..., k:]
    d, _, rt = torch.linalg.svd(rest[..., k:, :])  # Procrustes preprocessing, line 3
    rest = rest @ rt.mT @ d.mT
    determinant = torch.linalg.det(torch.cat((columns, rest), -1))
    flip = torch.where(determinant < 0, -1.0, 1.0).to(d.dtype)[..., None, None]
    last = d[..., :, -1:]
    rest = rest + (flip - 1) * (rest @ last) @ last.mT
    return torch.cat((columns, rest), -1)


def _forward_iteration(completed: Tensor, k: int, beta: float) -> tuple[Tensor, Tensor]:
    """A and B with log(V0 diag(exp((2 beta - 1) A), Phi)) = [[2 beta A, -B^T], [B, 0]]."""
    v, previous = completed, float("inf")
    head, tail = completed[..., :k], completed[..., k:]
    a = torch.zeros_like(completed[..., :k, :k])
    for _ in range(MAX_ITERATIONS):
        log = logm_rotation(v)  # line 5
        b, c = log[..., k:, :k], log[..., k:, k:]
        defect = log[..., :k, :k] - 2 * beta * a
        a = a + defect
        size = largest_norm(c) + largest_norm(defect)
        if size <= TOLERANCE * (1 + largest_norm(log)) or not size < previous or size > 1e3:
            break
        previous = size
        tail = tail @ expm(_sylvester(b, c))  # lines 7-10
        turn = (2 * beta - 1) * a
        first = head if beta == 0.5 else head @ expm(turn)
        v = torch.cat((first, tail), -1)
    return a, b


def _sylvester(b: Tensor, c: Tensor) -> Tensor:
    """Gamma with S Gamma + Gamma S = C, S = B B^T / 12 - I / 2 (line 8)."""
    if not c.numel():
        return c
    w, v = torch.linalg.eigh(b @ b.mT / 12 - identity_like(c) / 2)
    divisor = (w.unsqueeze(-1) + w.unsqueeze(-2)).clamp_max(-0.1)
    return skew(v @ ((v.mT @ c @ v) / divisor) @ v.mT)


def _residual(a: Tensor, b: Tensor, target: Tensor, beta: float) -> float:
    return largest_norm(reduced_exponential(a, b, beta) - target)


def _shoot(target: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """A and B by p-shooting: the miss is carried back along the geodesic by projections."""
    k = target.shape[-1]
    a, b = skew(target[..., :k, :]), target[..., k:, :]
    best, previous = (a, b), float("inf")
    for _ in range(MAX_SHOTS):
        points = [
            reduced_exponential(a, b, beta, j / SHOOTING_STEPS)
            for j in range(SHOOTING_STEPS, 0, -1)
        ]
        miss = points[0] - target
        size = torch.linalg.matrix_norm(miss, keepdim=True)
        worst = float(size.max())
        if worst < previous:
            best, previous = (a, b), worst
        if worst <= 10 * TOLERANCE:
            break
        for point in points:
            miss = _project(point, miss)
            miss = miss * (size / torch.linalg.matrix_norm(miss, keepdim=True).clamp_min(1e-300))
        a, b = a - skew(miss[..., :k, :]), b - miss[..., k:, :]
    return best


def _project(x: Tensor, u: Tensor) -> Tensor:
    return u - x @ sym(x.mT @ u)
