"""Riemannian logarithms of the Stiefel manifold, as batched iterations on 2k x 2k matrices.

Zimmermann and Hüper: Computing the Riemannian logarithm on the Stiefel manifold: metrics, methods
and performance (SIMAX 2022, arXiv 2103.12046): Algorithm 4 for the canonical metric, p-shooting in
the reduced problem for the Euclidean one. Metric of u = x A + Q B: beta |A|^2 + |B|^2, beta = 1/2
canonical, beta = 1 Euclidean.

Symbols: M, N blocks of y in the frame (x, Q) target, V completed, Phi rotation, A, B, C blocks of
log V, Gamma the Sylvester update.
Guarantee: the geodesic of the result ends at y to ``RESIDUAL``, or an error is raised.
"""

import torch
from torch import Tensor

from manifed.manifolds.linalg import expm, identity_like, logm_rotation, skew, sym

TOLERANCE = 4e-15
RESIDUAL = 1e-10
MAX_ITERATIONS = 300
GEODESIC_STEPS = 3


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
    target = torch.cat((m, q.mT @ y), -2)
    if across == 0:
        a, b = logm_rotation(_same_component(m)), target[..., k:, :]
    elif beta == 0.5:
        a, b = _zimmermann_hueper(target)
    else:
        a, b = _shoot(target, beta)
    residual = _largest_norm(reduced_geodesic(a, b, beta, 1)[0] - target)
    if not residual <= RESIDUAL:
        raise ArithmeticError(
            f"Stiefel logarithm did not converge: residual = {residual:.3g} > {RESIDUAL:.3g}; "
            "y is too far from x (injectivity radius: about 0.89 pi); use invretr instead"
        )
    return x @ a + q @ b


def reduced_geodesic(a: Tensor, b: Tensor, beta: float, steps: int) -> list[Tensor]:
    """Points t = 1 / steps, ..., 1 of the geodesic [I; 0] -> [A; B], each (..., k + p, k)."""
    corner = torch.zeros_like(b @ b.mT)
    rows = (torch.cat((2 * beta * a, -b.mT), -1), torch.cat((b, corner), -1))
    step = expm(torch.cat(rows, -2) / steps)
    points = [step[..., : a.shape[-1]]]
    if beta == 0.5:
        for _ in range(steps - 1):
            points.append(step @ points[-1])
        return points
    twist = expm((1 - 2 * beta) * a / steps)
    points[0] = points[0] @ twist
    for _ in range(steps - 1):
        points.append(step @ points[-1] @ twist)
    return points


def _same_component(m: Tensor) -> Tensor:
    """Square ``m`` itself, where it is a rotation.

    Raises:
        ArithmeticError: determinant -1 (the other component of O(n)).
    """
    if bool((torch.linalg.det(m) < 0).any()):
        raise ArithmeticError("No Stiefel logarithm: Expected det(x^T y) = 1, got -1 (n = k)")
    return m


def _completion(target: Tensor) -> Tensor:
    """The last columns of a rotation that starts with ``target`` and has a positive corner."""
    k = target.shape[-1]
    rest = torch.linalg.qr(target, mode="complete")[0][..., k:]
    d, _, rt = torch.linalg.svd(rest[..., k:, :])  # Procrustes preprocessing, line 3
    rest = rest @ rt.mT @ d.mT
    determinant = torch.linalg.det(torch.cat((target, rest), -1)).unsqueeze(-1).unsqueeze(-1)
    last = d[..., :, -1:]
    return torch.where(determinant < 0, rest - 2 * (rest @ last) @ last.mT, rest)


def _zimmermann_hueper(target: Tensor) -> tuple[Tensor, Tensor]:
    """A and B with log V = [[A, -B^T], [B, 0]] for a completion V of ``target``."""
    k, previous = target.shape[-1], float("inf")
    rest = _completion(target)
    a = b = target
    for _ in range(MAX_ITERATIONS):
        log = logm_rotation(torch.cat((target, rest), -1))  # line 5
        c = log[..., k:, k:]
        size = _largest_norm(c)
        a, b = log[..., :k, :k], log[..., k:, :k]
        if size <= TOLERANCE or (size <= RESIDUAL and size >= previous):  # line 6
            break
        previous = size
        rest = rest @ expm(_sylvester(b, c))  # lines 8-10
    return a, b


def _sylvester(b: Tensor, c: Tensor) -> Tensor:
    """Skew Gamma with S Gamma + Gamma S = C, S = B B^T / 12 - I / 2 (lines 7-8)."""
    w, v = torch.linalg.eigh(b @ b.mT / 12 - identity_like(c) / 2)
    divisor = (w.unsqueeze(-1) + w.unsqueeze(-2)).clamp_max(-0.1)
    return skew(v @ ((v.mT @ c @ v) / divisor) @ v.mT)


def _shoot(target: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """A and B by p-shooting: the miss is carried back along the geodesic by projections."""
    k, previous = target.shape[-1], float("inf")
    a, b = skew(target[..., :k, :]), target[..., k:, :]
    best = (a, b)
    for _ in range(MAX_ITERATIONS):
        points = reduced_geodesic(a, b, beta, GEODESIC_STEPS)
        miss = points[-1] - target
        size = torch.linalg.matrix_norm(miss, keepdim=True)
        worst = float(size.max())
        if worst <= RESIDUAL and worst >= previous:
            break
        if worst < previous:
            best, previous = (a, b), worst
        if worst <= TOLERANCE:
            break
        for point in reversed(points):
            miss = miss - point @ sym(point.mT @ miss)
            length = torch.linalg.matrix_norm(miss, keepdim=True).clamp_min(1e-300)
            miss = miss * (size / length)
        a, b = a - skew(miss[..., :k, :]), b - miss[..., k:, :]
    return best


def _largest_norm(a: Tensor) -> float:
    return float(torch.linalg.matrix_norm(a).max()) if a.numel() else 0.0
