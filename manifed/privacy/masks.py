"""Pairwise masks that cancel: key agreement through a relay, and normals for each pair.

Two nodes agree on a secret that the relay of their messages does not learn (X25519, then HKDF bound
to the run and the pair). Both draw the same normals from it, addressed by round, attempt and step;
the node with the lesser number adds them, the other subtracts them. In the sum over all nodes they
vanish, up to the rounding of float64.

What holds. Against one who only reads: the masks of a pair are independent normals to everybody
without its secret (X25519, HKDF-SHA256 and AES-256 as usual). Against one who changes messages, the
relay included: only with signatures. Each node signs its public key with an Ed25519 key, and knows
those of the others from a file that it got elsewhere; without that file an active relay can sit in
the middle of every pair. An address must never be used for two different messages: what calls this
takes a new ``attempt`` for every retry.

Source: Allouah et al. (DECOR), Algorithm 1 line 3; Bonawitz et al. 2017 for the agreement.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from torch import Tensor

from manifed.durable import read_regular
from manifed.privacy.random_numbers import NoiseSource, Stream, edge_place
from manifed.privacy.secret_shares import is_signed, key_fault, sign

_LONGEST_FILE = 1 << 26
"""Bytes of a file of pinned keys."""

FLAWS = (
    "no usable X25519 key",
    "offered by two nodes",
    "not signed by the key that is pinned",
)
"""What is wrong with an offer; on the wire its place here, from 1."""
_Owners = Mapping[bytes, Sequence[int]]
"""By public key, which nodes offered it."""


class BadOffer(ValueError):
    """Error: a public key that must not be used; the text names the node and says why.

    ``code`` is the place of the flaw in `FLAWS`, from 1.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def _said(run: bytes, node: int, public: bytes) -> bytes:
    """What a signature covers: this key is node's, in this run and in no other."""
    return (
        b"manifed mask offer v1\0"
        + len(run).to_bytes(4, "big")
        + run
        + node.to_bytes(4, "big")
        + public
    )


@dataclass(frozen=True)
class Offer:
    """A node's public key, which it sends to all others before round 1 through the relay."""

    node: int
    public: bytes
    """X25519, 32 bytes."""
    signature: bytes = b""
    """Ed25519, 64 bytes, of run, node and ``public``; empty without signing keys."""

    def check(
        self, run: bytes, pinned: Mapping[int, bytes] | None, owners: _Owners | None = None
    ) -> None:
        """Refuses a key that allows no secret, or that is not proved to be this node's.

        Nodes look at what was relayed to them, and the relay at what it was offered.

        Raises:
            BadOffer: for another length; a key of small order, or one that is written in another
                way than keys are made; one that another node offered too; and where keys are
                ``pinned``, one that this node's does not sign.
        """
        if fault := key_fault(self.public):
            raise BadOffer(1, f"node {self.node}: its public key {fault}")
        if others := [j for j in (owners or {}).get(self.public, ()) if j != self.node]:
            raise BadOffer(
                2, f"node {self.node}: its public key is that of node {others[0]} of the graph too"
            )
        if pinned is None:
            return
        if (known := pinned.get(self.node)) is None:
            raise BadOffer(
                3, f"node {self.node}: no signing key is pinned for it; add its line to the file"
            )
        if not is_signed(known, _said(run, self.node, self.public), self.signature):
            raise BadOffer(
                3,
                f"node {self.node}: its public key is not signed by the key that is pinned for it "
                "in this run; somebody between the nodes may have changed it",
            )


def owners_of(offers: Iterable[Offer]) -> _Owners:
    """Returns which node offered which key."""
    found: dict[bytes, list[int]] = {}
    for offer in offers:
        found.setdefault(offer.public, []).append(offer.node)
    return found


@dataclass(frozen=True)
class Agreement:
    """One node's side of the key agreement of one run.

    ``run`` names the run: keys of one run are worth nothing in another. ``pinned`` are the others'
    signing keys, of 32 bytes each; None accepts unsigned offers, and an active relay with them.
    """

    run: bytes
    node: int
    secret: bytes = field(repr=False)
    """X25519, 32 bytes; fresh for every run, from the operating system."""
    signing: bytes | None = field(default=None, repr=False)
    """Ed25519, 32 bytes."""
    pinned: Mapping[int, bytes] | None = None

    def offer(self) -> Offer:
        """This node's own public key, signed if it can sign."""
        public = X25519PrivateKey.from_private_bytes(self.secret).public_key().public_bytes_raw()
        if self.signing is None:
            return Offer(self.node, public)
        said = _said(self.run, self.node, public)
        return Offer(self.node, public, sign(self.signing, said))

    def source(self, offer: Offer, owners: _Owners | None = None) -> NoiseSource:
        """Returns the normals that only this node and the offering one can draw.

        Raises:
            BadOffer: as `Offer.check`.
        """
        offer.check(self.run, self.pinned, owners)
        own = X25519PrivateKey.from_private_bytes(self.secret)
        shared = own.exchange(X25519PublicKey.from_public_bytes(offer.public))
        # Both public keys are bound to the pair's key, so neither end can be shown another's.
        public = own.public_key().public_bytes_raw()
        keys = [public, offer.public] if self.node < offer.node else [offer.public, public]
        ends = divmod(edge_place((self.node, offer.node)), 1 << 20)
        said = b"manifed pair mask v1\0" + b"".join(end.to_bytes(4, "big") for end in ends)
        key = HKDF(SHA256(), 32, salt=self.run, info=said + b"".join(keys)).derive(shared)
        return NoiseSource(key, origin="os")


@lru_cache
def seeded_pairs(source: NoiseSource) -> NoiseSource:
    """Returns one source for all pairs of a seeded run, in which an address names the pair."""
    return source.derive(b"pair of a seeded run\0")


def masks(
    sources: Mapping[int, NoiseSource], node: int, shape: tuple[int, ...], **when: int
) -> Tensor:
    """Returns sum_j v_ij of Algorithm 1 over ``sources``, each of unit deviation, float64.

    ``when`` is the rest of their address: ``server_round``, ``attempt`` and ``step``. v_ij = -v_ji
    bit for bit, for the same address at both ends. Multiply by sigma_cor.
    """
    total = torch.zeros(shape, dtype=torch.float64)
    for neighbour in sorted(sources):
        drawn = sources[neighbour].normals(
            shape, stream=Stream.PAIR_NOISE, edge=(node, neighbour), **when
        )
        total = total + drawn if node < neighbour else total - drawn
    return total


def read_pinned(path: Path, num_nodes: int) -> dict[int, bytes]:
    """Reads signing keys by node: a line ``node key`` for each, the key in 64 hex digits.

    Raises:
        ValueError: with file and line, for what is no such line, stands twice or is missing.
    """
    try:
        lines = read_regular(path, _LONGEST_FILE).decode("ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read ({error})") from None
    found: dict[int, bytes] = {}
    for number, line in enumerate(lines, 1):
        match line.split("#")[0].split():
            case []:
                continue
            case [node, key] if (
                node.isdecimal()
                and int(node) in range(num_nodes)
                and int(node) not in found
                and (raw := _key(key)) is not None
            ):
                found[int(node)] = raw
            case _:
                raise ValueError(
                    f"{path}, line {number}: expected 'node key', a node of 0..{num_nodes - 1} "
                    "that is not there yet and 64 hexadecimal digits"
                )
    if missing := sorted(set(range(num_nodes)) - set(found)):
        raise ValueError(f"{path}: expected a line for every node, missing {missing[:10]}")
    return found


def read_signing(path: Path) -> bytes:
    """Reads a node's Ed25519 key: 64 hex digits in a file that only its owner may read.

    Raises:
        ValueError: for anything else; the text holds nothing of the file.
    """
    try:
        is_open = bool(path.stat().st_mode & 0o077)
        found = _key(read_regular(path, _LONGEST_FILE).decode("ascii").strip())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: no signing key ({type(error).__name__})") from None
    if is_open or found is None:
        raise ValueError(
            f"{path}: expected 64 hexadecimal digits in a file that its owner alone can read "
            "(chmod 600)"
        )
    return found


def _key(digits: str) -> bytes | None:
    return bytes.fromhex(digits) if re.fullmatch("[0-9a-fA-F]{64}", digits) else None
