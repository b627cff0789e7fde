"""Gossip on a manifold: every node has a point of its own, and what is mixed stays on the manifold.

Chen, Garcia, Hong, Shahrampour: Decentralized Riemannian Gradient Descent on the Stiefel Manifold
(2021) for the setting; Tron, Afsari, Vidal: Riemannian Consensus for Manifolds With Bounded
Curvature (2013) for the tangent mean. As in `manifed.algorithms.gossip` a round is a step and then
a mixing; here

    x_i^(t+1/2) = Exp_{x_i}(-eta_t g_i),   x_i = x_i^(t), g_i the oracle's gradient,
    x_i^(t+1) = Exp_{x_i}(sum_j W_ij Exp_{x_i}^{-1}(x_j^(t+1/2)))    consensus = "tangent-mean",
    x_i^(t+1) = P(sum_j W_ij x_j^(t+1/2))                            consensus = "projection",

P projx. Vectors are taken at a node's own model, which the server knows, so with complete mixing
all nodes keep one model and a round is one of PriRFed's (Algorithms 1 and 2, uniform weights), and
on R^d both are plain gossip. Without masks: tangent vectors at different points do not cancel.

Invariant: every model is on the manifold; points that agree are not moved by mixing.
"""

from typing import Any, Literal

import numpy as np
import torch
from scipy.sparse import coo_array
from torch import Tensor

from manifed.algorithms.algorithm import Here, There
from manifed.algorithms.gossip import OnGraph
from manifed.algorithms.payloads import Point, State
from manifed.manifolds.base import Manifold, MapChoice
from manifed.manifolds.euclidean import Euclidean
from manifed.manifolds.sphere import Sphere
from manifed.manifolds.stiefel import Stiefel
from manifed.oracles.noisy_oracle import Oracle


class ManifoldGossip(OnGraph):
    """A Riemannian step at every node, and a mixing of points; the server mixes."""

    kind: Literal["manifed_extras.manifold_gossip:ManifoldGossip"] = (
        "manifed_extras.manifold_gossip:ManifoldGossip"
    )
    consensus: Literal["tangent-mean", "projection"] = "tangent-mean"
    """Mean in the tangent space at a node's own point, or the projection of the ambient mean."""
    maps: MapChoice = "exact"
    """Exponential map and logarithm, or the retraction and its inverse."""

    # -- the client --------------------------------------------------------------------------
    def client(self, x: Tensor, oracle: Oracle, here: Here) -> Any:
        """x_i^(t + 1/2)."""
        forward = here.manifold.maps(self.maps).forward
        eta = self.step_size_in(here.round)
        for _ in range(self.local_steps):
            x = forward(x, -eta * oracle.gradient(x))
        return Point(x)

    def check_mixes(self, manifold: Manifold) -> None:
        """Refuse points that have no mean in their ambient space."""
        if type(manifold) not in (Euclidean, Sphere, Stiefel):
            raise ValueError(
                f"training.kind: {self.kind!r} averages points in their ambient space, so it "
                f"needs R^d, the sphere or Stiefel, got {manifold.name}"
            )

    # -- the server --------------------------------------------------------------------------
    def server(self, state: State, mean: Tensor, here: There) -> State:
        """x_i^(t+1) of every node."""
        halves = here.collected.rows
        if self.consensus == "projection":
            return state | {"x": here.manifold.projx(self.network.mixed(halves))}
        return state | {"x": self._tangent_means(state["x"], halves, here.manifold)}

    def _tangent_means(self, x: Tensor, halves: Tensor, manifold: Manifold) -> Tensor:
        """Exp_{x_i}(sum_j W_ij Exp_{x_i}^{-1}(y_j)), (n, *point), over the neighbours alone."""
        maps = manifold.maps(self.maps)
        weights = coo_array(self.network.weights)
        total = torch.zeros_like(x)
        beside = weights.row != weights.col
        for among in (~beside, beside):  # a node's own half step first, then in the order of nodes
            rows, columns = (torch.as_tensor(i[among].astype(np.int64)) for i in weights.coords)
            share = torch.as_tensor(weights.data[among]).to(x).reshape(-1, *[1] * manifold.ndim)
            rows = rows.to(x.device)
            columns = columns.to(x.device)
            total.index_add_(0, rows, share * maps.inverse(x[rows], halves[columns]))
        return maps.forward(x, total)

    def model(self, state: State, manifold: Manifold) -> Tensor:
        """P of the mean of all models."""
        return manifold.projx(state["x"].mean(0))
