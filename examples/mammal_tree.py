"""An embedding of the WordNet mammals in the Poincare ball, whose edges four owners hold.

An edge (a mammal, one of its classes) is a record. The words are public, and so is what edges are
compared with: ten words drawn for each edge, whatever the edges are. The loss is that of Nickel and
Kiela (2017); the score is how often the class is nearer than the ten words, on edges that
nobody trained on. Beside it are Euclidean embeddings of equal size with the same loss.

python -m examples.mammal_tree --data FOLDER/wordnet_mammals.tsv [--seeds 3] [--rounds 60]
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from examples.common import Pairs, Scores, accuracy, arguments, privacy_of, told
from manifed.errors import ConfigError
from manifed.layers import DistanceDecoder, PoincareEmbedding
from manifed.manifolds import Euclidean, PoincareBall
from manifed.problems.module_problem import made

EPSILONS = (2.0, 8.0, None)
DELTA, OWNERS, NEGATIVES, WIDTH = 1e-4, 4, 10, 5
STEP = 0.1


def edges(data: Path | None) -> tuple[Tensor, int]:
    """Words (n, 2) of every edge, mammal and class, and how many words there are.

    Raises:
        ConfigError: there is no such file.
    """
    folder = os.environ.get("MANIFED_DATA")
    if data is None and folder is not None:
        data = Path(folder) / "wordnet_mammals" / "wordnet_mammals.tsv"
    if data is None or not data.is_file():
        raise ConfigError(f"--data: expected the file wordnet_mammals.tsv, got {data}")
    pairs = [line.split("\t")[:2] for line in data.read_text(encoding="utf-8").splitlines()]
    names = sorted({name for pair in pairs for name in pair})
    number = {name: i for i, name in enumerate(names)}
    found = [[number[a], number[b]] for a, b in pairs if a != b]
    return torch.tensor(found), len(names)


def owned(data: Path | None, seed: int) -> tuple[list[Pairs], Pairs, int]:
    """Four owners' edges with their ten words, and a tenth of all edges, which judge."""
    pairs, words = edges(data)
    generator = np.random.default_rng(seed)
    pairs = pairs[torch.tensor(generator.permutation(len(pairs)))]
    drawn = torch.tensor(generator.integers(words, size=(len(pairs), NEGATIVES)))
    feature, label = torch.cat([pairs, drawn], -1), torch.zeros(len(pairs), dtype=torch.int64)
    few = len(pairs) // 10
    sites = zip(feature[few:].chunk(OWNERS), label[few:].chunk(OWNERS), strict=True)
    return list(sites), (feature[:few], label[:few]), words


class Flat(nn.Module):
    """A table of vectors, compared by their distances."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words, WIDTH)
        nn.init.uniform_(self.table.weight, -0.1, 0.1)
        self.decoder = DistanceDecoder(Euclidean())

    def forward(self, index: Tensor) -> Tensor:
        """(..., 2 + m) words to the scores of 1 + m candidates."""
        return self.decoder(self.table(index))


def ball(words: int) -> nn.Module:
    """A table of points of the ball, compared by their distances."""
    return nn.Sequential(
        PoincareEmbedding(words, WIDTH, radius=0.1), DistanceDecoder(PoincareBall())
    )


def scores(
    seeds: int,
    rounds: int,
    epsilons: Sequence[float | None] = EPSILONS,
    data: Path | None = None,
) -> Scores:
    """How often the class of an unseen edge is nearer than ten drawn words; by chance 1 in 11."""
    found: dict[str, dict[str, list[float]]] = {}
    for seed in range(seeds):
        sites, test, words = owned(data, seed)
        for name, factory in (("Poincare ball", ball), ("Euclidean space", Flat)):
            for epsilon in epsilons:
                key = "none" if epsilon is None else f"{epsilon:g}"
                score = accuracy(
                    made(lambda factory=factory, words=words: factory(words), seed),
                    sites, test, seed=seed, rounds=rounds, batch_size=1024.0,
                    step_size=STEP * words, privacy=privacy_of(epsilon, DELTA),
                )  # fmt: skip
                found.setdefault(name, {}).setdefault(key, []).append(score)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Train, draw and tell."""
    given = arguments(argv, __doc__)
    found = scores(given.seeds, given.rounds, data=given.data)
    return told("mammal-tree", found, "WordNet mammals of four owners", "nearest of eleven", argv)


if __name__ == "__main__":
    sys.exit(main())
