"""Pairwise masks: they cancel, only the pair can draw them, and an active relay is found out."""

import math
import secrets

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from manifed.errors import RoundFailed
from manifed.graphs import Complete, Ring
from manifed.privacy.masks import (
    masks,
    offer,
    offer_fault,
    pair_source,
    pinned_in,
    seeded_pairs,
)
from manifed.privacy.random_numbers import NoiseSource
from manifed.privacy.secret_shares import repeated
from manifed.setting import SecureSum

RUN = b"run 1"
N = 6


SECRETS = [bytes([i + 101]) * 32 for i in range(N)]
SIGNING = [bytes([i + 1]) * 32 for i in range(N)]
PINNED = {
    i: Ed25519PrivateKey.from_private_bytes(key).public_key().public_bytes_raw()
    for i, key in enumerate(SIGNING)
}


def offered(node, run=RUN, *, is_signed=True):
    return offer(run, node, SECRETS[node], SIGNING[node] if is_signed else None)


def source(node, other, run=RUN):
    return pair_source(run, node, SECRETS[node], other, offered(other, run))


def fault(node, made, *, pinned=PINNED, is_copy=False):
    return offer_fault(RUN, node, made, pinned, is_copy=is_copy)


def sources_of(graph):
    return [{j: source(i, j) for j in graph.neighbors[i]} for i in range(N)]


@pytest.mark.parametrize("graph", [Ring().build(N), Complete().build(N)], ids=["ring", "complete"])
def test_masks_cancel_and_each_is_a_normal_of_its_own(graph):
    sources = sources_of(graph)
    shape = (40, 50)
    at = [masks(sources[i], i, shape, server_round=3) for i in range(N)]
    size = max(float(m.abs().max()) for m in at)
    assert sum(at).abs().max() <= 1e-14 * N * size
    again = masks(sources[0], 0, shape, server_round=3)
    assert torch.equal(again, at[0])
    one, other = (masks({j: sources[i][j]}, i, (7,), server_round=1) for i, j in ((0, 1), (1, 0)))
    assert torch.equal(one, -other)
    degree = graph.degrees[0]
    spread = 5.0 * math.sqrt(2 / 2000) * degree
    assert float(at[0].var()) == pytest.approx(degree, abs=spread)


def test_every_address_has_masks_of_its_own():
    """The public code draws its masks once and uses them in every round."""
    sources = sources_of(Ring().build(N))[0]
    places = [{"server_round": r, "attempt": a, "step": s}
              for r in (1, 2) for a in (0, 1) for s in (0, 1)]  # fmt: skip
    numbers = torch.stack(
        [masks({j: s}, 0, (8,), **at) for at in places for j, s in sources.items()]
    )
    assert numbers.unique().numel() == numbers.numel() == 16 * 8


def test_no_other_node_run_or_relay_has_the_key_of_a_pair():
    key = source(0, 1).key
    assert key == source(1, 0).key
    others = {source(i, j).key for i in range(N) for j in range(N) if {i, j} != {0, 1} and i != j}
    assert key not in others
    assert len(others) == N * (N - 1) / 2 - 1
    assert source(0, 1, b"run 2").key != key


def test_an_active_relay_that_swaps_keys_is_found_out():
    """The relay shows its own key to both ends, as node 1 to node 0 and as node 0 to node 1."""
    secret = secrets.token_bytes(32)
    forged = offer(RUN, 1, secret, secrets.token_bytes(32))
    code, why = fault(1, forged)
    assert code == 3
    assert "not signed by the key that is pinned for it in this run" in why
    assert fault(1, offered(1)) is None
    for node, made in (
        (2, offered(1)),  # another's true key
        (1, offered(1)[:32]),
        (1, offered(1, is_signed=False)),
        (1, offered(1)[:32] + offered(2)[32:]),
        (1, offered(1, b"run 0")),  # of an earlier run, replayed
        (1, forged[:32] + offered(1)[32:]),
        (17, forged),  # no key is pinned for it
    ):
        assert fault(node, made)[0] == 3
    assert fault(1, forged, pinned=None) is None  # and without pinned keys it gets through
    middle = pair_source(RUN, 0, SECRETS[0], 1, forged)
    assert middle.key == pair_source(RUN, 1, secret, 0, offered(0)).key


def test_keys_without_a_secret_are_refused():
    code, why = fault(1, b"short", pinned=None)
    assert code == 1
    assert "32 bytes" in why
    offers = {node: offered(node, is_signed=False) for node in (1, 2, 4)} | {4: offered(1)}
    assert repeated(offers, keys=1) == {1, 4}
    assert repeated({1: bytes(96), 2: offered(2, is_signed=False)}, keys=1) == set()
    assert fault(1, offered(1), is_copy=True)[0] == 2
    with pytest.raises(ValueError, match="two different partitions"):
        source(0, 0)


def test_secrets_are_never_shown_and_a_source_says_whose_it_is():
    real = source(0, 1)
    assert "key" not in repr(real)
    assert (seeded_pairs(NoiseSource.from_seed(1)).origin, real.origin) == ("seed", "os")


def test_pinned_keys_are_read_or_refused_with_their_line(tmp_path):
    path = tmp_path / "keys.txt"
    good = [f"{i} {bytes([i] * 32).hex()}" for i in range(3)]
    path.write_text("# node, Ed25519 key\n" + "\n".join(good) + "\n")
    files = SecureSum(pinned_keys=str(path), signing_keys="/key")
    assert pinned_in(files, 3) == {i: bytes([i] * 32) for i in range(3)}
    for lines, said in (
        ([*good, good[0]], "line 4"), (good[:2], r"missing \[2\]"), (["0 abcd"], "line 1"),
        (["x " + "0" * 64], "line 1"), (["0 " + "g" * 64], "line 1"), (["3 " + "0" * 64], "line 1"),
    ):  # fmt: skip
        path.write_text("\n".join(lines))
        with pytest.raises(ValueError, match=said) as refused:
            pinned_in(files, 3)
        assert lines[-1] not in str(refused.value), "what the file holds is not quoted"
    path.unlink()
    with pytest.raises(ValueError, match="cannot be read"):
        pinned_in(files, 3)
    assert pinned_in(files, 3, is_server=True) is None
    path.mkdir()
    with pytest.raises(RoundFailed, match=r"privacy.trust.pinned_keys: .*cannot be read"):
        pinned_in(files, 3, is_server=True)
    assert pinned_in(SecureSum(), 3) is None
