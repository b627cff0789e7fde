"""Pairwise masks: they cancel, only the pair can draw them, and an active relay is found out."""

import math
import secrets
from dataclasses import replace

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from manifed.graphs import Complete, Ring
from manifed.privacy.masks import (
    Agreement,
    BadOffer,
    Offer,
    masks,
    owners_of,
    read_pinned,
    seeded_pairs,
)
from manifed.privacy.random_numbers import NoiseSource

RUN = b"run 1"
N = 6


def federation(run=RUN, *, is_signed=True):
    signing = [bytes([i + 1]) * 32 for i in range(N)]
    pinned = {
        i: Ed25519PrivateKey.from_private_bytes(key).public_key().public_bytes_raw()
        for i, key in enumerate(signing)
    }
    return [
        Agreement(
            run, i, bytes([i + 101]) * 32, signing[i] if is_signed else None,
            pinned if is_signed else None,
        )
        for i in range(N)
    ]  # fmt: skip


def sources_of(sides, graph):
    offers = [side.offer() for side in sides]
    return [{j: side.source(offers[j]) for j in graph.neighbors[i]} for i, side in enumerate(sides)]


@pytest.mark.parametrize("graph", [Ring().build(N), Complete().build(N)], ids=["ring", "complete"])
def test_masks_cancel_and_each_is_a_normal_of_its_own(graph):
    sources = sources_of(federation(), graph)
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
    sources = sources_of(federation(), Ring().build(N))[0]
    places = [{"server_round": r, "attempt": a, "step": s}
              for r in (1, 2) for a in (0, 1) for s in (0, 1)]  # fmt: skip
    numbers = torch.stack(
        [masks({j: s}, 0, (8,), **at) for at in places for j, s in sources.items()]
    )
    assert numbers.unique().numel() == numbers.numel() == 16 * 8


def test_no_other_node_run_or_relay_has_the_key_of_a_pair():
    sides = federation()
    offers = [side.offer() for side in sides]
    key = sides[0].source(offers[1]).key
    assert key == sides[1].source(offers[0]).key
    others = {side.source(offer).key
              for side in sides for offer in offers
              if {side.node, offer.node} != {0, 1} and side.node != offer.node}  # fmt: skip
    assert key not in others
    assert len(others) == N * (N - 1) / 2 - 1
    later = federation(b"run 2")
    assert later[0].source(later[1].offer()).key != key


def test_an_active_relay_that_swaps_keys_is_found_out():
    """The relay shows its own key to both ends, as node 1 to node 0 and as node 0 to node 1."""
    sides = federation()
    relay = Agreement(RUN, 1, secrets.token_bytes(32), secrets.token_bytes(32))
    forged = relay.offer()
    with pytest.raises(BadOffer, match="node 1: its public key is not signed"):
        sides[0].source(forged)
    for offer in (
        replace(sides[1].offer(), node=2),  # another's true key
        replace(sides[1].offer(), signature=b""),
        replace(sides[1].offer(), signature=sides[2].offer().signature),
        federation(b"run 0")[1].offer(),  # of an earlier run, replayed
        replace(sides[1].offer(), public=forged.public),
    ):
        with pytest.raises(BadOffer, match=f"node {offer.node}"):
            sides[0].source(offer)
    with pytest.raises(BadOffer, match="no signing key is pinned"):
        sides[0].source(Offer(17, forged.public, forged.signature))
    trusting = federation(is_signed=False)  # and without pinned keys it gets through
    middle = trusting[0].source(forged)
    assert middle.key == relay.source(trusting[0].offer()).key


def test_keys_without_a_secret_are_refused():
    side = federation(is_signed=False)[0]
    with pytest.raises(BadOffer, match="32 bytes"):
        side.source(Offer(1, b"short"))
    twice = owners_of([Offer(1, side.offer().public), Offer(4, side.offer().public)])
    with pytest.raises(BadOffer, match="node 1: its public key is that of node 4"):
        side.source(Offer(1, side.offer().public), owners=twice)
    with pytest.raises(ValueError, match="two different partitions"):
        side.source(Offer(0, federation()[1].offer().public))


def test_secrets_are_never_shown_and_a_source_says_whose_it_is():
    side = federation()[0]
    real = side.source(federation()[1].offer())
    for secret, shown in (("secret", side), ("signing", side), ("key", real)):
        assert secret not in repr(shown)
    assert (seeded_pairs(NoiseSource.from_seed(1)).origin, real.origin) == ("seed", "os")


def test_pinned_keys_are_read_or_refused_with_their_line(tmp_path):
    path = tmp_path / "keys.txt"
    good = [f"{i} {bytes([i] * 32).hex()}" for i in range(3)]
    path.write_text("# node, Ed25519 key\n" + "\n".join(good) + "\n")
    assert read_pinned(path, 3) == {i: bytes([i] * 32) for i in range(3)}
    for lines, said in (
        ([*good, good[0]], "line 4"), (good[:2], r"missing \[2\]"), (["0 abcd"], "line 1"),
        (["x " + "0" * 64], "line 1"), (["0 " + "g" * 64], "line 1"), (["3 " + "0" * 64], "line 1"),
    ):  # fmt: skip
        path.write_text("\n".join(lines))
        with pytest.raises(ValueError, match=said) as refused:
            read_pinned(path, 3)
        assert lines[-1] not in str(refused.value), "what the file holds is not quoted"
    with pytest.raises(ValueError, match="cannot be read"):
        read_pinned(tmp_path / "none", 3)
