r"""Steps of the server whose length follows from the noised uploads, and so costs no privacy.

``distance``: distance over gradients (Ivgi, Hinder, Carmon: DoG is SGD's Best Friend, 2023), with a
public distance D in place of a tiny one. With u_t the mean of round t over its clip norm,

    x_{t+1} = Exp_x( factor r_t u_t / sqrt(|u_1|^2 + ... + |u_t|^2) ),
    r_t = max(D, dist(x_1, x_i), i <= t).

It does not depend on the scale of the cost, of its gradients or of ``training.step_size``. With
``scaling = "matrix"``, for vectors of R^d, every direction has squares of its own, as in AdaGrad
with a full matrix (Duchi, Hazan, Singer 2011):

    x_{t+1} = x - factor r_t / sqrt(d) G_t^{-1/2} u_t,   G_t = u_1 u_1^T + ... + u_t u_t^T.

Where u is as long in every direction, both steps are. Where columns fill a small part of their
ranges, long gradients along their mean shorten no step along the directions in which they vary.

``curvature``: for costs whose Hessian is a known multiple h of the identity where nothing is
clipped, as means of points have h = 2. Each round gives an estimate x - g_t / h of the minimum, and
x moves to the mean of all of them, weighted by the inverse variances of their noise:

    x_{t+1} = Exp_x( -(w_t / (w_1 + ... + w_t)) g_t / (h e_t) ),   w_t = (e_t / z_t)^2.

e_t is what a clip leaves of the curvature: about (1 + s_t)/2 where a share s_t is not clipped,
since a clipped gradient still turns with x. Without an adaptive clip e_t = 1.
"""

from math import sqrt
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from manifed.algorithms.adaptive_clip import CLIP
from manifed.algorithms.algorithm import There
from manifed.algorithms.payloads import State
from manifed.algorithms.tangent_mean import TangentMean
from manifed.fields import Positive, WholeNumber
from manifed.manifolds.base import Manifold
from manifed.manifolds.euclidean import Euclidean

_LEAST_LEFT = 0.25
"""The least e_t: a share that noise makes small must not make a step long."""


class MeasuredSteps(TangentMean):
    """A tangent mean whose step length follows from the uploads, by a distance or a curvature."""

    later: ClassVar = ("radius", "settles", "scaling")
    """As `manifed.problems.data.DataSource.later`."""
    reads_uploads: ClassVar[bool] = False
    kind: Literal["measured-steps"] = "measured-steps"  # pyright: ignore[reportIncompatibleVariableOverride]
    distance: Positive | None = None
    """Public guess of how far the minimum is from the start. Steps grow where it is too small."""
    settles: WholeNumber = 0
    """Rounds before the first step by distance, in which an adaptive clip settles. The distance is
    then in units of the clip: it is multiplied by the share c_t that is reached."""
    factor: Positive = 1.0
    """Factor of steps by distance."""
    scaling: Literal["norm", "matrix"] = "norm"
    """What a step by distance is divided by. "norm": the root of all squared uploads, which is one
    number for all directions. "matrix": the root of the sum of their outer products, by which every
    direction has a length of its own; points are then vectors."""
    curvature: Positive | None = None
    """Curvature of the cost where nothing is clipped, times ``training.step_size``."""
    radius: Positive | None = None
    """Public bound of how far the minimum is from the start. A step that would end beyond it ends
    at it, so that noise moves no model to where numbers overflow. None: steps have any length."""
    noise_ratio: float = Field(default=1.0, ge=1e-3, le=1e3)
    """Noise of a round over that of the round before, for the weights by curvature."""

    @model_validator(mode="after")
    def _has_one_rule(self) -> "MeasuredSteps":
        if (self.distance is None) == (self.curvature is None):
            raise ValueError(
                "strategy: expected either distance or curvature with kind = 'measured-steps', got "
                f"{self.distance} and {self.curvature}"
            )
        if self.settles and self.distance is None:
            raise ValueError("strategy.settles: expected strategy.distance beside it, got none")
        if self.scaling == "matrix" and self.distance is None:
            raise ValueError("strategy.scaling: expected strategy.distance beside it, got none")
        return self

    def start(self, x: Tensor) -> State:
        """Returns the state before round 1, with what steps are measured by."""
        nothing = torch.zeros((), dtype=torch.float64, device=x.device)
        is_matrix = self.scaling == "matrix"
        squares = nothing.new_zeros((*x.shape, *x.shape)) if is_matrix else nothing
        state = super().start(x) | {"measured": squares}
        if self.radius is not None or self.distance is not None:
            state |= {"origin": x}
        return state if self.distance is None else state | {"reach": nothing}

    def check_server(self, setting: Any) -> None:
        """Refuses a radius where a step cannot be held to it."""
        super().check_server(setting)
        is_more = self.momentum or self.server_step_size != 1
        if self.radius is not None and (is_more or not setting.manifold.has_logmap):
            raise ValueError(
                "strategy.radius: expected neither momentum nor server_step_size beside it, and a "
                "manifold with logarithms"
            )
        if self.scaling == "matrix" and setting.manifold != Euclidean():
            raise ValueError(
                "strategy.scaling: expected points that are vectors beside 'matrix', got those of "
                f"{setting.manifold}"
            )

    def server(self, state: State, mean: Tensor, here: There) -> State:
        """Takes a step of measured length along the mean, as `TangentMean.server` does."""
        rule = self._by_curvature if self.distance is None else self._by_distance
        step, kept = rule(state, mean, here)
        step = self._held(state, step, here.manifold)
        return super().server(state, step, here) | kept

    def _held(self, state: State, step: Tensor, on: Manifold) -> Tensor:
        """The step, or one that ends ``radius`` from the start where it would end beyond."""
        if (radius := self.radius) is None:
            return step
        origin, x = state["origin"], state["x"]
        length = float(on.norm(x, step))
        step = step * min(1.0, radius / length) if length else step  # beyond, numbers overflow
        way = on.logmap(origin, on.expmap(x, step))
        far = float(on.norm(origin, way))
        return step if far <= radius else on.logmap(x, on.expmap(origin, way * (radius / far)))

    def _by_distance(self, state: State, mean: Tensor, here: There) -> tuple[Tensor, State]:
        """The step, and the squares and reach that are kept."""
        assert self.distance is not None
        x, clip = state["x"], float(state[CLIP]) if CLIP in state else 1.0
        manifold = here.manifold
        if here.round <= self.settles:
            reach = torch.full_like(state["reach"], self.distance * clip)
            return torch.zeros_like(mean), {"reach": reach}
        if manifold.has_logmap:
            moved = manifold.dist(state["origin"], x)
        else:
            moved = torch.linalg.vector_norm(x - state["origin"])
        reach = torch.maximum(state["reach"], moved.double())
        length = self.factor * max(0.0 if self.settles else self.distance, float(reach))
        if self.scaling == "matrix":
            u = mean.double() / clip
            squares = state["measured"] + torch.outer(u, u)
            values, axes = torch.linalg.eigh(squares)
            # u has no part along axes without squares, but for rounding
            values = values.clamp_min(1e-9 * float(values[-1]) or 1.0)
            divided = axes @ (axes.mT @ u / (len(u) * values).sqrt())
            step = (length * divided).to(mean.dtype)
        else:
            squares = state["measured"] + (manifold.norm(x, mean).double() / clip) ** 2
            root = sqrt(squares) or 1.0  # nothing may have been uploaded but zeros
            step = length / (clip * root) * mean
        return step, {"measured": squares, "reach": reach}

    def _by_curvature(self, state: State, mean: Tensor, here: There) -> tuple[Tensor, State]:
        """The step, and the sum of weights that is kept."""
        assert self.curvature is not None
        share: Any = here.collected.mean.get("share")
        left = 1.0 if share is None else min(max((1 + float(share)) / 2, _LEAST_LEFT), 1.0)
        weight = (left * self.noise_ratio ** (1 - here.round)) ** 2
        total = state["measured"] + weight
        return weight / float(total) / (self.curvature * left) * mean, {"measured": total}
