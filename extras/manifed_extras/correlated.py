r"""Riemannian SGD whose noise is correlated over rounds, in coordinates of the tangent spaces.

In round t a client sends Exp-steps along g_t + stddev J_t zhat_t, where g_t is its clipped mean
gradient at x_t, J_t = from_coords(x_t, .) maps R^m onto T_{x_t}M with J_t J_t^T = I, and
zhat = C^{-1} z is normal noise correlated over the rounds (manifed_extras/correlation.py): what is
added now is partly what was added before, with the other sign. The rest is Algorithm 2 of PriRFed
with one step a round (manifed/algorithms/rsgd.py). BandMF (arXiv 2306.08153), BISR (2505.12128).

Guarantee (proof: extras/docs/correlated-noise.md): given all that was sent before, the mean of what
is sent in round t moves by at most (c_0 + ... + c_{t-1}) bounds between neighbours, and its fresh
noise is stddev J_t z_t. So round t is charged as a Gaussian release with that sensitivity, whatever
the points were, although J_t depends on them. It holds for fewer terms as well: a client that has
lost its memory, or was left out, begins a chain of its own, at no larger price.

Symbols: z_t History.normals (as drawn, or as added), t server_round. History never leaves a client:
who has it can take off the noise of what was sent.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import torch
from pydantic import model_validator
from torch import Tensor

from manifed.algorithms.algorithm import Here
from manifed.algorithms.payloads import Memory
from manifed.algorithms.rsgd import RSGD
from manifed.manifolds.base import Manifold
from manifed.oracles.minibatch import Full, Minibatch, Query
from manifed.oracles.noisy_oracle import Oracle
from manifed.privacy.mechanism import ExampleMechanism
from manifed_extras.correlation import Correlation, row_sum


@dataclass(frozen=True)
class History(Memory):
    """The normals of earlier rounds, newest first: (..., *point, bands - 1), float64.

    ``length`` counts the rounds of the chain, (..., 1) or (..., d, 1).
    """

    normals: Tensor
    length: Tensor


class CorrelatedRSGD(RSGD):
    """One full-batch step a round; ``correlation`` says how noise depends on that of the past."""

    # frozen, so another literal in the place of the base's is sound
    kind: Literal["manifed_extras.correlated:CorrelatedRSGD"] = (  # pyright: ignore[reportIncompatibleVariableOverride]
        "manifed_extras.correlated:CorrelatedRSGD"
    )
    minibatch: Minibatch = Full()
    """The examples of one step."""
    correlation: Correlation
    """How the noise of a round depends on that of earlier rounds."""

    @model_validator(mode="after")
    def _is_priced(self) -> Self:
        found = (self.minibatch.kind, self.local_steps, self.output)
        if found != ("full", 1, "last-iterate"):
            raise ValueError(
                f"training.kind: {self.kind!r} is priced for minibatch 'full', local_steps 1 "
                f"and output 'last-iterate', got {', '.join(map(repr, found))}"
            )
        return self

    def in_round(self, server_round: int) -> "CorrelatedRSGD":
        """The update of a round, which is charged by its number."""
        return self.with_round(server_round)

    def initial_memory(self, x: Tensor) -> Memory | None:
        """No noise yet."""
        shape = (*x.shape, self.correlation.bands - 1)
        empty = torch.zeros(shape, dtype=torch.float64, device=x.device)
        return History(empty, torch.zeros_like(x[..., :1], dtype=torch.float64))

    def queries(self, mechanism: ExampleMechanism, num_examples: int) -> tuple[Query, ...]:
        """One gradient; its sensitivity given the past is the row sum times that of a fresh one."""
        (fresh,) = super().queries(mechanism, num_examples)
        shift = row_sum(self.correlation, self._round)
        return (replace(fresh, sensitivity=fresh.sensitivity * shift),)

    def client(self, x: Tensor, oracle: Oracle, here: Here) -> Any:
        """One step of Algorithm 2 from the broadcast point, and the history with its noise."""
        manifold = here.manifold
        before = here.memory or self.initial_memory(x)
        assert isinstance(before, History)
        # a chain is priced by its length: one that is longer than the rounds were begins anew
        is_priced = before.length < here.round
        history = torch.where(is_priced.unsqueeze(-1), before.normals, 0.0)
        past = _coords(history @ history.new_tensor(self.correlation.weights), manifold)
        eta, z = oracle.correlated(x, past)
        maps = manifold.maps(self.maps)
        y = maps.forward(x, -self.step_size * eta)
        newest = _as_points(z if self.correlation.remembers == "drawn" else z + past, x, manifold)
        older = history.expand(*newest.shape, history.shape[-1])
        normals = torch.cat((newest.unsqueeze(-1), older), -1)[..., :-1]
        length = torch.where(is_priced, before.length, 0.0) + 1
        length = length.expand(*newest.shape[:-1], 1)
        return maps.inverse(x, y), History(normals.contiguous(), length.contiguous())

    @property
    def kept_noise(self) -> str | None:
        """That of the rounds that the correlation looks back on."""
        last = self.correlation.bands - 1
        return f"the noise of its last {last} rounds, on which that of the next depends"

    def check(self, setting: Any) -> None:
        """Refuse noise over rounds that nothing prices."""
        super().check(setting)
        privacy = setting.privacy.kind
        cohort = setting.federation.cohort.kind
        if privacy == "client-level":
            raise ValueError(
                f"training.kind: {self.kind!r} correlates the noise of clients, and with "
                "privacy.kind = 'client-level' the server adds it; use 'rsgd' or 'example-level'"
            )
        if privacy != "none" and cohort != "all":
            raise ValueError(
                "federation.cohort.kind: noise that depends on earlier rounds is priced for "
                f"clients that take part in all of them ('all'), got {cohort!r}; use 'all', or "
                "training.kind = 'rsgd'"
            )


def _coords(points: Tensor, manifold: Manifold) -> Tensor:
    """Coordinates (..., *coords) that `_as_points` stored in the shape of a point."""
    shape = tuple(points.shape[points.dim() - manifold.ndim :])
    coords = torch.Size(manifold.coords_shape(shape))
    flat = points.flatten(-manifold.ndim)[..., : coords.numel()]
    return flat.reshape(*flat.shape[:-1], *coords)


def _as_points(coords: Tensor, x: Tensor, manifold: Manifold) -> Tensor:
    """Coordinates in the shape of a point of x, with zeros behind them."""
    shape = x.shape[x.dim() - manifold.ndim :]
    dims = len(manifold.coords_shape(tuple(shape)))
    flat = coords.flatten(-dims)
    padded = torch.nn.functional.pad(flat, (0, shape.numel() - flat.shape[-1]))
    return padded.reshape(*padded.shape[:-1], *shape)
