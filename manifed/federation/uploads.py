"""Which uploads the server takes: finite, of sane size and, where it says so, tangent."""

from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from manifed.algorithms.interface import UploadPlace
from manifed.federation.replies import Failure, Replies, plain
from manifed.manifolds.base import Manifold
from manifed.manifolds.defects import LARGEST, TOLERANCE, frobenius, is_short


class Expectation(NamedTuple):
    """Where the uploads of a phase live, by field; tangent ones at ``base``, shape (*point)."""

    base: Tensor
    places: Mapping[str, UploadPlace]
    manifold: Manifold


def refuse_bad_rows(expected: Expectation, replies: Replies) -> Replies:
    """The replies whose every field fits; a reason, and the node if known, for each other one.

    Reasons are made short and printable here, whatever a client or a node wrote into them.
    All rows are checked at once, and one by one only where a row is bad.
    """
    stacked = replies.uploads.tensors()
    if not replies.failures and _are_short(expected, stacked):
        return replies
    failures = {i: told(replies, i, failure) for i, failure in replies.failures.items()}
    good = reduce(
        torch.logical_and, (_fitting_rows(expected, name, u) for name, u in stacked.items())
    )
    if bool(good.all()):
        return replies._replace(failures=failures) if failures else replies
    for row in (~good).nonzero()[:, 0].tolist():
        i = replies.partitions[row]
        unusable = Failure("unusable", _row_failure(expected, stacked, row))
        failures[i] = told(replies, i, unusable)
    return replies.of_rows(good.nonzero()[:, 0].tolist())._replace(failures=failures)


def flaw(name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> str | None:
    """What is wrong with one array: its shape, its type, entries that are not finite; or None."""
    if tuple(tensor.shape) != tuple(shape):
        return f"Expected {name} of shape {tuple(shape)}, got {tuple(tensor.shape)}"
    if tensor.dtype != dtype:
        return f"Expected {name} of dtype {dtype}, got {tensor.dtype}"
    if not bool(torch.isfinite(tensor).all()):
        bad = int((~torch.isfinite(tensor)).sum())
        return f"Expected finite entries in {name}, got {bad} of {tensor.numel()} not so"
    return None


def told(replies: Replies, client: int, failure: Failure) -> Failure:
    """The failure in short printable words, with the client's node where it is known."""
    node = f" (node {replies.nodes[client]})" if client in replies.nodes else ""
    return replace(failure, text=plain(failure.text) + node)


def _are_short(expected: Expectation, stacked: Mapping[str, Tensor]) -> bool:
    """Whether all rows fit for being short together, where nothing else is asked of them."""
    is_flat = expected.manifold.is_whole_space
    for name, u in stacked.items():
        if not (is_flat or expected.places[name] in ("ambient", "any")):
            return False
        if not (u.is_floating_point() and is_short(u)):
            return False
    return True


def _fitting_rows(expected: Expectation, name: str, stacked: Tensor) -> Tensor:
    """`_fits`; a row that makes the check of the whole stack fail is bad alone."""
    try:
        return _fits(expected, name, stacked)
    except Exception:
        if stacked.shape[0] == 1:
            return torch.zeros(1, dtype=torch.bool, device=stacked.device)
        return torch.cat([_fitting_rows(expected, name, row) for row in stacked.split(1)])


def _fits(expected: Expectation, name: str, stacked: Tensor) -> Tensor:
    """Which rows of (C, ...) are finite, of sane size, and where they belong to rounding."""
    place = expected.places[name]
    if not stacked.is_floating_point():
        return torch.full((stacked.shape[0],), place == "any", device=stacked.device)
    is_sane = torch.linalg.vector_norm(stacked.flatten(1), dim=1) <= LARGEST[stacked.dtype]
    if place in ("ambient", "any") or expected.manifold.is_whole_space:
        return is_sane
    if place == "point":
        defect = expected.manifold.membership_defect(stacked)
    else:
        defect = expected.manifold.tangency_defect(expected.base, stacked)
    return is_sane & (defect <= TOLERANCE[stacked.dtype])


def _row_failure(expected: Expectation, stacked: Mapping[str, Tensor], row: int) -> str:
    """Why one client's upload is refused."""
    base = expected.base
    for name, u in stacked.items():
        try:
            place = expected.places[name]
            shape, dtype = (u.shape[1:], u.dtype) if place == "any" else (base.shape, base.dtype)
            found = flaw(name, u[row], tuple(shape), dtype)
            if found is not None:
                return found
            if not bool(_fits(expected, name, u[row].unsqueeze(0))):
                return _misfit(expected, name, u[row])
        except Exception as error:
            return f"not readable: {type(error).__name__}: {error}"
    raise AssertionError("unreachable: a refused row has a tensor that does not fit")


def _misfit(expected: Expectation, name: str, u: Tensor) -> str:
    """Why one array, of the right shape and type, is refused."""
    length, bound = float(frobenius(u, u.dim())), LARGEST[u.dtype]
    if not length <= bound:
        return f"Expected {name} of Euclidean norm at most {bound:g}, got {length:.3g}"
    if expected.places[name] == "point":
        defect = float(expected.manifold.membership_defect(u))
        return (
            f"Expected {name} on {expected.manifold.name} within {TOLERANCE[u.dtype]:g}, got a "
            f"relative distance of {defect:.3g}; take manifold.projx of it"
        )
    defect = float(expected.manifold.tangency_defect(expected.base, u))
    return (
        f"Expected {name} tangent at the broadcast point within {TOLERANCE[u.dtype]:g}, got a "
        f"relative normal part of {defect:.3g}; take manifold.proju of it"
    )
