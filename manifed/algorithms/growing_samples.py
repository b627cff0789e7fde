"""Stochastic optimisation on a graph whose samples grow from round to round (Algorithms 1 and 2).

Wang and Zhang: Differentially Private Distributed Stochastic Optimization with Time-Varying Sample
Sizes (2024).

Symbols: k = server_round - 1; alpha_k, beta_k, gamma_k, sigma_k the schedules; x_i,k the model of a
node, A the mixing matrix, y_i,k = x_i,k + n_i,k what Algorithm 1 shows, z_i,k = sum_j a_ij y_j,k.

``perturbation = "output"`` (Algorithm 1): a node keeps x_i,k for itself, in its memory, and sends
y_i,k+1. ``"gradient"`` (Algorithm 2): it sends x_i,k+1, whose gradient was noised. The server
mixes: it sees what everybody who listens sees.

Mode "rigorous": the mechanism clips every gradient to S and draws noise of sigma_k z 2 S, z its
noise multiplier: Gaussian noise of that deviation with an L2 clip, Laplace noise of that scale with
an L1 clip. A round is charged Delta over that, Delta by the recursion of `manifed.privacy.series`
(corrected, Lipschitz-aware). Mode "paper": nothing is clipped, Laplace noise of scale sigma_k is
drawn here, C is taken on trust, and nothing is promised.

Invariant: nothing that a node computes from its records leaves it without noise.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, cast

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from manifed.algorithms.gossip import MixingWeights, ModelOfEachNode, Network, network
from manifed.algorithms.interface import Collected, Memory, Phase, ServerState, Work
from manifed.algorithms.payloads import Payload, PerClient, Point
from manifed.graphs.specs import GraphSpec
from manifed.manifolds.base import Manifold
from manifed.oracles.minibatch import WithoutReplacement
from manifed.oracles.oracle import Draws, Oracle
from manifed.oracles.query import Query
from manifed.privacy.events import Event, Unsampled
from manifed.privacy.mechanism import ExampleMechanism
from manifed.privacy.noise import Stream
from manifed.privacy.series import Releases
from manifed.schedules.schedule import Array
from manifed.schedules.time_varying import TimeVarying


@dataclass(frozen=True)
class OwnAndMixed(Payload):
    """Down, Algorithm 2: a node's own model x_i,k and the mean z_i,k of its neighbours'."""

    x: Tensor
    z: Tensor


@dataclass(frozen=True)
class OwnModel(Memory):
    """x_i,k of Algorithm 1, never sent, and k, (..., 1): the iteration that goes on from it.

    A price holds for the steps of its rounds and no others. Where k is another one (a round was
    left out or asked again), the node starts from z_i,k, which everybody sees, at no larger price.
    """

    x: Tensor
    k: Tensor


@lru_cache(maxsize=64)
def _moved(releases: Releases, rounds: int) -> Array:
    return releases.sensitivities(rounds)


@lru_cache(maxsize=64)
def _used(schedules: TimeVarying, rounds: int) -> Array:
    k = np.arange(rounds, dtype=np.float64)
    return np.concatenate([[0.0], np.cumsum(schedules.sizes(k))])


def used(schedules: TimeVarying, k: int) -> int:
    """How many samples the rounds before k = 0, 1, ... take; exact up to 2^53."""
    frozen = cast("Any", schedules)  # so pydantic hashes it
    return int(_used(frozen, 1 << max(k, 63).bit_length())[k])


def moved(releases: Releases, k: int) -> float:
    """The k-th of the sensitivities, k = 0, 1, ...; computed in blocks that double."""
    frozen = cast("Any", releases)  # so pydantic hashes it
    return float(_moved(frozen, 1 << max(k, 63).bit_length())[k])


class GrowingSamples(ModelOfEachNode):
    """Client and server update in one."""

    kind: Literal["growing-samples"] = "growing-samples"
    perturbation: Literal["output", "gradient"]
    """What is noised: what a node sends (Algorithm 1), or its gradient (Algorithm 2)."""
    schedules: TimeVarying
    """In mode "rigorous" ``noise_scale`` counts in 2 S z (privacy.l2_norm_clip, noise multiplier);
    in mode "paper" it is the scale of the Laplace noise."""
    mode: Literal["rigorous", "paper"] = "rigorous"
    """"rigorous" clips, and noises for what one record can change; "paper" does as printed."""
    grad_point: Literal["own", "mixed"] = "own"
    """Where Algorithm 1 takes gradients: at x_i,k, which is hidden, or at z_i,k, which everybody
    sees and which needs no Lipschitz constant (not in the paper)."""
    lipschitz: float | None = Field(default=None, ge=0)
    """Of an example's gradient in L2, for grad_point = "own", whose price it enters; enforced: a
    record that can be steeper counts as zero. Clipping to an L2 ball does not raise it."""
    samples: Literal["subsets", "in-order"] | None = None
    """Which records a round takes: a fresh random subset (None, too), or the next gamma_k in the
    order in which they lie, so that each is used once, as of a stream that was recorded."""
    on_exhausted: Literal["stop", "recycle"] = "stop"
    """When gamma_k is more than a node has (of samples "in-order": has left): end, or go on with
    all it has (begin again), and lose what growth gives: the total epsilon then grows without
    bound."""
    graph: GraphSpec
    """Who talks to whom."""
    graph_seed: int = Field(default=0, ge=0)
    """Of random graphs."""
    num_nodes: int | None = Field(default=None, ge=1, lt=1 << 20)
    """None in a config: federation.num_clients. Node i is partition i."""
    mixing_weights: MixingWeights = "metropolis-hastings"
    """How a node weighs its neighbours."""

    @model_validator(mode="after")
    def _fits(self) -> "GrowingSamples":
        if self.perturbation == "gradient" and (
            self.grad_point != "own" or self.lipschitz is not None
        ):
            raise ValueError(
                "grad_point, lipschitz: of perturbation = 'output' alone; Algorithm 2 takes "
                "gradients at models that everybody sees; leave them out"
            )
        if self.grad_point == "mixed" and self.lipschitz is not None:
            raise ValueError("lipschitz: of grad_point = 'own' alone; leave it out")
        return self

    @property
    def network(self) -> Network:
        """The graph and its mixing matrix.

        Raises:
            ValueError: there is no such graph, or nobody said how many nodes there are.
        """
        if self.num_nodes is None:
            raise ValueError("training.num_nodes: required outside a config, got None")
        spec = cast("Any", self.graph)  # frozen, so pydantic hashes it
        return network(spec, self.num_nodes, self.graph_seed, self.mixing_weights)

    def priced(self, num_examples: int) -> Releases:
        """The sensitivities of a node with so many examples, in units of C."""
        return Releases(
            algorithm=self.perturbation,
            schedules=self.schedules,
            sensitivity=1.0,
            noise="gaussian",
            lipschitz=self.lipschitz or 0.0,
            num_examples=num_examples,
        )

    @property
    def is_in_order(self) -> bool:
        """Whether each record is used once, and a client's may be a stream."""
        return self.samples == "in-order" and self.on_exhausted == "stop"

    def largest_batch(self, num_examples: int) -> int:
        """Of the rounds that so many records are enough for, of the first 2^20."""
        if not self.is_in_order:
            return num_examples
        k = np.arange(min(num_examples, 1 << 20), dtype=np.float64)
        sizes = self.schedules.sizes(k)
        return int(sizes[np.cumsum(sizes) <= num_examples].max(initial=1.0))

    # -- the client --------------------------------------------------------------------------
    def in_round(self, server_round: int) -> "Iteration":
        """Iteration k = server_round - 1."""
        return Iteration(self, server_round - 1)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """One exchange."""
        if self.perturbation == "output":
            return (Phase("mix", Point, Point, ("point",), ("point",), "none"),)
        return (Phase("mix", OwnAndMixed, Point, ("point", "point"), ("point",), "none"),)

    def initial_memory(self, x: Tensor) -> Memory | None:
        """x_i,0: where everybody starts."""
        if self.perturbation != "output":
            return None
        return OwnModel(x, torch.zeros_like(x[..., :1], dtype=torch.float64))

    @property
    def client_work(self) -> Work:
        """One mean of gradients."""
        return Work(gradients=1)

    @property
    def minibatch(self) -> WithoutReplacement:
        """The batch of round 1."""
        return self.in_round(1).minibatch

    def queries(self, mechanism: ExampleMechanism, num_examples: int) -> tuple[Query, ...]:
        """Those of round 1."""
        return self.in_round(1).queries(mechanism, num_examples)

    def releases(self, mechanism: ExampleMechanism, num_examples: int) -> tuple[Event, ...]:
        """Those of round 1."""
        return self.in_round(1).releases(mechanism, num_examples)

    def update(
        self,
        phase: str,
        down: Payload,
        memory: Memory | None,
        oracle: Oracle,
        manifold: Manifold,
        draws: Draws,
    ) -> tuple[Payload, Memory | None]:
        """The iteration of the round that is being drawn for."""
        here = self.in_round(draws.server_round)
        return here.update(phase, down, memory, oracle, manifold, draws)

    # -- the server --------------------------------------------------------------------------
    def down(self, state: ServerState, phase: str) -> PerClient:
        """Z = A Y, a row for every node."""
        x = state["x"]
        z = self.network.mixed(x)
        return PerClient(Point(z) if self.perturbation == "output" else OwnAndMixed(x, z))

    def step(
        self,
        state: ServerState,
        phase: str,
        collected: Collected,
        server_round: int,
        manifold: Manifold,
    ) -> ServerState:
        """What the nodes showed: y_i,k+1 or x_i,k+1."""
        assert isinstance(collected.uploads, Point)
        return state.replace(x=collected.uploads.x)

    def node_models(self, state: ServerState, manifold: Manifold) -> Tensor:
        """What every node showed, (n, *point): noised models with Algorithm 1."""
        return state["x"]

    def model(self, state: ServerState, manifold: Manifold) -> Tensor:
        """Their mean."""
        return state["x"].mean(0)

    def output(self, state: ServerState, manifold: Manifold) -> Tensor:
        """Their mean: with Algorithm 1 of noised models, since no x_i,k leaves a node."""
        return self.model(state, manifold)


@dataclass(frozen=True)
class Iteration:
    """What a node does in iteration k."""

    table: GrowingSamples
    k: int

    @property
    def kind(self) -> str:
        """That of every round."""
        return self.table.kind

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Those of every round."""
        return self.table.phases

    def initial_memory(self, x: Tensor) -> Memory | None:
        """That of every round."""
        return self.table.initial_memory(x)

    @property
    def minibatch(self) -> WithoutReplacement:
        """gamma_k examples, each at most once."""
        return WithoutReplacement(batch_size=self.table.schedules.size(self.k))

    def queries(self, mechanism: ExampleMechanism, num_examples: int) -> tuple[Query, ...]:
        """One mean of gradients, noised itself (Algorithm 2) or with the model it leads to.

        Raises:
            ValueError: gamma_k is more than ``num_examples``, and the rule is to stop.
        """
        table, size = self.table, self.minibatch.batch_size
        first = used(table.schedules, self.k) if table.samples == "in-order" else None
        if (first or 0) + size > num_examples and table.on_exhausted == "stop":
            before = f" after {first} that were used" if first else ""
            raise ValueError(
                f"training.schedules.sample_size: round {self.k + 1} takes {size} examples{before}"
                f", and a client has {num_examples}; set fewer federation.num_rounds, or "
                "training.on_exhausted = 'recycle', whose total epsilon has no bound"
            )
        is_output = table.perturbation == "output"
        asked = Query.of(mechanism, self.minibatch, num_examples)
        if asked.clip is None:
            return (replace(asked, first=first),)
        whole = mechanism.sensitivity(asked.clip, 1.0)  # C
        scale = table.schedules.noise_scale(self.k + is_output)
        return (
            Query(
                asked.label, mechanism, num_examples, asked.sampling, "gradient",
                asked.expected_size, asked.clip,
                sensitivity=whole * moved(table.priced(num_examples), self.k),
                stddev=mechanism.stddev(whole, num_examples) * scale,
                drawn=None if is_output else mechanism.stddev(whole, num_examples) * scale,
                count=1, needs_exact_size=True, lipschitz=table.lipschitz,
                first=first,
            ),
        )  # fmt: skip

    def releases(self, mechanism: ExampleMechanism, num_examples: int) -> tuple[Event, ...]:
        """One release; that batches are drawn at random is not counted on."""
        (query,) = self.queries(mechanism, num_examples)
        return tuple(one.model_copy(update={"sampling": Unsampled()}) for one in query.release())

    def update(
        self,
        phase: str,
        down: Payload,
        memory: Memory | None,
        oracle: Oracle,
        manifold: Manifold,
        draws: Draws,
    ) -> tuple[Payload, Memory | None]:
        """y_i,k+1 and, for the node alone, x_i,k+1 (Algorithm 1); x_i,k+1 (Algorithm 2)."""
        s, k = self.table.schedules, self.k
        alpha, beta = s.step_size(k), s.mixing(k)
        if isinstance(down, OwnAndMixed):
            x, z = down.x.detach(), down.z.detach()
            g = oracle.gradient(x) + self._laplace(x, draws, k)  # Algorithm 2, line 2
            return Point((1 - beta) * x + beta * z - alpha * g), None  # line 3
        assert isinstance(down, Point)
        assert isinstance(memory, OwnModel)
        z = down.x.detach()
        x = torch.where(memory.k == k, memory.x, z)
        g = oracle.gradient(x if self.table.grad_point == "own" else z)  # Algorithm 1, line 3
        x = (1 - beta) * x + beta * z - alpha * g  # line 4, eq. (3)
        after = OwnModel(x, torch.full_like(x[..., :1], k + 1, dtype=torch.float64))
        return Point(oracle.shown(x, z) + self._laplace(x, draws, k + 1)), after  # line 2

    def _laplace(self, x: Tensor, draws: Draws, k: int) -> Tensor | float:
        """Laplace noise of scale sigma_k in mode "paper", shape of x; else 0."""
        if self.table.mode != "paper":
            return 0.0
        lead = 0 if isinstance(draws.partition, int) else 1
        drawn = draws.laplaces(tuple(x.shape[lead:]), Stream.GRADIENT_NOISE, 0)
        return (self.table.schedules.noise_scale(k) * drawn).to(x.dtype)
