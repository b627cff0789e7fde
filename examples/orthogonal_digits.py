"""An orthogonal network on digits across ten clients, beside the same network without constraint.

python -m examples.orthogonal_digits [--seeds 3] [--rounds 30] [--out DIR]
"""

import sys
from collections.abc import Sequence

import torch
from sklearn.datasets import load_digits
from torch import nn

from examples.common import Pairs, Scores, accuracy, arguments, privacy_of, told
from manifed.layers import OrthogonalLinear
from manifed.problems.module_problem import made

EPSILONS = (1.0, 4.0, None)
HIDDEN, DELTA = 16, 1e-4


def digits() -> tuple[list[Pairs], Pairs]:
    """Ten clients of about 150 images each, and 300 public ones."""
    feature, label = (torch.tensor(array) for array in load_digits(return_X_y=True))
    feature = feature / 16
    shards = zip(feature[300:].chunk(10), label[300:].chunk(10), strict=True)
    return list(shards), (feature[:300], label[:300])


def orthogonal() -> nn.Module:
    """A frame of 16 columns in R^64, tanh, a linear head."""
    return nn.Sequential(OrthogonalLinear(64, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 10))


def plain() -> nn.Module:
    """As many numbers without a constraint."""
    return nn.Sequential(nn.Linear(64, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 10))


def scores(seeds: int, rounds: int, epsilons: Sequence[float | None] = EPSILONS) -> Scores:
    """Test accuracy of both networks with the same clip, steps and noise."""
    sites, test = digits()
    return {
        name: {
            "none" if epsilon is None else f"{epsilon:g}": [
                accuracy(
                    made(factory, seed),
                    sites,
                    test,
                    seed=seed,
                    rounds=rounds,
                    step_size=1.0,
                    privacy=privacy_of(epsilon, DELTA),
                )
                for seed in range(seeds)
            ]
            for epsilon in epsilons
        }
        for name, factory in (("orthogonal", orthogonal), ("unconstrained", plain))
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Train, draw and tell."""
    given = arguments(argv, __doc__)
    found = scores(given.seeds, given.rounds)
    return told("orthogonal-digits", found, "Digits across ten clients", "test accuracy", argv)


if __name__ == "__main__":
    sys.exit(main())
