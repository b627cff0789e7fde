"""Partitions are disjoint, cover what they should, and repeat for the same generator state."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from manifed.problems.data import Dataset, Dirichlet, Equal, Natural, Sorted
from manifed.problems.examples import Examples

CI = settings(derandomize=True, deadline=None, max_examples=40)
SEED = st.integers(0, 1000)


def split(rule, clients, seed=0, *, n=0, labels=None, sources=None):
    n = n or len(sources if labels is None else labels)
    whole = Dataset(Examples({"z": torch.zeros(n, 1)}), "", labels, sources)
    return rule.split(whole, clients, np.random.default_rng(seed))


def labels_of(seed, n):
    return np.random.default_rng(seed).integers(0, 5, size=n)


def assert_disjoint_and_whole(lists, n):
    assert sorted(np.concatenate(lists)) == list(range(n))


@CI
@given(seed=SEED, n=st.integers(1, 60), clients=st.integers(1, 12))
def test_equal_shards_cover_all_and_differ_by_one_example(seed, n, clients):
    if clients > n:
        with pytest.raises(ValueError, match="num_partitions"):
            split(Equal(), clients, seed, n=n)
        return
    lists = split(Equal(), clients, seed, n=n)
    assert_disjoint_and_whole(lists, n)
    assert np.ptp(list(map(len, lists))) <= 1


def test_a_fixed_shard_size_leaves_the_rest_out():
    lists = split(Equal(shard_size=149), 12, n=1797)
    assert [len(part) for part in lists] == [149] * 12
    joined = np.concatenate(lists)
    assert len(np.unique(joined)) == len(joined)
    assert 0 <= joined.min() <= joined.max() < 1797
    with pytest.raises(ValueError, match=r"shard_size <= 149 .* got 150"):
        split(Equal(shard_size=150), 12, n=1797)


@CI
@given(seed=SEED, n=st.integers(24, 80), clients=st.integers(1, 6), blocks=st.integers(1, 4))
def test_sorted_shards_cover_all_and_see_few_labels(seed, n, clients, blocks):
    labels = labels_of(seed, n)
    lists = split(Sorted(blocks_per_client=blocks), clients, seed, labels=labels)
    assert_disjoint_and_whole(lists, n)
    if blocks == 1:
        order = np.concatenate(lists)
        assert (np.diff(labels[order]) >= 0).all()
        assert all((np.diff(part[labels[part] == v]) > 0).all() for part in lists for v in range(5))


def test_sorted_blocks_have_the_stated_size_and_there_are_no_more_than_examples():
    lists = split(Sorted(shard_size=179), 10, labels=labels_of(0, 1797))
    assert [len(part) for part in lists] == [179] * 10
    with pytest.raises(ValueError, match="at most 20 blocks of examples, got 40"):
        split(Sorted(blocks_per_client=4), 10, labels=labels_of(0, 20))


@CI
@given(seed=SEED, clients=st.integers(1, 6), alpha=st.sampled_from([0.1, 1.0, 100.0]))
def test_dirichlet_shards_cover_all_with_the_smallest_size(seed, clients, alpha):
    labels = labels_of(seed, 300)
    lists = split(Dirichlet(alpha=alpha), clients, seed, labels=labels)
    assert_disjoint_and_whole(lists, 300)
    assert min(map(len, lists)) >= 1


def test_dirichlet_says_what_cannot_be_met():
    with pytest.raises(ValueError, match="raise alpha"):
        split(Dirichlet(alpha=1e-3), 10, labels=labels_of(0, 20))


def test_the_natural_partition_returns_every_source_its_own():
    sources = np.array([2, 0, 0, 2, 1])
    lists = split(Natural(), 3, sources=sources)
    assert [part.tolist() for part in lists] == [[1, 2], [4], [0, 3]]
    with pytest.raises(ValueError, match=r"data's 3 sources, got 2"):
        split(Natural(), 2, sources=sources)
