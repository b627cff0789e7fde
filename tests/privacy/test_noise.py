"""Addresses are injective, draws depend on nothing but key and address, and nothing is reused."""

import math
import pickle
from fractions import Fraction

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtri

from manifed.privacy.random_numbers import (
    BITS,
    NoiseSource,
    Stream,
    counter_of,
    edge_place,
)
from tests.tensors import assert_near

SOURCE = NoiseSource.from_seed(7)
FIELDS = st.tuples(
    st.sampled_from([one for one in Stream if one < 128]),
    *(st.integers(0, 2**bits - 1) for bits in (24, 16, 24, 24, 32)),
)
EDGES = st.tuples(
    st.just(Stream.PAIR_NOISE),
    *(st.integers(0, 2**bits - 1) for bits in (24, 16, 16)),
    st.integers(0, 2**20 - 2).flatmap(
        lambda i: st.tuples(st.just(i), st.integers(i + 1, 2**20 - 1))
    ),
    st.integers(0, 2**24 - 1),
)


def block(fields):
    stream, server_round, attempt, step, place, index = fields
    own = {"stream": stream, "server_round": server_round, "attempt": attempt, "step": step}
    if isinstance(place, tuple):
        return counter_of(**own, edge=edge_place(place), block=index)
    return counter_of(**own, partition=place, block=index)


def unpacked(counter):
    """The documented layouts, read back: stream, round, attempt, step, partition(s), block."""
    stream = counter >> 120
    attempt = counter >> 104 & 0xFFFF
    if stream >= 128:
        step = counter >> 88 & 0xFFFF
        server_round = counter >> 64 & 0xFFFFFF
        edge = counter >> 44 & 0xFFFFF, counter >> 24 & 0xFFFFF
        return stream, server_round, attempt, step, edge, counter & 0xFFFFFF
    step = counter >> 80 & 0xFFFFFF
    server_round = counter >> 56 & 0xFFFFFF
    return stream, server_round, attempt, step, counter >> 32 & 0xFFFFFF, counter & 0xFFFFFFFF


def words(counter_blocks, key):
    """AES-256 in counter mode by the library's own CTR object, one block at a time."""
    out = b""
    for counter in counter_blocks:
        big_endian = counter.to_bytes(16, "little")  # our blocks are little-endian strings
        encryptor = Cipher(algorithms.AES(key), modes.CTR(big_endian)).encryptor()
        out += encryptor.update(bytes(16))
    return np.frombuffer(out, dtype="<u8")


@given(st.one_of(FIELDS, EDGES))
def test_one_map_reads_every_field_of_clients_and_edges_back_from_the_counter_block(fields):
    assert unpacked(block(fields)) == fields


def test_field_widths_fill_the_block_exactly():
    assert sum(BITS.values()) == 128


def test_both_ends_of_an_edge_draw_the_same_numbers_and_no_others_do():
    place = {"stream": Stream.PAIR_NOISE, "server_round": 3}
    one = SOURCE.normals((2, 25), edge=(7, 4), **place)
    assert torch.equal(one, SOURCE.normals((2, 25), edge=(4, 7), **place))
    ring = (0, 1), (4, 7), (2**20 - 1, 0)
    many = [SOURCE.normals((2, 25), edge=ends, **place) for ends in ring]
    assert torch.equal(many[1], one)
    others = [
        SOURCE.normals((2, 25), edge=(4, 7), **{**place, name: 1})
        for name in ("server_round", "attempt", "step")
    ]
    client = SOURCE.normals((2, 25), stream=Stream.SERVER_NOISE, partition=4, server_round=3)
    drawn = torch.stack([*many, *others, client])
    assert drawn.unique().numel() == drawn.numel()


@given(FIELDS)
def test_draws_are_aes_in_counter_mode_through_the_inverse_normal_cdf(fields):
    stream, server_round, attempt, step, partition, _ = fields
    counters = [block((stream, server_round, attempt, step, partition, i)) for i in range(20)]
    w = words(counters, SOURCE.key)
    place = {"stream": stream, "server_round": server_round, "attempt": attempt, "step": step}
    normals = SOURCE.normals((40,), partition=partition, **place).numpy()
    k = (w >> np.uint64(11)).astype(np.float64)
    lower = k < 2.0**52
    tail = np.where(lower, k + 0.5, 2.0**53 - k - 0.5) * 2.0**-53
    np.testing.assert_allclose(normals, np.where(lower, 1, -1) * ndtri(tail), rtol=0, atol=5e-15)
    uniforms = SOURCE.uniforms((40,), partition=partition, **place).numpy()
    assert (uniforms == ((w >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52).all()


@pytest.mark.parametrize("size", [1, 17, 16385, 40_001])
def test_coins_are_words_below_the_rate_exactly(size):
    rates = [1.0, 0.5, 1 / 3, 256 / 32561, 2.0**-40 / 3, 1.0 - 2.0**-53, 2.0**-64]
    place = {"stream": Stream.MINIBATCH, "server_round": 3, "attempt": 1, "step": 7}
    partitions = list(range(len(rates)))
    keys = SOURCE.words(size, partition=partitions, **place)
    bounds = [min(math.floor(Fraction(rate) * 2**64), 2**64 - 2048) for rate in rates]
    expected = np.stack([keys[i] < np.uint64(bound) for i, bound in enumerate(bounds)])
    together = SOURCE.coins(size, np.array(rates)[:, None], partition=partitions, **place)
    assert (together.numpy() == expected).all()
    alone = [SOURCE.coins(size, rate, partition=i, **place) for i, rate in enumerate(rates)]
    assert torch.equal(torch.stack(alone), together)
    uniforms = SOURCE.uniforms((size,), partition=partitions, **place).numpy()
    assert (expected == (uniforms < np.array(rates)[:, None])).all()


@pytest.mark.parametrize("size", [1, 2, 3, 10, 16, 17, 33, 1000, 16384, 16385, 40_001])
@pytest.mark.parametrize("precision", ["single", "summed"])
def test_a_cohort_draws_what_each_client_alone_would_draw(size, precision):
    source = NoiseSource.from_seed(3, precision=precision)
    partitions = [5, 0, 2**24 - 1, 17]
    place = {"stream": Stream.GRADIENT_NOISE, "server_round": 300, "attempt": 2, "step": 9}
    for draw in (source.normals, source.uniforms):
        together = draw((size,), partition=partitions, **place)
        alone = [draw((size,), partition=p, **place) for p in partitions]
        assert together.shape == (4, size)
        assert torch.equal(together, torch.stack(alone))


@pytest.mark.parametrize(("place", "bits"), [("partition", 32), ("edge", 24)])
def test_an_address_has_no_more_blocks_than_its_field_can_count(place, bits):
    with pytest.raises(ValueError, match=r"block < .* use another step or a smaller shape"):
        counter_of(**{place: 1}, stream=128 * (place == "edge"), block=1 << bits)


NODE = {"stream": Stream.COHORT, "partition": 0, "server_round": 0}
EDGE = {"stream": Stream.PAIR_NOISE, "edge": (0, 1), "server_round": 0}


@pytest.mark.parametrize(
    ("place", "change", "message"),
    [
        (NODE, {"server_round": -1}, "server_round"),
        (NODE, {"server_round": 2**24}, "server_round"),
        (NODE, {"attempt": 2**16}, "attempt"),
        (NODE, {"step": 2**24}, "step"),
        (NODE, {"partition": 2**24}, "partition"),
        (NODE, {"partition": [0, 2**24]}, "partition"),
        (NODE, {"partition": -1}, "partition"),
        (NODE, {"partition": [3, 3]}, "distinct"),
        (NODE, {"stream": Stream.PAIR_NOISE}, "0 <= stream < 128"),
        (EDGE, {"edge": (3, 3)}, r"two different partitions, .*got \(3, 3\)"),
        (EDGE, {"edge": (0, 2**20)}, r"each < 2\*\*20, got \(0, 1048576\)"),
        (EDGE, {"edge": (-1, 2)}, r"0 <= each"),
        (EDGE, {"server_round": 2**24}, r"server_round < 2\*\*24"),
        (EDGE, {"attempt": -1}, r"0 <= attempt"),
        (EDGE, {"step": 2**16}, r"step < 2\*\*16"),
        (EDGE, {"stream": Stream.SERVER_NOISE}, r"128 <= stream < 256"),
    ],
)
def test_a_field_out_of_range_is_refused_by_name_in_one_line(place, change, message):
    with pytest.raises(ValueError, match=message) as refused:
        SOURCE.normals((2,), **{**place, **change})
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_seeds_out_of_range_are_refused(seed):
    with pytest.raises(ValueError, match=r"seed < 2\*\*64"):
        NoiseSource.from_seed(seed)


def test_only_the_operating_system_gives_a_release():
    release = NoiseSource.from_os()
    assert release.origin == "os"
    assert SOURCE.origin == "seed"
    for source in (release, SOURCE):
        assert (
            source.derive(b"x").origin == pickle.loads(pickle.dumps(source)).origin == source.origin
        )
    assert release.key != NoiseSource.from_os().key
    assert release.key.hex() not in repr(release)
    assert str(release.key) not in repr(release)


def test_summed_precision_is_the_sum_of_four_draws_over_two():
    source = NoiseSource(SOURCE.key, origin="seed", precision="summed")
    four = SOURCE.normals((5, 4), **NODE)
    assert_near(source.normals((5,), **NODE), four.sum(-1) / 2, 1e-15)


def test_a_torch_generator_is_reproducible_and_addressed():
    one, again, other = (
        torch.randn(4, generator=SOURCE.generator(**NODE | {"server_round": r})) for r in (0, 0, 1)
    )
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("key", [b"", bytes(16), bytes(33)])
def test_a_key_of_another_length_is_refused(key):
    with pytest.raises(ValueError, match="32 bytes"):
        NoiseSource(key, origin="seed")
