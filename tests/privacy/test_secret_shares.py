"""Secrets of a secure sum: masks cancel, t holders restore them, hostile bytes are named."""

import functools
import hashlib
import itertools
from collections import Counter
from random import Random

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given, settings
from hypothesis import strategies as st

from manifed.privacy import secret_shares
from manifed.privacy.committee import committee
from manifed.privacy.secret_shares import (
    BOX_BYTES,
    OFFER_BYTES,
    SHARE_BYTES,
    Secrets,
    confirmation,
    context,
    deal,
    is_pair_key,
    is_seed,
    is_signed,
    joined,
    mask,
    offer,
    offer_fault,
    opened,
    pair_mask,
    repeated,
    root,
    self_mask,
    share_fault,
    sign,
)

CTX = context(b"run", 1, 0)
LATER = context(b"run", 1, 1)
COUNT = 40
SEED, PAIR = True, False


def pinned_of(signing):
    return Ed25519PrivateKey.from_private_bytes(signing).public_key().public_bytes_raw()


class Attempt:
    """All nodes of one attempt, after every box was dealt."""

    def __init__(self, n=7, dropped=2, colluding=1, ctx=CTX, seed=1):
        self.random = Random(seed)
        draw = self.random.randbytes
        self.ctx, self.made = ctx, committee(range(n), dropped, colluding, b"seed")
        self.near, self.t = self.made.neighbours, self.made.threshold
        self.signing = [bytes([i + 1]) * 32 for i in range(n)]
        self.secrets = [Secrets(draw(32), draw(32), draw(32)) for _ in range(n)]
        self.offers = {i: offer(s, ctx, i, self.signing[i]) for i, s in enumerate(self.secrets)}
        self.root = root(ctx, self.offers)
        self.boxes, self.own = {}, {}
        for i in range(n):
            self.boxes[i], self.own[i] = self.deal(i)

    def of(self, nodes):
        return {j: self.offers[j] for j in nodes}

    def deal(self, i):
        near = self.of(self.near[i])
        draw = self.random.randbytes
        return deal(self.secrets[i], i, near, self.ctx, self.root, self.t, draw)

    def open(self, i, j, **changed):
        made = {"offer": self.offers[j], "box": self.boxes[j][i], "ctx": self.ctx}
        return opened(self.secrets[i], i, j, **made | {"root": self.root} | changed)

    def restored(self, j, holders, *, is_alive):
        """A secret of node j: its seed if it is alive, else its pair key."""
        half = slice(SHARE_BYTES) if is_alive else slice(SHARE_BYTES, None)
        shares = {i: (self.own[j] if i == j else self.open(i, j))[half] for i in holders}
        assert all(
            share_fault(self.boxes[j][i], is_alive, shares[i]) is None for i in shares if i != j
        )
        return joined(shares)


@pytest.fixture(scope="module")
def attempt():
    return KEPT()


KEPT = functools.cache(Attempt)


# -- laws ------------------------------------------------------------------------------------


def reference(shared, ctx, info, count, dtype):
    key = HKDF(SHA256(), 32, salt=ctx, info=info).derive(shared)
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(stream.update(bytes(8 * count)), dtype)[:count]


def test_masks_are_those_of_the_specification(attempt):
    ctx, info = hashlib.sha256(b"vector").digest(), b"pair" + bytes(7) + b"\1"
    vector = [3849419844, 3548048345, 3589456803, 885266497]
    assert reference(bytes([7]) * 32, ctx, info, 4, "<u4").tolist() == vector
    assert reference(bytes([7]) * 32, ctx, info, 1, "<u8").tolist() == [15238751610251344964]
    pair = X25519PrivateKey.from_private_bytes(attempt.secrets[0].pair)
    shared = pair.exchange(X25519PublicKey.from_public_bytes(attempt.offers[1][32:64]))
    for bits in (32, 64):
        expected = reference(shared, CTX, info, COUNT, f"<i{bits // 8}")
        one = pair_mask(attempt.secrets[0].pair, 0, attempt.of([1]), CTX, COUNT, bits)
        other = pair_mask(attempt.secrets[1].pair, 1, attempt.of([0]), CTX, COUNT, bits)
        assert one.dtype == other.dtype == np.dtype(f"i{bits // 8}")
        np.testing.assert_array_equal(one, expected)
        np.testing.assert_array_equal(other, -expected)
        own = self_mask(attempt.secrets[0].seed, CTX, COUNT, bits)
        expected = reference(attempt.secrets[0].seed, CTX, b"self", COUNT, f"<i{bits // 8}")
        np.testing.assert_array_equal(own, expected)


def test_the_largest_residue_occurs():
    """Such a place was looked for: 2^32 - 1 stands for -1, and a law test would never meet it."""
    assert self_mask((7039).to_bytes(32, "big"), CTX, 268_020, 32)[-1] == -1


def test_every_attempt_pair_and_node_has_masks_of_its_own(attempt):
    rows = [
        made
        for ctx in (CTX, LATER, context(b"run", 2, 0), context(b"other run", 1, 0))
        for i, s in enumerate(attempt.secrets)
        for made in (
            self_mask(s.seed, ctx, COUNT, 32),
            *(pair_mask(s.pair, i, attempt.of([j]), ctx, COUNT, 32) for j in range(i + 1, 7)),
        )
    ]
    assert len(np.unique(rows)) == pytest.approx(len(rows) * COUNT, abs=3)
    assert len(rows) == 4 * (7 + 21)


def test_a_share_is_uniform_to_fewer_than_the_threshold(monkeypatch):
    """Every secret below 11 gives each pair of values at two points once, over all coefficients."""
    monkeypatch.setattr(secret_shares, "_PRIME", 11)
    for secret in range(11):
        seen = Counter()
        for pair in itertools.product(range(11), repeat=2):
            drawn = b"".join(c.to_bytes(48, "big") for c in pair)
            shares = secret_shares._dealt(bytes([secret]), [1, 2, 5], drawn)
            seen[tuple(shares[:2])] += 1
            secret_shares._weights.cache_clear()
            points = dict(zip((0, 1, 4), shares, strict=True))
            assert joined(points) == secret.to_bytes(32, "big")
        assert len(seen) == 121
    secret_shares._weights.cache_clear()


def test_the_prime_is_one_and_coefficients_fill_it():
    p = secret_shares._PRIME
    assert p == 2**256 + 297
    odd, twos = (p - 1) // 8, 3
    assert odd % 2
    for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41):
        powers = [pow(base, odd << k, p) for k in range(twos)]
        assert powers[0] == 1 or p - 1 in powers
    asked = []
    made = Attempt(n=4, dropped=1, colluding=0)
    near = made.of(made.near[0])
    deal(made.secrets[0], 0, near, CTX, made.root, 3, lambda n: asked.append(n) or bytes(n))
    assert sum(asked) == 2 * (3 - 1) * 48


def test_any_threshold_of_holders_restores_a_secret_and_fewer_do_not(attempt):
    assert attempt.t == 4
    for j, (seed, pair) in ((j, (s.seed, s.pair)) for j, s in enumerate(attempt.secrets)):
        for holders in itertools.combinations(range(7), 4):
            assert attempt.restored(j, holders, is_alive=True) == seed
        assert attempt.restored(j, (0, 2, 3, 6), is_alive=False) == pair
        assert is_seed(attempt.offers[j], seed) > is_seed(attempt.offers[j], pair)
        assert is_pair_key(attempt.offers[j], pair) > is_pair_key(attempt.offers[j], seed)
        few = {i: attempt.open(i, j)[:SHARE_BYTES] for i in range(7) if i != j}
        for holders in itertools.combinations(few, 3):
            try:
                assert not is_seed(attempt.offers[j], joined({i: few[i] for i in holders}))
            except ValueError as error:
                assert "no secret" in str(error)  # noqa: PT017


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize(
    ("n", "silent"), [(3, ()), (3, (1,)), (7, ()), (7, (0, 5)), (70, (3, 33, 69))]
)
def test_the_sum_over_survivors_is_exact(n, silent, bits):
    made = Attempt(n, dropped=max(len(silent), 1), colluding=0)
    top = 2 ** (bits - 1) - 1
    dtype = f"i{bits // 8}"
    values = np.random.default_rng(3).integers(-top // n, top // n, (n, COUNT)).astype(dtype)
    values[:, 0], values[:, 1] = 0, 0
    alive = [i for i in range(n) if i not in silent]
    values[alive[0], :2] = top, -top
    sent = {
        i: values[i] + mask(made.secrets[i], i, made.of(made.near[i]), CTX, COUNT, bits)
        for i in alive
    }
    total = sum(sent.values())
    for j in range(n):
        near = [i for i in made.near[j] if i in alive]
        found = made.restored(j, near[: made.t] if n > 3 else alive, is_alive=j in alive)
        if j in alive:
            total = total - self_mask(found, CTX, COUNT, bits)
        else:
            total = total + pair_mask(found, j, made.of(near), CTX, COUNT, bits)
    assert total.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(total, values[alive].astype(np.int64).sum(0))


def test_boxes_kept_back_between_two_groups_leave_their_masks_in_place():
    """A node that masks only with the dealers whose boxes came gives each group's sum away."""
    made = Attempt(n=8, dropped=2, colluding=0)
    values, group = np.arange(8 * COUNT, dtype=np.int32).reshape(8, COUNT), range(4)

    def opened_sum(neighbours_of):
        return sum(
            values[i]
            + mask(made.secrets[i], i, made.of(neighbours_of(i)), CTX, COUNT, 32)
            - self_mask(made.secrets[i].seed, CTX, COUNT, 32)
            for i in group
        )

    cut = opened_sum(lambda i: [j for j in group if j != i])
    np.testing.assert_array_equal(cut, values[:4].sum(0))
    whole = opened_sum(lambda i: made.near[i])
    assert (whole != values[:4].sum(0)).all()


# -- hostile bytes ---------------------------------------------------------------------------


def resigned(made, node, shown):
    return shown + sign(made.signing[node], secret_shares._offered(CTX, node, shown))


# The u-coordinate of a point of order 8 of X25519's curve.
SMALL = 325606250916557431795983626356110631294008115727848805560023387167927233504


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda a, o: o, None),
        (lambda a, o: o[:-1], "has 159 bytes, expected 160"),
        (lambda a, o: b"", "has 0 bytes"),
        (lambda a, o: resigned(a, 2, bytes(32) + o[32:96]), "channel key has small order"),
        (lambda a, o: resigned(a, 2, o[:32] + b"\1" + bytes(31) + o[64:96]), "pair key has small"),
        (
            lambda a, o: resigned(a, 2, SMALL.to_bytes(32, "little") + o[32:96]),
            "channel key has small",
        ),
        (lambda a, o: resigned(a, 2, o[:32] + b"\xff" * 32 + o[64:96]), "no number below"),
        (lambda a, o: resigned(a, 2, o[:32] * 2 + o[64:96]), "its channel key is its pair key"),
        (lambda a, o: a.offers[3], "not signed"),
        (lambda a, o: a.offers[3][:32] + o[32:], "not signed"),  # the server's own key
        (lambda a, o: o[:64] + bytes(32) + o[96:], "not signed"),
        (lambda a, o: o[:96] + bytes(64), "not signed"),
        (lambda a, o: offer(a.secrets[2], LATER, 2, a.signing[2]), "not signed"),
        (lambda a, o: offer(a.secrets[2], CTX, 3, a.signing[2]), "not signed"),
    ],
)
def test_an_offer_is_sound_or_refused_with_its_reason(attempt, change, said):
    changed = change(attempt, attempt.offers[2])
    found = offer_fault(changed, CTX, 2, pinned_of(attempt.signing[2]))
    assert found is None if said is None else said in found
    is_caught_without_pins = said is not None and "signed" not in said
    assert (offer_fault(changed, CTX, 2, None) is not None) == is_caught_without_pins


def test_keys_and_commitments_of_two_nodes_are_found(attempt):
    assert not repeated(attempt.offers)
    a, b = attempt.offers[2], attempt.offers[5]
    for copy in (a[:32] + b[32:], b[:32] + a[:32] + b[64:], b[:64] + a[64:96] + b[96:], a):
        assert repeated(attempt.offers | {5: copy}) == {2, 5}


def test_the_root_and_what_is_confirmed_bind_every_part(attempt):
    offers = attempt.offers
    roots = [
        root(ctx, changed)
        for ctx in (CTX, LATER)
        for changed in (
            offers, {i: o for i, o in offers.items() if i}, offers | {0: offers[1], 1: offers[0]},
            {i + 1: o for i, o in offers.items()}, offers | {9: offers[1]},
        )
    ]  # fmt: skip
    parts = [CTX, attempt.root, b"x", b"\x7f", b"\x3f"]
    said = [
        confirmation(*parts[:k], part + b"\0", *parts[k + 1 :]) for k, part in enumerate(parts)
    ] + [confirmation(*parts), confirmation(*parts[:3], b"\x7f\x3f", b"")]
    assert len(set(roots)) == len(roots)
    assert len(set(said)) == len(said)
    assert root(CTX, dict(reversed(offers.items()))) == attempt.root
    key, statement = attempt.signing[0], said[-2]
    signature = sign(key, statement)
    assert is_signed(pinned_of(key), statement, signature)
    assert not is_signed(pinned_of(key), said[0], signature)
    assert not is_signed(pinned_of(attempt.signing[1]), statement, signature)


def test_a_box_is_opened_by_its_holder_in_its_attempt_alone(attempt):
    assert {len(box) for boxes in attempt.boxes.values() for box in boxes.values()} == {BOX_BYTES}
    assert set(attempt.boxes[3]) == set(attempt.near[3])
    body = attempt.open(5, 3)
    assert len(body) == 2 * SHARE_BYTES
    box = attempt.boxes[3][5]
    for changed in (
        {"ctx": LATER}, {"root": bytes(32)}, {"offer": attempt.offers[4]}, {"offer": bytes(160)},
        {"box": attempt.boxes[3][4]}, {"box": attempt.boxes[5][3]}, {"box": box[:-1]},
        *({"box": box[:k] + bytes([box[k] ^ 1]) + box[k + 1 :]} for k in range(BOX_BYTES)),
    ):  # fmt: skip
        assert attempt.open(5, 3, **changed) is None
    assert opened(attempt.secrets[5], 5, 4, attempt.offers[3], box, CTX, attempt.root) is None


def test_a_node_that_deals_other_shares_than_it_commits_to_is_refused(monkeypatch):
    made = Attempt()
    honest = secret_shares._commitments
    monkeypatch.setattr(secret_shares, "_commitments", lambda body: honest(bytes(66)))
    boxes, _ = made.deal(3)
    monkeypatch.undo()
    assert made.open(5, 3, box=boxes[5]) is None


def test_a_node_that_deals_twice_uses_no_nonce_twice(attempt):
    boxes = attempt.boxes[3][5], attempt.deal(3)[0][5]
    bodies = [attempt.open(5, 3, box=box) for box in boxes]
    sealed, clear = (
        np.bitwise_xor(*(np.frombuffer(one[:66], "u1") for one in both)) for both in (boxes, bodies)
    )
    assert (sealed != clear).any(), "one stream of bytes would hide both"


def test_each_half_of_a_share_is_checked_by_itself(attempt):
    box, body = attempt.boxes[3][5], attempt.open(5, 3)
    seed, pair = body[:SHARE_BYTES], body[SHARE_BYTES:]
    assert share_fault(box, SEED, seed) is share_fault(box, PAIR, pair) is None
    for is_seed_share, share in (
        (SEED, pair), (PAIR, seed), (SEED, body), (SEED, seed[:-1]), (SEED, b"\0" + seed),
        (SEED, attempt.open(4, 3)[:SHARE_BYTES]), (PAIR, bytes(SHARE_BYTES)),
    ):  # fmt: skip
        assert share_fault(box, is_seed_share, share) == "a share is not the one that was dealt"
    assert share_fault(b"", SEED, seed)


def test_wrong_shares_give_no_secret_or_another_one(attempt):
    good = {i: attempt.open(i, 3)[:SHARE_BYTES] for i in (0, 1, 2, 4)}
    assert is_seed(attempt.offers[3], joined(good))
    with pytest.raises(ValueError, match="no secret of 32 bytes") as refused:
        joined({0: (2**256 + 5).to_bytes(SHARE_BYTES, "big")})
    assert not any(share.hex() in str(refused.value) for share in good.values())
    swapped = good | {0: good[1], 1: good[0]}
    assert not is_seed(attempt.offers[3], joined(swapped))


def test_secrets_are_never_shown():
    made = Secrets(b"channel!", b"pairpair", b"seedseed")
    assert repr(made) == f"{made}" == "Secrets(...)"


MANY = st.one_of(
    st.binary(max_size=200), *(st.binary(min_size=n, max_size=n) for n in (32, 33, 64, 146, 160))
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(MANY, MANY)
def test_no_bytes_of_others_raise(raw, more):
    made = KEPT()
    pinned = pinned_of(made.signing[2])
    assert offer_fault(raw, CTX, 2, pinned)
    patched = (raw + made.offers[2])[:OFFER_BYTES]
    assert raw in made.offers[2] or offer_fault(patched, CTX, 2, pinned)
    assert offer_fault(raw, CTX, 2, more)
    offer_fault(patched, CTX, 2, None)
    assert made.open(5, 3, box=raw) is None
    assert made.open(5, 3, offer=raw) is None
    assert share_fault(raw, SEED, more) or len(more) == SHARE_BYTES
    assert share_fault(made.boxes[3][5], PAIR, raw)
    assert not is_signed(raw, CTX, more)
    assert not is_signed(pinned, CTX, raw)
    assert not is_pair_key(made.offers[2], raw)
    assert not is_seed(made.offers[2], raw)
    assert not is_pair_key(more, raw)
    try:
        joined({0: raw, 1: more})
    except ValueError as error:
        assert "no secret of 32 bytes" in str(error)  # noqa: PT017


def test_sizes_are_those_of_the_specification():
    assert (OFFER_BYTES, BOX_BYTES, SHARE_BYTES) == (160, 146, 33)
