"""Who shares with whom: thresholds, quorums and neighbours that the guarantees need."""

from collections import Counter
from random import Random

import pytest

from manifed.privacy.committee import _COMPLETE, blamed, committee, degree

SEED = b"of an attempt"


@pytest.mark.parametrize("n", [2, 3, 4, 5, 10, 33])
def test_on_the_complete_graph_every_accepted_size_holds(n):
    refused = set()
    for dropped in range(n):
        for colluding in range(n):
            try:
                made = committee(range(n), dropped, colluding, SEED)
            except ValueError:
                refused.add((dropped, colluding))
                continue
            assert made.least == n - dropped > colluding
            assert 2 * made.quorum - n > colluding, "two lists of survivors share an honest node"
            assert 2 * (made.quorum - 1) - n <= colluding, "no more signatures than that takes"
            assert made.quorum <= made.least
            assert max(colluding + 1, 2) <= made.threshold <= made.least
            if made.least > 2:
                assert made.threshold < made.least, "one may be silent after it confirmed"
            assert all(
                near == tuple(j for j in range(n) if j != i) for i, near in made.neighbours.items()
            )
    assert refused == {(d, c) for d in range(n) for c in range(n) if n - c <= max(2 * d, 1)}
    with pytest.raises(ValueError, match=r"^max_dropped, collusion: .* or ask more nodes$"):
        degree(n, n // 2, 1)


@pytest.mark.parametrize(
    ("n", "colluding", "dropped", "k", "threshold"),
    [
        (100, 5, 10, 20, 6), (100, 10, 33, 44, 11), (300, 15, 30, 28, 14), (300, 30, 100, 72, 27),
        (1000, 50, 100, 36, 18), (1000, 100, 333, 98, 38), (_COMPLETE, 1, 31, _COMPLETE - 1, 32),
        (_COMPLETE + 1, 20, 22, _COMPLETE, 42),
    ],
)  # fmt: skip
def test_a_sparse_graph_has_the_least_degree_of_the_specification(
    n, colluding, dropped, k, threshold
):
    cohort = range(7, 7 + 3 * n, 3)
    made = committee(cohort, dropped, colluding, SEED)
    assert (degree(n, dropped, colluding), made.threshold) == (k, threshold)
    assert made.quorum == (n + colluding) // 2 + 1
    assert set(made.neighbours) == set(cohort)
    for node, near in made.neighbours.items():
        assert len(set(near)) == k
        assert node not in near
        assert list(near) == sorted(near)
        assert all(node in made.neighbours[j] for j in near)
    # the order follows from the seed alone
    assert made == committee(tuple(reversed(cohort)), dropped, colluding, SEED)
    other = committee(cohort, dropped, colluding, b"of the next").neighbours
    assert (other == made.neighbours) == (k == n - 1)


def test_a_sparse_graph_is_one_piece_after_dropouts():
    made = committee(range(100), 33, 10, SEED)
    alive = set(range(0, 100, 2)) | {1, 3, 5, 7, 9, 11, 13}
    reached, left = set(), [0]
    while left:
        node = left.pop()
        reached.add(node)
        left += [j for j in made.neighbours[node] if j in alive and j not in reached]
    assert reached == alive


@pytest.mark.parametrize(
    ("complaints", "colluding", "out"),
    [
        ({}, 3, set()),
        ({4: [7]}, 0, {4, 7}),  # one of both lies, and nobody can tell which
        ({1: [7], 2: [7], 3: [7]}, 2, {7}),  # one of three is honest
        ({4: [0, 1, 2]}, 2, {4}),  # one of three dealt well
        ({4: [0, 1, 2], 1: [7], 2: [7]}, 1, {4, 7}),
        ({4: [0, 1, 2, 3], 5: [0, 1, 2, 3]}, 1, {4, 5}),  # liars together convict nobody
        ({1: [7], 2: [7]}, 2, {1, 7}),  # a pair settles the other complaint too
        ({1: [7, 8], 2: [8]}, 2, {1, 7, 2, 8}),
    ],
)
def test_complaints_put_out_whom_they_prove_guilty_and_otherwise_both(complaints, colluding, out):
    assert blamed(complaints, colluding) == out


def test_honest_nodes_are_put_out_at_most_one_for_one():
    """Of 12 nodes the first c say what they like, and honest ones name only them."""
    random = Random(5)
    for c in (1, 2, 3, 4) * 50:
        dealers = {node: range(12) if node < c else range(c) for node in range(12)}
        complaints = {
            node: [j for j in near if j != node and random.random() < 0.4]
            for node, near in dealers.items()
        }
        out = Counter(node < c for node in blamed(complaints, c))
        assert out[False] <= out[True]
