r"""A clip norm that all clients share, and that rises to a private quantile of gradient norms.

After Andrew, Thakkar, McMahan, Ramaswamy: Differentially Private Learning with Adaptive Clipping
(2021), with an example as the unit. A round's clip norm is C_t = c_t C, where C is the clip norm of
the config, a public bound, and c_t <= 1 comes down with the point. A client clips to C_t and adds
noise in proportion to it, so that the price of an answer does not depend on c_t. Beside its upload
it sends the noised share of its examples whose gradient is at most C_t long, by which the server
moves the clip:

    c_{t+1} = c_t exp(-learning_rate (share - target_quantile)),   LEAST <= c_{t+1} <= 1.

The price: a mechanism of noise multiplier z pays for one answer and the share together. A share p
of 1/z^2 goes to the share, so that the answer has the multiplier z / sqrt(1 - p). One example moves
the sum of b_j - 1/2, b_j = 1 where |g_j| <= C_t, by at most 1/2, and its noise has the deviation
z / (2 sqrt p): 1/z^2 = (1 - p)/z^2 + (1/2)^2 (2 sqrt p / z)^2. It uses all examples of the client,
unsampled, whatever batches answers use.

Why the clip rises: one that is too small costs a bias that the last rounds forget, and one that is
too large costs noise. It is common to all clients, because noise on a client's own share is larger
by the root of their number, and because clips that differ would move the mean's zero.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp
from typing import Any, Self

import torch
from torch import Tensor

from manifed.algorithms.algorithm import Here, Phase, There, Weighting
from manifed.algorithms.around import Around
from manifed.algorithms.payloads import BadBroadcast, Displacement, Payload, Point, State
from manifed.manifolds.base import Manifold, MapChoice
from manifed.manifolds.linalg import Shape, Tensors
from manifed.oracles.minibatch import Query
from manifed.oracles.noisy_oracle import Oracle
from manifed.privacy.events import Unsampled
from manifed.privacy.mechanism import ExampleMechanism, RisingClip

CLIP = "clip"
"""The entry of a server's state that holds c_t, shape (1,)."""
LEAST = 1e-6
"""The least c_t, below which a gradient is as good as normalised."""
_FARTHEST = 4.0
"""A noised share counts as at most so far from 0 or 1: no draw of noise throws the clip away."""


def _share_of(clip: Tensor) -> float:
    """The one c_t of a round, or of a stack of clients.

    Raises:
        BadBroadcast: a clip norm outside [1e-6, 1] of this client's own, or several of them.
    """
    least, largest = map(float, clip.aminmax())
    if not LEAST <= least == largest <= 1.0:
        raise BadBroadcast(
            f"Expected one clip norm of {LEAST:g} to 1 times privacy.l2_norm_clip, got {least:g} "
            f"to {largest:g} times; nothing was computed"
        )
    return largest


@dataclass(frozen=True)
class _PointAndClip(Payload):
    """Downlink: the broadcast point, and c_t, the clip norm as a share of the config's."""

    x: Tensor
    clip: Tensor

    @classmethod
    def layout(cls, shape: Shape, dtype: torch.dtype) -> Mapping[str, Any]:
        """Lists a point and a number in float64."""
        return {"x": (shape, dtype), "clip": ((1,), torch.float64)}

    @classmethod
    def received(cls, tensors: Tensors, places: Sequence[str], manifold: Manifold) -> Self:
        """Makes the payload of what came down; refuses a clip norm, too, that is out of range."""
        made = super().received(tensors, places, manifold)
        _share_of(made.clip)
        return made


@dataclass(frozen=True)
class _UploadAndShare(Payload):
    """Uplink: the algorithm's own vector, and the noised share of gradients below the clip."""

    u: Tensor
    share: Tensor

    @classmethod
    def layout(cls, shape: Shape, dtype: torch.dtype) -> Mapping[str, Any]:
        """Lists a vector and a number in float64."""
        return {"u": (shape, dtype), "share": ((1,), torch.float64)}


class AdaptiveClip(Around):
    """An algorithm whose clients clip to a norm that rises to a private quantile."""

    kind: str
    """That of the algorithm itself."""
    rule: RisingClip

    @property
    def space(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Where the algorithm's uploads live."""
        return self.client_update.space

    @property
    def weighting(self) -> Weighting:
        """The rule by which the algorithm weights clients."""
        return self.server_update.weighting

    @property
    def server_maps(self) -> MapChoice | None:
        """The maps of the algorithm."""
        return self.client_update.server_maps

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The algorithm's exchange, with the clip norm beside the point and a share beside it."""
        inner = self.inner
        uploads = (*inner.uploads, "any")
        return (Phase(inner.name, _PointAndClip, _UploadAndShare, (*inner.places, "any"), uploads),)

    # -- what is asked and released ----------------------------------------------------------
    def queries(self, mechanism: ExampleMechanism, num_examples: int) -> tuple[Query, ...]:
        """The algorithm's queries with the rest of the budget, and the share of small gradients."""
        share = self.rule.budget_share
        own = self.client_update.queries(mechanism.scaled((1 - share) ** -0.5), num_examples)
        counted = own[0].mechanism.scaled((1 / share - 1) ** 0.5)
        sensitivity = counted.sensitivity(0.5, num_examples)
        stddev = counted.noise.stddev(sensitivity, num_examples)
        is_clipped = counted.l2_norm_clip is not None
        count = Query(
            "count", counted, num_examples, Unsampled(), "below", float(num_examples),
            counted.l2_norm_clip, sensitivity, stddev, drawn=stddev if is_clipped else None,
            count=1,
            needs_exact_size=is_clipped and counted.neighboring_relation == "replace-one",
        )  # fmt: skip
        return (*own, count)

    @property
    def premise(self) -> str:
        """What a client does to its records beside the clip."""
        rule = self.rule
        return self.client_update.premise + (
            f"; the clip norm rises from {rule.start:g} of l2_norm_clip to where a share of "
            f"{rule.target_quantile:g} of all gradients is shorter, by a noised count that every "
            f"upload carries for {rule.budget_share:g} of its budget"
        )

    # -- a round -----------------------------------------------------------------------------
    def client(self, x: Tensor, oracle: Oracle, here: Here) -> Payload:
        """Runs the algorithm's update at the clip norm that came down, and counts below it."""
        came: Any = here.came
        oracle.narrow(_share_of(came.clip))
        inner = self.inner
        own = here._replace(exchange=inner.name, came=Point(x), places=inner.places)
        made = self.client_update.client(x, oracle, own)
        u = made.point if isinstance(made, Payload) else made
        return _UploadAndShare(u, oracle.share_below(x))

    def start(self, x: Tensor) -> State:
        """Returns the algorithm's state before round 1, and where the clip norm starts."""
        first = torch.full((1,), self.rule.start, dtype=torch.float64, device=x.device)
        return super().start(x) | {CLIP: first}

    def down(self, state: State, phase: str) -> Payload:
        """Returns the algorithm's point, and the clip norm."""
        return _PointAndClip(self.server_update.down(state, phase).point, state[CLIP])

    def server(self, state: State, mean: Tensor, here: There) -> State:
        """Takes the algorithm's step, and moves the clip norm towards the target quantile."""
        rule = self.rule
        share = float(here.collected.mean["share"])
        share = min(max(share, -_FARTHEST), 1 + _FARTHEST)
        moved = state[CLIP] * exp(-rule.learning_rate * (share - rule.target_quantile))
        after = self.server_update.server(state, mean, here._replace(exchange=self.inner.name))
        return after | {CLIP: moved.clamp(LEAST, 1.0)}

    # -- what it does not go with ------------------------------------------------------------
    def check(self, setting: Any) -> None:
        """Refuses algorithms of other exchanges, and noise of which there is no share."""
        self.client_update.check(setting)
        update, privacy = self.client_update, setting.privacy
        phases = (*update.setup_phases, *update.phases)
        kinds = [(one.down, one.up) for one in phases]
        if kinds != [(Point, Displacement)] or update.has_memory or self.server_update.opens_sums:
            raise ValueError(
                "privacy.adaptive: expected training with one exchange a round, a point down and "
                f"a vector up, and no memory, got training.kind = {self.kind!r}; use 'rsgd'"
            )
        if privacy.trust is not None or privacy.l1_norm_clip is not None:
            raise ValueError(
                "privacy.adaptive: expected neither privacy.trust nor l1_norm_clip beside it: the "
                "clip of integers and of Laplace noise is fixed; remove one of them"
            )
        if privacy.noise.kind == "published":
            raise ValueError(
                "privacy.adaptive: expected privacy.noise.kind = 'target' or 'multiplier', which "
                "gives the count its noise, got 'published'"
            )

    def check_server(self, setting: Any) -> None:
        """Refuses what the algorithm's server refuses."""
        self.server_update.check_server(setting)
