"""DECOR: decentralised SGD whose noise cancels between neighbours (Algorithm 1).

Allouah, Koloskova, El Firdoussi, Jaggi, Guerraoui: The Privacy Power of Correlated Noise in
Decentralized Learning (ICML 2024).

Symbols: x_i^(t) row i of state["x"], C l2_norm_clip, sigma_cdp noise_stddev of a node's own noise,
sigma_cor mask_stddev of one pairwise mask, v_ij the mask of a pair, W the mixing matrix, eta_t
step_size / (1 + t / decay_rounds).
Invariant: v_ij = -v_ji, fresh in every round and attempt, so that masks vanish in the mean of all
models, to the rounding of float64.

With privacy.unit = "client" the whole gradient of a node is clipped; with "example" each example's
is, and their mean is taken. Who pays what against whom is `manifed.privacy.secldp`: a star's
server sees every message, so it is the eavesdropper (adversary I). Without masks (mask_stddev = 0)
this is the paper's LDP baseline. The public code draws masks once and uses them in every round in
two of its three tasks, which hides nothing; here they are fresh.
"""

from typing import Any, Literal

from torch import Tensor

from manifed.algorithms.algorithm import Here
from manifed.algorithms.gossip import OnGraph
from manifed.algorithms.pair_masks import SETUP, Masking
from manifed.algorithms.payloads import Point, State
from manifed.oracles.noisy_oracle import Oracle


class Decor(Masking, OnGraph):
    """DECOR (Algorithm 1): gossip whose noise cancels between neighbours."""

    kind: Literal["decor"] = "decor"

    def client(self, x: Tensor, oracle: Oracle, here: Here) -> Any:
        """Runs Algorithm 1 of one node: a gradient step with own noise and masks."""
        if here.exchange in SETUP:
            return self.set_up(here)
        shape = here.manifold.coords_of(x)
        masks, after = self.masked_now(shape, here.memory, here.draws)  # line 3
        g = oracle.gradient(x, masks=masks)  # lines 2-4, (3)
        return Point(x - self.step_size_in(here.round) * g), after  # lines 5-6

    def known_point(self, state: State) -> Tensor:
        """The point of every node before round 1."""
        return state["x"][0]
