"""Partitions are disjoint, cover what they should, and repeat for the same generator state."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manifed.problems import partition

CI = settings(derandomize=True, deadline=None, max_examples=40)
SEED = st.integers(0, 1000)


def labels_of(seed: int, n: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 5, size=n)


def assert_disjoint(lists, n, *, covers):
    joined = np.concatenate(lists)
    assert len(np.unique(joined)) == len(joined)
    assert joined.min() >= 0
    assert joined.max() < n
    if covers:
        assert len(joined) == n


@CI
@given(seed=SEED, n=st.integers(1, 60), clients=st.integers(1, 12))
def test_equal_shards_cover_all_and_differ_by_one_example(seed, n, clients):
    if clients > n:
        with pytest.raises(ValueError, match="num_partitions"):
            partition.equal(n, clients, np.random.default_rng(seed))
        return
    lists = partition.equal(n, clients, np.random.default_rng(seed))
    assert_disjoint(lists, n, covers=True)
    sizes = [len(part) for part in lists]
    assert max(sizes) - min(sizes) <= 1


def test_a_fixed_shard_size_leaves_the_rest_out():
    lists = partition.equal(1797, 12, np.random.default_rng(0), shard_size=149)
    assert [len(part) for part in lists] == [149] * 12
    assert_disjoint(lists, 1797, covers=False)
    with pytest.raises(ValueError, match=r"shard_size <= 149 .* got 150"):
        partition.equal(1797, 12, np.random.default_rng(0), shard_size=150)


def test_unshuffled_shards_are_consecutive_blocks():
    lists = partition.equal(6, 3, np.random.default_rng(0), is_shuffled=False)
    assert [part.tolist() for part in lists] == [[0, 1], [2, 3], [4, 5]]


@CI
@given(seed=SEED, n=st.integers(24, 80), clients=st.integers(1, 6), blocks=st.integers(1, 4))
def test_sorted_shards_cover_all_and_see_few_labels(seed, n, clients, blocks):
    labels = labels_of(seed, n)
    rng = np.random.default_rng(seed)
    lists = partition.sort_by_label(labels, clients, rng, blocks_per_client=blocks)
    assert_disjoint(lists, n, covers=True)
    if blocks == 1:
        order = np.concatenate(lists)
        assert (np.diff(labels[order]) >= 0).all()
        assert all((np.diff(part[labels[part] == v]) > 0).all() for part in lists for v in range(5))


def test_sorted_blocks_of_the_digits_are_those_of_the_paper():
    from manifed.problems.readers import digits

    _, labels = digits()
    lists = partition.sort_by_label(labels, 10, np.random.default_rng(0), shard_size=179)
    seen = [sorted(set(labels[part].tolist())) for part in lists]
    assert [len(part) for part in lists] == [179] * 10
    assert seen == [
        [0, 1], [1], [1, 2], [3], [3, 4], [4, 5], [5, 6], [6, 7], [7, 8], [8, 9],
    ]  # fmt: skip


@CI
@given(seed=SEED, clients=st.integers(1, 6), alpha=st.sampled_from([0.1, 1.0, 100.0]))
def test_dirichlet_shards_cover_all_with_the_smallest_size(seed, clients, alpha):
    labels = labels_of(seed, 300)
    rng = np.random.default_rng(seed)
    lists = partition.dirichlet(labels, clients, rng, alpha=alpha, min_size=5)
    assert_disjoint(lists, 300, covers=True)
    assert min(len(part) for part in lists) >= 5


def test_a_large_alpha_is_nearly_iid_and_a_small_one_is_not():
    labels = labels_of(0, 5000)

    def skew(alpha: float) -> float:
        lists = partition.dirichlet(labels, 5, np.random.default_rng(1), alpha=alpha)
        shares = [np.bincount(labels[part], minlength=5) / len(part) for part in lists]
        return float(np.std(shares, axis=0).mean())

    assert skew(1e4) < 0.01
    assert skew(0.1) > 0.1


def test_dirichlet_says_what_cannot_be_met():
    labels = labels_of(0, 20)
    with pytest.raises(ValueError, match=r"min_size \* num_partitions <= 20"):
        partition.dirichlet(labels, 5, np.random.default_rng(0), alpha=1.0, min_size=5)
    with pytest.raises(ValueError, match="alpha > 0"):
        partition.dirichlet(labels, 5, np.random.default_rng(0), alpha=0.0)
    with pytest.raises(ValueError, match="raise alpha or lower min_size"):
        partition.dirichlet(
            labels, 10, np.random.default_rng(0), alpha=1e-3, min_size=2, max_draws=20
        )


def test_the_natural_partition_returns_every_source_its_own():
    sources = np.array([2, 0, 0, 2, 1])
    lists = partition.natural(sources, 3)
    assert [part.tolist() for part in lists] == [[1, 2], [4], [0, 3]]
    with pytest.raises(ValueError, match=r"data's 3 sources, got 2"):
        partition.natural(sources, 2)


@pytest.mark.parametrize("seed", [0, 7])
def test_the_same_generator_state_gives_the_same_lists(seed):
    labels = labels_of(0, 200)

    def draw(state: int) -> list[list[int]]:
        rng = np.random.default_rng(state)
        lists = [
            *partition.equal(200, 4, rng),
            *partition.sort_by_label(labels, 4, rng, blocks_per_client=2),
            *partition.dirichlet(labels, 4, rng, alpha=0.5),
        ]
        return [part.tolist() for part in lists]

    assert draw(seed) == draw(seed)
    assert draw(seed) != draw(seed + 1)


def test_the_flwr_datasets_adapter_reads_index_lists():
    class Partitioner:
        num_partitions = 2

        def load_partition(self, partition_id: int) -> dict[str, list[int]]:
            return {"index": [partition_id, partition_id + 2]}

    lists = partition.from_flwr_datasets(Partitioner(), 2, "index")
    assert [part.tolist() for part in lists] == [[0, 2], [1, 3]]
    with pytest.raises(ValueError, match="partitioner with 3 partitions"):
        partition.from_flwr_datasets(Partitioner(), 3, "index")
