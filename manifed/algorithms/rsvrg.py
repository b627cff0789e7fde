r"""Riemannian SVRG: the client update of PriRFed with Algorithm 3 (RSVRG, DP-RSVRG).

Huang, Huang, Jawanpuria, Mishra: Federated Learning on Riemannian Manifolds with Differential
Privacy, Algorithm 3; Utpala, Han, Jawanpuria, Mishra: Improved Differentially Private Riemannian
Optimization (TMLR 2023), Algorithm 11. Server update: manifed/algorithms/tangent_mean.py.

Symbols: K epochs, m inner_steps, alpha step_size, x-tilde anchor, g_{k+1} reference, eta_{k+1,j}
eta, tau_0 l2_norm_clip, tau_1 correction_l2_norm_clip, Gamma manifold.transp, Exp manifold.expmap.

Variants (spec 000 §7.3, spec 003 §4.4):
* ``fresh``: as printed. The reference is not noised; every inner step adds fresh noise that must
  cover the reference *and* the correction, so m K full-gradient queries are released.
* ``reuse``: the reference is noised once an epoch and reused (Gaussian post-processing), the
  correction gets its own noise: K full-gradient releases and m K corrections. The default.
Corrections are clipped ``each`` (two clips, as printed) or as ``difference`` (one vector, the
default).

Both variants spend one variance sigma^2 a step: ``reference_share`` of it on the reference, the
rest on the correction. For ``fresh`` that is accounting alone (eq. 2) and the default is the share
with the least cost (B.3.3); for ``reuse`` it is what is drawn, and the default gives both the same
noise multiplier.
"""

import math
from dataclasses import replace
from typing import Literal

from pydantic import Field
from torch import Tensor

from manifed.algorithms.gradient_steps import releases_of
from manifed.algorithms.interface import Memory, Phase, Work
from manifed.algorithms.payloads import Payload, Point
from manifed.algorithms.rsgd import Option, Output, one_exchange
from manifed.manifolds.base import Manifold
from manifed.oracles.minibatch import Full, Minibatch, Poisson
from manifed.oracles.oracle import Draws, Oracle
from manifed.oracles.query import Query
from manifed.privacy.events import Event, Frozen
from manifed.privacy.mechanism import ExampleMechanism

SUBSET_FACTOR = 3.5
"""Utpala et al., Claim 4: what a subset costs over rate^2 times the unsampled price."""


class RSVRG(Frozen):
    """K epochs of m variance-reduced steps."""

    kind: Literal["rsvrg"] = "rsvrg"
    step_size: float = Field(gt=0)
    """Of a local step."""
    epochs: int = Field(default=1, ge=1)
    """K: how often the reference gradient is taken anew in a round."""
    inner_steps: int = Field(ge=1)
    """m: corrected steps an epoch."""
    minibatch: Minibatch = Poisson(batch_size=32)
    """The examples of one step."""
    variant: Literal["reuse", "fresh"] = "reuse"
    """Noise the reference once an epoch, or cover it by each step's own noise (as printed)."""
    correction_clip: Literal["difference", "each"] = "difference"
    """Clip the difference of the two gradients, or each of them (as printed)."""
    reference_share: float | None = Field(default=None, gt=0, lt=1)
    """alpha: the reference's share of the variance of a step's noise; None as said above."""
    output: Option = "last-iterate"
    """What of its local iterates a client sends."""

    @property
    def phases(self) -> tuple[Phase, ...]:
        """One exchange."""
        return (one_exchange(self.output),)

    def initial_memory(self, x: Tensor) -> Memory | None:
        """Nothing is remembered between rounds."""
        return None

    @property
    def client_work(self) -> Work:
        """K epochs of m steps with two transports; K references; a logarithm for each upload."""
        steps, inverse = self.epochs * self.inner_steps, 2 if self.output == "random-output" else 1
        queries = self.epochs + steps
        return Work.of_moves("exact", steps, inverse, gradients=queries, transports=2 * steps)

    def update(
        self,
        phase: str,
        down: Payload,
        memory: Memory | None,
        oracle: Oracle,
        manifold: Manifold,
        draws: Draws,
    ) -> tuple[Payload, Memory | None]:
        """Algorithm 3 from the broadcast point."""
        assert isinstance(down, Point)
        x, k = down.x.detach(), 0  # line 1
        output = Output(self.output, x, self.epochs * self.inner_steps, draws, manifold.ndim)
        for _ in range(self.epochs):  # line 2
            anchor = x  # line 3
            reference = oracle.gradient(anchor, "reference")  # line 4
            for _ in range(self.inner_steps):  # line 5
                output.see(k, x)
                correction = oracle.correction(x, anchor)  # lines 6-8
                eta = correction + oracle.carried(anchor, x, reference)  # line 8
                x, k = manifold.expmap(x, -self.step_size * eta), k + 1  # line 9
        return output.payload(x, manifold.logmap), None  # lines 13-14

    # -- what is asked and released ----------------------------------------------------------
    def queries(self, mechanism: ExampleMechanism, num_examples: int) -> tuple[Query, ...]:
        """References and corrections of one round.

        As printed, one Gaussian of variance sigma^2 covers both; it is the sum of two independent
        ones of variances share * sigma^2 and (1 - share) * sigma^2 (Utpala et al., eq. 2), so the
        step is charged as both, and a reference every step.
        """
        steps, is_fresh = self.epochs * self.inner_steps, self.variant == "fresh"
        reference = Query.of(
            mechanism, Full(), num_examples,
            label="reference", count=steps if is_fresh else self.epochs,
        )  # fmt: skip
        correction = Query.of(
            mechanism, self.minibatch, num_examples,
            label="correction", form=self.correction_clip, count=steps,
        )  # fmt: skip
        if mechanism.l2_norm_clip is None or not (is_fresh or self.reference_share):
            return (reference, correction)
        together = correction.sensitivity + reference.sensitivity
        sigma = mechanism.stddev(together, num_examples)
        share = self.reference_share or least_cost_share(reference, correction)
        there, here = math.sqrt(share) * sigma, math.sqrt(1.0 - share) * sigma  # (2)
        return (
            replace(reference, stddev=there, drawn=None if is_fresh else there),
            replace(correction, stddev=here, drawn=sigma if is_fresh else here),
        )

    def releases(self, mechanism: ExampleMechanism, num_examples: int) -> tuple[Event, ...]:
        """What one round releases."""
        return releases_of(self.queries(mechanism, num_examples))


def least_cost_share(reference: Query, correction: Query) -> float:
    """alpha*: Delta_0 / (Delta_0 + sqrt(3.5) q Delta_1) for batches that hold a share q.

    The minimiser of (3) as printed: (sqrt(14) - 1) / 13 for one example, two clips and equal
    bounds. Without subsets 1 stands for 3.5.
    """
    proper = correction.sampling.kind == "without-replacement"
    rate = correction.expected_size / correction.num_examples
    factor = SUBSET_FACTOR if proper and rate < 1 else 1.0
    there, here = reference.sensitivity, rate * correction.sensitivity
    return there / (there + math.sqrt(factor) * here)
