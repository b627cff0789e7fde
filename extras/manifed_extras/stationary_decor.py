r"""DECOR whose own noise and masks are correlated over rounds: streams instead of fresh draws.

Allouah et al. (DECOR), Algorithm 1, with the noise of `manifed_extras.stationary`: node i adds

    sigma_cdp (v_i(t) + sum_j o_j u_ij(t)) + sigma_cor sum over its edges e of +- sum_j s_j m_ej(t)

in round t, where u and m are stationary streams of unit variance (white, slow or fast), o_j
``own`` and s_j ``shared`` of a stream, alike at all nodes and at all edges, sigma_cdp and sigma_cor
privacy.noise_stddev and mask_stddev. The price of T rounds is that of T Gaussian releases of the
largest precision over frequencies (decor-beyond.md, Theorem 1): round by round, so no horizon
is fixed beforehand.

Invariant: the two ends of an edge add and subtract one stream, so masks vanish in the mean of all
models. A recursion is linear and the same at all edges, so a node keeps one state for the signed
sum of its masks. Streams start from their stationary law in round 1 and go on from the round
before: a node whose memory is of another round computes them again where they come from the seed,
and refuses where they do not.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from pydantic import Field, NonNegativeFloat, model_validator
from torch import Tensor

from manifed.algorithms.algorithm import Here
from manifed.algorithms.decor import Decor
from manifed.algorithms.pair_masks import SETUP, PairKeys
from manifed.algorithms.payloads import Memory, Point
from manifed.fields import Frozen
from manifed.oracles.noisy_oracle import Draws, Oracle
from manifed.privacy.random_numbers import Stream
from manifed.privacy.secldp import MOST_EXACT, Correlated, Hidden
from manifed_extras import stationary
from manifed_extras.stationary import Shape, StationaryNoise

_MOST_LOOKED_AT = 128
"""Coalitions, each of which takes inverses at many frequencies."""
_DOWN = 1 - 2.0**-50
"""Against the rounding of a quotient: a noise multiplier is stated no larger than it is."""


def hidden_by(noise: StationaryNoise, collusion: int, coalition: Sequence[int] = ()) -> Hidden:
    """What streams hide of one round, each as if it were fresh (decor-beyond.md, Theorem 1).

    Where coalitions are more than can be looked at, what is hidden from all others counts.
    """
    most = noise.graph.num_nodes - 1
    alone = float(noise.floors.min()) ** 0.5 * _DOWN
    three = alone
    if coalition:
        three = stationary.against(noise, coalition).stddev * _DOWN
    elif math.comb(most + 1, min(collusion, most)) <= _MOST_LOOKED_AT:
        three = stationary.worst(noise, min(collusion, most)).stddev * _DOWN
    return Hidden(
        from_server=stationary.worst(noise, 0).stddev * _DOWN,
        from_one=stationary.worst(noise, min(1, most)).stddev * _DOWN,
        from_coalition=max(three, alone),
        from_all=alone,
    )


class StreamBroken(RuntimeError):
    """A question for a round whose streams cannot go on from the round before."""


class StreamSpec(Frozen):
    """One stream: its shape, and its share at every node and at every edge."""

    kind: Literal["white", "slow", "fast"]
    """Its shape over rounds."""
    memory: float = Field(default=0.0, ge=0, lt=1)
    """Correlation of one round with the next, of a stream that is not white."""
    own: NonNegativeFloat = 0.0
    """In units of privacy.noise_stddev, which is the white part of a node's own noise."""
    shared: NonNegativeFloat = 0.0
    """In units of privacy.mask_stddev."""

    @model_validator(mode="after")
    def _is_one(self) -> "StreamSpec":
        if self.kind == "white" and (self.memory or self.own):
            raise ValueError(
                "training.streams: expected memory = 0 and own = 0 with kind = 'white' (a node's "
                f"own white noise is privacy.noise_stddev), got {self.memory:g} and {self.own:g}"
            )
        return self

    @property
    def shape(self) -> Shape:
        """How it is correlated over rounds."""
        return Shape(self.kind, self.memory)


@dataclass(frozen=True)
class Streams(PairKeys):
    """The states of a node's streams beside its keys, if it has any; it never travels.

    ``own`` and ``shared`` have shape (*point, number of streams), ``last`` (..., 1) is the round
    they are of.
    """

    own: Tensor
    shared: Tensor
    last: Tensor


class StationaryDecor(Decor):
    """Algorithm 1 with streams; see the module."""

    # frozen, so another literal in the place of the base's is sound
    kind: Literal["manifed_extras.stationary_decor:StationaryDecor"] = (  # pyright: ignore[reportIncompatibleVariableOverride]
        "manifed_extras.stationary_decor:StationaryDecor"
    )
    streams: tuple[StreamSpec, ...] = Field(min_length=1, max_length=16)
    """What a node's noise and its masks are the sum of."""

    def noise(self, stddevs: Correlated) -> StationaryNoise:
        """The variances of every stream of the graph; the first shape is white."""
        graph = self.secret_graph
        own = [stddevs.sigma_cdp**2 * s.own**2 for s in self.streams]
        shared = [stddevs.sigma_cor**2 * s.shared**2 for s in self.streams]
        nodes = torch.tensor([stddevs.sigma_cdp**2, *own], dtype=torch.float64)
        edges = torch.tensor([0.0, *shared], dtype=torch.float64)
        return StationaryNoise(
            graph,
            (Shape(), *(s.shape for s in self.streams)),
            nodes.expand(graph.num_nodes, -1).numpy(),
            edges.expand(len(graph.edges), -1).numpy(),
        )

    def hidden(
        self, stddevs: Correlated, collusion: int, coalition: tuple[int, ...] = ()
    ) -> Hidden:
        """What hides one round from whom, as if it were fresh."""
        return hidden_by(self.noise(stddevs), collusion, coalition)

    # -- the client --------------------------------------------------------------------------
    def initial_memory(self, x: Tensor) -> Memory | None:
        """No stream yet: round 0, whose states are drawn in round 1."""
        keys = super().initial_memory(x) or self._no_keys(x)
        assert isinstance(keys, PairKeys)
        empty = torch.zeros(*x.shape, len(self.streams), dtype=torch.float64, device=x.device)
        last = torch.zeros_like(x[..., :1], dtype=torch.float64)
        return Streams(keys.secret, keys.pairs, keys.used, empty, empty.clone(), last)

    def _no_keys(self, x: Tensor) -> PairKeys:
        """In the shapes of a cohort's rows, and of no use: masks are computed from the seed."""
        none = torch.zeros_like(x[..., :1], dtype=torch.uint8)
        return PairKeys(none, none, none.to(torch.int64))

    def client(self, x: Tensor, oracle: Oracle, here: Here) -> Any:
        """Algorithm 1 of one node.

        Raises:
            StreamBroken: as `_up_to_date`.
        """
        if here.exchange in SETUP:
            return self.set_up(here)
        assert isinstance(here.memory, Streams)
        shape = tuple(x.shape[x.dim() - here.manifold.ndim :])
        before = self._up_to_date(shape, here.memory, here.draws)
        (own, shared), after = self._step(shape, before, here.draws)
        weights = self._weights(own)
        g, _ = oracle.correlated(x, own @ weights[0], masks=shared @ weights[1])
        return Point(x - self.step_size_in(here.round) * g), after

    @property
    def kept_noise(self) -> str | None:
        """The streams go on."""
        return "the states of its streams, on which the next round's noise depends"

    def check(self, setting: Any) -> None:
        """Refuse what noise that goes on from round to round is not priced for."""
        clients = setting.federation.num_clients
        privacy = setting.privacy
        if clients > MOST_EXACT:
            raise ValueError(
                f"federation.num_clients: expected at most {MOST_EXACT} with {self.kind!r}, "
                "whose price takes a matrix of all pairs of nodes, got "
                f"{clients}; use 'decor'"
            )
        super().check(setting)
        if privacy.target is not None:
            raise ValueError(
                "privacy.target: finds white noise only; with streams "
                "give noise_stddev and mask_stddev (manifed_extras.stationary_design finds both)"
            )
        if setting.federation.replies.on_failure == "retry":
            raise ValueError(
                "federation.replies.on_failure: 'retry' would put two messages on one noise with "
                "streams; use 'abort'"
            )
        if self.minibatch.kind != "full":
            raise ValueError(
                "training.minibatch.kind: expected 'full' with streams, "
                f"got {self.minibatch.kind!r}: rounds share noise, so sampling {privacy.unit}s "
                "amplifies nothing"
            )

    def _weights(self, like: Tensor) -> tuple[Tensor, Tensor]:
        return (
            like.new_tensor([s.own for s in self.streams]),
            like.new_tensor([s.shared for s in self.streams]),
        )

    def _up_to_date(self, shape: tuple[int, ...], memory: Streams, draws: Draws) -> Streams:
        """The states after the round before.

        Raises:
            StreamBroken: they are of another round, and nobody can compute them again; or this is
                not a round's first attempt, which would put two messages on one noise.
        """
        if draws.attempt != 0:
            raise StreamBroken(
                f"Expected the first attempt of round {draws.server_round}, got attempt "
                f"{draws.attempt}: two messages would carry one noise; start a new run"
            )
        before = draws.server_round - 1
        is_known = before > 0 and bool((memory.last == before).all())
        if is_known:
            return memory
        if before > 0 and self.pair_keys == "exchanged":
            raise StreamBroken(
                f"Expected streams of round {before}, got those of round "
                f"{int(memory.last.max())}: noise goes on from the round before, and this node was "
                "started again or a reply of its was lost; start a new run"
            )
        # from their stationary law: the states before round 1 are standard normal
        own, shared = self._innovations(shape, memory, draws._replace(server_round=0))
        found = replace(memory, own=own, shared=shared, last=torch.zeros_like(memory.last))
        for earlier in range(1, draws.server_round):
            _, found = self._step(shape, found, draws._replace(server_round=earlier))
        return found

    def _step(
        self, shape: tuple[int, ...], memory: Streams, draws: Draws
    ) -> tuple[tuple[Tensor, Tensor], Streams]:
        """This round's noise, each stream of unit variance, and what is remembered."""
        fresh = self._innovations(shape, memory, draws)
        made: list[Tensor] = []
        states: list[Tensor] = []
        for state, normals in zip((memory.own, memory.shared), fresh, strict=True):
            each = enumerate(self.streams)
            steps = [s.shape.step(state[..., j], normals[..., j]) for j, s in each]
            states.append(torch.stack([new for new, _ in steps], -1))
            made.append(torch.stack([noise for _, noise in steps], -1))
        last = torch.full_like(memory.last, draws.server_round)
        used = self.used_now(memory, draws)
        after = replace(memory, own=states[0], shared=states[1], last=last, used=used)
        return (made[0], made[1]), after

    def _innovations(
        self, shape: tuple[int, ...], memory: PairKeys, draws: Draws
    ) -> tuple[Tensor, Tensor]:
        """Fresh normals of a round, and signed sums over a node's edges, (*point, streams)."""
        count = range(len(self.streams))
        own = [draws.normals(shape, Stream.STREAM_NOISE, j) for j in count]
        shared = [self.drawn(shape, memory, draws, step=j) for j in count]
        return torch.stack(own, -1), torch.stack(shared, -1)
