"""The client's side of a secure sum: what a node sends, and what it refuses to answer.

A node believes nothing of the server that it can check. It answers each exchange of an attempt once
and in order, and attempts in order; it opens a sum of at least as many nodes as the noise is sized
for; and it never gives both halves of what it holds of another node, because both would open that
node's upload. Its secrets of an attempt are forgotten once it has answered "reveal".
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from manifed.algorithms.algorithm import Here
from manifed.algorithms.payloads import (
    Memory,
    Partitions,
    Payload,
    State,
    bytes_by_node,
    bytes_of,
    recorded,
    tensor_of,
)
from manifed.algorithms.secure_sum import (
    HASH_BYTES,
    SecureSum,
    digest_of,
    members_of,
    root_of,
)
from manifed.errors import described
from manifed.manifolds.euclidean import Euclidean
from manifed.oracles.integer_sums import IntegerOracle
from manifed.oracles.noisy_oracle import Draws, Oracle
from manifed.oracles.sums import clip_each
from manifed.privacy import discrete, secret_shares
from manifed.privacy.integers import Coding
from manifed.privacy.masks import pinned_in, signing_in
from manifed.privacy.random_numbers import Stream
from manifed.privacy.secret_shares import BOX_BYTES, KEY_BYTES, OFFER_BYTES, SHARE_BYTES, Secrets

_log = logging.getLogger("manifed")
_ITS = "its_"
_HAS_ITS = "its_memory"
"""Before the names of what the algorithm itself remembers, and whether it remembers anything."""


class OutOfOrder(RuntimeError):
    """Error: a node is asked what it must not answer in this place; nothing leaves it."""


class _Turn(NamedTuple):
    """One node's turn in an attempt."""

    node: int
    here: Here
    memory: State
    ctx: bytes

    @property
    def members(self) -> Partitions:
        """Who offered."""
        return members_of(self.memory["members"])

    @property
    def secrets(self) -> Secrets:
        """This node's own."""
        return Secrets(*map(bytes_of, self.memory["secrets"]))


class SecureNode(SecureSum):
    """The client's side of `SecureMean`."""

    @property
    def memory_is_required(self) -> bool:
        """True with real keys: a node that forgot how far it was could be asked twice."""
        return not self.is_seeded

    def initial_memory(self, x: Tensor) -> Memory | None:
        """Returns the memory of a node in no attempt, beside what the algorithm remembers."""
        inner = self.client_update.initial_memory(x)
        found = {} if inner is None else {_ITS + k: t for k, t in inner.tensors().items()}
        if not self.is_seeded:
            most, width = self.degree, -(-self.clients // 8)
            sizes = {
                "secrets": (3, KEY_BYTES), "root": (HASH_BYTES,), "seen": (HASH_BYTES,),
                "members": (width,), "dealt": (width,), "alive": (width,),
                "offers": (most, OFFER_BYTES), "shares": (most, 2 * SHARE_BYTES),
                "own": (SHARE_BYTES,), _HAS_ITS: (1,),
            }  # fmt: skip
            found |= {name: torch.zeros(size, dtype=torch.uint8) for name, size in sizes.items()}
            found["stage"] = torch.zeros(3, dtype=torch.int64)
        return recorded(found) if found else None

    def client(self, x: Tensor, oracle: Oracle, here: Here) -> Any:
        """Answers one exchange of an attempt.

        Raises:
            OutOfOrder: for an exchange that does not follow the last one, and for a list of nodes
                that this node must not believe; nothing leaves it.
        """
        if self.is_seeded:
            return self._rehearsed(x, oracle, here)
        node = here.draws.partition
        assert isinstance(node, int)  # a stack with real keys is of one client
        memory = dict(vars(here.memory))
        now = [here.round, here.draws.attempt]
        last = memory["stage"].tolist()
        stage = self.exchanges.index(here.exchange)
        if last[:2] >= now if stage == 0 else last != [*now, stage]:
            raise OutOfOrder(
                f"Expected what follows {last} (round, attempt, exchange), got {here.exchange!r} "
                f"of round {now[0]}, attempt {now[1]}; keys are used once"
            )
        turn = _Turn(node, here, memory, secret_shares.context(self.run, *now))
        answers = {
            "offer": self._offer,
            "deal": self._deal,
            "send": partial(self._send, x=x, oracle=oracle),
            "confirm": self._confirm,
            "reveal": self._reveal,
        }
        up, after = answers[here.exchange](turn)
        if stage == 0 or after is None:  # all but the algorithm's own memory is forgotten
            kept = {name: t for name, t in memory.items() if name.startswith(_ITS)}
            memory = {name: torch.zeros_like(t) for name, t in memory.items()} | kept
        done = len(self.exchanges) if after is None else stage + 1
        return up, memory | (after or {}) | {"stage": torch.tensor([*now, done])}

    # -- one exchange each: the reply and what is remembered, None at the end of an attempt ------
    def _offer(self, turn: _Turn) -> tuple[Any, State | None]:
        """Fresh keys."""
        source = turn.here.draws.source
        secrets = Secrets(
            *(source.derive(b"secret %d of node %d\0" % (k, turn.node)).key for k in range(3))
        )
        offered = secret_shares.offer(secrets, turn.ctx, turn.node, signing_in(self, turn.node))
        return tensor_of(offered), {"secrets": torch.stack([tensor_of(one) for one in secrets])}

    def _deal(self, turn: _Turn) -> tuple[Any, State | None]:
        """Shares of both secrets for every neighbour, or which of their offers it refuses."""
        came: Any = turn.here.came
        asked = self.committee(self._listed(turn, came.members), turn.ctx)
        near = asked.neighbours[turn.node]
        offers = bytes_by_node(near, came.offers)
        pins = pinned_in(self, self.clients) or {}
        boxes = torch.zeros(self.degree, BOX_BYTES, dtype=torch.uint8)
        flaws = boxes[:, 0].clone()
        for place, (j, offer) in enumerate(offers.items()):
            if why := secret_shares.offer_fault(offer, turn.ctx, j, pins.get(j)):
                _log.error("Node %d refuses what is relayed of node %d: %s", turn.node, j, why)
                flaws[place] = 1
        if bool(flaws.any()):
            return {"boxes": boxes, "flaws": flaws}, None
        root = root_of(turn.ctx, came.members, came.digest)
        dealt, own = secret_shares.deal(
            turn.secrets, turn.node, offers, turn.ctx, root, asked.threshold,
            _bytes_from(turn.here.draws),
        )  # fmt: skip
        for place, j in enumerate(near):
            boxes[place] = tensor_of(dealt[j])
        after = {"root": tensor_of(root), "members": came.members, "offers": came.offers}
        after["own"] = tensor_of(own[:SHARE_BYTES])
        return {"boxes": boxes, "flaws": flaws}, after

    def _send(self, turn: _Turn, x: Tensor, oracle: Oracle) -> tuple[Any, State | None]:
        """The masked integers, or which boxes do not open."""
        came: Any = turn.here.came
        asked = self.committee(turn.members, turn.ctx)
        dealt = self._listed(turn, came.members, asked.least, turn.members)
        near = asked.neighbours[turn.node]
        offers = {j: o for j, o in bytes_by_node(near, turn.memory["offers"]).items() if j in dealt}
        shares = torch.zeros_like(turn.memory["shares"])
        unopened = shares[:, 0].clone()
        root = bytes_of(turn.memory["root"])
        # A box of EVERY neighbour that dealt: boxes kept back between two groups would leave no
        # mask across, and the server could open the sum of each.
        for place, (j, box) in enumerate(bytes_by_node(near, came.boxes).items()):
            if j not in dealt:
                continue
            made = secret_shares.opened(turn.secrets, turn.node, j, offers[j], box, turn.ctx, root)
            if made is None:
                _log.error("Node %d cannot open the box relayed of node %d", turn.node, j)
                unopened[place] = 1
            else:
                shares[place] = tensor_of(made)
        coding = self.numbers.of(len(turn.members), self.size_of(tuple(x.shape), x.dtype))
        if bool(unopened.any()):
            nothing = torch.from_numpy(coding.wrap(np.zeros(coding.size, dtype=np.int64)))
            return {"total": nothing, "unopened": unopened}, None
        total, after = self._noised(x, oracle, turn.here, coding)
        mask = secret_shares.mask(
            turn.secrets, turn.node, offers, turn.ctx, coding.size, coding.bits
        )
        with np.errstate(over="ignore"):  # a sum modulo 2^64 is one modulo 2^b
            masked = torch.from_numpy(coding.wrap(total + mask.astype(np.int64)))
        after |= {"shares": shares, "dealt": came.members, "seen": digest_of(*self._inner_of(came))}
        return {"total": masked, "unopened": unopened}, after

    def _confirm(self, turn: _Turn) -> tuple[Any, State | None]:
        """A signature over the one list of survivors that this node will help to open."""
        came: Any = turn.here.came
        self._survivors(turn, came.alive)
        signing = signing_in(self, turn.node)
        assert signing is not None
        after = {"alive": came.alive}
        said = self._statement(turn._replace(memory=turn.memory | after))
        return tensor_of(secret_shares.sign(signing, said)), after

    def _reveal(self, turn: _Turn) -> tuple[Any, State | None]:
        """Of each neighbour a share: of its seed if it survived, else of its pair key.

        And of its own seed: it survived, so nobody is given its pair key.
        """
        came: Any = turn.here.came
        memory = turn.memory
        alive = self._survivors(turn, came.alive)
        asked = self.committee(turn.members, turn.ctx)
        pins = pinned_in(self, self.clients)
        if pins is not None:
            if not torch.equal(came.alive, memory["alive"]):
                raise OutOfOrder("Expected the survivors that this node signed, got others")
            said = self._statement(turn)
            signers = [i for i in members_of(came.signers) if i in turn.members]
            signed = [
                secret_shares.is_signed(pins[i], said, bytes_of(row))
                for i, row in zip(signers, came.signatures, strict=False)
            ]
            if sum(signed) < asked.quorum:
                raise OutOfOrder(
                    f"Expected {asked.quorum} signatures of this list, got {sum(signed)}"
                )
        dealt = members_of(memory["dealt"])
        shares = torch.zeros(self.degree, SHARE_BYTES, dtype=torch.uint8)
        for place, j in enumerate(asked.neighbours[turn.node]):
            if j in dealt:
                half = slice(SHARE_BYTES) if j in alive else slice(SHARE_BYTES, None)
                shares[place] = memory["shares"][place, half]
        return {"shares": shares, "own": memory["own"]}, None

    # -- what a node checks ------------------------------------------------------------------
    def _listed(
        self, turn: _Turn, bits: Tensor, least: int = 0, among: Sequence[int] | None = None
    ) -> Partitions:
        """The nodes of a list with this one in it: enough, and no others than ``among``."""
        found = members_of(bits)
        wrong = set(found) - set(range(self.clients) if among is None else among)
        if turn.node not in found or wrong or len(found) < least:
            raise OutOfOrder(
                f"Expected a list of at least {least} nodes of this attempt with {turn.node} in "
                f"it, got {len(found)}: {found[:10]}; nothing leaves this node"
            )
        return found

    def _survivors(self, turn: _Turn, bits: Tensor) -> Partitions:
        """The survivors, of whom enough are neighbours of this node."""
        asked = self.committee(turn.members, turn.ctx)
        alive = self._listed(turn, bits, asked.least, members_of(turn.memory["dealt"]))
        near = len(set(asked.neighbours[turn.node]) & set(alive))
        if near + 1 < asked.threshold:
            raise OutOfOrder(f"Expected {asked.threshold - 1} neighbours to survive, got {near}")
        return alive

    def _inner_of(self, came: Any) -> list[Tensor]:
        """What the algorithm itself was sent."""
        return [vars(came)[name] for name in self.inner.down.names()]

    @staticmethod
    def _statement(turn: _Turn) -> bytes:
        """What is signed: this attempt, its offers, the model, who dealt and who survived."""
        names = ("root", "seen", "dealt", "alive")
        return secret_shares.confirmation(turn.ctx, *(bytes_of(turn.memory[k]) for k in names))

    # -- the integers ------------------------------------------------------------------------
    def _rehearsed(self, x: Tensor, oracle: Oracle, here: Here) -> Any:
        """The integers with their noise and no mask, of one client or of a stacked cohort."""
        came: Any = here.came
        lead = x.dim() - self._manifold.ndim
        bits = came.members if came.members.dim() == 1 else came.members[0]
        coding = self.numbers.of(
            len(members_of(bits)), self.size_of(tuple(x.shape[lead:]), x.dtype)
        )
        total, after = self._noised(x, oracle, here, coding)
        blank = torch.zeros(*x.shape[:lead], 0, dtype=torch.uint8)
        return {"total": torch.from_numpy(coding.wrap(total)), "unopened": blank}, after or None

    def _noised(
        self, x: Tensor, oracle: Oracle, here: Here, coding: Coding
    ) -> tuple[NDArray[np.int64], State]:
        """The encoded vector with its share of the noise (..., d), and what the update keeps."""
        memory = {} if here.memory is None else vars(here.memory)
        mine = {k.removeprefix(_ITS): t for k, t in memory.items() if k.startswith(_ITS)}
        has_its = mine.pop("memory", None)
        kept = recorded(mine) if mine else None
        if kept is not None and has_its is not None and not bool(has_its):
            kept = self.client_update.initial_memory(x)
        inner = self.inner
        down = inner.down(*self._inner_of(here.came))
        inside = here._replace(exchange=inner.name, came=down, memory=kept, places=inner.places)
        if self.unit != "client":
            asked = IntegerOracle.of(oracle, coding)
            self.client_update.client(x, asked, inside)
            found, after = asked.total, {}
        else:
            found, after = self._encoded(x, oracle, inside, coding)
            after = {_ITS + name: t for name, t in after.items()}
            after |= {} if has_its is None else {_HAS_ITS: torch.ones_like(has_its)}
        who = here.draws.partition
        each = (who,) if isinstance(who, int) else who
        shares = [discrete.draw(coding.variance, coding.size, _words(here.draws, i)) for i in each]
        return found.numpy().astype(np.int64) + np.stack(shares).reshape(found.shape), after

    def _encoded(
        self, x: Tensor, oracle: Oracle, here: Here, coding: Coding
    ) -> tuple[Tensor, State]:
        """The clipped upload of a client update as integers, and its new memory."""
        own = copy(oracle)  # whose answers are not noised, and stay here
        own.queries = Counter()
        try:
            made: Any = self.client_update.client(x, own, here)
            up, after = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
            u: Any = up.point if isinstance(up, Payload) else up
        except Exception as error:  # silence would show that its records do this
            _log.error("This client's update failed, so it sends zero: %s", described(error))
            u, after = torch.zeros_like(x), here.memory
        oracle.queries["upload"] += 1
        u = u.detach().to(torch.float64)
        base = x.to(torch.float64)
        manifold = self._manifold
        lead = x.shape[: x.dim() - manifold.ndim]
        if self.server_update.space == "tangent":
            u = manifold.to_coords(base, clip_each(manifold, base, u, coding.clip))
        flat = u.reshape(*lead, coding.size)
        flat = clip_each(Euclidean(), flat, flat, coding.clip)
        named = after if after is None or isinstance(after, dict) else vars(after)
        return coding.encode(
            flat, here.draws.uniforms((1,), Stream.ROUNDING, 0)[..., 0]
        ), named or {}


def _words(draws: Draws, node: int) -> Callable[[int, int], NDArray[np.uint64]]:
    """Fresh words for a node's share of the noise."""
    alone = draws._replace(partition=node)
    return lambda size, step: draws.source.words(size, **alone.at(Stream.SHARE_NOISE, step))


def _bytes_from(draws: Draws) -> Callable[[int], bytes]:
    """Fresh bytes for polynomials, each once."""
    source = draws.source.derive(b"polynomials\0")
    steps = count()

    def some(length: int) -> bytes:
        at = draws._replace(source=source).at(Stream.SHARE_NOISE, next(steps))
        return source.words(-(-length // 8), **at).tobytes()[:length]

    return some
