"""Records are judged once, where they are loaded, before anything is computed from them.

A record is finite, its entries are at most a public bound in size, and it lies on its manifold if
it is a point. An error of this module names the record and what is wrong with it: it belongs in
the log of whoever holds the record, and nowhere else.
"""

import torch
from torch import Tensor

from manifed.manifolds.base import Manifold
from manifed.manifolds.spd import SPDSet
from manifed.problems.base import SQUARED_NORM, Examples

LARGEST_ENTRY = 1e60
"""Default and largest bound on |entries|: fourth powers and their sums stay finite in float64."""
LARGEST_CONDITION = 1e12
"""Of SPD records: beyond it the smallest eigenvalue is mostly rounding."""
TOLERANCE = 1e-9
"""Largest membership defect that is taken for rounding: far below that of points on the wire."""


class InvalidRecord(ValueError):
    """A record that nothing may be computed from; one line with its index, for its owner only."""


def require(measure: Tensor, is_valid: Tensor, expected: str) -> None:
    """Refuse the first record that is not valid; both tensors have shape ``(n,)``.

    Raises:
        InvalidRecord: naming the record, what is expected, and its measure.
    """
    if bool(is_valid.all()):
        return
    index = int((~is_valid).nonzero()[0])
    raise InvalidRecord(f"record {index}: expected {expected}, got {float(measure[index]):.6g}")


def is_class(label: Tensor, num_classes: int) -> Tensor:
    """Whether a label is a class number from 0 to ``num_classes`` - 1, shape of ``label``."""
    return (label >= 0) & (label < num_classes) & (label == label.floor())


def class_numbers(label: Tensor, num_classes: int) -> Tensor:
    """The labels as class numbers; of one that is none, some class: ask `is_class`."""
    return label.nan_to_num(nan=0.0).clamp(0, num_classes - 1).long()


def check_entries(examples: Examples, largest: float) -> None:
    """Refuse entries of one shard that are not finite or larger than ``largest`` in size.

    Raises:
        InvalidRecord: naming the record.
    """
    for key, tensor in examples.tensors.items():
        if key == SQUARED_NORM:
            continue
        worst = tensor.abs().reshape(len(examples), -1).amax(-1)
        require(worst, worst <= largest, f"|{key}| <= {largest:g} in every entry")


def check_points(manifold: Manifold, points: Tensor) -> None:
    """Refuse records ``(n, *point)`` that are not points of ``manifold``.

    Raises:
        InvalidRecord: naming the record and how far off it is.
    """
    if isinstance(manifold, SPDSet):
        _check_condition(points)
    defect = manifold.membership_defect(points)
    expected = f"a point of {manifold.name}, membership defect <= {TOLERANCE:g}"
    require(defect, defect <= TOLERANCE, expected)


def _check_condition(z: Tensor) -> None:
    largest, smallest = z.abs().amax((-2, -1)), 1 / LARGEST_ENTRY
    require(largest, largest >= smallest, f"max|z| >= {smallest:g}")
    values = torch.linalg.eigvalsh(z / largest[..., None, None])
    ratio, bound = values[..., 0] / values[..., -1], 1 / LARGEST_CONDITION
    expected = f"a positive definite matrix, lambda_min/lambda_max >= {bound:g}"
    require(ratio, (ratio >= bound) & (values[..., 0] > 0), expected)
