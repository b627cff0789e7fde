r"""Matrix logarithms as a sum over examples: s_j = log z_j in coordinates of Sym(m).

The Frechet mean of SPD matrices in the log-Euclidean metric is exp of the mean of the logarithms
(Arsigny, Fillard, Pennec, Ayache 2007). As in `second_moments`, the statistic is a linear problem.

Sensitivity. A clip scales log z_j to |log z_j|_F <= C, which moves z_j along its geodesic towards
the identity. Add-or-remove moves the sum by C; replace-one by 2 C, which z and z^{-1} attain:
logarithms, unlike second moments, may be opposite.
"""

import torch
from torch import Tensor

from manifed.manifolds.euclidean import Euclidean
from manifed.manifolds.linalg import LOG, sym_function
from manifed.manifolds.spd import SPD
from manifed.manifolds.symmetric import packed, packed_size
from manifed.problems.base import Examples, ProblemBase


class LogSums(ProblemBase):
    """f_j(x) = <log z_j, x> on R^{m(m+1)/2}; examples ``z`` of shape (..., n, m, m)."""

    def __init__(self) -> None:
        self.manifold = Euclidean()

    def point_shape(self, examples: Examples) -> tuple[int, ...]:
        """(m(m+1)/2,)."""
        return (packed_size(examples["z"].shape[-1]),)

    def made_up(self, like: Examples, count: int, generator: torch.Generator) -> Examples:
        """Random SPD matrices."""
        shape = like["z"].shape[-2:]
        z = SPD().random(count, *shape, dtype=torch.float64, generator=generator)
        return Examples({"z": z.to(like["z"].dtype)}, {"z": 2})

    def losses(self, x: Tensor, examples: Examples) -> Tensor:
        """<log z_j, x>, shape ``(..., n)``."""
        return (self.rgrads(x, examples) * x.unsqueeze(-2)).sum(-1)

    def rgrads(self, x: Tensor, examples: Examples) -> Tensor:
        """Log z_j in coordinates, shape ``(..., n, m(m+1)/2)``; not finite where z_j has none."""
        return packed(sym_function(examples["z"], LOG))
