"""Addresses are injective, draws depend on nothing but key and address, and nothing is reused."""

import dataclasses
import math
import pickle
import threading
from fractions import Fraction

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtri

from manifed.oracles.oracle import Draws
from manifed.privacy.noise import (
    BITS,
    EDGE_BITS,
    Address,
    BlockRange,
    EdgeAddress,
    EdgeStream,
    NoiseSource,
    Stream,
    edge_place,
    reused,
)

SOURCE = NoiseSource.from_seed(7)
FIELDS = st.tuples(
    st.sampled_from(list(Stream)),
    st.integers(0, 2**24 - 1),
    st.integers(0, 2**16 - 1),
    st.integers(0, 2**24 - 1),
    st.integers(0, 2**24 - 1),
    st.integers(0, 2**32 - 1),
)
EDGES = st.tuples(
    st.sampled_from(list(EdgeStream)),
    st.integers(0, 2**24 - 1),
    st.integers(0, 2**16 - 1),
    st.integers(0, 2**16 - 1),
    st.integers(0, 2**20 - 2).flatmap(
        lambda i: st.tuples(st.just(i), st.integers(i + 1, 2**20 - 1))
    ),
    st.integers(0, 2**24 - 1),
)
settings.register_profile("privacy", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("privacy")


def block(fields) -> int:
    stream, server_round, attempt, step, place, index = fields
    if isinstance(place, tuple):
        address, place = EdgeAddress(stream, server_round, attempt, step), edge_place(place)
        address.check((place,), index + 1)
    else:
        address = Address(stream, server_round, attempt, step)
        address.check((place,), index + 1)
    return int.from_bytes(address.counters(place, index, index + 1), "little")


def unpacked(counter: int) -> tuple:
    """The documented layouts, read back: stream, round, attempt, step, partition(s), block."""
    stream, attempt = counter >> 120, counter >> 104 & 0xFFFF
    if stream >= 128:
        step, server_round = counter >> 88 & 0xFFFF, counter >> 64 & 0xFFFFFF
        edge = counter >> 44 & 0xFFFFF, counter >> 24 & 0xFFFFF
        return stream, server_round, attempt, step, edge, counter & 0xFFFFFF
    step, server_round = counter >> 80 & 0xFFFFFF, counter >> 56 & 0xFFFFFF
    return stream, server_round, attempt, step, counter >> 32 & 0xFFFFFF, counter & 0xFFFFFFFF


def words(counter_blocks: list[int], key: bytes) -> np.ndarray:
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


@pytest.mark.parametrize("end", [0, -1])
def test_the_corners_of_both_layouts_are_blocks_of_their_own(end):
    most = [tuple((1 << bits) - 1 for bits in widths.values()) for widths in (BITS, EDGE_BITS)]
    (_, attempt, step, server_round, partition, last), edge = most
    stream = (min(Stream), max(Stream))[end]
    client = (stream, server_round & end, attempt & end, step & end, partition & end, last & end)
    ends = (edge[4] - 1, edge[5]) if end else (0, 1)
    pair = (EdgeStream.PAIR_NOISE, edge[3] & end, edge[1] & end, edge[2] & end, ends, edge[6] & end)
    assert unpacked(block(client)) == client
    assert unpacked(block(pair)) == pair


def test_field_widths_fill_the_block_exactly():
    assert sum(BITS.values()) == sum(EDGE_BITS.values()) == 128


def test_both_ends_of_an_edge_draw_the_same_numbers_and_no_others_do():
    place = {"stream": EdgeStream.PAIR_NOISE, "server_round": 3}
    one = SOURCE.edge_normals((2, 25), edge=(7, 4), **place)
    assert torch.equal(one, SOURCE.edge_normals((2, 25), edge=(4, 7), **place))
    ring = [(0, 1), (4, 7), (2**20 - 1, 0)]
    many = SOURCE.edge_normals((2, 25), edge=ring, **place)
    assert torch.equal(many[1], one)
    others = [
        SOURCE.edge_normals((2, 25), edge=(4, 7), **{**place, name: 1})
        for name in ("server_round", "attempt", "step")
    ]
    client = SOURCE.normals((2, 25), stream=Stream.SERVER_NOISE, partition=4, server_round=3)
    drawn = torch.stack([*many, *others, client])
    assert drawn.unique().numel() == drawn.numel()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"edge": (3, 3)}, r"two different partitions, .*got \(3, 3\)"),
        ({"edge": (0, 2**20)}, r"each < 2\*\*20, got \(0, 1048576\)"),
        ({"edge": (-1, 2)}, r"0 <= each"),
        ({"edge": [(0, 1), (1, 0)]}, r"distinct edges"),
        ({"server_round": 2**24}, r"server_round < 2\*\*24"),
        ({"attempt": -1}, r"0 <= attempt"),
        ({"step": 2**16}, r"step < 2\*\*16"),
        ({"start": 2**25}, r"2\*\*24 blocks"),
        ({"stream": Stream.SERVER_NOISE}, r"128 <= stream < 256"),
    ],
)
def test_an_edge_out_of_range_is_refused_by_name_in_one_line(change, message):
    place = {"stream": EdgeStream.PAIR_NOISE, "edge": (0, 1), "server_round": 0}
    with pytest.raises(ValueError, match=message) as refused:
        SOURCE.edge_normals((2,), **{**place, **change})
    assert "\n" not in str(refused.value)


@given(FIELDS)
def test_draws_are_aes_in_counter_mode_through_the_inverse_normal_cdf(fields):
    stream, server_round, attempt, step, partition, index = fields
    first = min(index, 2**32 - 20)
    counters = [
        block((stream, server_round, attempt, step, partition, first + i)) for i in range(20)
    ]
    w = words(counters, SOURCE.key)
    place = {"stream": stream, "server_round": server_round, "attempt": attempt, "step": step}
    normals = SOURCE.normals((40,), partition=partition, start=2 * first, **place).numpy()
    k = (w >> np.uint64(11)).astype(np.float64)
    lower = k < 2.0**52
    tail = np.where(lower, k + 0.5, 2.0**53 - k - 0.5) * 2.0**-53
    np.testing.assert_allclose(normals, np.where(lower, 1, -1) * ndtri(tail), rtol=0, atol=5e-15)
    uniforms = SOURCE.uniforms((40,), partition=partition, start=2 * first, **place).numpy()
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


@pytest.mark.parametrize("precision", ["single", "summed"])
def test_a_draw_in_two_parts_is_the_draw_in_one(precision):
    source = NoiseSource.from_seed(3, precision=precision)
    place = {"stream": Stream.SERVER_NOISE, "partition": 0, "server_round": 1}
    whole = source.normals((50_000,), **place)
    parts = [source.normals((20_000,), **place), source.normals((30_000,), start=20_000, **place)]
    assert torch.equal(whole, torch.cat(parts))
    assert torch.equal(whole[:12], source.normals((3, 4), **place).reshape(-1))


@pytest.mark.parametrize("precision", ["single", "summed"])
def test_rounds_drawn_in_one_call_are_the_rounds_alone(precision):
    source = NoiseSource.from_seed(5, precision=precision)
    rounds, ring = range(250, 262), ((0, 1), (1, 2), (0, 2))  # across a byte of the round
    place = {"stream": Stream.GRADIENT_NOISE, "partition": (4, 2), "attempt": 3, "step": 1}
    edges = {"stream": EdgeStream.PAIR_NOISE, "edge": ring, "attempt": 3, "step": 1}
    for draw, where in ((source.normals, place), (source.edge_normals, edges)):
        several = draw((3, 5), server_round=rounds, **where)
        assert torch.equal(
            several, torch.stack([draw((3, 5), server_round=r, **where) for r in rounds])
        )


@pytest.mark.parametrize("precision", ["single", "summed"])
@pytest.mark.parametrize("clients", [4, (2, 9, 4), tuple(range(900))])
def test_steps_drawn_in_one_call_are_the_steps_alone(precision, clients):
    source = NoiseSource.from_seed(5, precision=precision)
    place = {"stream": Stream.GRADIENT_NOISE, "partition": clients, "attempt": 3}
    steps, rounds = range(7, 10), range(255, 257)  # across a byte of the round

    def alone(server_round):
        each = [source.normals((9, 3), server_round=server_round, step=s, **place) for s in steps]
        return torch.stack(each)

    found = source.normals((9, 3), server_round=255, step=steps, **place)
    assert torch.equal(found, alone(255))
    several = source.normals((9, 3), server_round=rounds, step=steps, **place)
    assert torch.equal(several, torch.stack([alone(r) for r in rounds]))
    with pytest.raises(ValueError, match=r"step < 2\*\*24, got 16777216"):
        source.normals((2,), server_round=1, step=range(2**24 - 1, 2**24 + 1), **place)


def test_a_cohort_in_turn_draws_what_each_round_alone_would_draw_and_is_handed_it_once():
    source, who = NoiseSource.from_seed(6), (0, 1, 2)
    calls = []

    def draw(rounds):
        calls.append(rounds)
        return source.normals(
            (5,), stream=Stream.GRADIENT_NOISE, partition=who, server_round=rounds
        )

    asked = [*range(1, 40), 39, 7, 8, 9, 2**24 - 2, 2**24 - 1]
    found = [source.in_turn("noise", r, 15, draw) for r in asked]
    alone = [draw(range(r, r + 1))[0] for r in asked]
    assert all(torch.equal(*pair) for pair in zip(found, alone, strict=True))
    assert len({f.data_ptr() for f in found}) == len(asked)  # nobody writes into another's numbers
    assert len(calls) - len(asked) < 15
    with pytest.raises(ValueError, match=r"server_round < 2\*\*24, got 16777216"):
        source.in_turn("noise", 2**24, 15, draw)


def test_a_release_and_a_source_with_a_recorder_draw_nothing_ahead():
    heard = []
    for source in (NoiseSource.from_os(), NoiseSource.from_seed(6)):
        recorded = dataclasses.replace(source, recorder=heard.append)
        for r in range(1, 9):
            Draws(recorded, (0, 1), r).normals((5,), Stream.GRADIENT_NOISE, 0)
    assert [b.server_round for b in heard] == [
        r for _ in range(2) for r in range(1, 9) for _ in "ab"
    ]
    released, calls = NoiseSource.from_os(), []
    for r in range(1, 9):
        released.in_turn("noise", r, 1, lambda rounds: calls.append(rounds) or torch.zeros(1, 1))
    assert [len(rounds) for rounds in calls] == [1] * 8


def test_changing_any_field_of_the_address_changes_every_number():
    base = {"stream": Stream.COHORT, "partition": 0, "server_round": 0, "attempt": 0, "step": 0}
    seen = [SOURCE.uniforms((8,), **base)]
    for name in base:
        seen.extend(SOURCE.uniforms((8,), **{**base, name: value}) for value in (1, 2, 7))
    seen.append(SOURCE.derive(b"party 1").uniforms((8,), **base))
    seen.append(NoiseSource.from_seed(8).uniforms((8,), **base))
    flat = torch.cat(seen)
    assert flat.unique().numel() == flat.numel()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"server_round": -1}, "server_round"),
        ({"server_round": 2**24}, "server_round"),
        ({"attempt": 2**16}, "attempt"),
        ({"step": 2**24}, "step"),
        ({"partition": 2**24}, "partition"),
        ({"partition": [0, 2**24]}, "partition"),
        ({"partition": -1}, "partition"),
        ({"partition": [3, 3]}, "distinct"),
        ({"start": 2**33}, "blocks"),
        ({"stream": EdgeStream.PAIR_NOISE}, "0 <= stream < 128"),
        ({"start": 1}, "start"),
        ({"start": -2}, "start"),
    ],
)
def test_a_field_out_of_range_is_refused_by_name(change, message):
    place = {"stream": Stream.COHORT, "partition": 0, "server_round": 0}
    with pytest.raises(ValueError, match=message):
        SOURCE.normals((2,), **{**place, **change})


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_seeds_out_of_range_are_refused(seed):
    with pytest.raises(ValueError, match=r"seed < 2\*\*64"):
        NoiseSource.from_seed(seed)


def test_only_the_operating_system_gives_a_release():
    release = NoiseSource.from_os()
    assert release.is_release
    assert not SOURCE.is_release
    assert not SOURCE.derive(b"x").is_release
    assert release.derive(b"x").is_release
    assert release.key != NoiseSource.from_os().key
    assert release.key.hex() not in repr(release)
    assert str(release.key) not in repr(release)


def test_a_recorder_hears_of_every_block_and_reuse_is_found():
    heard: list[BlockRange] = []
    source = NoiseSource(SOURCE.key, is_release=False, recorder=heard.append)
    place = {"stream": Stream.GRADIENT_NOISE, "server_round": 4}
    source.normals((5,), partition=1, **place)
    source.normals((3,), partition=[2, 3], **place)
    source.normals((5,), partition=1, start=6, **place)
    source.normals((0,), partition=9, **place)
    assert [(r.partition, r.first, r.stop) for r in heard] == [
        (1, 0, 3), (2, 0, 2), (3, 0, 2), (1, 3, 6),
    ]  # fmt: skip
    assert reused(heard) == []
    source.uniforms((1,), partition=1, start=2, **place)
    assert len(reused(heard)) == 1


def test_summed_precision_draws_four_times_the_blocks():
    heard: list[BlockRange] = []
    source = NoiseSource(SOURCE.key, is_release=False, recorder=heard.append, precision="summed")
    drawn = source.normals((5,), stream=Stream.COHORT, partition=0, server_round=0)
    assert [(r.first, r.stop) for r in heard] == [(0, 10)]
    place = {"stream": Stream.COHORT, "partition": 0, "server_round": 0}
    four = SOURCE.normals((5, 4), **place)
    assert (drawn - four.sum(-1) / 2).abs().max() <= 1e-15


def test_a_source_survives_pickling_and_threads():
    copy = pickle.loads(pickle.dumps(SOURCE))
    place = {"stream": Stream.COHORT, "server_round": 0}
    expected = SOURCE.normals((99,), partition=4, **place)
    assert torch.equal(copy.normals((99,), partition=4, **place), expected)
    results: dict[int, torch.Tensor] = {}

    def work(name: int) -> None:
        for _ in range(50):
            results[name] = SOURCE.normals((99,), partition=4, **place)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(result, expected) for result in results.values())
    assert len(results) == 4


def test_a_torch_generator_is_reproducible_and_addressed():
    def draw(server_round: int) -> torch.Tensor:
        generator = SOURCE.generator(
            stream=Stream.INITIAL_POINT, partition=0, server_round=server_round
        )
        return torch.randn(4, generator=generator)

    assert torch.equal(draw(0), draw(0))
    assert not torch.equal(draw(0), draw(1))


@pytest.mark.parametrize("key", [b"", bytes(16), bytes(33)])
def test_a_key_of_another_length_is_refused(key):
    with pytest.raises(ValueError, match="32 bytes"):
        NoiseSource(key, is_release=False)
