"""Keys, masks and shared secrets of a secure sum: what one attempt at a sum is protected with.

Each node has three secrets for one attempt: a channel key (X25519), a pair key (X25519) and a seed.
It offers the public keys and a commitment to the seed (`offer`). It deals shares of its seed and of
its pair key to its neighbours, encrypted to each (`deal`, `opened`). It adds a mask from its seed
and one mask for each neighbour to its integers, modulo 2^bits (`mask`): masks of pairs cancel in a
sum, and any ``threshold`` holders of shares can restore either secret of a node (`joined`). Nodes
restore the seeds of those whose integers are in the sum, and the pair keys of those whose are not.
Both secrets of one node together would open what it sent.

What holds: masks are uniform modulo 2^bits to everybody who lacks the keys (X25519, HKDF-SHA256 and
AES-256 as usual). Fewer than ``threshold`` shares say nothing of a secret (Shamir, over the prime
2^256 + 297). Each half of a share has its own commitment, since only one half is ever shown. Bytes
from others never raise in a check (`offer_fault`, `opened`, `share_fault`, `is_...`), only in
`joined`; offers are checked before a secret meets them.

A node that cannot open a box says which one, and nothing else. It must not show its channel key as
proof. That key opens every box that was sent to the node, and a server that changes boxes could ask
enough nodes for it to restore all secrets. `manifed.privacy.committee.blamed` decides without it.

Source: Bonawitz et al. 2017, "Practical Secure Aggregation for Privacy-Preserving Machine
Learning".
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

KEY_BYTES = 32
SHARE_BYTES = 33
SIGNATURE_BYTES = 64
OFFER_BYTES = 3 * KEY_BYTES + SIGNATURE_BYTES
"""Channel key, pair key, commitment to the seed, signature."""
BOX_BYTES = 2 * SHARE_BYTES + 16 + 2 * 32
"""Both shares and the tag of their encryption, then a commitment to each share."""

_PRIME = 2**256 + 297
_DRAWN = 48
"""Bytes of a random coefficient: modulo the prime it is uniform up to 2^-127."""


class Secrets(NamedTuple):
    """A node's secrets of one attempt, 32 fresh random bytes each."""

    channel: bytes
    pair: bytes
    seed: bytes

    def __repr__(self) -> str:
        return "Secrets(...)"


def _hash(label: bytes, *parts: bytes) -> bytes:
    found = hashlib.sha256()
    for part in (b"manifed secure sum v1 " + label, *parts):
        found.update(len(part).to_bytes(4, "big") + part)
    return found.digest()


def _number(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(4, "big") for number in numbers)


def _derived(secret: bytes, ctx: bytes, info: bytes) -> bytes:
    return HKDF(SHA256(), KEY_BYTES, salt=ctx, info=info).derive(secret)


def _exchanged(own: X25519PrivateKey, public: bytes) -> bytes:
    return own.exchange(X25519PublicKey.from_public_bytes(public))


def shared_key(own: X25519PrivateKey, public: bytes, ctx: bytes, info: bytes) -> bytes:
    """Returns a key of the owners of both X25519 keys, in the context ``ctx``, for one use."""
    return _derived(_exchanged(own, public), ctx, info)


def public_of(secret: bytes) -> bytes:
    """Returns the X25519 key that belongs to a secret."""
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def context(run: bytes, server_round: int, attempt: int) -> bytes:
    """Returns the name of one attempt, 32 bytes, to which all of its keys are bound."""
    return _hash(b"attempt", run, _number(server_round, attempt))


# -- offers ----------------------------------------------------------------------------------


def _offered(ctx: bytes, node: int, offer: bytes) -> bytes:
    return _hash(b"offer", ctx, _number(node), offer[: 3 * KEY_BYTES])


def offer(secrets: Secrets, ctx: bytes, node: int, signing: bytes | None) -> bytes:
    """Returns what a node shows of its secrets, signed; zeros without a ``signing`` key."""
    shown = public_of(secrets.channel) + public_of(secrets.pair) + _hash(b"seed", secrets.seed)
    if signing is None:
        return shown + bytes(SIGNATURE_BYTES)
    return shown + sign(signing, _offered(ctx, node, shown))


@cache
def _probe() -> X25519PrivateKey:
    """Any secret at all: a key of small order gives all of them the same public result."""
    return X25519PrivateKey.from_private_bytes(bytes(KEY_BYTES))


def key_fault(public: bytes) -> str | None:
    """Returns why these bytes are no X25519 key that hides a secret; None if they are one."""
    if len(public) != KEY_BYTES:
        return f"is no X25519 key of {KEY_BYTES} bytes, it has {len(public)}"
    if int.from_bytes(public, "little") >= 2**255 - 19:
        return "is no number below 2**255 - 19, as every X25519 key is that was made by the rules"
    try:
        _exchanged(_probe(), public)
    except ValueError:  # the all-zero secret (RFC 7748, section 6.1)
        return "has small order in X25519, so everybody would know the secret"
    return None


def offer_fault(offer: bytes, ctx: bytes, node: int, pinned: bytes | None) -> str | None:
    """Returns why an offer must not be used; None if it is sound.

    ``pinned`` is the node's Ed25519 key; None accepts an offer from whoever relays it.
    """
    if len(offer) != OFFER_BYTES:
        return f"its offer has {len(offer)} bytes, expected {OFFER_BYTES}"
    channel, pair = offer[:KEY_BYTES], offer[KEY_BYTES : 2 * KEY_BYTES]
    for name, key in (("channel", channel), ("pair", pair)):
        if fault := key_fault(key):
            return f"its {name} key {fault}"
    if channel == pair:
        return "its channel key is its pair key too"
    statement, signature = _offered(ctx, node, offer), offer[3 * KEY_BYTES :]
    if pinned is not None and not is_signed(pinned, statement, signature):
        return (
            "its offer is not signed for this attempt by the key that is pinned for it; somebody "
            "between the nodes may have changed it"
        )
    return None


def repeated(offers: Mapping[int, bytes], keys: int = 3) -> frozenset[int]:
    """Returns the nodes whose keys or commitment another node offers too.

    Two nodes with one secret are copies of one machine, or one of them repeats what it was shown.
    An offer begins with so many ``keys`` and commitments.
    """
    parts = {
        node: {made[i : i + KEY_BYTES] for i in range(0, keys * KEY_BYTES, KEY_BYTES)}
        for node, made in offers.items()
    }
    counts = Counter(part for each in parts.values() for part in each)
    return frozenset(node for node, each in parts.items() if max(counts[p] for p in each) > 1)


def root(ctx: bytes, offers: Mapping[int, bytes]) -> bytes:
    """Returns a hash of who takes part in an attempt and what each of them offered."""
    parts = (part for node in sorted(offers) for part in (_number(node), offers[node]))
    return _hash(b"root", ctx, *parts)


def is_seed(offer: bytes, seed: bytes) -> bool:
    """Returns whether this is the seed to which ``offer`` commits."""
    return _hash(b"seed", seed) == offer[2 * KEY_BYTES : 3 * KEY_BYTES]


def is_pair_key(offer: bytes, pair: bytes) -> bool:
    """Returns whether this is the secret of the pair key in ``offer``."""
    return len(pair) == KEY_BYTES and public_of(pair) == offer[KEY_BYTES : 2 * KEY_BYTES]


# -- shares ----------------------------------------------------------------------------------


def _dealt(secret: bytes, points: Iterable[int], drawn: bytes) -> list[bytes]:
    """Shares of a secret: values of a polynomial that has it at 0 and is random otherwise."""
    coefficients = [
        int.from_bytes(drawn[i : i + _DRAWN], "big") % _PRIME for i in range(0, len(drawn), _DRAWN)
    ]
    coefficients.append(int.from_bytes(secret, "big"))
    found = list[bytes]()
    for x in points:
        y = 0
        for coefficient in coefficients:
            y = (y * x + coefficient) % _PRIME
        found.append(y.to_bytes(SHARE_BYTES, "big"))
    return found


def _commitment(share: bytes) -> bytes:
    return _hash(b"share", share)


def _commitments(body: bytes) -> bytes:
    return _commitment(body[:SHARE_BYTES]) + _commitment(body[SHARE_BYTES:])


def _channel(
    own: X25519PrivateKey, offer: bytes, ends: bytes, ctx: bytes, root: bytes, commitments: bytes
) -> tuple[AESGCM, bytes, bytes]:
    """How a box is encrypted: key, nonce, and what it is bound to."""
    key = shared_key(own, offer[:KEY_BYTES], ctx, b"chan" + ends)
    # The nonce follows from what is encrypted: a node that is made to deal twice still does not
    # use a nonce for two messages.
    return AESGCM(key), _hash(b"nonce", commitments)[:12], ctx + root + commitments


def deal(
    secrets: Secrets,
    node: int,
    offers: Mapping[int, bytes],
    ctx: bytes,
    root: bytes,
    threshold: int,
    random: Callable[[int], bytes],
) -> tuple[dict[int, bytes], bytes]:
    """Returns a box for each neighbour, and the node's own shares of its seed and its pair key.

    ``offers`` are those of the neighbours, already checked. ``random(count)`` gives fresh bytes.
    """
    points = [j + 1 for j in (*offers, node)]
    count = (threshold - 1) * _DRAWN
    seeds = _dealt(secrets.seed, points, random(count))
    bodies = [
        s + p for s, p in zip(seeds, _dealt(secrets.pair, points, random(count)), strict=True)
    ]
    own = X25519PrivateKey.from_private_bytes(secrets.channel)
    boxes = dict[int, bytes]()
    for (j, made), body in zip(offers.items(), bodies, strict=False):
        commitments = _commitments(body)
        key, nonce, bound = _channel(own, made, _number(node, j), ctx, root, commitments)
        boxes[j] = key.encrypt(nonce, body, bound) + commitments
    return boxes, bodies[-1]


def opened(
    secrets: Secrets, node: int, dealer: int, offer: bytes, box: bytes, ctx: bytes, root: bytes
) -> bytes | None:
    """Returns the shares in a box, of the dealer's seed and pair key, one after the other.

    None if it cannot be opened, or holds other shares than those to which it commits.
    """
    if len(box) != BOX_BYTES:
        return None
    sealed, commitments = box[:-64], box[-64:]
    own = X25519PrivateKey.from_private_bytes(secrets.channel)
    try:
        key, nonce, bound = _channel(own, offer, _number(dealer, node), ctx, root, commitments)
        body = key.decrypt(nonce, sealed, bound)
    except (InvalidTag, ValueError):
        return None
    return body if _commitments(body) == commitments else None


def share_fault(box: bytes, is_seed: bool, share: bytes) -> str | None:
    """Returns why this is not the share in the dealer's box; None if it is."""
    commitment = box[-64:-32] if is_seed else box[-32:]
    if len(share) == SHARE_BYTES and _commitment(share) == commitment:
        return None
    return "a share is not the one that was dealt"


@lru_cache(maxsize=1024)
def _weights(points: tuple[int, ...]) -> tuple[int, ...]:
    """Lagrange's weights, by which values at ``points`` give the value at 0."""
    found = list[int]()
    for x in points:
        above = below = 1
        for other in points:
            if other != x:
                above = above * other % _PRIME
                below = below * (other - x) % _PRIME
        found.append(above * pow(below, -1, _PRIME) % _PRIME)
    return tuple(found)


def joined(shares: Mapping[int, bytes]) -> bytes:
    """Returns the secret of which these are shares, by holder: as many as its threshold.

    Shares that were checked one by one and give a secret other than the offered one
    (`is_seed`, `is_pair_key`) prove that their dealer dealt wrong ones.

    Raises:
        ValueError: if no secret of 32 bytes has these shares.
    """
    holders = sorted(shares)
    weights = _weights(tuple(j + 1 for j in holders))
    terms = (w * int.from_bytes(shares[j], "big") for w, j in zip(weights, holders, strict=True))
    value = sum(terms) % _PRIME
    if value >> 256:
        raise ValueError(
            "the shares belong to no secret of 32 bytes; their dealer dealt wrong ones"
        )
    return value.to_bytes(KEY_BYTES, "big")


# -- masks -----------------------------------------------------------------------------------


def _stream(key: bytes, count: int, bits: int) -> NDArray[Any]:
    """Uniform residues modulo 2^bits in two's complement, from AES-256 in counter mode."""
    cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    drawn = np.frombuffer(cipher.update(bytes(count * bits // 8)), dtype=f"<i{bits // 8}")
    return drawn.astype(f"i{bits // 8}")


def self_mask(seed: bytes, ctx: bytes, count: int, bits: int) -> NDArray[Any]:
    """Returns the mask that follows from a node's seed, int32 or int64 by ``bits``."""
    return _stream(_derived(seed, ctx, b"self"), count, bits)


def pair_mask(
    pair: bytes, node: int, offers: Mapping[int, bytes], ctx: bytes, count: int, bits: int
) -> NDArray[Any]:
    """Returns what ``node`` adds for the neighbours that made ``offers``.

    The two ends of a pair add opposite numbers. To take the masks of a node that sent nothing out
    of a sum, add what this node would have added for those that sent.
    """
    own = X25519PrivateKey.from_private_bytes(pair)
    total = np.zeros(count, f"i{bits // 8}")
    for other, made in offers.items():
        info = b"pair" + _number(min(node, other), max(node, other))
        key = shared_key(own, made[KEY_BYTES : 2 * KEY_BYTES], ctx, info)
        drawn = _stream(key, count, bits)
        total += drawn if node < other else -drawn
    return total


def mask(
    secrets: Secrets, node: int, offers: Mapping[int, bytes], ctx: bytes, count: int, bits: int
) -> NDArray[Any]:
    """Returns all that a node adds to its integers: its own mask and one for each of ``offers``.

    ``offers`` must be those of all its neighbours that dealt, not of those whose boxes came.
    """
    pairs = pair_mask(secrets.pair, node, offers, ctx, count, bits)
    return pairs + self_mask(secrets.seed, ctx, count, bits)


# -- signatures ------------------------------------------------------------------------------


def confirmation(ctx: bytes, root: bytes, x_hash: bytes, dealt: bytes, alive: bytes) -> bytes:
    """Returns what a node signs: the attempt, its offers, the point, who dealt and who sent."""
    return _hash(b"confirm", ctx, root, x_hash, dealt, alive)


def sign(signing: bytes, statement: bytes) -> bytes:
    """Returns the Ed25519 signature of a statement, 64 bytes."""
    return Ed25519PrivateKey.from_private_bytes(signing).sign(statement)


def is_signed(pinned: bytes, statement: bytes, signature: bytes) -> bool:
    """Returns whether the owner of the ``pinned`` key signed the statement."""
    try:
        Ed25519PublicKey.from_public_bytes(pinned).verify(signature, statement)
    except (InvalidSignature, ValueError):
        return False
    return True
