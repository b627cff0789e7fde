"""A network that knows the digits 0 to 4 learns all ten from private sites: adapter or all of it.

The network is trained on the first half of the digits, which is public here. Five sites hold all
ten. A rank-8 adapter with a frame on the Stiefel manifold is trained in
the place of the weights, beside the weights themselves and beside a network that knows nothing.

python -m examples.stiefel_adapter [--seeds 3] [--rounds 30] [--out DIR]
"""

import sys
from collections.abc import Sequence

import torch
from torch import nn

import manifed
from examples.common import Pairs, Scores, accuracy, arguments, privacy_of, told
from examples.orthogonal_digits import digits
from manifed.layers import adapt
from manifed.problems.module_problem import made

EPSILONS = (1.0, 4.0, None)
RANK, DELTA = 8, 1e-4


def network() -> nn.Module:
    """64 - 64 - 10."""
    return nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))


def halves() -> tuple[Pairs, list[Pairs], Pairs]:
    """Public images of 0 to 4, five sites with all digits, public test images."""
    sites, test = digits()
    feature, label = (torch.cat(part) for part in zip(*sites[:5], strict=True))
    is_known = label < 5
    return (feature[is_known], label[is_known]), sites[5:], test


def trained_before(public: Pairs, seed: int, rounds: int = 60) -> nn.Module:
    """The network after training on public images of half of the digits."""
    model = made(network, seed)
    found = manifed.fit_module(model, [public], rounds=rounds, step_size=1.0, seed=seed)
    model.load_state_dict(found.state_dict)
    return model


def scores(seeds: int, rounds: int, epsilons: Sequence[float | None] = EPSILONS) -> Scores:
    """Test accuracy on all ten digits."""
    public, sites, test = halves()
    known = [trained_before(public, seed) for seed in range(seeds)]
    adapted = [made(lambda model=model: adapt(model, RANK), 7) for model in known]
    fresh = [made(network, seed) for seed in range(seeds)]
    ways = {"rank-8 adapter": adapted, "all weights": known, "from scratch": fresh}
    return {
        name: {
            "none" if epsilon is None else f"{epsilon:g}": [
                accuracy(
                    model,
                    sites,
                    test,
                    seed=seed,
                    rounds=rounds,
                    step_size=1.0,
                    privacy=privacy_of(epsilon, DELTA),
                )
                for seed, model in enumerate(models)
            ]
            for epsilon in epsilons
        }
        for name, models in ways.items()
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Train, draw and tell."""
    given = arguments(argv, __doc__)
    found = scores(given.seeds, given.rounds)
    return told("stiefel-adapter", found, "Five digits more", "test accuracy", argv)


if __name__ == "__main__":
    sys.exit(main())
