"""Checks 18 to 20: Theorems 5.2, 5.5 and 5.6, on the digits sphere and on the simplest mean."""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
import torch

from manifed.experiment.assembly import load_shards
from manifed.manifolds.sphere import Sphere
from manifed.problems.examples import Examples
from reproduction.checks_000.bounds import bounded, published_stddev
from reproduction.findings import Finding, Part
from reproduction.trials import best_point, curve, experiment, trial

DIGITS = "000_2_digits-rsgd-N-3"


# -- Theorem 5.2 -----------------------------------------------------------------------------
ROUNDS = (100, 1000, 10_000)


def vanishing_parts(each: Sequence[Mapping[int, float]]) -> list[Part]:
    """The log10 by which the squared gradient norm falls until the last T, of every seed."""
    last = ROUNDS[-1]
    return [
        Part(
            f"log10 of |grad f|^2 at T = {last} over T = {early}",
            [math.log10(one[last] / one[early]) for one in each],
            most=most,
        )
        for early, most in ((100, -1.0), (1000, -0.5))
    ]


def squared_gradients(seed: int, rounds: int) -> list[float]:
    """|grad f(x^(t))|^2 of f = -x^T S x by round, S the second moment of ten agents' digits.

    Where all agents take one step of full batches, a round is x <- Exp(-alpha_t (grad f + noise))
    with noise of deviation sigma / sqrt(10); alpha_t = t^(-3/4) / 4 meets (5.3).
    """
    found = load_shards(curve(DIGITS, seed=seed))
    rows = Examples.concatenate(found.examples)["z"]
    moment = rows.mT @ rows / len(rows)
    deviation = published_stddev(2.0, 179, 0.15) / math.sqrt(10)
    drawn = np.random.default_rng([seed, 18]).standard_normal((rounds + 1, len(moment)))
    normal = torch.from_numpy(drawn)
    sphere = Sphere()
    x = sphere.projx(normal[0])
    squares = []
    for t in range(1, rounds + 1):
        gradient = sphere.proju(x, -2 * moment @ x)
        squares.append(float(gradient @ gradient))
        noise = sphere.proju(x, deviation * normal[t])
        x = sphere.expmap(x, -(t**-0.75) / 4 * (gradient + noise))
    return squares


def check_18(seeds: Sequence[int] = range(10)) -> Finding:
    """Theorem 5.2 on the digits sphere."""
    each = []
    for seed in seeds:
        squares = squared_gradients(seed, ROUNDS[-1])
        each.append({t: float(np.mean(squares[t // 2 : t])) for t in ROUNDS})
    return Finding.judged(
        "the gradient goes to 0 under noise of a constant size where steps fall as t^(-3/4)",
        vanishing_parts(each),
        {"mean of |grad f|^2 over the last half of T rounds, first seed": each[0]},
        seeds,
        "Digits, N = 10, N_i = 179, K = 1, b = N_i, s = N, sigma as published at epsilon = 0.15.",
    )


# -- Theorem 5.5 -----------------------------------------------------------------------------
STEPS = 5
CASES = {
    "N = 10, alpha = 0.05, T = 100, epsilon = 0.15": (10, 0.05, 100, 0.15, "random-iterate"),
    "N = 10, alpha = 0.05, T = 100, epsilon = 2": (10, 0.05, 100, 2.0, "random-iterate"),
    "N = 1, alpha = 0.005, T = 400, epsilon = 2": (1, 0.005, 400, 2.0, "random-iterate"),
    "ours: N = 1, alpha = 0.005, T = 400, epsilon = 2, from the last iterate on": (
        1, 0.005, 400, 2.0, "last-iterate",
    ),
}  # fmt: skip
"""(agents, alpha, rounds, epsilon, where a round goes on) of each part of check 19."""


@lru_cache(maxsize=1)
def constants() -> tuple[float, float]:
    """(L_f, L_g) of f_ij = -(z^T x)^2 on the sphere: |z|^2 and 2 |z|^2."""
    rows = Examples.concatenate(load_shards(curve(DIGITS)).examples)["z"]
    largest = float(rows.square().sum(-1).max())
    return largest, 2 * largest


def theorem_5_5(gap: float, alpha: float, rounds: int, stddev: float) -> float:
    """The right side of Theorem 5.5 for zeta = 1, d = 63 and K = 5, at the best beta."""
    lipschitz, smooth = constants()
    q = lipschitz**2 + 63 * stddev**2
    found = math.inf
    for beta in np.geomspace(1.01, 100, 400):
        power = (1 + alpha * beta) ** (STEPS - 1)
        if power < beta:
            least = alpha * (1 - power / beta)
            floor = alpha * beta * (smooth + 2 * power) / (2 * (beta - power))
            found = min(found, gap / (STEPS * rounds * least) + floor * q)
    return found


def share_of_bound(
    agents: int, alpha: float, rounds: int, epsilon: float, output: str, seed: int
) -> float:
    """E|grad f|^2 over its bound: the mean over the models of all rounds."""
    size = 1790 // agents
    run, _ = trial(
        DIGITS,
        seed,
        f"federation.num_clients={agents}",
        f"federation.partition.shard_size={size}",
        f"federation.num_rounds={rounds}",
        f"training.local_steps={STEPS}",
        'training.minibatch={ kind = "full" }',
        f'training.output="{output}"',
        f"training.step_size={alpha}",
        f"privacy.noise.local_epsilon={epsilon}",
    )
    stddev = math.sqrt(STEPS) * published_stddev(2.0, size, epsilon)
    found = float(np.square(run["gradient_norm"][1:]).mean())
    return found / theorem_5_5(run.at("cost_gap", 0), alpha, rounds, stddev)


def check_19(seeds: Sequence[int] = range(10)) -> Finding:
    """Theorem 5.5: one agent a round, K = 5 steps, Option 2 as printed."""
    shares = {
        f"{name}: E|grad f|^2": [share_of_bound(*case, seed) for seed in seeds]
        for name, case in CASES.items()
    }
    return Finding.judged(
        "Theorem 5.5 holds on the sphere (digits, s = 1, K = 5, b = N_i, Option 2)",
        bounded(shares),
        {"L_f, L_g": constants()},
        seeds,
        "As printed, a round goes on from a random inner iterate, which has made about half of "
        "the K steps that the proof sums up. Agents differ, and beta is the best.",
    )


# -- Theorem 5.6 -----------------------------------------------------------------------------
AGENTS = 20
INNER = 10 * AGENTS // 3
MEAN = "000_3_wishart-rsvrg-N-20"
CLIP = 7.0
"""Above 2 dist <= 2 pi."""
NU = 0.099
"""The largest nu that the proof gives for any N, which makes the least bound."""


def noise_terms(dimension: int) -> dict[str, float]:
    """The noise term of Theorem 5.6 for sigma = 1 and zeta = 1, as printed and as proved."""
    root = AGENTS ** (1 / 3)
    proved = (0.5 + (math.e - 1) / (10 * root)) / (NU * root**2)
    return {
        "as printed": dimension / 100 * (1 / root**2 + 1 / AGENTS),
        "as its proof has it": dimension / 100 * proved,
    }


def check_20(seeds: Sequence[int] = range(10)) -> Finding:
    """Theorem 5.6 for equal agents who start at the optimum, where only noise is left.

    f = dist(x, z)^2 on S^9, L_g = 2; all examples are z, so that corrections are exact.
    """
    rate = 1 / (10 * 2 * AGENTS ** (2 / 3))
    sets = (
        'problem.manifold="sphere"',
        'data={ kind = "reproduction.recipes:SphereCloud", num_examples = 100, spread = 1e-9 }',
        "federation.num_rounds=60",
        "training.epochs=1",
        f"training.inner_steps={INNER}",
        f"training.step_size={rate}",
        f"privacy.l2_norm_clip={CLIP}",
        f"privacy.noise.local_epsilon={math.sqrt(INNER) * published_stddev(CLIP, 5, 1.0)}",
    )
    squares = []
    for seed in seeds:
        best = best_point(experiment(MEAN, *sets, f"federation.seed={seed}"))
        start = f'problem.start={{ kind = "given", entries = {best.tolist()} }}'
        run, _ = trial(MEAN, seed, *sets, start)
        squares.append(float(np.square(run["gradient_norm"]).mean()))
    return Finding.judged(
        "Theorem 5.6 holds for equal agents at alpha = 1 / (10 L_g N^(2/3)), from the optimum",
        noise_parts(squares),
        {"a closed form of flat space: alpha L_g d / (2 - alpha L_g)": 18 * rate / (2 - 2 * rate)},
        seeds,
        "S^9, N = 20, N_i = 5, K = 1, m = 66, T = 60, sigma = 1. f(x^0) = f*, so c does not enter.",
    )


def noise_parts(squares: Sequence[float]) -> list[Part]:
    """E|grad f|^2 of every seed over the noise terms."""
    return [
        Part(
            f"{'' if 'printed' in name else 'ours: '}E|grad f|^2 over the noise term {name}",
            [square / term for square in squares],
            most=1.0,
        )
        for name, term in noise_terms(9).items()
    ]
