"""The tangent mean: the server update of PriRFed (Algorithm 1).

Huang, Huang, Jawanpuria, Mishra: Federated Learning on Riemannian Manifolds with Differential
Privacy, Algorithm 1 and (3.2); the aggregation is Li and Ma's (RFedSVRG, 2022). Client updates:
manifed/algorithms/rsgd.py (Algorithm 2), manifed/algorithms/rsvrg.py (Algorithm 3).

Symbols: x^(t) state["x"], Exp_{x}^{-1}(x_i) Displacement.u, w_i = N_i / sum N_l the weights of the
mean, S_t the cohort. Invariant: state["x"] is on the manifold.

Option 1 returns x^(T). Option 2 returns one of x^(1..T), which a reservoir of size one draws
uniformly.

Beyond the paper, and from released points alone, so that it costs no privacy: ``average`` returns
an average of the iterates (manifed/algorithms/averaging.py); ``momentum`` moves along
    m^(t) = u^(t) + momentum * Tr_{x^(t-1) -> x^(t)}(m^(t-1)),   u^(t) the tangent mean,
heavy-ball momentum carried between tangent spaces; m^(t) state["momentum"], kept at x^(t+1).
"""

from typing import Any, ClassVar, Literal

import torch
from pydantic import model_validator
from torch import Tensor

from manifed.algorithms.algorithm import ServerUpdate, There, Weighting
from manifed.algorithms.averaging import Average
from manifed.algorithms.payloads import State
from manifed.fields import Fraction, Positive
from manifed.manifolds.base import DRIFT, Manifold, MapChoice


class TangentMean(ServerUpdate):
    """A step along the tangent mean of the uploads (PriRFed, Algorithm 1, (3.2))."""

    reads_uploads: ClassVar[bool] = False
    kind: Literal["tangent-mean"] = "tangent-mean"
    server_step_size: Positive = 1.0
    """Server step size."""
    weights: Weighting = "num-examples"
    """Weight of a client in the mean: its number of examples, or 1."""
    output_rule: Literal["last", "uniform"] = "last"
    """"last": Option 1, line 12. "uniform": Option 2, line 13."""
    maps: MapChoice | None = None
    """Maps of the server's step. None: those of ``training``."""
    average: Average | None = None
    """The model is this average of iterates. None: the last iterate."""
    momentum: Fraction | None = None
    """Weight of the previous direction. None: no momentum."""

    @model_validator(mode="after")
    def _is_option_1(self) -> "TangentMean":
        if self.output_rule == "uniform" and (self.average or self.momentum):
            raise ValueError(
                "strategy.output_rule: 'uniform' (Option 2) returns one iterate of plain steps, "
                "got it with strategy.average or momentum; use 'last'"
            )
        return self

    def start(self, x: Tensor) -> State:
        """Returns the state before round 1: the point, the drawn output, average and momentum."""
        state = {"x": x, "output": x}
        if self.average is not None:
            state |= self.average.initial(x)
        return state if self.momentum is None else state | {"momentum": torch.zeros_like(x)}

    def server(self, state: State, mean: Tensor, here: There) -> State:
        """Runs lines 10, 12 and 13 of Algorithm 1: the mean, the step, the drawn output."""
        start = state["x"]
        manifold = here.manifold
        choice = self.maps or "exact"
        maps = manifold.maps(choice)
        if self.momentum is not None:
            mean = mean + self.momentum * state["momentum"]
        x = maps.forward(start, self.server_step_size * mean)  # line 10, (3.2)
        keeps = self.output_rule == "last" or here.collected.uniform() * here.round < 1.0  # line 13
        after = state | {"x": x, "output": x if keeps else state["output"]}
        if self.momentum is not None:
            after["momentum"] = maps.transport(start, x, mean)
        if self.average is None:
            return after
        if not float(manifold.membership_defect(x)) <= DRIFT[x.dtype]:
            raise ArithmeticError("Expected an iterate on the manifold, got another")
        return self.average.include(after, here.round, manifold, choice)

    def model(self, state: State, manifold: Manifold) -> Tensor:
        """Returns the broadcast point, or the average of all broadcast points."""
        return state["x"] if self.average is None else self.average.point(state)

    def output(self, state: State, manifold: Manifold) -> Tensor:
        """Returns x^(T), the average, or the drawn iterate."""
        return self.model(state, manifold) if self.output_rule == "last" else state["output"]

    @property
    def is_average(self) -> bool:
        """Whether the config asks for an average of iterates."""
        return self.average is not None

    def check_server(self, setting: Any) -> None:
        """Refuses an average that would hold no iterate, or of points that cannot be averaged."""
        if self.average is None:
            return
        self.average.check(setting.manifold)
        rounds = setting.federation.num_rounds
        if self.average.from_round > rounds:
            raise ValueError(
                f"strategy.average.from_round: expected at most federation.num_rounds = {rounds}, "
                f"got {self.average.from_round}"
            )
