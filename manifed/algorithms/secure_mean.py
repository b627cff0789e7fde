"""The server of a secure sum opens it, and takes the algorithm's step along its mean."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any, NamedTuple

import torch
from torch import Tensor

from manifed.algorithms.algorithm import Here, There
from manifed.algorithms.payloads import Partitions, State, bytes_of, returned
from manifed.algorithms.secure_relay import OURS, Attempt, SecureRelay
from manifed.errors import RoundFailed
from manifed.manifolds.base import Manifold
from manifed.oracles.noisy_oracle import Draws
from manifed.privacy import secret_shares
from manifed.privacy.integers import Coding
from manifed.privacy.random_numbers import NoiseSource


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


class SecureMean(SecureRelay):
    """An algorithm whose mean its clients open together, and nobody else learns more than it."""

    mean_weights = "uniform"
    opens_sums = True

    # -- an attempt --------------------------------------------------------------------------
    def attempted(
        self, state: State, server_round: int, attempt: int, cohort: Partitions
    ) -> State | None:
        """Notes the attempt and who is asked; None for a cohort that no sum is safe over."""
        now = torch.tensor([server_round, attempt])
        asked = torch.tensor(cohort)
        made = {OURS + "now": now, OURS + "asked": asked, OURS + "members": asked}
        try:
            self.attempt(made)
        except ValueError:
            return None
        return state | made

    def opening(self, state: State, phase: str, asked: Partitions) -> tuple[int, Partitions] | None:
        """Returns how many offered, and who is in the sum that the next exchange opens."""
        last = "confirm" if self.pinned_keys and not self.is_seeded else "send"
        if phase != last or OURS + "members" not in state:
            return None
        alive = tuple(state[OURS + "alive"].tolist()) if phase == "confirm" else asked
        return len(state[OURS + "members"]), alive

    def server(self, state: State, mean: Tensor, here: There) -> State:
        """Keeps what an exchange brought; opens the sum after the last, and steps along its mean.

        Raises:
            RoundFailed: fewer nodes than the noise is sized for, or a sum that is out of range.
        """
        seen, name = here.collected, here.exchange
        came: Any = seen.uploads
        who = torch.tensor(seen.partitions)
        if name == "offer":
            state = state | {OURS + "members": who, OURS + "offers": came.offer}
            try:
                self.attempt(state)
            except ValueError as few:
                raise RoundFailed(f"Round {here.round}: {few}") from None
            return state
        if name == "reveal":
            rows = zip(came.shares, came.own, strict=True)
            revealed = dict(zip(seen.partitions, rows, strict=True))
            return self._stepped(state, self._unmasked(self.attempt(state), revealed), here)
        if name == "confirm":
            if len(who) < (quorum := self.attempt(state).asked.quorum):
                raise RoundFailed(
                    f"Round {here.round}: expected {quorum} clients to sign who is in the sum, got "
                    f"{len(who)}; no sum is opened, and nothing is charged"
                )
            return state | {OURS + "signers": who, OURS + "signatures": came.by}
        members = state[OURS + "members"].tolist()
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
            return state | {OURS + "dealt": who, OURS + "boxes": boxes}
        total = came.total.to(torch.int64).sum(0)  # wraps modulo 2^64, and so modulo 2^b
        state = state | {OURS + "alive": who, OURS + "total": total}
        return self._stepped(state, total, here) if self.is_seeded else state

    # -- parts -------------------------------------------------------------------------------
    def _unmasked(self, now: Attempt, revealed: Mapping[int, tuple[Tensor, Tensor]]) -> Tensor:
        """The sum without the masks of survivors and of their pairs with who fell silent."""
        total = now.state[OURS + "total"].numpy().copy()
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
        own = {name: t for name, t in state.items() if not name.startswith(OURS)}
        asked, members, alive = (
            state[OURS + name].tolist() for name in ("asked", "members", "alive")
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
        if self.unit != "client":
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
        if self.unit != "client":
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
