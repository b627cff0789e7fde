"""A client's own judgement of what comes down, before any record is looked at.

Why: lengths and noise are those of the metric *at the point*, so clip and noise of a mechanism are
right only at a point of the manifold. Off it, the noise of an isotropic tangent Gaussian no longer
covers every direction in which a gradient may move. The server is an adversary of example-level
privacy, so a client believes nothing that it can check. Refusals depend on the broadcast alone and
show nothing else.
"""

from torch import Tensor

from manifed.algorithms.algorithm import Phase
from manifed.algorithms.payloads import Payload
from manifed.manifolds.base import LARGEST, TOLERANCE, Manifold, frobenius, is_short


class BadBroadcast(ValueError):
    """What came down is not where the phase says it is; the text holds numbers of it alone."""


def check_broadcast(phase: Phase, down: Payload, manifold: Manifold) -> None:
    """Refuse fields that are not where ``phase.places`` says; rows of a stack all together.

    A point lies on the manifold, an ambient value has a projection on it, and everything has a
    Euclidean norm of at most 1e100. A tangent vector comes without its base point: the algorithm
    that remembers the base checks it (`check_tangent`). A row is no longer than all together.

    Raises:
        BadBroadcast: naming field, defect and bound.
    """
    for (name, value), place in zip(vars(down).items(), phase.places, strict=True):
        if place == "any" and not value.is_floating_point():
            continue
        if place == "point":
            check_point(f"the broadcast {name}", value, manifold)
            continue
        if not is_short(value):
            _check_length(f"the broadcast {name}", value)
        if place == "point-nearby" and not manifold.is_whole_space:
            x = manifold.nearest(value)
            _check_on(f"the projection of the broadcast {name}", x, manifold)


def check_point(name: str, x: Tensor, manifold: Manifold) -> None:
    """Refuse what is no point of ``manifold``; ``name`` says what it should be.

    Raises:
        BadBroadcast: naming it, its defect and the bound.
    """
    if not is_short(x):
        _check_length(name, x)
    if not manifold.is_whole_space:  # of which what is finite is a point
        _check_on(name, x, manifold)


def check_tangent(name: str, x: Tensor, u: Tensor, manifold: Manifold) -> None:
    """Refuse a broadcast vector with a normal part at ``x``, leading dimensions allowed.

    Raises:
        BadBroadcast: naming the vector, its defect and the bound.
    """
    defect = float(manifold.tangency_defect(x, u).max())
    bound = TOLERANCE[u.dtype]
    if not defect <= bound:
        raise BadBroadcast(
            f"Expected the broadcast {name} tangent at the point of this round within {bound:g}, "
            f"got a relative normal part of {defect:.3g}; nothing was computed"
        )


def _check_length(name: str, value: Tensor) -> None:
    """The squares may be too large where the norm is not."""
    bound = LARGEST[value.dtype]
    length = float(frobenius(value, value.dim()))
    if not length <= bound:
        raise BadBroadcast(
            f"Expected {name} of Euclidean norm at most {bound:g}, got {length:.3g}; nothing was "
            "computed"
        )


def _check_on(name: str, x: Tensor, manifold: Manifold) -> None:
    defect = float(manifold.membership_defect(x).max())
    bound = TOLERANCE[x.dtype]
    if not defect <= bound:
        raise BadBroadcast(
            f"Expected {name} on {manifold.name} within {bound:g}, got a relative distance of "
            f"{defect:.3g}; nothing was computed"
        )
