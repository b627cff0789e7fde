"""A cohort's rows are looked at together only where each alone would pass."""

import itertools

import pytest
import torch

from manifed.algorithms.algorithm import Phase
from manifed.algorithms.broadcast import BadBroadcast, all_pass, check_broadcast
from manifed.algorithms.payloads import Displacement, Point
from manifed.manifolds.euclidean import Euclidean
from manifed.manifolds.sphere import Sphere
from manifed.manifolds.stiefel import Stiefel

GOOD = {
    "sphere": (Sphere(), torch.tensor([0.6, 0.8, 0.0], dtype=torch.float64)),
    "flat": (Euclidean(), torch.tensor([3.0, -4.0, 1e50], dtype=torch.float64)),
    "frames": (Stiefel(), torch.eye(3, 2, dtype=torch.float64)),
}
SPOILS = {
    "none": lambda x: x,
    "nan": lambda x: x * float("nan"),
    "infinite": lambda x: x / 0.0,
    "too long": lambda x: x * 1e160,
    "off": lambda x: x * 1.001,
    "a little off": lambda x: x * (1 + 1e-12),
}


def passes(phase, x, manifold):
    try:
        check_broadcast(phase, Point(x), manifold)
    except BadBroadcast:
        return False
    return True


@pytest.mark.parametrize("place", ["point", "point-nearby", "ambient"])
@pytest.mark.parametrize("name", GOOD)
def test_rows_pass_together_only_if_each_passes(name, place):
    manifold, x = GOOD[name]
    phase = Phase("train", Point, Displacement, (place,))
    for first, second in itertools.product(SPOILS.values(), repeat=2):
        rows = [first(x), x, second(x)]
        each = all(passes(phase, row, manifold) for row in rows)
        assert all_pass(phase, Point(torch.stack(rows)), manifold) == each
