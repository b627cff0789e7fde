"""What the server of a secure sum relays between its nodes, and whom it names.

The state of the algorithm gets some tensors more while an attempt lasts, under names of their own;
tables have a row for every node that offered, in order.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from manifed.algorithms.payloads import (
    Down,
    Partitions,
    Payload,
    PerClient,
    State,
    bytes_of,
    tensor_of,
)
from manifed.algorithms.secure_node import SecureNode
from manifed.algorithms.secure_sum import digest_of, packed, root_of
from manifed.privacy import secret_shares
from manifed.privacy.committee import Committee, blamed
from manifed.privacy.masks import pinned_in

OURS = "sum_"
"""Before the names of what a state holds of an attempt."""


class Attempt(NamedTuple):
    """An attempt as the server sees it."""

    ctx: bytes
    members: Partitions
    asked: Committee
    state: State

    def listed(self, name: str) -> Partitions:
        """Some nodes of the attempt."""
        return tuple(self.state[OURS + name].tolist())

    def row(self, name: str, node: int) -> Tensor:
        """A node's row of a table."""
        return self.state[OURS + name][bisect_left(self.members, node)]

    def place(self, node: int, of: int) -> int:
        """Where a node stands among the neighbours of another."""
        return bisect_left(self.asked.neighbours[of], node)

    def offer(self, node: int) -> bytes:
        """What a node offered."""
        return bytes_of(self.row("offers", node))

    def box(self, dealer: int, node: int) -> bytes:
        """What one node dealt another; zeros if it dealt nothing."""
        return bytes_of(self.row("boxes", dealer)[self.place(node, dealer)])

    def digest(self) -> bytes:
        """The hash of all offers."""
        return secret_shares.root(self.ctx, {i: self.offer(i) for i in self.members})


class SecureRelay(SecureNode):
    """What the server sends in each exchange of `SecureMean`, and what it refuses."""

    def attempt(self, state: State) -> Attempt:
        """Reads the attempt of a state; ValueError where too few take part."""
        members = tuple(state[OURS + "members"].tolist())
        ctx = secret_shares.context(self.run, *state[OURS + "now"].tolist())
        return Attempt(ctx, members, self.committee(members, ctx), state)

    def down(self, state: State, phase: str) -> Down:
        """Returns the payload of an exchange, with a row for each node asked where they differ."""
        kind: Any = {one.name: one.down for one in self.phases}[phase]
        if phase == "offer":
            return kind(torch.zeros(1, dtype=torch.uint8))
        write = partial(packed, count=self.clients)
        if phase == "send" and self.is_seeded:
            own = vars(self.server_update.down(state, self.inner.name)).values()
            members = state[OURS + "members"].tolist()
            return kind(
                *own, write(members), torch.zeros(0, secret_shares.BOX_BYTES, dtype=torch.uint8)
            )
        now = self.attempt(state)
        if phase == "deal":
            common = [write(now.members), tensor_of(now.digest())]
            table = [[now.row("offers", j) for j in now.asked.neighbours[i]] for i in now.members]
            return self._rows(kind, common, table)
        if phase == "send":
            dealt = now.listed("dealt")
            own = vars(self.server_update.down(state, self.inner.name)).values()
            table = [
                [now.row("boxes", j)[now.place(i, j)] for j in now.asked.neighbours[i]]
                for i in dealt
            ]
            return self._rows(kind, [*own, write(dealt)], table)
        alive = write(now.listed("alive"))
        if phase == "confirm" or self.pinned_keys is None:
            return kind(alive)
        signers = now.listed("signers")[: now.asked.quorum]
        ((_, (most, _)),) = [one for one in kind.of_bytes if one[0] == "signatures"]
        signatures = state[OURS + "signatures"][: len(signers)]
        blank = signatures.new_zeros(most - len(signers), signatures.shape[1])
        return kind(alive, write(signers), torch.cat([signatures, blank]))

    def _rows(self, kind: Any, common: Sequence[Tensor], table: list[list[Tensor]]) -> PerClient:
        """A row for each node: what all are sent, and a table of its own with zeros behind it."""
        blank = torch.zeros_like(table[0][0])
        each = [torch.stack([*row, *[blank] * (self.degree - len(row))]) for row in table]
        shared = [t.expand(len(each), *t.shape) for t in common]
        return PerClient(kind(*shared, torch.stack(each)))

    def refused(
        self, state: State, phase: str, uploads: Payload, partitions: Partitions
    ) -> Mapping[int, str]:
        """Returns by name the nodes whose offers, boxes, signatures or shares are no good."""
        if self.is_seeded or not partitions:
            return {}
        ((_, first), *more) = vars(uploads).items()
        judged = more[0][1] if more and phase != "reveal" else first
        rows = dict(zip(partitions, judged, strict=True))
        if phase == "offer":
            return self._bad_offers(state, rows)
        now = self.attempt(state)
        if phase == "confirm":
            return self._bad_signatures(now, rows)
        if phase == "reveal":
            return self._bad_shares(now, rows)
        marked = {i: _marked(row, now.asked.neighbours[i]) for i, row in rows.items()}
        said = {i: some for i, some in marked.items() if some}
        if phase == "deal":
            what = "it refuses the offers relayed as those of clients"
            return {i: f"{what} {some[:5]}" for i, some in said.items()}
        found = {i: f"it cannot open the boxes of clients {some[:5]}" for i, some in said.items()}
        for j in blamed(said, self.collusion) - {*said}:
            found[j] = f"clients {[i for i in said if j in said[i]][:5]} cannot open its boxes"
        return found

    def _bad_offers(self, state: State, rows: Mapping[int, Tensor]) -> dict[int, str]:
        pins = pinned_in(self, self.clients, is_server=True) or {}
        ctx = secret_shares.context(self.run, *state[OURS + "now"].tolist())
        offers = {i: bytes_of(row) for i, row in rows.items()}
        found = dict.fromkeys(secret_shares.repeated(offers), "its keys are another client's too")
        for i, offer in offers.items():
            if why := secret_shares.offer_fault(offer, ctx, i, pins.get(i)):
                found[i] = why
        return found

    def _bad_signatures(self, now: Attempt, rows: Mapping[int, Tensor]) -> dict[int, str]:
        pins = pinned_in(self, self.clients, is_server=True)
        if pins is None:  # clients have them, and look
            return {}
        members, dealt, alive = (
            packed(some, self.clients)
            for some in (now.members, now.listed("dealt"), now.listed("alive"))
        )
        root = root_of(now.ctx, members, tensor_of(now.digest()))
        sent = digest_of(*vars(self.server_update.down(now.state, self.inner.name)).values())
        said = secret_shares.confirmation(now.ctx, root, *map(bytes_of, (sent, dealt, alive)))
        return {
            i: "it does not sign this list of survivors, these offers and this model"
            for i, row in rows.items()
            if not secret_shares.is_signed(pins[i], said, bytes_of(row))
        }

    @staticmethod
    def _bad_shares(now: Attempt, rows: Mapping[int, Tensor]) -> dict[int, str]:
        alive, dealt = now.listed("alive"), now.listed("dealt")
        found = dict[int, str]()
        for i, shares in rows.items():
            for j, share in zip(now.asked.neighbours[i], shares, strict=False):
                if j not in dealt:
                    continue
                why = secret_shares.share_fault(now.box(j, i), j in alive, bytes_of(share))
                if why is not None:
                    found[i] = f"of client {j}'s secret {why}"
        return found


def _marked(flags: Tensor, nodes: Sequence[int]) -> list[int]:
    """The nodes in the places that are marked; places behind the last node count for nothing."""
    return [j for j, flag in zip(nodes, flags.tolist(), strict=False) if flag]
