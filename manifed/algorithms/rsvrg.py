r"""Riemannian SVRG: the client half of PriRFed with Algorithm 3 (RSVRG, DP-RSVRG).

Huang, Huang, Jawanpuria, Mishra: Federated Learning on Riemannian Manifolds with Differential
Privacy, Algorithm 3; Utpala, Han, Jawanpuria, Mishra: Improved Differentially Private Riemannian
Optimization (TMLR 2023), Algorithm 11. Server half: manifed/algorithms/tangent_mean.py.

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
rest on the correction. For ``fresh`` that is bookkeeping (eq. 2) and the default is the share with
the least cost (B.3.3); for ``reuse`` it is what is drawn, and the default gives both the same noise
multiplier.
"""

import math
from typing import Literal

from pydantic import Field
from torch import Tensor

from manifed.algorithms.interface import Memory, Phase
from manifed.algorithms.payloads import Displacement, DisplacementAndIterate, Payload, Point
from manifed.algorithms.rsgd import Option, upload
from manifed.manifolds.base import Manifold
from manifed.oracles.draws import Draws
from manifed.oracles.minibatch import Full, Minibatch, Poisson
from manifed.oracles.oracle import Oracle
from manifed.privacy.events import Frozen, GaussianRelease
from manifed.privacy.mechanism import ExampleMechanism

SUBSET_FACTOR = 3.5
"""Utpala et al., Claim 4: what a subset costs over rate^2 times the unsampled price."""


class RSVRG(Frozen):
    """K epochs of m variance-reduced steps."""

    kind: Literal["rsvrg"] = "rsvrg"
    step_size: float = Field(gt=0)
    epochs: int = Field(default=1, ge=1)
    inner_steps: int = Field(ge=1)
    minibatch: Minibatch = Poisson(batch_size=32)
    variant: Literal["reuse", "fresh"] = "reuse"
    correction_clip: Literal["difference", "each"] = "difference"
    reference_share: float | None = Field(default=None, gt=0, lt=1)
    """alpha: the reference's share of the variance of a step's noise; None as said above."""
    output: Option = "last-iterate"

    @property
    def phases(self) -> tuple[Phase, ...]:
        """One exchange."""
        up = DisplacementAndIterate if self.output == "random-output" else Displacement
        return (Phase("train", Point, up),)

    def initial_memory(self, x: Tensor) -> Memory | None:
        """Nothing is remembered between rounds."""
        return None

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
        x, iterates = down.x, list[Tensor]()  # line 1
        for _ in range(self.epochs):
            anchor = x  # line 3
            reference = self._reference(oracle, anchor)  # line 4
            for _ in range(self.inner_steps):
                iterates.append(x)
                correction = oracle.correction(  # lines 6-8
                    x,
                    anchor,
                    self.minibatch,
                    self.correction_stddev,
                    is_clipped_as_one=self.correction_clip == "difference",
                )
                eta = correction + self._carried(oracle, anchor, x, reference)  # line 8
                x = manifold.expmap(x, -self.step_size * eta)  # line 9
        return upload(self.output, down.x, iterates, x, manifold, draws), None  # lines 13-14

    def _reference(self, oracle: Oracle, anchor: Tensor) -> Tensor:
        rule = self.reference_stddev if self.variant == "reuse" else None
        return oracle.gradient(anchor, Full(), rule, label="reference")

    def _carried(self, oracle: Oracle, anchor: Tensor, x: Tensor, reference: Tensor) -> Tensor:
        """Gamma g at x; one that was noised already may be stretched, one that was not may not."""
        if self.variant == "reuse":
            return oracle.manifold.transp(anchor, x, reference)
        return oracle.carried(anchor, x, reference)

    # -- what is released --------------------------------------------------------------------
    def reference_sensitivity(self, mechanism: ExampleMechanism, num_examples: int) -> float:
        """Of the clipped full gradient: tau_0 / N_i (add-or-remove) or twice that."""
        assert mechanism.l2_norm_clip is not None
        return mechanism.sensitivity(mechanism.l2_norm_clip, float(num_examples))

    def correction_sensitivity(self, mechanism: ExampleMechanism, num_examples: int) -> float:
        """Of the clipped mean correction, for a batch that holds the example."""
        assert mechanism.correction_clip is not None
        size = self.minibatch.expected_size(num_examples)
        terms = 1 if self.correction_clip == "difference" else 2
        return mechanism.sensitivity(mechanism.correction_clip, size, terms=terms)

    def reference_stddev(self, mechanism: ExampleMechanism, num_examples: int) -> float:
        """sigma_1: of the reference's noise, drawn (reuse) or part of a step's (fresh)."""
        if self._is_split:
            share = self._share(mechanism, num_examples)
            return math.sqrt(share) * self._step_stddev(mechanism, num_examples)  # (2)
        return mechanism.stddev(self.reference_sensitivity(mechanism, num_examples), num_examples)

    def correction_stddev(self, mechanism: ExampleMechanism, num_examples: int) -> float:
        """Of the noise drawn at one inner step; as printed it covers the reference too."""
        if self.variant == "fresh":
            return self._step_stddev(mechanism, num_examples)
        if self._is_split:
            return self._correction_part(mechanism, num_examples)
        return mechanism.stddev(self.correction_sensitivity(mechanism, num_examples), num_examples)

    def least_cost_share(self, mechanism: ExampleMechanism, num_examples: int) -> float:
        """alpha*: Delta_0 / (Delta_0 + sqrt(3.5) q Delta_1) for batches that hold a share q.

        The minimiser of (3) as printed: (sqrt(14) - 1) / 13 for one example, two clips and equal
        bounds. Without subsets 1 stands for 3.5.
        """
        proper = self.minibatch.kind == "without-replacement"
        rate = self.minibatch.expected_size(num_examples) / num_examples
        factor = SUBSET_FACTOR if proper and rate < 1 else 1.0
        there = self.reference_sensitivity(mechanism, num_examples)
        here = rate * self.correction_sensitivity(mechanism, num_examples)
        return there / (there + math.sqrt(factor) * here)

    @property
    def _is_split(self) -> bool:
        """Whether one variance is shared, instead of one noise multiplier."""
        return self.variant == "fresh" or self.reference_share is not None

    def _share(self, mechanism: ExampleMechanism, num_examples: int) -> float:
        return self.reference_share or self.least_cost_share(mechanism, num_examples)

    def _correction_part(self, mechanism: ExampleMechanism, num_examples: int) -> float:
        """sigma_2: what is left of a step's noise for the correction."""
        share = self._share(mechanism, num_examples)
        return math.sqrt(1.0 - share) * self._step_stddev(mechanism, num_examples)  # (2)

    def _step_stddev(self, mechanism: ExampleMechanism, num_examples: int) -> float:
        """sigma: of reference and correction noise together."""
        together = self.correction_sensitivity(mechanism, num_examples)
        together += self.reference_sensitivity(mechanism, num_examples)
        return mechanism.stddev(together, num_examples)

    def releases(
        self, mechanism: ExampleMechanism, num_examples: int
    ) -> tuple[GaussianRelease, ...]:
        """References and corrections of one turn.

        As printed, one Gaussian of variance sigma^2 covers both; it is the sum of two independent
        ones of variances share * sigma^2 and (1 - share) * sigma^2 (Utpala et al., eq. 2), so the
        step is charged as both, and a reference every step.
        """
        if mechanism.l2_norm_clip is None:
            return ()
        inner = self.epochs * self.inner_steps
        is_fresh = self.variant == "fresh"
        corrected = self._correction_part if is_fresh else self.correction_stddev
        reference = mechanism.release(
            label="reference",
            count=inner if is_fresh else self.epochs,
            stddev=self.reference_stddev(mechanism, num_examples),
            sensitivity=self.reference_sensitivity(mechanism, num_examples),
            sampling=Full().sampling(num_examples),
        )
        correction = mechanism.release(
            label="correction",
            count=inner,
            stddev=corrected(mechanism, num_examples),
            sensitivity=self.correction_sensitivity(mechanism, num_examples),
            sampling=self.minibatch.sampling(num_examples),
        )
        return (reference, correction)
