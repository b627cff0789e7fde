r"""Logistic regression's quadratic surrogate, from one noised Gram matrix of each client.

With labels b_j = -1 or 1, log(1 + exp(-s)) is log 2 - s / 2 + s^2 / 8 up to s^4 / 192, so that the
mean loss is log 2 - A_ab^T x / 2 + x^T A_aa x / 8 near the origin (functional mechanism: Zhang,
Zhang, Xiao, Yang, Winslett 2012). Its minimiser with the ridge is
(A_aa^+ / 4 + rho I)^{-1} A_ab / 2, the first step of Newton's method from the origin, and as far
from the optimum as scores are from 0.
Statistic, clip, sensitivity, noise and symbols are those of manifed_extras/noisy_gram.py.
"""

from typing import Literal

from manifed.problems.statistics import LabelledGrams
from manifed_extras.noisy_gram import NoisyGram


class LogisticGram(NoisyGram):
    """Noised Gram matrices of rows with labels, and the surrogate's minimiser."""

    kind: Literal["manifed_extras.logistic_gram:LogisticGram"] = (  # pyright: ignore[reportIncompatibleVariableOverride]
        "manifed_extras.logistic_gram:LogisticGram"
    )

    takes = LabelledGrams
    solves = "'logistic'"
    quadratic = 0.25
    linear = 0.5
