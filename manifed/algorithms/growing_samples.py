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
from typing import Any, Literal

import numpy as np
import torch
from pydantic import model_validator
from torch import Tensor

from manifed.algorithms.algorithm import Here, Phase
from manifed.algorithms.gossip import ModelOfEachNode
from manifed.algorithms.payloads import Memory, Payload, PerClient, Point, State
from manifed.fields import NonNegative
from manifed.oracles.minibatch import Ask, Query, WithoutReplacement
from manifed.oracles.noisy_oracle import Draws, Oracle
from manifed.privacy.events import Release, unsampled
from manifed.privacy.mechanism import ExampleMechanism
from manifed.privacy.random_numbers import Stream
from manifed.privacy.series import Releases
from manifed.problems.linear import LinearModel
from manifed.schedules import Array, TimeVarying


@dataclass(frozen=True)
class OwnAndMixed(Payload):
    """Downlink of Algorithm 2: a node's own model x_i,k and its neighbours' mean z_i,k."""

    x: Tensor
    z: Tensor


@dataclass(frozen=True)
class OwnModel(Memory):
    """Memory of Algorithm 1: the node's model x_i,k, never sent, and its iteration k, (..., 1).

    A price holds for the steps of its rounds and no others. Where k is another one (a round was
    left out or asked again), the node starts from z_i,k, which everybody sees, at no larger price.
    """

    x: Tensor
    k: Tensor


@lru_cache(maxsize=128)
def _sensitivities(of: Releases, rounds: int) -> Array:
    """Delta of the first rounds, a power of two of them, so that few tables are computed."""
    return of.sensitivities(rounds)


class GrowingSamples(ModelOfEachNode):
    """Stochastic optimisation on a graph with growing batches."""

    kind: Literal["growing-samples"] = "growing-samples"
    perturbation: Literal["output", "gradient"]
    """What is noised: the message (Algorithm 1) or the gradient (Algorithm 2)."""
    schedules: TimeVarying
    """The schedules by round. In mode "rigorous", ``noise_scale`` is in units of 2 S z (clip S,
    noise multiplier z)."""
    mode: Literal["rigorous", "paper"] = "rigorous"
    """"rigorous" clips and adds the noise that one record needs. "paper" runs as printed, without
    privacy."""
    grad_point: Literal["own", "mixed"] = "own"
    """Where Algorithm 1 takes gradients: at the hidden x_i,k, or at the public z_i,k, which needs
    no Lipschitz constant (not in the paper)."""
    lipschitz: NonNegative | None = None
    """Lipschitz constant of an example's gradient in L2, for grad_point = "own". It enters the
    price. A steeper record counts as zero."""
    samples: Literal["subsets", "in-order"] | None = None
    """Records of a round: a fresh random subset (None, too), or the next gamma_k in file order,
    each used once."""
    on_exhausted: Literal["stop", "recycle"] = "stop"
    """What happens when gamma_k exceeds the records (left): end, or go on with all records (from
    the first). With "recycle" the total epsilon grows without bound."""
    draws_laplace = True

    @model_validator(mode="after")
    def _fits(self) -> "GrowingSamples":
        if self.perturbation == "gradient" and (
            self.grad_point != "own" or self.lipschitz is not None
        ):
            raise ValueError(
                "grad_point, lipschitz: expected perturbation = 'output' beside them; remove them "
                "(Algorithm 2 takes gradients at public models)"
            )
        if self.grad_point == "mixed" and self.lipschitz is not None:
            raise ValueError("lipschitz: expected grad_point = 'own' beside it; remove it")
        return self

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
        """Whether each record is used once, so that a client's records may be a stream."""
        return self.samples == "in-order" and self.on_exhausted == "stop"

    def largest_batch(self, num_examples: int) -> int:
        """The largest batch of the first 2^20 rounds that so many records are enough for."""
        if not self.is_in_order:
            return num_examples
        k = np.arange(min(num_examples, 1 << 20), dtype=np.float64)
        sizes = self.schedules.sizes(k)
        return int(sizes[np.cumsum(sizes) <= num_examples].max(initial=1.0))

    # -- the client --------------------------------------------------------------------------
    def in_round(self, server_round: int) -> "GrowingSamples":
        """Returns the update of iteration k = server_round - 1."""
        return self.with_round(server_round)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """One exchange per round."""
        if self.perturbation == "output":
            return (Phase("mix", Point, Point, ("point",), ("point",), "none"),)
        return (Phase("mix", OwnAndMixed, Point, ("point", "point"), ("point",), "none"),)

    def initial_memory(self, x: Tensor) -> Memory | None:
        """Returns x_i,0, the point from which every node starts."""
        if self.perturbation != "output":
            return None
        return OwnModel(x, torch.zeros_like(x[..., :1], dtype=torch.float64))

    @property
    def minibatch(self) -> WithoutReplacement:
        """Draws gamma_k examples, each used at most once."""
        return WithoutReplacement(batch_size=self.schedules.size(self._round - 1))

    def asks(self) -> tuple[Ask, ...]:
        """Asks for one mean of gradients per round."""
        return (Ask(self.minibatch),)

    @property
    def premise(self) -> str:
        """The statement's sentence that steep records do not count."""
        if self.lipschitz is None:
            return ""
        return (
            "; records whose gradient is not Lipschitz with constant "
            f"{self.lipschitz:g} count as zero"
        )

    def queries(self, mechanism: ExampleMechanism, num_examples: int) -> tuple[Query, ...]:
        """States the round's query, whose noise lies on the gradient or on the model it leads to.

        Algorithm 2 noises the mean of gradients itself.

        Raises:
            ValueError: gamma_k is more than ``num_examples``, and the rule is to stop.
        """
        k = self._round - 1
        batch = self.minibatch
        first = self.schedules.samples(k) if self.samples == "in-order" else None
        if (first or 0) + batch.batch_size > num_examples and self.on_exhausted == "stop":
            before = f" after {first} that were used" if first else ""
            raise ValueError(
                f"training.schedules.sample_size: round {k + 1} takes {batch.batch_size} examples"
                f"{before}, and a client has {num_examples}; set fewer federation.num_rounds, or "
                "training.on_exhausted = 'recycle'"
            )
        is_output = self.perturbation == "output"
        asked = Query.of(mechanism, Ask(batch), num_examples)
        if asked.clip is None:
            return (replace(asked, first=first),)
        whole = mechanism.sensitivity(asked.clip, 1.0)  # C
        stddev = mechanism.noise.stddev(whole, num_examples) * self.schedules.noise_scale(
            k + is_output
        )
        priced: Any = self.priced(num_examples)  # frozen, so pydantic hashes it
        moved = _sensitivities(priced, 1 << max(k, 63).bit_length())[k]
        return (
            replace(
                asked,
                sensitivity=whole * float(moved),
                stddev=stddev,
                drawn=None if is_output else stddev,
                needs_exact_size=True,
                lipschitz=self.lipschitz,
                first=first,
            ),
        )

    def releases(self, mechanism: ExampleMechanism, num_examples: int) -> tuple[Release, ...]:
        """States one release per round; random batches bring no amplification."""
        return unsampled(super().releases(mechanism, num_examples))

    def client(self, x: Tensor, oracle: Oracle, here: Here) -> Any:
        """Returns y_i,k+1 (Algorithm 1, which keeps x_i,k+1 here) or x_i,k+1 (Algorithm 2)."""
        s = self.schedules
        k = here.round - 1
        down = here.down
        alpha = s.step_size(k)
        beta = s.mixing(k)
        if isinstance(down, OwnAndMixed):
            g = oracle.gradient(x) + self._laplace(x, here.draws, k)  # Algorithm 2, line 2
            return Point((1 - beta) * x + beta * down.z.detach() - alpha * g)  # line 3
        assert isinstance(here.memory, OwnModel)
        z = x
        x = torch.where(here.memory.k == k, here.memory.x, x)
        g = oracle.gradient(x if self.grad_point == "own" else z)  # Algorithm 1, line 3
        x = (1 - beta) * x + beta * z - alpha * g  # line 4, eq. (3)
        after = OwnModel(x, torch.full_like(x[..., :1], k + 1, dtype=torch.float64))
        return Point(oracle.shown(x, z) + self._laplace(x, here.draws, k + 1)), after  # line 2

    def _laplace(self, x: Tensor, draws: Draws, k: int) -> Tensor | float:
        """Laplace noise of scale sigma_k in mode "paper", shape of x; else 0."""
        if self.mode != "paper":
            return 0.0
        lead = 0 if isinstance(draws.partition, int) else 1
        drawn = draws.laplaces(tuple(x.shape[lead:]), Stream.GRADIENT_NOISE, 0)
        return (self.schedules.noise_scale(k) * drawn).to(x.dtype)

    # -- the server, whose model with Algorithm 1 is a mean of noised ones ---------------------
    def down(self, state: State, phase: str) -> PerClient:
        """Returns Z = A Y, a row for every node."""
        x = state["x"]
        z = self.network.mixed(x)
        return PerClient(Point(z) if self.perturbation == "output" else OwnAndMixed(x, z))

    def check(self, setting: Any) -> None:
        """Refuse a Lipschitz constant that no record is held to, and what is not enforced."""
        super().check(setting)
        is_linear = setting.problem is None or isinstance(setting.problem, LinearModel)
        if self.lipschitz is not None and not is_linear:
            raise ValueError(
                "training.lipschitz: expected problem.kind = 'least-squares' or 'logistic', which "
                f"can enforce it, got {setting.problem_name!r}; use training.grad_point = 'mixed'"
            )
        privacy = setting.privacy
        if privacy.kind != "example-level":
            return
        if self.mode == "paper":
            raise ValueError(
                "training.mode: 'paper' clips nothing and so protects nobody; use 'rigorous', or "
                "privacy.kind = 'none'"
            )
        is_output = self.perturbation == "output"
        if is_output and self.grad_point == "own" and self.lipschitz is None:
            raise ValueError(
                "training.lipschitz: required with grad_point = 'own', whose price depends on it, "
                "got none; set it, or use grad_point = 'mixed' or perturbation = 'gradient'"
            )
        if privacy.l1_norm_clip is not None and self.lipschitz is not None:
            raise ValueError(
                "training.lipschitz: a clip in L1 can double the distance of two gradients, which "
                "is not priced; use grad_point = 'mixed', or privacy.l2_norm_clip"
            )
        if is_output and setting.engine.dtype != "float64":
            raise ValueError(
                "engine.dtype: with training.perturbation = 'output' expected 'float64', got "
                f"{setting.engine.dtype!r}, which may round a hidden model by more than a record "
                "moves it"
            )
