"""The exchanges of a secure sum around an algorithm: payloads, numbers and price.

A client turns the vector that an algorithm would upload into integers (`privacy.integers`), adds
its share of discrete Gaussian noise (`privacy.discrete`) and masks that are uniform modulo 2^b
(`privacy.secret_shares`). The server learns the sum over the survivors U, once enough of them help
to open it:

=========  ==================================  ===================================================
exchange   down                                up
=========  ==================================  ===================================================
offer      nothing                             two public keys and a commitment, signed
deal       who offered; neighbours' offers     a box of secret shares for every neighbour
send       the algorithm's own; U1; boxes      the masked integers, or which boxes do not open
confirm    U                                   a signature over U (only with pinned keys)
reveal     U; a quorum of signatures           a share of each neighbour's seed, or of its pair
                                               key, and of its own seed
=========  ==================================  ===================================================

U1 are those who dealt, U those who sent. Keys, noise and masks are those of one attempt. Where the
noise is seeded there is no secret to keep: "send" is then the only exchange and adds no mask.

At example level the integers are the sum of single clipped gradients (or statistics), and the
server runs the client's update once, on the mean answer; so an algorithm asks for one answer a
round. At client level they are one clipped upload, after any number of local steps.

Sources: Bonawitz et al. (2017) and Bell et al. (2020) for the exchanges; Kairouz, Liu, Steinke
(2021) for noise in shares.
"""

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import make_dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import torch
from pydantic import PrivateAttr
from torch import Tensor

from manifed.algorithms.algorithm import Phase
from manifed.algorithms.around import Around
from manifed.algorithms.payloads import Partitions, Payload, bytes_of, tensor_of
from manifed.fields import KeyFiles, Values, fingerprint
from manifed.manifolds.base import Manifold
from manifed.manifolds.linalg import Shape
from manifed.oracles.minibatch import Query
from manifed.privacy.committee import Committee, committee, degree
from manifed.privacy.discrete import SMOOTHING
from manifed.privacy.events import PrivacyUnit, Release, Releases, Unsampled
from manifed.privacy.integers import SumNumbers, bound_of
from manifed.privacy.mechanism import ExampleMechanism
from manifed.privacy.secret_shares import BOX_BYTES, OFFER_BYTES, SHARE_BYTES, SIGNATURE_BYTES

HASH_BYTES = 32


# -- what travels --------------------------------------------------------------------------------
def _made(name: str, fields: Iterable[str], **members: Any) -> Any:
    """A payload type of these fields."""
    own = [(one, Tensor) for one in fields]
    return make_dataclass(name, own, bases=(Payload,), namespace=members, frozen=True)


@cache
def _bytes_payload(name: str, **fields: Shape) -> Any:
    """A payload type of fields of bytes, in which there is no point."""
    return _made(name, fields, has_point=False, of_bytes=tuple(fields.items()))


@cache
def _behind(down: type[Payload], fields: tuple[tuple[str, Shape], ...]) -> Any:
    """An algorithm's own payload with fields of bytes behind it."""

    def layout(shape: Shape, dtype: torch.dtype) -> Values:
        own = {name: (size, torch.uint8) for name, size in fields}
        return {**down.layout(shape, dtype), **own}

    names = (*down.names(), *dict(fields))
    return _made(down.__name__ + "InSum", names, layout=staticmethod(layout))


def packed(members: Sequence[int], count: int) -> Tensor:
    """Writes which of ``count`` clients are members, a bit each."""
    bits = np.zeros(count, dtype=np.uint8)
    bits[list(members)] = 1
    return torch.from_numpy(np.packbits(bits, bitorder="little"))


def members_of(bits: Tensor) -> Partitions:
    """Reads what `packed` wrote."""
    return tuple(np.flatnonzero(np.unpackbits(bits.numpy(), bitorder="little")).tolist())


def digest_of(*sent: Tensor) -> Tensor:
    """Returns the hash of what is broadcast, by which nodes know that all were sent the same."""
    found = hashlib.sha256()
    for one in sent:
        found.update(np.ascontiguousarray(one.detach().numpy().astype("<f8")).tobytes())
    return tensor_of(found.digest())


def root_of(ctx: bytes, members: Tensor, offers: Tensor) -> bytes:
    """Returns what boxes and signatures of an attempt are bound to: who is in it, and all offers.

    ``offers`` is a hash of them, which a node with few neighbours takes as it came.
    """
    return hashlib.sha256(
        b"manifed secure sum root\0" + ctx + bytes_of(offers) + bytes_of(members)
    ).digest()


class SecureSum(Around, KeyFiles):
    """Base of `SecureMean`: what both sides know of the sum."""

    kind: Literal["secure-mean"] = "secure-mean"
    where = "privacy.trust"
    unit: PrivacyUnit
    sizes: tuple[int, ...]
    """The public N_i of every client, as trained on."""
    rates: tuple[float, ...]
    """The probability that a client is in a cohort, for each."""
    max_dropped: float
    collusion: int
    is_seeded: bool = True
    rounds: int = 1
    """How many rounds the run has: the width of all integers holds in the first and the last."""
    mechanism: ExampleMechanism | None = None
    """Clip and noise multiplier, once they are known."""
    counts: tuple[int, int] | None = None
    """How many offered and how many sent in the attempt that is priced; None: the fewest."""

    _manifold: Manifold = PrivateAttr()

    @property
    def clients(self) -> int:
        """The number of all clients."""
        return len(self.sizes)

    @property
    def run(self) -> bytes:
        """The identifier that keys, shares and signatures are bound to: all that the sum is of."""
        made: Any = self  # a frozen model has a hash, out of the sight of pyright
        return fingerprint(made)

    @property
    def exchanges(self) -> tuple[str, ...]:
        """The names of the exchanges of one attempt."""
        if self.is_seeded:
            return ("send",)
        return ("offer", "deal", "send", *(("confirm",) if self.pinned_keys else ()), "reveal")

    # -- the numbers -------------------------------------------------------------------------
    def _multiplier(self, mechanism: ExampleMechanism) -> float:
        """The noise multiplier of this round, which an algorithm may scale."""
        if self.unit != "client" and self.is_scheduled:
            (query,) = self.queries(mechanism, max(self.sizes))
            mechanism = query.mechanism
        return mechanism.noise.multiplier

    def numbers_with(self, mechanism: ExampleMechanism) -> SumNumbers:
        """Returns what fixes all integers of the sum, but for who takes part in it."""
        z = self._multiplier(mechanism)
        ends = (1, self.rounds) if self.unit != "client" and self.is_scheduled else ()
        return SumNumbers(
            unit=self.unit,
            neighboring_relation=mechanism.neighboring_relation,
            l2_norm_clip=mechanism.l2_norm_clip or 1.0,
            multiplier=z or 1.0,  # a search for it begins with none
            max_dropped=self.max_dropped,
            collusion=self.collusion,
            most=sum(self.sizes) if self.unit != "client" else self.clients,
            scheduled=tuple(self.in_round(r)._multiplier(mechanism) or 1.0 for r in ends),
        )

    @property
    def numbers(self) -> SumNumbers:
        """Returns `numbers_with` the mechanism of the run."""
        assert self.mechanism is not None
        return self.numbers_with(self.mechanism)

    def size_of(self, shape: Shape, dtype: torch.dtype = torch.float64) -> int:
        """Returns how many integers a client uploads for points of this shape."""
        ((own, _),) = self.inner.up.layout(shape, dtype).values()
        is_tangent = self.unit != "client" or self.server_update.space == "tangent"
        if own == shape and is_tangent:
            own = self._manifold.coords_shape(shape)
        return math.prod(own)

    def committee(self, members: Partitions, ctx: bytes) -> Committee:
        """Returns who shares secrets with whom; ValueError where there are too few."""
        numbers = self.numbers
        numbers.check(len(members))
        return committee(members, numbers.dropped(len(members)), self.collusion, ctx)

    @property
    def degree(self) -> int:
        """The most neighbours that a node can have."""
        return degree(self.clients, self.numbers.dropped(self.clients), self.collusion)

    # -- what is asked and released ----------------------------------------------------------
    def queries(self, mechanism: ExampleMechanism, num_examples: int) -> tuple[Query, ...]:
        """The algorithm's queries; at client level nothing within an update is noised."""
        own = mechanism if self.unit != "client" else ExampleMechanism()
        return self.client_update.queries(own, num_examples)

    def releases(self, mechanism: ExampleMechanism, num_examples: int) -> Releases:
        """The sum, by the shares of its noise that each adversary does not know.

        Of h shares sized for h the multiplier is z. Others follow from sums of shares, less what
        the discrete law costs, which matters for fewer than h alone (`Coding.multiplier`).
        """
        z = self._multiplier(mechanism)
        numbers = self.numbers_with(mechanism)
        offered, sent = self.counts or (self.clients, self.clients - numbers.dropped(self.clients))
        fewest = offered  # the smallest sum protects least from a node that knows its own share
        while self.counts is None and fewest > 2 and numbers.is_safe(fewest - 1):
            fewest -= 1

        def multiplier(honest: int, offered: int = offered) -> float:
            sized = numbers.honest(offered)
            moved = numbers.sensitivity * bound_of(
                32, numbers.most, z * numbers.sensitivity * math.sqrt(offered / sized)
            )
            honest = max(1, honest)
            square = z**2 * honest / sized - (honest < sized) * SMOOTHING / moved**2
            return math.sqrt(max(0.0, square)) * (1 - 1e-12)

        label, sampling = "upload", Unsampled()
        if self.unit != "client":
            (query,) = self.queries(mechanism, num_examples)
            label, sampling = query.label, query.sampling
        return (
            Release(
                unit=self.unit,
                neighboring_relation=mechanism.neighboring_relation,
                noise_multiplier=multiplier(1),
                to_server=multiplier(sent),
                to_one=min(
                    multiplier(sent - 1),
                    multiplier(fewest - numbers.dropped(fewest) - 1, fewest)
                    if self.counts is None
                    else math.inf,
                ),
                to_coalition=multiplier(sent - self.collusion),
                sampling=sampling,
                label=label,
            ),
        )

    # -- the exchanges -----------------------------------------------------------------------
    @property
    def phases(self) -> tuple[Phase, ...]:
        """The exchanges of one attempt."""
        inner = self.inner
        width = (-(-self.clients // 8),)
        most = 0 if self.is_seeded else self.degree

        def layout(shape: Shape, dtype: torch.dtype) -> Values:
            size = self.size_of(shape, dtype)
            number = torch.int32 if self.numbers.bits(size) == 32 else torch.int64
            return {"total": ((size,), number), "unopened": ((most,), torch.uint8)}

        def phase(name: str, down: Any, up: Any, *places: Any) -> Phase:
            rest = ("any",) * (len(down.names()) - len(places))
            return Phase(name, down, up, (*places, *rest), ("any",) * len(up.names()), "none")

        boxes = (most, BOX_BYTES)
        down = _behind(inner.down, (("members", width), ("boxes", boxes)))
        masked = _made("Masked", ("total", "unopened"), layout=staticmethod(layout))
        send = phase("send", down, masked, *inner.places)
        if self.is_seeded:
            return (send,)
        signed = {}
        confirm = ()
        if self.pinned_keys is not None:
            quorum = (self.clients + self.collusion) // 2 + 1
            signed = {"signers": width, "signatures": (quorum, SIGNATURE_BYTES)}
            listed = _bytes_payload("Listed", alive=width)
            signature = _bytes_payload("Signature", by=(SIGNATURE_BYTES,))
            confirm = (phase("confirm", listed, signature),)
        offers = _bytes_payload(
            "Offers", members=width, digest=(HASH_BYTES,), offers=(most, OFFER_BYTES)
        )
        begin = _bytes_payload("Begin", now=(1,))
        return (
            phase("offer", begin, _bytes_payload("Offer", offer=(OFFER_BYTES,))),
            phase("deal", offers, _bytes_payload("Boxes", boxes=boxes, flaws=(most,))),
            send,
            *confirm,
            phase(
                "reveal", _bytes_payload("Opening", alive=width, **signed),
                _bytes_payload("Shares", shares=(most, SHARE_BYTES), own=(SHARE_BYTES,)),
            ),
        )  # fmt: skip
