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
from collections.abc import Mapping
from pathlib import Path

import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from torch import Tensor

from manifed.durable import read_regular
from manifed.errors import RoundFailed
from manifed.fields import KeyFiles
from manifed.privacy.random_numbers import NoiseSource, Stream, edge_place
from manifed.privacy.secret_shares import (
    KEY_BYTES,
    SIGNATURE_BYTES,
    is_signed,
    key_fault,
    public_of,
    shared_key,
    sign,
)

_LONGEST_FILE = 1 << 26
"""Bytes of a file of pinned keys."""

FLAWS = (
    "no usable X25519 key",
    "offered by two nodes",
    "not signed by the key that is pinned",
)
"""What is wrong with an offer; on the wire its place here, from 1."""


def _said(run: bytes, node: int, public: bytes) -> bytes:
    """What a signature covers: this key is node's, in this run and in no other."""
    length, number = (count.to_bytes(4, "big") for count in (len(run), node))
    return b"manifed mask offer v1\0" + length + run + number + public


def offer(run: bytes, node: int, secret: bytes, signing: bytes | None) -> bytes:
    """Returns what a node sends to all others before round 1, signed; zeros without ``signing``.

    ``run`` names the run: keys of one run are worth nothing in another. The X25519 ``secret`` is
    fresh for every run, from the operating system.
    """
    public = public_of(secret)
    if signing is None:
        return public + bytes(SIGNATURE_BYTES)
    return public + sign(signing, _said(run, node, public))


def offer_fault(
    run: bytes, node: int, offer: bytes, pinned: Mapping[int, bytes] | None, *, is_copy: bool
) -> tuple[int, str] | None:
    """Returns why a node's offer must not be used, as a place in `FLAWS` and a text; None: it may.

    Nodes look at what was relayed to them, and the relay at what it was offered. ``pinned`` are the
    nodes' Ed25519 keys; None accepts unsigned offers, and an active relay with them. ``is_copy``
    says that another node offered the key too.
    """
    public, signature = offer[:KEY_BYTES], offer[KEY_BYTES:]
    if fault := key_fault(public):
        return 1, f"its public key {fault}"
    if is_copy:
        return 2, "its public key is that of another node of the graph too"
    if pinned is None or is_signed(pinned.get(node, b""), _said(run, node, public), signature):
        return None
    return 3, (
        "its public key is not signed by the key that is pinned for it in this run; somebody "
        "between the nodes may have changed it"
    )


def pair_source(run: bytes, node: int, secret: bytes, other: int, offer: bytes) -> NoiseSource:
    """Returns the normals that only this node and another, whose ``offer`` is sound, can draw."""
    public = offer[:KEY_BYTES]
    # Both public keys are bound to the pair's key, so neither end can be shown another's.
    keys = {node: public_of(secret), other: public}
    ends = divmod(edge_place((node, other)), 1 << 20)
    bound = [end.to_bytes(4, "big") for end in ends] + [keys[end] for end in ends]
    info = b"manifed pair mask v1\0" + b"".join(bound)
    own = X25519PrivateKey.from_private_bytes(secret)
    return NoiseSource(shared_key(own, public, run, info), origin="os")


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


def pinned_in(
    files: KeyFiles, num_nodes: int, *, is_server: bool = False
) -> dict[int, bytes] | None:
    """Reads signing keys by node: a line ``node key`` for each, the key in 64 hex digits.

    None where none are pinned; at a server, also where it lacks the file.

    Raises:
        ValueError: with file and line, for what is no such line, stands twice or is missing.
        RoundFailed: the same at a server.
    """
    if files.pinned_keys is None:
        return None
    path = Path(files.pinned_keys)
    try:
        return None if is_server and not path.exists() else _read_pinned(path, num_nodes)
    except ValueError as error:
        if not is_server:
            raise
        raise RoundFailed(f"{files.where}.pinned_keys: {error}") from None


def _read_pinned(path: Path, num_nodes: int) -> dict[int, bytes]:
    try:
        lines = read_regular(path, _LONGEST_FILE).decode("ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read ({error})") from None
    found = dict[int, bytes]()
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


def signing_in(files: KeyFiles, node: int) -> bytes | None:
    """Reads a node's Ed25519 key: 64 hex digits in a file that only its owner may read.

    None where there is no signing key.

    Raises:
        ValueError: for anything else; the text holds nothing of the file.
    """
    if files.signing_keys is None:
        return None
    path = Path(files.signing_keys.replace("{node}", str(node)))
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
