"""Exact maps or their first-order approximations, by one choice for a whole algorithm.

Zhang, Hu, So, Johansson (2024), section 5: the rivals need exp, log and parallel transport, and "in
their implementations approximate versions of these mappings are used" (retraction, inverse
retraction, projection on the new tangent space).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from manifed.manifolds.base import Manifold
from manifed.manifolds.fixed_rank import FixedRank

MapChoice = Literal["exact", "retraction"]


@dataclass(frozen=True)
class Maps:
    """How an algorithm moves: point and vector to point, two points to vector, vector to vector."""

    forward: Callable[[Tensor, Tensor], Tensor]
    """(x, u) -> y."""
    inverse: Callable[[Tensor, Tensor], Tensor]
    """(x, y) -> u with forward(x, u) = y."""
    transport: Callable[[Tensor, Tensor, Tensor], Tensor]
    """(x, y, v tangent at x) -> tangent at y."""


def maps_of(choice: MapChoice, manifold: Manifold) -> Maps:
    """``expmap``, ``logmap``, ``transp``; or ``retr``, ``invretr`` and the tangent projection.

    The transport of "exact" is the manifold's own, parallel only where ``is_transp_parallel``.
    Packed tangents of fixed rank have another basis at every point, so there the projection is
    the manifold's own ``transp``.
    """
    if choice == "exact":
        return Maps(manifold.expmap, manifold.logmap, manifold.transp)
    if isinstance(manifold, FixedRank):
        return Maps(manifold.retr, manifold.invretr, manifold.transp)
    return Maps(manifold.retr, manifold.invretr, lambda x, y, v: manifold.proju(y, v))
