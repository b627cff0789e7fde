r"""Averages of released iterates, made on the server as post-processing without privacy cost.

* Geodesic: x_bar_n = Exp_{x_bar_{n-1}}( (w_n / W_n) Log_{x_bar_{n-1}}(x_n) ) with
  W_n = w_1 + ... + w_n. With equal weights it is the streaming average of Tripuraneni,
  Flammarion, Bach, Jordan: Averaging Stochastic Gradient Descent on Riemannian Manifolds (2018).
  Near a strict minimum its error is that of the average of the linearised iterates.
* Projector: the leading k-dimensional eigenspace of sum_n (w_n / W_n) x_n x_n^T, for points that
  are orthonormal frames (Fan, Wang, Wang, Zhu: Distributed Estimation of Principal Eigenspaces,
  2019, with iterates in the place of machines). It does not depend on the basis of a subspace.

Symbols: x_n state["x"] after a round, x_bar state["average"] (the point, or the mean projector),
W_n / w_n state["weights"]. Both forget what was before ``from_round``: a tail average.

Guarantee: both are functions of points that were broadcast, and of the config. Whoever sees the
broadcasts could compute them, so every bound of the run holds for them as well.
"""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from manifed.algorithms.payloads import State
from manifed.fields import BY_KIND, Frozen, PositiveCount
from manifed.manifolds import Grassmann, Sphere, Stiefel
from manifed.manifolds.base import Manifold, MapChoice
from manifed.manifolds.linalg import polar

_LARGEST = 1e100
"""The largest W_n / w_n: beyond it an iterate changes nothing."""


class _Weights(Frozen):
    """Which iterates count, and how much: public numbers, fixed before the run."""

    from_round: PositiveCount = 1
    """The average begins with the iterate after this round."""
    power: float = Field(default=0.0, ge=0, le=64)
    """Weights grow as n^power, with n = 1 in ``from_round``. 0: plain average."""
    noise_ratio: float = Field(default=1.0, ge=1e-3, le=1e3)
    """Noise of a round over that of the round before. Weights are inverse variances."""

    def initial(self, x: Tensor) -> State:
        """What a state holds more: the average, or the mean projector (d, d), and W_n / w_n."""
        return {"average": x, "weights": torch.zeros((), dtype=torch.float64, device=x.device)}

    def after(self, state: State, server_round: int) -> Tensor:
        """W_n / w_n with the iterate of this round, in [1, 1e100]; before the first it is 0."""
        n = server_round - self.from_round + 1
        step = ((n - 1) / n) ** self.power * self.noise_ratio**2
        return (1 + state["weights"] * step).clamp_max(_LARGEST)

    def check(self, manifold: Manifold) -> None:
        """Refuse points that cannot be averaged; any can that have the maps of the algorithm."""


class GeodesicAverage(_Weights):
    """Streaming average along geodesics (or retractions, if ``maps`` says so)."""

    kind: Literal["geodesic"] = "geodesic"

    def include(
        self, state: State, server_round: int, manifold: Manifold, maps: MapChoice
    ) -> State:
        """The state whose average holds the iterate state["x"] of this round too."""
        if server_round < self.from_round:
            return state | {"average": state["x"]}
        ratio = self.after(state, server_round)
        average = state["x"]
        if float(ratio) != 1.0:
            start = state["average"]
            move = manifold.maps(maps)
            average = move.forward(start, move.inverse(start, average) / ratio)
        return state | {"average": average, "weights": ratio}

    def point(self, state: State) -> Tensor:
        """The average, shape ``(*point)``."""
        return state["average"]


class ProjectorAverage(_Weights):
    """Leading eigenspace of the mean projector."""

    kind: Literal["projector"] = "projector"

    def initial(self, x: Tensor) -> State:
        """Returns a mean projector of zeros."""
        d = len(_frame(x))
        return super().initial(x.new_zeros(d, d))

    def include(
        self, state: State, server_round: int, manifold: Manifold, maps: MapChoice
    ) -> State:
        """The state whose mean projector holds the iterate state["x"] of this round too."""
        if server_round < self.from_round:
            return state
        ratio = self.after(state, server_round)
        frame = _frame(state["x"])
        mean = state["average"]
        move = (1 / ratio).to(mean.dtype) * (frame @ frame.mT - mean)
        return state | {"average": mean + move, "weights": ratio}

    def point(self, state: State) -> Tensor:
        """The average, shape ``(*point)``; the last iterate while none counts."""
        x = state["x"]
        if float(state["weights"]) == 0:
            return x
        frame = _frame(x)
        top = torch.linalg.eigh(state["average"])[1][..., -frame.shape[-1] :]
        return (top @ polar(top.mT @ frame)).reshape(x.shape)

    def check(self, manifold: Manifold) -> None:
        """Refuses manifolds whose points are not orthonormal frames.

        Raises:
            ValueError: naming the manifold.
        """
        if not isinstance(manifold, Sphere | Stiefel | Grassmann):
            raise ValueError(
                "strategy.average.kind: 'projector' averages subspaces, for points on Sphere, "
                f"Stiefel or Grassmann, got {manifold.name}; use 'geodesic'"
            )


Average = Annotated[GeodesicAverage | ProjectorAverage, BY_KIND]


def _frame(x: Tensor) -> Tensor:
    """The point as a matrix (d, k) of orthonormal columns."""
    return x.unsqueeze(-1) if x.dim() == 1 else x
