"""Splitting n examples among clients: equal, label-sorted, Dirichlet, or as the data come.

Every function returns one index array per client, disjoint, from an explicit numpy generator; the
same generator state gives the same lists. ``equal``, ``sorted`` and ``dirichlet`` cover all
examples unless ``shard_size`` fixes the number per client, and then the rest is left out.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


def equal(
    num_examples: int,
    num_partitions: int,
    rng: np.random.Generator,
    *,
    shard_size: int | None = None,
    is_shuffled: bool = True,
) -> list[Indices]:
    """Shards of equal size (to one example), shuffled or as consecutive blocks."""
    used = _used(num_examples, num_partitions, shard_size)
    order = rng.permutation(num_examples) if is_shuffled else np.arange(num_examples)
    return _blocks(order[:used], num_partitions)


def sort_by_label(
    labels: NDArray[Any],
    num_partitions: int,
    rng: np.random.Generator,
    *,
    blocks_per_client: int = 1,
    shard_size: int | None = None,
) -> list[Indices]:
    """Label-skewed shards: examples stably sorted by label and cut into consecutive blocks.

    One block per client in order is the split of Zhang et al. section 5.1; with
    ``blocks_per_client`` > 1 each client gets that many random blocks, so a few classes.
    """
    used = _used(len(labels), num_partitions, shard_size)
    order = np.argsort(labels, kind="stable").astype(np.int64)[:used]
    pieces = _blocks(order, num_partitions * blocks_per_client)
    if blocks_per_client == 1:
        return pieces
    deal = rng.permutation(len(pieces)).reshape(num_partitions, blocks_per_client)
    return [np.concatenate([pieces[piece] for piece in hand]) for hand in deal]


def dirichlet(
    labels: NDArray[Any],
    num_partitions: int,
    rng: np.random.Generator,
    *,
    alpha: float,
    min_size: int = 1,
    max_draws: int = 1000,
) -> list[Indices]:
    """Each class split among clients in Dirichlet(alpha) proportions (Hsu, Qi, Brown 2019).

    Drawn again, at most ``max_draws`` times, until every client has ``min_size`` examples.
    """
    _check_count(len(labels), num_partitions)
    if alpha <= 0:
        raise ValueError(f"Expected alpha > 0, got {alpha}")
    if min_size * num_partitions > len(labels):
        raise ValueError(
            f"Expected min_size * num_partitions <= {len(labels)} examples, "
            f"got {min_size} * {num_partitions}"
        )
    for _ in range(max_draws):
        shards = _dirichlet_once(labels, num_partitions, rng, alpha)
        if min(len(shard) for shard in shards) >= min_size:
            return shards
    raise ValueError(
        f"No draw in {max_draws} gave every client {min_size} examples with alpha={alpha} and "
        f"{num_partitions} clients; raise alpha or lower min_size"
    )


def natural(sources: NDArray[Any], num_partitions: int) -> list[Indices]:
    """One shard per source, in the order of the sorted source values."""
    values, inverse = np.unique(sources, return_inverse=True)
    if len(values) != num_partitions:
        raise ValueError(
            f"Expected num_partitions to equal the data's {len(values)} sources, "
            f"got {num_partitions}"
        )
    order = np.argsort(inverse, kind="stable").astype(np.int64)  # one pass, not one a source
    return np.split(order, np.cumsum(np.bincount(inverse))[:-1])


def from_flwr_datasets(partitioner: Any, num_partitions: int, column: str) -> list[Indices]:
    """Index lists of a ``flwr_datasets`` partitioner whose data set has an index ``column``."""
    if partitioner.num_partitions != num_partitions:
        raise ValueError(
            f"Expected a partitioner with {num_partitions} partitions, "
            f"got {partitioner.num_partitions}"
        )
    loads = (partitioner.load_partition(i) for i in range(num_partitions))
    return [np.asarray(part[column], dtype=np.int64) for part in loads]


def _dirichlet_once(
    labels: NDArray[Any], num_partitions: int, rng: np.random.Generator, alpha: float
) -> list[Indices]:
    parts: list[list[Indices]] = [[] for _ in range(num_partitions)]
    for value in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == value).astype(np.int64))
        shares = rng.dirichlet(np.full(num_partitions, alpha))
        cuts = np.rint(np.cumsum(shares)[:-1] * len(members)).astype(np.int64)
        for part, piece in zip(parts, np.split(members, cuts), strict=True):
            part.append(piece)
    return [np.concatenate(part) for part in parts]


def _used(num_examples: int, num_partitions: int, shard_size: int | None) -> int:
    _check_count(num_examples, num_partitions)
    if shard_size is None:
        return num_examples
    if shard_size < 1 or shard_size * num_partitions > num_examples:
        raise ValueError(
            f"Expected 1 <= shard_size <= {num_examples // num_partitions} "
            f"({num_examples} examples, {num_partitions} clients), got {shard_size}"
        )
    return shard_size * num_partitions


def _check_count(num_examples: int, num_partitions: int) -> None:
    if not 1 <= num_partitions <= num_examples:
        raise ValueError(
            f"Expected 1 <= num_partitions <= {num_examples} examples, got {num_partitions}"
        )


def _blocks(order: NDArray[np.int64], count: int) -> list[Indices]:
    if count > len(order):
        raise ValueError(f"Expected at most {len(order)} blocks of examples, got {count}")
    return np.array_split(order, count)
