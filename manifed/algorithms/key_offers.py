"""Public keys on their way: what travels before round 1, and what the server makes of it.

Every node offers a key, the server looks at it and relays it to the node's neighbours, and these
say whether they took it. Both sides look by `manifed.privacy.masks.Offer.check`; a node whose key
is refused is named by the error that ends the run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from manifed.algorithms.payloads import Layout, Payload
from manifed.privacy.masks import (
    FLAWS,
    KEY_BYTES,
    SIGNATURE_BYTES,
    UNSIGNED,
    BadOffer,
    Offer,
    owners_of,
)

_Shape = tuple[int, ...]


@dataclass(frozen=True)
class OfferedKey(Payload):
    """Up, before round 1: a public key and its signature (zeros without a signing key)."""

    public: Tensor
    signature: Tensor

    @classmethod
    def layout(cls, shape: _Shape, dtype: torch.dtype) -> dict[str, Layout]:
        """Bytes."""
        return {
            "public": ((KEY_BYTES,), torch.uint8),
            "signature": ((SIGNATURE_BYTES,), torch.uint8),
        }


@dataclass(frozen=True)
class NeighbourKeys(Payload):
    """Down, before round 1: the offers of a node's neighbours, in order, zeros where it has fewer.

    The point stands in front as in everything that goes down; it is not used.
    """

    x: Tensor
    public: Tensor
    signature: Tensor

    @classmethod
    def layout(cls, shape: _Shape, dtype: torch.dtype) -> dict[str, Layout]:
        """A layout of as many keys as a node has neighbours at most."""
        return {
            "x": (shape, dtype),
            "public": ((cls.places, KEY_BYTES), torch.uint8),
            "signature": ((cls.places, SIGNATURE_BYTES), torch.uint8),
        }


@dataclass(frozen=True)
class Agreed(Payload):
    """Up, before round 1: 0 for every neighbour with whom this node has a pair key now.

    Else which of `FLAWS` it found in the key that was relayed as the neighbour's, from 1. An error
    would name this node, and no more, to a server.
    """

    flaws: Tensor

    @classmethod
    def layout(cls, shape: _Shape, dtype: torch.dtype) -> dict[str, Layout]:
        """A byte a neighbour."""
        return {"flaws": ((cls.places,), torch.uint8)}


def offers_of(nodes: Sequence[int], keys: OfferedKey | NeighbourKeys) -> list[Offer]:
    """The first rows of stacked keys, which are of these nodes."""
    return [
        Offer(node, as_bytes(keys.public[row]), as_bytes(keys.signature[row]))
        for row, node in enumerate(nodes)
    ]


def bad_offers(
    offers: Sequence[Offer], run: bytes, pinned: Mapping[int, bytes] | None
) -> dict[int, str]:
    """Who offered a key that must not be relayed, and why."""
    owners, found = owners_of(offers), dict[int, str]()
    for offer in offers:
        try:
            offer.check(run, pinned, owners)
        except BadOffer as bad:
            found[offer.node] = str(bad).removeprefix(f"node {offer.node}: ")
    return found


def complaints(
    said: Mapping[int, Sequence[int]],
    neighbors: Sequence[Sequence[int]],
    *,
    is_signature_known: bool,
) -> dict[int, str]:
    """Whose key was refused, by whom and why, from what every node said of its neighbours'.

    The owner, who refuses it or the server may be at fault, so the text has who takes it and what
    the server found. A node that says what nobody can have found is at fault itself.
    """
    found, refusals = dict[int, str](), dict[int, dict[int, str]]()
    for i, codes in said.items():
        if any(codes[len(neighbors[i]) :]) or max(codes) > len(FLAWS):
            found[i] = f"Expected codes of flaws in its neighbours' keys, got {codes[:5]}"
            continue
        for j, code in zip(neighbors[i], codes, strict=False):
            if code:
                refusals.setdefault(j, {})[i] = FLAWS[code - 1]
    for j, by in refusals.items():
        why = sorted(set(by.values()))
        takes = [i for i in neighbors[j] if i in said and i not in by]
        text = f"clients {list(by)[:5]} refuse the key relayed as its ({', '.join(why)})"
        text += f", clients {takes[:5]} take it" if takes else ""
        is_sound = is_signature_known or UNSIGNED not in why  # it was looked at when it was offered
        found.setdefault(j, text + (", the server found it sound" if is_sound else ""))
    return found


def as_bytes(tensor: Tensor) -> bytes:
    """The bytes of a row."""
    return bytes(tensor.tolist())
