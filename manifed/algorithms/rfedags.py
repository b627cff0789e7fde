r"""RFedAGS: averaging gradient streams, for clients that take part with different probabilities.

Huang, Huang, Jawanpuria, Mishra: Riemannian Federated Learning via Averaging Gradient Streams
(arXiv 2409.07223, ICLR 2026), with the authors' public code where the text leaves a choice open.

A client takes K local steps from the broadcast point and uploads its gradient stream, the sum of
these steps, each transported back; the server moves along the weighted streams of those present:
    zeta_i = - sum_k alpha Tr_{x_{i,k} -> x}( eta_{i,k} ),    x_{i,k+1} = Exp_{x_{i,k}}(-alpha eta),
    x^(t+1) = Exp_{x^(t)}( eta_g sum_{i in S_t} zeta_i / (n p_i) ).
Symbols: x^(t) Point.x and state["x"], K local_steps, alpha step_size, eta the oracle's gradient,
Exp and Tr the ``maps``, zeta_i Displacement.u, S_t the clients present, n all clients, p_i
``participation`` (or the share of rounds in which i was present, state["present"] counts them),
eta_g server_step_size.
Invariants: state["x"] is on the manifold; zeta_i is tangent at x^(t); where the p_i are right, the
server's direction is, given the streams, the weighted mean over *all* clients in expectation.

No logarithm is taken anywhere, and x_{i,K}, which nobody reads, is never computed. With K = 1 a
stream is -alpha times a gradient at x^(t): federated Riemannian gradient descent. On R^d, and with
everybody present, it is FedAvg.

Private versions (not in the paper). Example level: a stream is a function of noised gradients, so
it is charged as `rsgd` with as many steps; weights and p_i are constants. p_i estimated from the
cohorts of a run would carry who took part into later rounds, which the price against an adversary
who sees no cohorts takes for unseen, so with drawn cohorts p_i is then given. Client level: each
stream is clipped in T_{x^(t)} and the server noises sum_{i in S_t} zeta_i / (expected size of S_t),
which is the rule above for equal weights and the cohort's own p (manifed/privacy/mechanism.py).
"""

from typing import Any, Literal

import torch
from torch import Tensor

from manifed.algorithms.algorithm import Here, MappedSteps, ServerUpdate, There
from manifed.algorithms.payloads import State
from manifed.fields import Positive, Probability
from manifed.oracles.noisy_oracle import Oracle


class RFedAGS(MappedSteps, ServerUpdate):
    """Local gradient steps. The server averages the gradient streams of the clients present."""

    kind: Literal["rfedags"] = "rfedags"
    mean_weights = "uniform"
    """The weights of the mean that a mechanism noises; 1 / (n p_i) weigh the streams."""
    server_step_size: Positive = 1.0
    """Server step size."""
    participation: Probability | tuple[Probability, ...] | None = None
    """The p_i: one for all clients, or one each. None: the observed share of rounds (at client
    level: the cohort's probability)."""

    # -- the client --------------------------------------------------------------------------
    def client(self, x: Tensor, oracle: Oracle, here: Here) -> Tensor:
        """Uploads the gradient stream of the local steps from the broadcast point."""
        maps = here.manifold.maps(self.maps)
        start = x
        stream = step = -self.step_size * oracle.gradient(start)
        for _ in range(1, self.local_steps):
            x = maps.forward(x, step)
            step = -self.step_size * oracle.gradient(x)
            stream = stream + maps.transport(x, start, step)
        return stream

    # -- the server --------------------------------------------------------------------------
    def start(self, x: Tensor) -> State:
        """Returns x^(0) with empty counts of participation, filled in the first step."""
        return {"x": x, "present": x.new_zeros(0)}

    def server(self, state: State, mean: Tensor, here: There) -> State:
        """Moves along the present clients' streams; at client level along what was released."""
        x = state["x"]
        counts = state["present"]
        seen = here.collected
        if seen.uploads is not None:
            if counts.shape[0] != seen.num_clients:
                counts = x.new_zeros(seen.num_clients)
            rows = list(seen.partitions)
            counts = counts.clone()
            counts[rows] += 1
            chance = counts / here.round  # the authors' code counts this round too
            if self.participation is not None:
                given = torch.as_tensor(self.participation, dtype=counts.dtype)
                chance = given.to(counts).expand_as(counts)
            share = (1 / (seen.num_clients * chance))[rows].reshape(-1, *[1] * x.dim())
            mean = (share.to(seen.rows.dtype) * seen.rows).sum(0)
        moved = here.manifold.maps(self.maps).forward(x, self.server_step_size * mean)
        return {"x": moved, "present": counts}

    def check(self, setting: Any) -> None:
        """Refuses probabilities that are not the cohort's, or that no bound prices."""
        super().check(setting)
        privacy = setting.privacy.kind
        cohort = setting.federation.cohort
        clients = setting.federation.num_clients
        given = self.participation
        if isinstance(given, tuple) and len(given) != clients:
            raise ValueError(
                "training.participation: expected one for each of federation.num_clients = "
                f"{clients}, got {len(given)}"
            )
        rates = cohort.probabilities or (cohort.rate(clients),) * clients
        own = given if isinstance(given, tuple) else (given or 0.0,) * clients
        for i, (mine, rate) in enumerate(zip(own, rates, strict=True)):
            if mine > rate * (1 + 1e-9):
                raise ValueError(
                    f"training.participation: expected at most {rate:g}, the probability of "
                    f"client {i} in federation.cohort, got {mine:g}"
                )
        if privacy == "client-level" and given is not None:
            raise ValueError(
                "training.participation: expected none with privacy.kind = 'client-level', which "
                "divides by the expected size of the cohort; remove it"
            )
        if privacy == "example-level" and cohort.kind != "all" and given is None:
            raise ValueError(
                f"training.participation: required with {cohort.kind!r} cohorts and 'example-level'"
                " privacy, since an estimate reveals earlier cohorts, which is not priced; set "
                f"{min(rates):g} or less"
            )
