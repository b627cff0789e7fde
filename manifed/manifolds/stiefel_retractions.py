"""Retractions of the Stiefel manifold and their inverses, by k x k matrices.

Absil and Malick (SIOPT 2012): polar and QR; Wen and Yin (2013): Cayley; inverses: Kaneko, Fiori
and Tanaka (2013), Siegel (2021). Symbols: G = u^T u, Om = x^T u, M = x^T y.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from manifed.manifolds.linalg import RSQRT, identity_like, sym_function


@dataclass(frozen=True)
class Retraction:
    """A retraction and its inverse, both (x, ·) -> (..., n, k)."""

    forward: Callable[[Tensor, Tensor], Tensor]
    inverse: Callable[[Tensor, Tensor], Tensor]


def polar_retraction(x: Tensor, u: Tensor) -> Tensor:
    """(x + u)(I + G)^{-1/2}, of second order for the Euclidean metric."""
    y = u + x  # u first: its rows are contiguous, those of a QR factor x are not
    return y @ sym_function(y.mT @ y, RSQRT)


def inverse_polar_retraction(x: Tensor, y: Tensor) -> Tensor:
    """Y S - x with symmetric S from the Lyapunov equation M S + S M^T = 2 I (k^2 unknowns)."""
    m = x.mT @ y
    k, eye = m.shape[-1], identity_like(m)
    kronecker = torch.einsum("...ij,kl->...ikjl", m, eye) + torch.einsum(
        "ij,...kl->...ikjl", eye, m
    )
    system = kronecker.reshape(*m.shape[:-2], k * k, k * k)
    s = torch.linalg.solve(system, 2 * eye.reshape(k * k)).reshape(m.shape)
    return y @ s - x


def qr_retraction(x: Tensor, u: Tensor) -> Tensor:
    """The Q factor of x + u, by Cholesky (its Gram matrix is at least I); of first order."""
    y = u + x  # u first: its rows are contiguous, those of a QR factor x are not
    gram = y.mT @ y
    factor = torch.linalg.cholesky_ex(gram)[0]
    return y @ torch.linalg.solve_triangular(factor, identity_like(gram), upper=False).mT


def inverse_qr_retraction(x: Tensor, y: Tensor) -> Tensor:
    """Y R - x with upper triangular R, column by column from tangency (M R + R^T M^T = 2 I)."""
    m = x.mT @ y
    k = m.shape[-1]
    columns: list[Tensor] = []
    for j in range(k):
        known = [-(m[..., j, :] * column).sum(-1) for column in columns]
        right = torch.stack([*known, torch.ones_like(m[..., 0, 0])], -1)
        head = torch.linalg.solve(m[..., : j + 1, : j + 1], right)
        columns.append(torch.nn.functional.pad(head, (0, k - j - 1)))
    return y @ torch.stack(columns, -1) - x


def cayley_retraction(x: Tensor, u: Tensor) -> Tensor:
    """Cayley transform of W = P u x^T - x u^T P, P = I - x x^T / 2, times x.

    The Woodbury system of 2k unknowns reduces to Z = (I - Om / 2 + (G + Om^2) / 4)^{-1}:
    y = u Z + x ((2 I - Om) Z - I). Of second order for the canonical metric.
    """
    om, g = x.mT @ u, u.mT @ u
    eye = identity_like(om)
    z = torch.linalg.inv(eye - om / 2 + (g + om @ om) / 4)
    return u @ z + x @ ((2 * eye - om) @ z - eye)


def inverse_cayley_retraction(x: Tensor, y: Tensor) -> Tensor:
    """2 y (I + M)^{-1} + 2 x (I + M^T)^{-1} - 2 x."""
    m = x.mT @ y
    eye = identity_like(m)
    half = torch.linalg.inv(eye + m)
    return 2 * (y @ half + x @ (half.mT - eye))


POLAR = Retraction(polar_retraction, inverse_polar_retraction)
QR = Retraction(qr_retraction, inverse_qr_retraction)
CAYLEY = Retraction(cayley_retraction, inverse_cayley_retraction)
