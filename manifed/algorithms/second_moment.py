r"""Principal components from noised second moments: one release a client, then an eigenproblem.

Dwork, Talwar, Thakurta, Zhang: Analyze Gauss: Optimal Bounds for Privacy-Preserving Principal
Component Analysis (STOC 2014), Algorithm 1; here every client noises its own second moment
(example level), or the server noises the mean of theirs (client level). One round, one upload of
d(d+1)/2 numbers a client.

Symbols: A = sum_i w_i A_i with A_i = (1/N_i) sum_j z_j z_j^T, w_i = N_i / sum N_l; E the symmetric
noise; V_k state["x"], the k leading eigenvectors of A + E; C ``l2_norm_clip``, a bound of |z_j|^2.

Sensitivity (proofs in manifed/problems/statistics.py): one row moves A_i by C / N_i in the
Frobenius norm when it is added or removed, and by sqrt(2) C / N_i when it is replaced, because two
positive semidefinite matrices are never opposite. The paper noises the upper triangle with equal
variances; E here is the isotropic Gaussian on Sym(d) (variance sigma^2 on the diagonal and
sigma^2 / 2 beside it), which has the same price in Frobenius sensitivity and a spectral norm
smaller by sqrt(2). At client level an upload may be any symmetric matrix, so replace-one is charged
at 2 C.

How accurate it is: with n rows in all, c clients of equal size and noise multiplier m, an entry of
E beside the diagonal has the variance s^2 / 2 with s = m C sqrt(c) / n, and to first order in E the
cost of v_1 exceeds that of the optimum by sum_{i>1} E_{i1}^2 / (l_1 - l_i), about
(d - 1) s^2 / 2 / (l_1 - l_2) for eigenvalues l_i of A: second order in the noise.

Clipping the eigenvalues of A + E at zero is post-processing that changes no leading eigenvector of
a positive eigenvalue, so there is no such option here. Invariant: state["x"] is on the manifold.
"""

from typing import ClassVar, Literal

import torch
from torch import Tensor

from manifed.algorithms.one_shot import OneShot
from manifed.algorithms.payloads import Displacement, SymmetricMean
from manifed.manifolds.base import Manifold
from manifed.manifolds.symmetric import unpacked
from manifed.problems.problem import Problem
from manifed.problems.statistics import APART, SecondMoments


def leading_eigenvectors(a: Tensor, count: int) -> Tensor:
    """An orthonormal basis of the leading eigenspace of a symmetric (d, d), shape (d, count).

    The largest first; each with its largest entry positive.
    """
    _, vectors = torch.linalg.eigh(a.to(torch.float64))
    found = vectors[:, -count:].flip(-1)
    largest = found.abs().argmax(0, keepdim=True)
    return found * torch.sign(found.gather(0, largest))


class SecondMoment(OneShot):
    """Noised second moments of all clients, and the leading eigenvectors of their mean."""

    kind: Literal["second-moment"] = "second-moment"

    up: ClassVar[type[Displacement]] = SymmetricMean
    takes: ClassVar[type[Problem]] = SecondMoments
    solves: ClassVar[str] = "'principal-eigenvector' or 'kpca'"
    apart: ClassVar[float] = APART

    def solve(self, mean: Tensor, x: Tensor, manifold: Manifold) -> Tensor:
        """V_k: k leading eigenvectors for a frame x (d, k), one for a unit vector x (d,)."""
        count = x.shape[-1] if x.dim() == 2 else 1
        frame = leading_eigenvectors(unpacked(mean), count)  # Algorithm 1, line 3
        return frame.reshape(x.shape).to(x.dtype)
