"""DECOR and its baselines on learning tasks, in plain numpy: many settings side by side.

A setting is a method with its noise, step size and clip; settings stand in front of the nodes, so
models have shape (s, n, d). All of them see the same minibatches and, up to scale, the same noise
(common random numbers). Source: Allouah et al., Algorithm 1; section 6 for the tasks.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from manifed.graphs import Graph, metropolis_hastings
from manifed.privacy.secldp import calibrate_masks

Array = NDArray[np.floating]


@dataclass(frozen=True)
class Method:
    """One setting: which curve it belongs to, and what was chosen for it."""

    curve: tuple[str, float]
    """CDP, DECOR or LDP with its graph, and epsilon."""
    graph: str
    sigma_cdp: float
    sigma_cor: float
    step_size: float
    clip: float


class Task(Protocol):
    """What is learnt: clipped gradients of all nodes for every setting."""

    rounds: int

    def start(self, rng: np.random.Generator) -> Array:
        """x^(0), the same for all nodes, (d,)."""
        ...

    def gradients(self, x: Array, clips: Array, rng: np.random.Generator) -> Array:
        """Of one minibatch a node at x (s, n, d), clipped by ``clips`` (s, 1, 1)."""
        ...

    def step(self, server_round: int) -> float:
        """What a step size is multiplied by in round t = 0, 1, ..."""
        ...


def curves(
    graphs: dict[str, Graph],
    epsilons: dict[float, float],
    ratio: float,
    choices: Sequence[tuple[float, float]],
) -> list[Method]:
    """CDP, DECOR and LDP on every graph, at every epsilon, for every (step size, clip).

    ``epsilons`` gives the deviation that LDP needs for a clip of 1; CDP needs 1 / sqrt(n) of it,
    DECOR ``ratio`` times that, and masks that make up for the rest against adversary I.
    """
    found = []
    for (epsilon, local), (step, clip) in itertools.product(epsilons.items(), choices):
        central = local / np.sqrt(next(iter(graphs.values())).num_nodes)
        found.append(Method(("CDP", epsilon), "complete", central * clip, 0.0, step, clip))
        for name, graph in graphs.items():
            least = 1 / local**2
            noise = calibrate_masks(
                graph, ratio * central, 0, lambda w, least=least: w.precision <= least
            )
            sigmas = ("DECOR", noise.sigma_cdp, noise.sigma_cor), ("LDP", local, 0.0)
            found += [
                Method((f"{way} {name}", epsilon), name, own * clip, cor * clip, step, clip)
                for way, own, cor in sigmas
            ]
    return found


def train(methods: Sequence[Method], graphs: dict[str, Graph], task: Task, seed: int) -> Array:
    """The mean model of every setting after all rounds, (s, d), in the order of ``methods``."""
    order = sorted(range(len(methods)), key=lambda i: methods[i].graph)
    chosen = [methods[i] for i in order]
    names = [m.graph for m in chosen]
    batches, own, cor = (np.random.default_rng([seed, purpose]) for purpose in (1, 2, 3))
    first = task.start(np.random.default_rng([seed, 0]))
    n = next(iter(graphs.values())).num_nodes
    kind = first.dtype
    x = np.broadcast_to(first, (len(chosen), n, len(first))).copy()
    blocks = [
        (
            slice(names.index(name), names.index(name) + names.count(name)),
            metropolis_hastings(graph).toarray().astype(kind),
            graph.incidence.astype(kind),
        )
        for name, graph in graphs.items()
        if name in names
    ]
    clips, steps, sigma_cdp, sigma_cor = (
        np.array(column, dtype=kind)[:, None, None]
        for column in zip(
            *((m.clip, m.step_size, m.sigma_cdp, m.sigma_cor) for m in chosen), strict=True
        )
    )
    for t in range(task.rounds):
        g = task.gradients(x, clips, batches)
        g += sigma_cdp * own.standard_normal((n, len(first)), dtype=kind)
        for block, _, incidence in blocks:
            drawn = cor.standard_normal((incidence.shape[1], len(first)), dtype=kind)
            g[block] += sigma_cor[block] * (incidence @ drawn)
        x -= task.step(t) * steps * g
        for block, weights, _ in blocks:
            x[block] = np.matmul(weights, x[block])
    means = np.empty_like(x[:, 0])
    means[order] = x.mean(1)
    return means


def shrunk(g: Array, clips: Array) -> Array:
    """min(1, C / |g|) g of every node."""
    norms = np.sqrt((g * g).sum(-1, keepdims=True))
    return g * np.minimum(1.0, clips / np.maximum(norms, 1e-30))


# -- logistic regression ---------------------------------------------------------------------
@dataclass(frozen=True)
class Logistic:
    """Whole minibatch gradients, clipped: user level. eta_t = eta / (1 + t / rounds)."""

    shards: tuple[tuple[Array, Array], ...]
    """Features (m_i, d) and labels -1 or 1 of every node."""
    batch: int
    rounds: int

    def start(self, rng: np.random.Generator) -> Array:
        """Uniform in +-1 / sqrt(p), as torch.nn.Linear starts."""
        d = self.shards[0][0].shape[1]
        return rng.uniform(-1, 1, d) / np.sqrt(d - 1)

    def gradients(self, x: Array, clips: Array, rng: np.random.Generator) -> Array:
        """Of a uniform minibatch a node, drawn with replacement."""
        picks = [rng.integers(0, len(labels), self.batch) for _, labels in self.shards]
        a = np.stack([f[pick] for (f, _), pick in zip(self.shards, picks, strict=True)])
        b = np.stack([y[pick] for (_, y), pick in zip(self.shards, picks, strict=True)])
        margins = np.matmul(x.transpose(1, 0, 2), a.transpose(0, 2, 1)) * b[:, None, :]
        slopes = -b[:, None, :] / (1 + np.exp(margins)) / self.batch
        return shrunk(np.matmul(slopes, a).transpose(1, 0, 2), clips)

    def step(self, server_round: int) -> float:
        """1 / (1 + t / T)."""
        return 1.0 / (1.0 + server_round / self.rounds)

    def losses(self, x: Array) -> Array:
        """Mean of log(1 + exp(-b a^T x)) over all rows, for every model (s, d)."""
        rows = np.concatenate([f for f, _ in self.shards])
        signs = np.concatenate([y for _, y in self.shards])
        return np.array([np.logaddexp(0, -signs * (rows @ one)).mean() for one in x])


# -- a network ---------------------------------------------------------------------------------
@dataclass(frozen=True)
class Network:
    """One hidden layer with ReLU, every example clipped, Poisson batches: example level.

    Parameters are packed as in reproduction/mlp.py; a clipped sum is divided by the expected
    batch.
    """

    inputs: Array
    """(n, m, p), equally many of each node."""
    labels: NDArray[np.int64]
    """(n, m)."""
    hidden: int
    classes: int
    batch: int
    rounds: int

    def start(self, rng: np.random.Generator) -> Array:
        """As torch.nn.Linear starts."""
        p = self.inputs.shape[-1]
        h = self.hidden
        first = rng.uniform(-1, 1, h * (p + 1)) / np.sqrt(p)
        last = rng.uniform(-1, 1, self.classes * (h + 1)) / np.sqrt(h)
        return np.concatenate([first, last]).astype(self.inputs.dtype)

    def step(self, server_round: int) -> float:
        """Of constant step sizes."""
        return 1.0

    def parts(self, x: Array) -> tuple[Array, Array, Array, Array]:
        """W_1 (..., h, p), b_1, W_2 (..., k, h), b_2."""
        p = self.inputs.shape[-1]
        h = self.hidden
        k = self.classes
        w1, b1, w2, b2 = np.split(x, np.cumsum([h * p, h, k * h]), axis=-1)
        lead = x.shape[:-1]
        return w1.reshape(*lead, h, p), b1, w2.reshape(*lead, k, h), b2

    def gradients(self, x: Array, clips: Array, rng: np.random.Generator) -> Array:
        """Sum of clipped gradients of a Poisson batch a node, over the expected batch."""
        n, m, _ = self.inputs.shape
        drawn = [np.flatnonzero(rng.random(m) < self.batch / m) for _ in range(n)]
        size = max(1, *(len(pick) for pick in drawn))
        z = np.zeros((n, size, self.inputs.shape[2]), dtype=self.inputs.dtype)
        label = np.zeros((n, size), dtype=np.int64)
        is_there = np.zeros((n, size), dtype=z.dtype)
        for i, pick in enumerate(drawn):
            z[i, : len(pick)], label[i, : len(pick)] = self.inputs[i, pick], self.labels[i, pick]
            is_there[i, : len(pick)] = 1
        each = zip(x, clips[:, 0, 0].tolist(), strict=True)
        sums = [self._clipped_sum(one, z, label, is_there, clip) for one, clip in each]
        return np.stack(sums) / self.batch

    def _clipped_sum(
        self, x: Array, z: Array, label: NDArray[np.int64], is_there: Array, clip: float
    ) -> Array:
        w1, b1, w2, b2 = self.parts(x)
        units = np.maximum(np.matmul(z, w1.transpose(0, 2, 1)) + b1[:, None], 0)
        delta2 = _softmax(np.matmul(units, w2.transpose(0, 2, 1)) + b2[:, None])
        nodes, rows = np.indices(label.shape)
        delta2[nodes, rows, label] -= 1
        delta1 = np.matmul(delta2, w2) * (units > 0)
        square = (delta1**2).sum(-1) * ((z**2).sum(-1) + 1)
        square += (delta2**2).sum(-1) * ((units**2).sum(-1) + 1)
        factor = is_there * np.minimum(1, clip / np.sqrt(np.maximum(square, 1e-30)))
        left1, left2 = ((factor[..., None] * d).transpose(0, 2, 1) for d in (delta1, delta2))
        n = len(z)
        return np.concatenate(
            [np.matmul(left1, z).reshape(n, -1), left1.sum(-1),
             np.matmul(left2, units).reshape(n, -1), left2.sum(-1)], axis=-1,
        )  # fmt: skip

    def accuracies(self, x: Array, rows: Array, labels: NDArray[np.int64]) -> Array:
        """Share of ``rows`` (t, p) that each model (s, d) labels right."""
        found = []
        for one in x:
            w1, b1, w2, b2 = self.parts(one)
            scores = np.maximum(rows @ w1.T + b1, 0) @ w2.T + b2
            found.append(float((scores.argmax(-1) == labels).mean()))
        return np.array(found)


def _softmax(scores: Array) -> Array:
    shifted = np.exp(scores - scores.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)
