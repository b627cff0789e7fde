"""Hand signs from covariance matrices of EMG, four sites, with local recentring.

A site is a recording: two people, two sessions each. It finds the private Fréchet mean M of its
matrices, which its own noise pays for, and moves them all by z -> M^(-1/2) z M^(-1/2), so that
sites whose electrodes sat elsewhere meet at the identity. Then the sites train together: minimum
distance to mean (MDM), SPDNet, and a Euclidean network of as many numbers on the same matrices.

python -m examples.emg_signs [--seeds 3] [--rounds 30] [--data geomstats-2.8.0.whl] [--out DIR]
"""

import csv
import importlib.util
import io
import sys
import zipfile
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import manifed
from examples.common import Pairs, Scores, accuracy, arguments, privacy_of, told
from manifed.algorithms.rsgd import RSGD
from manifed.errors import ConfigError
from manifed.layers import BiMap, LogEig, ReEig
from manifed.manifolds import SPD
from manifed.manifolds.linalg import RSQRT, packed, sym_function
from manifed.oracles.minibatch import Full
from manifed.problems.class_means import ClassMeans
from manifed.problems.frechet import FrechetMean
from manifed.problems.module_problem import made

EPSILONS = (1.0, 4.0, None)
DELTA, SHARE = 1e-4, 0.3
"""What a record's epsilon and delta are, and the part of both that a site's mean takes."""
SIGNS = ("rest", "rock", "paper", "scissors", "ok")
WINDOW, RIDGE = 1000, 0.05
FILE = "geomstats/datasets/data/emg/emg.csv"


# -- the recordings --------------------------------------------------------------------------
def text_of(wheel: Path | None) -> str:
    """The table of the package geomstats, installed or in a wheel.

    Raises:
        ConfigError: neither is there.
    """
    if wheel is not None:
        with zipfile.ZipFile(wheel) as opened:
            return opened.read(FILE).decode("utf-8")
    found = importlib.util.find_spec("geomstats")
    if found is None or not found.submodule_search_locations:
        raise ConfigError(
            "--data: needs the package geomstats, got none installed; pip download --no-deps "
            "geomstats, and name its wheel"
        )
    root = Path(found.submodule_search_locations[0])
    return (root.parent / FILE).read_text(encoding="utf-8")


def recordings(wheel: Path | None) -> list[Pairs]:
    """For each recording covariances (n, 8, 8) of windows of one sign, and the signs."""
    rows = csv.reader(io.StringIO(text_of(wheel)))
    next(rows)
    samples, signs = list[list[str]](), list[tuple[str, str]]()
    for row in rows:
        samples.append(row[1:9])
        signs.append((row[10], row[9]))
    table = (np.array(samples, dtype=np.float64) - 128.0) / 4.0
    cuts = [0, *(i for i in range(1, len(signs)) if signs[i] != signs[i - 1]), len(signs)]
    found: dict[str, tuple[list[np.ndarray], list[int]]] = {}
    for start, end in pairwise(cuts):
        site, sign = signs[start]
        matrices, labels = found.setdefault(site, ([], []))
        for first in range(start, end - WINDOW + 1, WINDOW):
            x = table[first : first + WINDOW]
            matrices.append(x.T @ x / WINDOW + RIDGE * np.eye(8))
            labels.append(SIGNS.index(sign))
    return [(torch.tensor(np.stack(z)), torch.tensor(y)) for z, y in found.values()]


def split(site: Pairs) -> tuple[Pairs, Pairs]:
    """Every third window judges, and is public; the others are the site's."""
    is_test = torch.arange(len(site[1])) % 3 == 2
    return (site[0][~is_test], site[1][~is_test]), (site[0][is_test], site[1][is_test])


# -- recentring ------------------------------------------------------------------------------
def private_mean(matrices: Tensor, epsilon: float | None, seed: int) -> Tensor:
    """The Frechet mean (8, 8) of one site's matrices, from the identity in three steps."""
    found = manifed.fit(
        FrechetMean(SPD()), [matrices], RSGD(step_size=0.5, local_steps=1, minibatch=Full()),
        rounds=3, start=torch.eye(matrices.shape[-1], dtype=torch.float64), seed=seed,
        privacy=privacy_of(epsilon, SHARE * DELTA, clip=2.0),
    )  # fmt: skip
    return found.model


def recentred(sites: Sequence[Pairs], epsilon: float | None, seed: int) -> list[Tensor]:
    """M^(-1/2) of every site's private mean M, at its share of the budget."""
    means = [
        private_mean(z, None if epsilon is None else SHARE * epsilon, 100 * seed + i)
        for i, (z, _) in enumerate(sites)
    ]
    return [sym_function(mean, RSQRT) for mean in means]


def moved(sites: Sequence[Pairs], factors: Sequence[Tensor]) -> list[Pairs]:
    """A isometry of each site: z -> A z A."""
    return [(a @ z @ a, y) for (z, y), a in zip(sites, factors, strict=True)]


# -- models ----------------------------------------------------------------------------------
class Flat(nn.Module):
    """The entries of the matrix, tanh of four of their sums, and a linear head: 173 numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(36, 4), nn.Linear(4, len(SIGNS))

    def forward(self, matrix: Tensor) -> Tensor:
        """(..., 8, 8) to (..., 5)."""
        return self.last(torch.tanh(self.first(packed(matrix))))


def spdnet() -> nn.Module:
    """8 x 8 to 6 x 6, logarithms of eigenvalues, and a linear head: 158 numbers."""
    return nn.Sequential(BiMap(8, 6), ReEig(), LogEig(), nn.Linear(21, len(SIGNS)))


def of_network(
    factory: type[nn.Module], sites: list[Pairs], test: Pairs, epsilon: float | None, delta: float,
    seed: int, rounds: int,
) -> float:  # fmt: skip
    """Accuracy of a network."""
    return accuracy(
        made(factory, seed), sites, test, seed=seed, rounds=rounds, step_size=1.0,
        privacy=privacy_of(epsilon, delta),
    )  # fmt: skip


def of_means(
    sites: list[Pairs], test: Pairs, epsilon: float | None, delta: float, seed: int, rounds: int
) -> float:
    """Accuracy of the nearest of five private means."""
    problem = ClassMeans(SPD(), len(SIGNS))
    shards = [{"z": z, "label": y.double()} for z, y in sites]
    found = manifed.fit(
        problem, shards, RSGD(step_size=1.0, minibatch=Full()), rounds=rounds, seed=seed,
        start=torch.eye(8, dtype=torch.float64).expand(len(SIGNS), 8, 8),
        privacy=privacy_of(epsilon, delta, clip=3.0),
    )  # fmt: skip
    distances = SPD().dist(found.model, test[0].unsqueeze(1))
    return float((distances.argmin(-1) == test[1]).double().mean())


MODELS = {
    "MDM": of_means,
    "SPDNet": partial(of_network, spdnet),
    "Euclidean network": partial(of_network, Flat),
}


def scores(
    seeds: int,
    rounds: int,
    epsilons: Sequence[float | None] = EPSILONS,
    data: Path | None = None,
) -> Scores:
    """Test accuracy with recentring, and as recorded, where the whole budget is for training."""
    parts = [split(site) for site in recordings(data)]
    mine, public = [part[0] for part in parts], [part[1] for part in parts]
    found: dict[str, dict[str, list[float]]] = {}
    for epsilon in epsilons:
        key = "none" if epsilon is None else f"{epsilon:g}"
        for seed in range(seeds):
            factors = recentred(mine, epsilon, seed)
            there, judged = moved(mine, factors), joined(moved(public, factors))
            left = None if epsilon is None else (1 - SHARE) * epsilon
            for name, score in MODELS.items():
                values = found.setdefault(name, {}).setdefault(key, [])
                values.append(score(there, judged, left, (1 - SHARE) * DELTA, seed, rounds))
                values = found.setdefault(f"{name}, as recorded", {}).setdefault(key, [])
                values.append(score(mine, joined(public), epsilon, DELTA, seed, rounds))
    return found


def joined(sites: Sequence[Pairs]) -> Pairs:
    """All examples."""
    feature, label = zip(*sites, strict=True)
    return torch.cat(feature), torch.cat(label)


def main(argv: Sequence[str] | None = None) -> int:
    """Train, draw and tell."""
    given = arguments(argv, __doc__)
    found = scores(given.seeds, given.rounds, data=given.data)
    return told("emg-signs", found, "Hand signs at four sites", "test accuracy", argv)


if __name__ == "__main__":
    sys.exit(main())
