"""How far a query's worst change lies from nothing, in standard deviations of correlated noise.

A release q(D) + N(0, Sigma) whose value moves by s between neighbours is, whitened along
Sigma^(-1/2) s, a Gaussian release of one coordinate with mu = sqrt(s^T Sigma^(-1) s), and more
cannot be told from it: the coordinates across carry the same noise either way. A smaller mu is a
larger one with noise added (scale by mu'/mu, add the missing variance), which maps N(0, 1) to
itself, so a mixture with N(0, 1), that is a Poisson sample, is dominated by the one of the largest
mu as well. mu^2 is convex in s: the largest over a set is that over its convex hull.
"""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Vector = tuple[float, ...]

LARGEST_DIMENSION = 512
_ULPS = 2.0**-50


@lru_cache(maxsize=256)
def largest_mu(covariance: tuple[Vector, ...], sensitivities: tuple[Vector, ...]) -> float:
    """The largest sqrt(s^T Sigma^(-1) s) of the changes s, rounded up.

    With x ~ Sigma^(-1) s and r = s - Sigma x the square is 2 s^T x - x^T Sigma x + r^T Sigma^(-1) r
    exactly, whatever x is, and the last term is at most |r|^2 over the smallest eigenvalue.

    Raises:
        ValueError: for a covariance that is not symmetric, or not positive definite by more than
            float64 rounds.
    """
    sigma = np.array(covariance, dtype=np.float64)
    least = _least_eigenvalue(sigma)
    return max((math.sqrt(_squared(sigma, np.array(s), least)) for s in sensitivities), default=0.0)


def _least_eigenvalue(sigma: NDArray[np.float64]) -> float:
    """A lower bound > 0 of the eigenvalues; errors as `largest_mu`."""
    if not (sigma == sigma.T).all():
        raise ValueError("covariance: expected a symmetric matrix, got another")
    eigenvalues = np.linalg.eigvalsh(sigma)
    lost = 16 * len(sigma) * np.finfo(np.float64).eps * float(np.abs(eigenvalues).max())
    least = float(eigenvalues[0]) - lost
    if not least > 0:
        raise ValueError(
            "covariance: expected a positive definite matrix, got a smallest eigenvalue of "
            f"{float(eigenvalues[0]):.3g} beside a largest of {float(eigenvalues[-1]):.3g}; add "
            "noise in every direction"
        )
    return least


def _squared(sigma: NDArray[np.float64], s: NDArray[np.float64], least: float) -> float:
    """s^T Sigma^(-1) s, rounded up."""
    x = np.linalg.solve(sigma, s)
    rows = [(s[i], *(-sigma[i] * x)) for i in range(len(s))]
    terms = [value for i, row in enumerate(rows) for value in x[i] * np.array(row)]
    terms += list(s * x)
    rounding = _ULPS * math.fsum(map(abs, terms))
    left = [abs(math.fsum(row)) + _ULPS * math.fsum(map(abs, row)) for row in rows]
    residual = math.fsum(value * value for value in left) / least
    return max(0.0, math.fsum(terms) + rounding + residual) * (1 + 1e-15)
