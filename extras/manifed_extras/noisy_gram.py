r"""Least squares from one noised Gram matrix of each client.

Vu, Slavkovic: Differential Privacy for Clinical Trial Data (2009); Sheffet: Differentially Private
Ordinary Least Squares (2017); Wang: Revisiting Differentially Private Linear Regression (2018),
"SSP", with the noise at every client. One round, one upload of (d+1)(d+2)/2 numbers a client.

Symbols: r_j = (a_j, b_j) the row with its target, A = sum_i w_i (1/N_i) sum_j r_j r_j^T + E its
noised second moment with blocks A_aa and A_ab, rho ``ridge`` as in the problem, C
``l2_norm_clip``, a bound of |a_j|^2 + b_j^2; state["x"] = (A_aa^+ + rho I)^{-1} A_ab.

Sensitivity: that of second moments (manifed/problems/statistics.py), C / N_i or
sqrt(2) C / N_i. The clip scales row and target together, so a long row keeps its direction and its
residual, and loses weight. Post-processing: A_aa^+ has its eigenvalues raised to
``eigenvalue_floor``, because noise may make A_aa indefinite; a direction in which the noise is all
there is would else be divided by next to nothing. Invariant: state["x"] is finite.
"""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from manifed.algorithms.one_shot import OneShot
from manifed.algorithms.payloads import SymmetricMean
from manifed.fields import NonNegative, Positive
from manifed.manifolds.linalg import unpacked
from manifed.problems.linear import LinearModel
from manifed.problems.statistics import APART, GramMatrices


class NoisyGram(OneShot):
    """One-shot least squares from the noised mean Gram matrix."""

    kind: Literal["manifed_extras.noisy_gram:NoisyGram"] = "manifed_extras.noisy_gram:NoisyGram"
    ridge: NonNegative = 0.0
    """The ridge of the problem."""
    eigenvalue_floor: Positive = 1e-3
    """Public floor of the eigenvalues of A_aa."""

    up = SymmetricMean.sized(1)
    takes = GramMatrices
    solves = "'least-squares'"
    apart = APART

    quadratic: ClassVar[float] = 1.0
    """c of the loss c/2 s^2 - l b s of a score s."""
    linear: ClassVar[float] = 1.0
    """l of that loss."""

    def solve(self, mean: Tensor, x: Tensor) -> Tensor:
        """Returns (c A_aa^+ + rho I)^{-1} l A_ab, shape (d,)."""
        gram = unpacked(mean.to(torch.float64))
        values, vectors = torch.linalg.eigh(gram[:-1, :-1])
        believed = self.quadratic * values.clamp_min(self.eigenvalue_floor) + self.ridge
        solved = vectors @ ((vectors.mT @ (self.linear * gram[:-1, -1])) / believed)
        return solved.to(x.dtype)

    def check(self, setting: Any) -> None:
        """Refuses a ridge that is not the problem's."""
        super().check(setting)
        problem = setting.problem and setting.problem.of_rows
        if isinstance(problem, LinearModel) and problem.ridge != self.ridge:
            raise ValueError(
                f"training.ridge: expected the problem's {problem.ridge:g}, got {self.ridge:g}"
            )
