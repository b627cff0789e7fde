"""The server's side of a secure sum: it relays, names who does not follow, opens, and steps.

The state of the algorithm gets some tensors more while an attempt lasts, under names of their own;
tables have a row for every node that offered, in order.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import partial
from math import sqrt
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from manifed.algorithms.algorithm import Here, There
from manifed.algorithms.payloads import Down, Payload, PerClient, State, returned
from manifed.algorithms.secure_node import SecureNode
from manifed.algorithms.secure_sum import bytes_of, digest_of, packed, root_of, tensor_of
from manifed.errors import RoundFailed
from manifed.manifolds.base import Manifold
from manifed.oracles.noisy_oracle import Draws
from manifed.privacy import secret_shares
from manifed.privacy.committee import Committee, blamed
from manifed.privacy.integers import Coding
from manifed.privacy.masks import read_pinned
from manifed.privacy.random_numbers import NoiseSource

_OURS = "sum_"
"""Before the names of what a state holds of an attempt."""


class _Opened(NamedTuple):
    """An oracle of the server's, whose answer is the mean that a sum gave."""

    manifold: Manifold
    coords: Tensor
    """In orthonormal coordinates, (d,)."""

    def answer(self, label: str, *points: Tensor, problem: Any = None, **_: Any) -> Tensor:
        """Returns the mean answer, as `Oracle.answer`."""
        manifold = self.manifold if problem is None else problem.manifold
        base = points[0].to(self.coords.dtype)
        found = manifold.from_coords(base, self.coords.reshape(manifold.coords_of(base)))
        return found.to(points[0].dtype)

    def gradient(self, x: Tensor, label: str = "gradient", **_: Any) -> Tensor:
        """Returns the mean gradient, as `Oracle.gradient`."""
        return self.answer(label, x)

    def statistic(self, origin: Tensor, label: str, kind: Any) -> Tensor:
        """Returns the mean statistic, as `Oracle.statistic`."""
        return self.coords.reshape(origin.shape).to(origin.dtype)


class _Attempt(NamedTuple):
    """An attempt as the server sees it."""

    ctx: bytes
    members: tuple[int, ...]
    asked: Committee
    state: State

    def listed(self, name: str) -> tuple[int, ...]:
        """Some nodes of the attempt."""
        return tuple(self.state[_OURS + name].tolist())

    def row(self, name: str, node: int) -> Tensor:
        """A node's row of a table."""
        return self.state[_OURS + name][bisect_left(self.members, node)]

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


class SecureMean(SecureNode):
    """An algorithm whose mean its clients open together, and nobody else learns more than it."""

    mean_weights = "uniform"
    opens_sums = True

    # -- what is the algorithm's own ---------------------------------------------------------
    @property
    def needs_everyone(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the algorithm needs every client."""
        return self.server_update.needs_everyone

    @property
    def is_average(self) -> bool:
        """Whether the model is an average of the points that were broadcast."""
        return self.server_update.is_average

    def start(self, x: Tensor) -> State:
        """Returns the algorithm's state before round 1."""
        return self.server_update.start(x)

    def base(self, state: State, manifold: Manifold) -> Tensor:
        """Returns the algorithm's base point."""
        return self.server_update.base(state, manifold)

    def model(self, state: State, manifold: Manifold) -> Tensor:
        """Returns the algorithm's model."""
        return self.server_update.model(state, manifold)

    def output(self, state: State, manifold: Manifold) -> Tensor:
        """Returns the algorithm's output."""
        return self.server_update.output(state, manifold)

    # -- an attempt --------------------------------------------------------------------------
    def attempted(
        self, state: State, server_round: int, attempt: int, cohort: tuple[int, ...]
    ) -> State | None:
        """Notes the attempt and who is asked; None for a cohort that no sum is safe over."""
        now = torch.tensor([server_round, attempt])
        asked = torch.tensor(cohort)
        made = {_OURS + "now": now, _OURS + "asked": asked, _OURS + "members": asked}
        try:
            self._attempt(made)
        except ValueError:
            return None
        return state | made

    def _attempt(self, state: State) -> _Attempt:
        members = tuple(state[_OURS + "members"].tolist())
        ctx = secret_shares.context(self.run, *state[_OURS + "now"].tolist())
        return _Attempt(ctx, members, self.committee(members, ctx), state)

    def opening(
        self, state: State, phase: str, asked: tuple[int, ...]
    ) -> tuple[int, tuple[int, ...]] | None:
        """Returns how many offered, and who is in the sum that the next exchange opens."""
        last = "confirm" if self.pinned_keys and not self.is_seeded else "send"
        if phase != last or _OURS + "members" not in state:
            return None
        alive = tuple(state[_OURS + "alive"].tolist()) if phase == "confirm" else asked
        return len(state[_OURS + "members"]), alive

    def down(self, state: State, phase: str) -> Down:
        """Returns the payload of an exchange, with a row for each node asked where they differ."""
        kind: Any = {one.name: one.down for one in self.phases}[phase]
        if phase == "offer":
            return kind(torch.zeros(1, dtype=torch.uint8))
        write = partial(packed, count=self.clients)
        if phase == "send" and self.is_seeded:
            own = vars(self.server_update.down(state, self.inner.name)).values()
            members = state[_OURS + "members"].tolist()
            return kind(
                *own, write(members), torch.zeros(0, secret_shares.BOX_BYTES, dtype=torch.uint8)
            )
        now = self._attempt(state)
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
        signatures = state[_OURS + "signatures"][: len(signers)]
        blank = signatures.new_zeros(most - len(signers), signatures.shape[1])
        return kind(alive, write(signers), torch.cat([signatures, blank]))

    def _rows(self, kind: Any, common: Sequence[Tensor], table: list[list[Tensor]]) -> PerClient:
        """A row for each node: what all are sent, and a table of its own with zeros behind it."""
        blank = torch.zeros_like(table[0][0])
        each = [torch.stack([*row, *[blank] * (self.degree - len(row))]) for row in table]
        shared = [t.expand(len(each), *t.shape) for t in common]
        return PerClient(kind(*shared, torch.stack(each)))

    def refused(
        self, state: State, phase: str, uploads: Payload, partitions: tuple[int, ...]
    ) -> Mapping[int, str]:
        """Returns by name the nodes whose offers, boxes, signatures or shares are no good."""
        if self.is_seeded or not partitions:
            return {}
        ((_, first), *more) = vars(uploads).items()
        judged = more[0][1] if more and phase != "reveal" else first
        rows = dict(zip(partitions, judged, strict=True))
        if phase == "offer":
            return self._bad_offers(state, rows)
        now = self._attempt(state)
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
        pins = self._server_pins() or {}
        ctx = secret_shares.context(self.run, *state[_OURS + "now"].tolist())
        offers = {i: bytes_of(row) for i, row in rows.items()}
        found = dict.fromkeys(secret_shares.repeated(offers), "its keys are another client's too")
        for i, offer in offers.items():
            if why := secret_shares.offer_fault(offer, ctx, i, pins.get(i)):
                found[i] = why
        return found

    def _bad_signatures(self, now: _Attempt, rows: Mapping[int, Tensor]) -> dict[int, str]:
        pins = self._server_pins()
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
    def _bad_shares(now: _Attempt, rows: Mapping[int, Tensor]) -> dict[int, str]:
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

    def server(self, state: State, mean: Tensor, here: There) -> State:
        """Keeps what an exchange brought; opens the sum after the last, and steps along its mean.

        Raises:
            RoundFailed: fewer nodes than the noise is sized for, or a sum that is out of range.
        """
        seen, name = here.collected, here.exchange
        came: Any = seen.uploads
        who = torch.tensor(seen.partitions)
        if name == "offer":
            state = state | {_OURS + "members": who, _OURS + "offers": came.offer}
            try:
                self._attempt(state)
            except ValueError as few:
                raise RoundFailed(f"Round {here.round}: {few}") from None
            return state
        if name == "reveal":
            rows = zip(came.shares, came.own, strict=True)
            revealed = dict(zip(seen.partitions, rows, strict=True))
            return self._stepped(state, self._unmasked(self._attempt(state), revealed), here)
        if name == "confirm":
            if len(who) < (quorum := self._attempt(state).asked.quorum):
                raise RoundFailed(
                    f"Round {here.round}: expected {quorum} clients to sign who is in the sum, got "
                    f"{len(who)}; no sum is opened, and nothing is charged"
                )
            return state | {_OURS + "signers": who, _OURS + "signatures": came.by}
        members = state[_OURS + "members"].tolist()
        least = len(members) - self.numbers.dropped(len(members))
        if len(who) < least:
            raise RoundFailed(
                f"Round {here.round}, exchange {name!r}: expected at least {least} of "
                f"{len(members)} clients (privacy.trust.max_dropped), got {len(who)}; no sum is "
                "opened, and nothing is charged"
            )
        if name == "deal":
            boxes = came.boxes.new_zeros(len(members), *came.boxes.shape[1:])
            boxes[[bisect_left(members, i) for i in seen.partitions]] = came.boxes
            return state | {_OURS + "dealt": who, _OURS + "boxes": boxes}
        total = came.total.to(torch.int64).sum(0)  # wraps modulo 2^64, and so modulo 2^b
        state = state | {_OURS + "alive": who, _OURS + "total": total}
        return self._stepped(state, total, here) if self.is_seeded else state

    # -- parts -------------------------------------------------------------------------------
    def _server_pins(self) -> dict[int, bytes] | None:
        """Pinned keys, where the server has the file.

        Raises:
            RoundFailed: it cannot be read.
        """
        if self.pinned_keys is None or not Path(self.pinned_keys).exists():
            return None
        try:
            return read_pinned(Path(self.pinned_keys), self.clients)
        except ValueError as error:
            raise RoundFailed(f"privacy.trust.pinned_keys: {error}") from None

    def _unmasked(self, now: _Attempt, revealed: Mapping[int, tuple[Tensor, Tensor]]) -> Tensor:
        """The sum without the masks of survivors and of their pairs with who fell silent."""
        total = now.state[_OURS + "total"].numpy().copy()
        bits = self.numbers.bits(len(total))
        alive = now.listed("alive")
        for j in now.listed("dealt"):
            # its own share was compared with nothing, so it comes last
            holders = [i for i in (*now.asked.neighbours[j], j) if i in revealed]
            if len(holders) < now.asked.threshold:
                raise RoundFailed(
                    f"Expected {now.asked.threshold} shares of client {j}'s secret, got "
                    f"{len(holders)}; the sum stays closed, and is paid for"
                )
            shares = {
                i: bytes_of(revealed[i][1] if i == j else revealed[i][0][now.place(j, i)])
                for i in holders[: now.asked.threshold]
            }
            offer = now.offer(j)
            is_own = secret_shares.is_seed if j in alive else secret_shares.is_pair_key
            try:
                secret = secret_shares.joined(shares)
            except ValueError:
                secret = b""
            if not is_own(offer, secret):
                raise RoundFailed(f"Client {j} dealt shares of no secret that it offered")
            if j in alive:
                total -= secret_shares.self_mask(secret, now.ctx, len(total), bits)
                continue
            near = {i: now.offer(i) for i in now.asked.neighbours[j] if i in alive}
            total += secret_shares.pair_mask(secret, j, near, now.ctx, len(total), bits)
        return torch.from_numpy(total)

    def _stepped(self, state: State, total: Tensor, here: There) -> State:
        """The algorithm's own step along the mean that a sum of integers stands for."""
        own = {name: t for name, t in state.items() if not name.startswith(_OURS)}
        asked, members, alive = (
            state[_OURS + name].tolist() for name in ("asked", "members", "alive")
        )
        update = self.in_round(here.round)
        coding = update.numbers.of(len(members), len(total))
        coords = coding.decode(coding.wrap(total.numpy()))
        if not float(coords.norm()) <= (largest := self._largest(coding, alive)):
            raise RoundFailed(
                f"Round {here.round}: expected a sum of norm at most {largest:.4g}, got "
                f"{float(coords.norm()):.4g}: some client did not follow the exchanges"
            )
        mean = coords / update._weight(asked, alive)
        manifold, inner = here.manifold, self.inner
        down = self.server_update.down(own, inner.name)
        x, base = down.point, self.server_update.base(own, manifold)
        up: Any = mean.reshape(-1)
        if self.unit == "example":
            draws = Draws(NoiseSource.from_seed(0), 0, here.round)
            place = Here(manifold, inner.name, here.round, down, None, draws, inner.places)
            oracle: Any = _Opened(manifold, mean)
            up = update.client_update.client(x, oracle, place)
        elif self.server_update.space == "tangent":
            up = manifold.from_coords(base.to(mean), mean.reshape(manifold.coords_of(base)))
        if isinstance(up, Tensor):
            ((shape, dtype),) = inner.up.layout(tuple(x.shape), x.dtype).values()
            up = up.reshape(shape).to(dtype)
        layout = inner.up.layout(tuple(x.shape), x.dtype)
        fields = vars(returned(self.client_update.kind, up, inner.up, layout))
        collected = here.collected._replace(mean=fields, uploads=None, partitions=())
        there = here._replace(exchange=inner.name, collected=collected)
        return self.server_update.server(own, next(iter(fields.values())), there)

    def _weight(self, asked: Sequence[int], alive: Sequence[int]) -> float:
        """What a sum is divided by: the size that is expected, less that of who fell silent.

        It depends on no draw of a cohort, which the mean would show.
        """
        each = [1.0] * self.clients
        if self.unit == "example":
            assert self.mechanism is not None
            sizes = {n: self.queries(self.mechanism, n)[0].expected_size for n in {*self.sizes}}
            each = [sizes[n] for n in self.sizes]
        expected = sum(rate * size for rate, size in zip(self.rates, each, strict=True))
        return max(expected - sum(each[i] for i in asked if i not in alive), min(each))

    def _largest(self, coding: Coding, alive: Sequence[int]) -> float:
        """The largest norm of a sum of honest uploads, with nine deviations of its noise."""
        most = len(alive) if self.unit == "client" else sum(self.sizes[i] for i in alive)
        noise = 9 * sqrt(coding.nodes * coding.variance * coding.size)
        return (most * coding.bound + noise) * coding.clip / coding.inner


def _marked(flags: Tensor, nodes: Sequence[int]) -> list[int]:
    """The nodes in the places that are marked; places behind the last node count for nothing."""
    return [j for j, flag in zip(nodes, flags.tolist(), strict=False) if flag]
