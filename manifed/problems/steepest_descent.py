"""Riemannian steepest descent with Barzilai-Borwein steps and a non-monotone Armijo rule.

Iannazzo and Porcelli: The Riemannian Barzilai-Borwein method with nonmonotone line search and the
matrix geometric mean computation, IMA J. Numer. Anal. 38 (2018). It gives the "true value" lines
of the figures; no client runs it.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from manifed.manifolds.base import Manifold

_MEMORY = 10
_SUFFICIENT = 1e-4
_MIN_STEP, _MAX_STEP = 1e-12, 1e12


@dataclass(frozen=True)
class Descent:
    """Where a descent ended, and what it cost."""

    x: Tensor
    value: float
    gradient_norm: float
    iterations: int
    is_converged: bool


def descend(
    manifold: Manifold,
    objective: Callable[[Tensor], float],
    gradient: Callable[[Tensor], Tensor],
    x: Tensor,
    *,
    tolerance: float = 1e-10,
    max_iterations: int = 2000,
) -> Descent:
    """A stationary point near x: ends when |grad f| <= tolerance * (1 + |f|).

    Also ends, not converged, when rounding leaves no step that decreases f.
    """
    value, g = objective(x), gradient(x)
    size = float(manifold.norm(x, g))
    step, history = 1.0 / max(size, 1.0), [value]
    for iteration in range(max_iterations):
        if size <= tolerance * (1.0 + abs(value)):
            return Descent(x, value, size, iteration, is_converged=True)
        found = _search(manifold, objective, x, g, size, step, max(history[-_MEMORY:]))
        if found is None:
            return Descent(x, value, size, iteration, is_converged=False)
        y, value, used = found
        h = gradient(y)
        step = _barzilai_borwein(manifold, x, y, g, h, used, size)
        x, g = y, h
        size = float(manifold.norm(x, g))
        history.append(value)
    return Descent(x, value, size, max_iterations, is_converged=False)


def _search(
    manifold: Manifold,
    objective: Callable[[Tensor], float],
    x: Tensor,
    g: Tensor,
    size: float,
    step: float,
    reference: float,
) -> tuple[Tensor, float, float] | None:
    """The first of step, step/2, ... that decreases f enough below ``reference``."""
    slack = 1e-15 * (1.0 + abs(reference))
    for _ in range(60):
        y = manifold.projx(manifold.retr(x, -step * g))
        value = objective(y)
        if value <= reference - _SUFFICIENT * step * size * size + slack:
            return y, value, step
        step /= 2
    return None


def _barzilai_borwein(
    manifold: Manifold, x: Tensor, y: Tensor, g: Tensor, h: Tensor, step: float, size: float
) -> float:
    """The step <s, s> / <s, dg> with s = -step g and both carried to T_yM."""
    moved = manifold.transp(x, y, g)
    change = h - moved
    curvature = -step * float(manifold.inner(y, moved, change))
    if curvature <= 0:
        return min(_MAX_STEP, 10 * step)
    return min(_MAX_STEP, max(_MIN_STEP, step * step * size * size / curvature))
