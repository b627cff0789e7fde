"""Who shares secrets with whom in one attempt at a secure sum, and how many must answer.

Up to 64 nodes everybody shares with everybody. More nodes stand on a circle in an order that nobody
can choose, and each shares with the nearest on both sides. What a sparse graph guarantees holds for
nodes that drop out or collude without regard to it (with failure probability 2^-40 for secrets and
2^-20 for the sum). Against a server that chooses who drops out, only the complete graph holds.

Source: Bell et al. 2020, "Secure Single-Server Aggregation with (Poly)Logarithmic Overhead".
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping
from functools import lru_cache
from math import comb
from typing import NamedTuple

_COMPLETE = 64
"""Up to so many nodes everybody is everybody's neighbour."""
_LARGEST_DEGREE = 700
_SECRET, _CORRECT = 40, 20
"""Failures have a probability of at most 2 to minus these."""


class Committee(NamedTuple):
    """The holders of shares in one attempt, and how many of them are needed."""

    neighbours: Mapping[int, tuple[int, ...]]
    """By node, in order; a node holds a share of its own secrets as well."""
    threshold: int
    """Shares that restore a secret."""
    quorum: int
    """Signatures that make a list of survivors the only one."""
    least: int
    """Nodes whose integers must be in a sum."""


@lru_cache(maxsize=8)
def committee(cohort: tuple[int, ...], dropped: int, colluding: int, seed: bytes) -> Committee:
    """Returns who shares with whom among the nodes of ``cohort``, ordered by the public ``seed``.

    Raises:
        ValueError: if so many may drop out or collude that no threshold protects the others.
    """
    n = len(cohort)
    k, threshold = _sizes(n, dropped, colluding)
    order = sorted(cohort, key=lambda i: hashlib.sha256(seed + i.to_bytes(4, "big")).digest())
    steps = {*range(-(k // 2), (k + 1) // 2 + 1)} - {0}
    near = {
        node: tuple(sorted(order[(place + step) % n] for step in steps))
        for place, node in enumerate(order)
    }
    return Committee(near, threshold, (n + colluding) // 2 + 1, n - dropped)


def degree(n: int, dropped: int, colluding: int) -> int:
    """Returns how many neighbours each of ``n`` nodes has; ValueError as `committee`."""
    return _sizes(n, dropped, colluding)[0]


@lru_cache
def _sizes(n: int, dropped: int, colluding: int) -> tuple[int, int]:
    """The number of neighbours, and the threshold."""
    if n - colluding <= max(2 * dropped, 1):
        raise ValueError(
            f"max_dropped, collusion: expected at least {max(2 * dropped, 1) + 1} nodes that do "
            f"not collude, got {n} nodes with collusion = {colluding} and max_dropped = {dropped}; "
            "lower one of them or ask more nodes"
        )
    if n > _COMPLETE:
        for k in range(4, min(n - 1, _LARGEST_DEGREE), 2):
            if threshold := _sparse(n, dropped, colluding, k):
                return k, threshold
    # One holder may fall silent after it confirmed; nobody holds a secret by itself.
    return n - 1, max(min((n + colluding) // 2 + 1, n - dropped - 1), 2)


def _sparse(n: int, dropped: int, colluding: int, k: int) -> int:
    """The least threshold that holds with k neighbours on a circle; 0 if there is none.

    Exact counts: the neighbours of a node are k random ones among the n - 1 others.
    """
    gone = colluding + dropped
    if n**2 * gone**k << (_SECRET - 1) > n**k:  # the circle cut by two gaps of k/2
        return 0
    everything = comb(n - 1, k)

    def ways(marked: int, count: int) -> int:
        return comb(marked, count) * comb(n - 1 - marked, k - count)

    if n * ways(gone, k) << _SECRET > everything:  # a node with no honest neighbour left
        return 0
    threshold, corrupt = k + 1, 0
    while threshold > 2:
        corrupt += ways(colluding, threshold - 1)
        if n * corrupt << _SECRET > everything:
            break
        threshold -= 1
    short = sum(ways(n - dropped - 1, count) for count in range(threshold))
    return threshold if threshold < k and n * short << _CORRECT <= everything else 0


def blamed(complaints: Mapping[int, Collection[int]], colluding: int) -> frozenset[int]:
    """Returns whom the next attempt leaves out, by the boxes that nodes could not open.

    ``complaints`` holds for each complaining node the dealers of those boxes. Either the dealer or
    the complaining node did not follow the protocol. At most ``colluding`` nodes do not, so a node
    that names more dealers lies, and a dealer that more nodes name dealt wrong shares; otherwise
    both of a pair are left out. Nobody shows a key for this (see `manifed.privacy.secret_shares`).
    """
    most = max(colluding, 1)
    heard = {node: named for node, named in complaints.items() if len(named) <= most}
    counts = Counter(dealer for named in heard.values() for dealer in named)
    out = {*complaints} - {*heard} | {dealer for dealer, count in counts.items() if count > most}
    for node in sorted(heard):
        for dealer in sorted(heard[node]):
            if not out & {node, dealer}:
                out |= {node, dealer}
    return frozenset(out)
