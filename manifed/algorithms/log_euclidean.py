r"""The log-Euclidean mean of SPD matrices from one noised sum of logarithms of each client.

Arsigny, Fillard, Pennec, Ayache: Geometric Means in a Novel Vector Space Structure on Symmetric
Positive-Definite Matrices (2007), Theorem 3.13, with the Gaussian mechanism in the chart log: the
logarithm maps SPD matrices isometrically onto Sym(m), so the noise is the isotropic Gaussian of the
metric, drawn once. One round, one upload of m(m+1)/2 numbers a client.

Symbols: S_i = (1/N_i) sum_j log z_j, w_i = N_i / sum N_l, E the symmetric noise, C
``l2_norm_clip``, a bound of |log z_j|_F; state["x"] = exp(sum_i w_i S_i + E). Sensitivity (proofs
in manifed/problems/statistics.py): C / N_i, and 2 C / N_i when a matrix is replaced. The gap is
|E|_F^2 in expectation: m(m+1)/2 times the variance, whatever the data. Invariant: state["x"] is
positive definite.
"""

from typing import ClassVar, Literal

from torch import Tensor

from manifed.algorithms.one_shot import OneShot
from manifed.algorithms.payloads import Displacement, SymmetricMean
from manifed.manifolds.base import Manifold
from manifed.manifolds.linalg import EXP, sym_function
from manifed.manifolds.symmetric import unpacked
from manifed.problems.problem import Problem
from manifed.problems.statistics import LogSums


class LogEuclidean(OneShot):
    """Noised means of logarithms of all clients, and the exponential of their mean."""

    kind: Literal["log-euclidean"] = "log-euclidean"

    up: ClassVar[type[Displacement]] = SymmetricMean
    takes: ClassVar[type[Problem]] = LogSums
    solves: ClassVar[str] = "'frechet-mean' with problem.manifold = 'spd-log-euclidean'"

    def solve(self, mean: Tensor, x: Tensor, manifold: Manifold) -> Tensor:
        """Exp of the mean logarithm, shape (m, m)."""  # Theorem 3.13
        return sym_function(unpacked(mean.to(x.dtype)), EXP)
