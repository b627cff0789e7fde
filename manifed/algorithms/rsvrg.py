r"""Riemannian SVRG: the client update of PriRFed with Algorithm 3 (RSVRG, DP-RSVRG).

Huang, Huang, Jawanpuria, Mishra: Federated Learning on Riemannian Manifolds with Differential
Privacy, Algorithm 3; Utpala, Han, Jawanpuria, Mishra: Improved Differentially Private Riemannian
Optimization (TMLR 2023), Algorithm 11. Server update: manifed/algorithms/tangent_mean.py.

Symbols: K epochs, m inner_steps, alpha step_size, x-tilde anchor, g_{k+1} reference, eta_{k+1,j}
eta, tau_0 l2_norm_clip, tau_1 correction_l2_norm_clip, Gamma manifold.transp, Exp manifold.expmap.

Variants:
* ``fresh``: as printed. The reference is not noised; every inner step adds fresh noise that must
  cover the reference *and* the correction, so m K full-gradient queries are released.
* ``reuse``: the reference is noised once an epoch and reused (Gaussian post-processing), the
  correction gets its own noise: K full-gradient releases and m K corrections. The default.
Corrections are clipped ``each`` (two clips, as printed) or as ``difference`` (one vector, the
default).

The one variance sigma^2 of a ``fresh`` step is charged in two shares, that of the reference with
the least cost (eq. 2, B.3.3); ``reuse`` gives reference and correction the same noise multiplier.
"""

import math
from dataclasses import replace
from typing import Any, Literal

from torch import Tensor

from manifed.algorithms.algorithm import (
    ClientUpdate,
    Here,
    check_exact_maps,
    check_steps,
)
from manifed.algorithms.rsgd import Option, Output
from manifed.fields import Positive, PositiveCount
from manifed.manifolds.base import MapChoice
from manifed.oracles.minibatch import Ask, Minibatch, Poisson, Query
from manifed.oracles.noisy_oracle import Oracle
from manifed.privacy.mechanism import ExampleMechanism


class RSVRG(ClientUpdate):
    """Variance-reduced descent at the clients: K epochs of m steps (PriRFed, Algorithm 3)."""

    kind: Literal["rsvrg"] = "rsvrg"
    step_size: Positive
    """Local step size."""
    epochs: PositiveCount = 1
    """The number K of reference gradients per round."""
    inner_steps: PositiveCount
    """The number m of corrected steps per epoch."""
    minibatch: Minibatch = Poisson(batch_size=32)
    """The examples of one step."""
    variant: Literal["reuse", "fresh"] = "reuse"
    """"reuse" noises the reference once per epoch. "fresh" covers it by the noise of each step, as
    printed."""
    correction_clip: Literal["difference", "each"] = "difference"
    """Clip the difference of the two gradients, or each of them (as printed)."""
    output: Option = "last-iterate"
    """Which local iterate a client sends."""

    @property
    def server_maps(self) -> MapChoice:
        """The exact maps, by which the local steps move."""
        return "exact"

    @property
    def published_steps(self) -> int | None:
        """The number of steps K m, as in the paper's noise formula."""
        return self.epochs * self.inner_steps

    def check(self, setting: Any) -> None:
        """Refuse a manifold without exact maps, and more steps than noise has addresses for."""
        name = "training.epochs * (training.inner_steps + 1)"
        check_steps(name, self.epochs * (self.inner_steps + 1))
        check_exact_maps(self.kind, setting.manifold)

    def client(self, x: Tensor, oracle: Oracle, here: Here) -> Tensor:
        """Runs Algorithm 3 from the broadcast point and uploads a tangent vector there."""
        manifold, start, k = here.manifold, x, 0  # line 1
        output = Output(self.output, x, self.epochs * self.inner_steps, here)
        for _ in range(self.epochs):  # line 2
            anchor = x  # line 3
            reference = oracle.gradient(anchor, "reference")  # line 4
            for _ in range(self.inner_steps):  # line 5
                output.see(k, x)
                correction = oracle.correction(x, anchor)  # lines 6-8
                eta = correction + oracle.carried(anchor, x, reference)  # line 8
                x, k = manifold.expmap(x, -self.step_size * eta), k + 1  # line 9
        return manifold.logmap(start, output.chosen(x))  # lines 13-14

    # -- what is asked and released ----------------------------------------------------------
    def asks(self) -> tuple[Ask, ...]:
        """Asks for the reference gradients and the corrections of one round."""
        steps = self.epochs * self.inner_steps
        return (
            Ask(count=steps if self.variant == "fresh" else self.epochs, label="reference"),
            Ask(self.minibatch, steps, "correction", self.correction_clip),
        )

    def queries(self, mechanism: ExampleMechanism, num_examples: int) -> tuple[Query, ...]:
        """The `asks` with the noise that a mechanism gives each.

        As printed, one Gaussian of variance sigma^2 covers both; it is the sum of two independent
        ones of variances share * sigma^2 and (1 - share) * sigma^2 (Utpala et al., eq. 2), so the
        step is charged as both, and a reference every step.
        """
        reference, correction = super().queries(mechanism, num_examples)
        if mechanism.l2_norm_clip is None or self.variant != "fresh":
            return (reference, correction)
        together = correction.sensitivity + reference.sensitivity
        sigma = mechanism.noise.stddev(together, num_examples)
        # alpha*, the minimiser of (3) as printed: Delta_0 / (Delta_0 + sqrt(3.5) q Delta_1) for
        # batches that hold a share q, (sqrt(14) - 1) / 13 for one example, two clips and equal
        # bounds. A subset costs 3.5 rate^2 times the unsampled price (Claim 4); else 1 is there.
        rate = correction.expected_size / num_examples
        proper = correction.sampling.kind == "without-replacement" and rate < 1
        factor = math.sqrt(3.5 if proper else 1.0)
        first = reference.sensitivity
        share = first / (first + factor * (rate * correction.sensitivity))
        there, here = math.sqrt(share) * sigma, math.sqrt(1.0 - share) * sigma  # (2)
        return (
            replace(reference, stddev=there, drawn=None),
            replace(correction, stddev=here, drawn=sigma),
        )
