r"""The geometric median: f_j(x) = dist(x, z_j), with gradient -log_x z_j / dist(x, z_j) of norm 1.

Fletcher, Venkatasubramanian, Joshi: The geometric median on Riemannian manifolds with application
to robust atlas estimation (NeuroImage 2009). No record pulls harder than another, so a clip norm of
1 cuts nothing, whatever the data are. At x = z_j the gradient is taken as 0.
"""

import torch
from torch import Tensor

from manifed.problems.base import Examples
from manifed.problems.finite_sum import Constant, Shards
from manifed.problems.frechet_mean import FrechetMean

NEAREST = 1e-9
"""Distance below which a record counts as being at x: its direction is rounding."""


def directions(logs: Tensor, norms: Tensor, ndim: int) -> Tensor:
    """-log_x z_j / dist(x, z_j) of logarithms (..., *point) and their norms (...)."""
    far = norms > NEAREST
    inverse = torch.where(far, 1.0 / torch.where(far, norms, 1.0), 0.0)
    return -inverse.reshape(*inverse.shape, *[1] * ndim) * logs


class GeometricMedian(FrechetMean):
    """f_j(x) = dist(x, z_j); examples ``z`` of shape (..., n, *point)."""

    @property
    def sufficient_statistic(self) -> None:
        """None: a median is no function of a sum."""
        return

    def losses(self, x: Tensor, examples: Examples) -> Tensor:
        """dist(x, z_j), shape ``(..., n)``."""
        return self.manifold.dist(self._base(x), examples["z"])

    def rgrads(self, x: Tensor, examples: Examples) -> Tensor:
        """-log_x z_j / dist(x, z_j), shape ``(..., n, *point)``."""
        base = self._base(x)
        logs = self.manifold.logmap(base, examples["z"])
        return directions(logs, self.manifold.norm(base, logs), self.manifold.ndim)

    def lipschitz(self, shards: Shards) -> Constant:
        """1, whatever the data are."""
        del shards
        return Constant(1.0, "the gradient of a distance", is_data_dependent=False)

    def smoothness(self, shards: Shards) -> Constant:
        """None: a distance has a kink at its record."""
        return super(FrechetMean, self).smoothness(shards)
