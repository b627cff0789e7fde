"""The worst case of a one-shot release of second moments: the same shard with and without a row.

Every other row is zero. The canary is e_2 times what makes its moment ten clip norms long; under
replace-one e_1 stands in its place: the two moments are orthogonal, which is as far apart as two
positive semidefinite matrices of one length can be.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from manifed.audit.client_attacks import DIMENSION, ExampleAttack, direction, pole, shard
from manifed.manifolds.symmetric import packed
from manifed.problems.base import Examples


@dataclass(frozen=True)
class MomentAttack(ExampleAttack):
    """A client update that releases a second moment; ``absent_sign`` None: the row is removed."""

    def _examples(self, *, is_present: bool) -> Examples:
        length = self.canary_length**0.5
        other = None if self.absent_sign is None else length * pole()
        first = length * direction() if is_present else other
        return shard(self.size, first, torch.zeros(DIMENSION, dtype=torch.float64))

    def score_of(self, uploads: list[Tensor]) -> Tensor:
        """Along the difference of the two moments."""
        move = torch.outer(direction(), direction())
        if self.absent_sign is not None:
            move = move - torch.outer(pole(), pole())
        return torch.stack(uploads).sum(0) @ packed(move)
