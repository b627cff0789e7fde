"""The payloads that travel between server and clients.

In a star, points go down and tangent (or ambient) vectors go up. Nothing un-noised rides along: no
loss, no norm, no example count. Each payload is a frozen record of tensors; with a leading
dimension it is the stacked payload of a cohort.

A client judges by itself what comes down, before any record is looked at (`check_broadcast`):
lengths and noise are those of the metric *at the point*, so clip and noise of a mechanism are right
only at a point of the manifold. Off it, the noise of an isotropic tangent Gaussian no longer covers
every direction in which a gradient may move. The server is an adversary of example-level privacy,
so a client believes nothing that it can check. Refusals depend on the broadcast alone and show
nothing else. An upload must be finite, of sane size and, where the phase says so, tangent or on the
manifold (`Expectation`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, make_dataclass
from functools import cache
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from manifed.errors import ConfigError, check_kind
from manifed.fields import Values
from manifed.manifolds.base import LARGEST, TOLERANCE, Manifold, frobenius
from manifed.manifolds.linalg import Shape, Tensors, flaw, packed_size


@dataclass(frozen=True)
class Payload:
    """A frozen record of tensors, of the shape and type of a point unless `layout` says other.

    The first field of what goes down has the shape and type of a point, unless ``has_point`` says
    that there is none.
    """

    has_point: ClassVar[bool] = True

    of_bytes: ClassVar[tuple[tuple[str, Shape], ...]] = ()
    """The fields that hold bytes, and the shape of one place of each."""
    places: ClassVar[tuple[int, ...]] = ()
    """How many places fields of bytes have (`sized`); (): one, without an axis."""

    def tensors(self) -> dict[str, Tensor]:
        """The fields by name, in declaration order."""
        return vars(self).copy()

    @classmethod
    @cache
    def names(cls) -> tuple[str, ...]:
        """The names of the fields."""
        return tuple(field.name for field in fields(cls))

    @classmethod
    @cache
    def sized(cls, places: int) -> type[Self]:
        """Returns the payload type for a number of places in each field."""
        made: Any = type(f"{cls.__name__}{places}", (cls,), {"places": (places,)})
        return made

    @classmethod
    def layout(cls, shape: Shape, dtype: torch.dtype) -> Values:
        """Lists shape and type of every field, given those of a point."""
        bytes_of = {name: ((*cls.places, *one), torch.uint8) for name, one in cls.of_bytes}
        return dict.fromkeys(cls.names(), (shape, dtype)) | bytes_of

    @classmethod
    def received(cls, tensors: Tensors, places: Sequence[str], manifold: Manifold) -> Self:
        """Makes the payload of what came down, where it lies; errors as `check_broadcast`."""
        made = cls(**tensors)
        check_broadcast(places, made, manifold)
        return made

    @property
    def point(self) -> Tensor:
        """The first field, in what goes down a point if there is one in it."""
        return next(iter(vars(self).values()))

    def num_bytes(self) -> int:
        """Size of the tensors in bytes."""
        return sum([tensor.nbytes for tensor in vars(self).values()])

    def bytes_each(self) -> int:
        """Returns the bytes of one client's row of a stacked payload, which may have no row."""
        return sum([t.shape[1:].numel() * t.itemsize for t in vars(self).values()])

    def bytes_to(self, clients: int) -> int:
        """Returns the bytes that are sent to so many clients."""
        return self.num_bytes() * clients

    @classmethod
    def stack(cls, payloads: "Sequence[Self]", join: Any = torch.stack) -> Self:
        """Stacks the payloads of a cohort along a new leading dimension C, or joins stacks."""
        columns = zip(*[vars(payload).values() for payload in payloads], strict=True)
        return cls(*map(join, columns))

    def each(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Returns the payload with every field changed."""
        return type(self)(*map(change, vars(self).values()))

    def take(self, index: int | slice | Tensor) -> Self:
        """The payload of the client(s) at ``index`` of a stacked one."""
        return self.each(lambda t: t[index])

    def to(self, device: str | torch.device) -> Self:
        """Returns the payload on ``device``."""
        return self.each(lambda t: t.to(device))


@dataclass(frozen=True)
class Point(Payload):
    """Downlink: the broadcast point x, on the manifold or (projected FL) near it."""

    x: Tensor


@dataclass(frozen=True)
class MeanGradient(Payload):
    """Downlink of RFedSVRG's second phase: the mean gradient at the point of the first phase."""

    gradient: Tensor


@dataclass(frozen=True)
class PointAndDisplacement(Payload):
    """Downlink of projected FL with cohorts: x and the mean of the known displacements."""

    x: Tensor
    u: Tensor


@dataclass(frozen=True)
class Displacement(Payload):
    """Uplink: a vector at the broadcast point, tangent or (projected FL) ambient."""

    u: Tensor


@dataclass(frozen=True)
class SymmetricMean(Displacement):
    """Uplink: a symmetric d x d matrix in coordinates of Sym(d), d being a point's first size.

    `sized` makes the order larger: second moments of rows with a target have d + 1.
    """

    @classmethod
    def layout(cls, shape: Shape, dtype: torch.dtype) -> Values:
        """Lists one field of m(m+1)/2 numbers for matrices of order m."""
        return {"u": ((packed_size(shape[0] + sum(cls.places)),), dtype)}


Partitions = tuple[int, ...]
"""Some clients, by their numbers in ascending order."""
State = dict[str, Tensor]
"""What a server (in whose checkpoint all of it goes) or a client carries from round to round."""


@dataclass(frozen=True)
class Memory(Payload):
    """A client's memory between rounds: a frozen record of tensors that never travels."""

    def __getitem__(self, name: str) -> Tensor:
        """A tensor by its name."""
        return vars(self)[name]


@cache
def _record(names: tuple[str, ...]) -> Any:
    fields = [(name, Tensor) for name in names]
    return make_dataclass("Remembered", fields, bases=(Memory,), frozen=True)


layout_of: Any = cache(lambda kind, *of: kind.layout(*of))
"""`Payload.layout` of a payload type, kept."""


def tensor_of(content: bytes) -> Tensor:
    """Returns bytes as a tensor."""
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def bytes_of(row: Tensor) -> bytes:
    """Returns the bytes of a tensor of them."""
    return row.contiguous().numpy().tobytes()


def bytes_by_node(nodes: Sequence[int], rows: Tensor) -> dict[int, bytes]:
    """Returns the bytes of the first rows, which are of these nodes."""
    return {node: bytes_of(row) for node, row in zip(nodes, rows, strict=False)}


def layout_in(tensors: Tensors) -> dict[str, Any]:
    """Lists shape and type of tensors, as `Payload.layout` does."""
    return {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}


def named_tensors(who: str, made: Any) -> State:
    """Returns the dict of tensors that a method ``who`` returned.

    Raises:
        ConfigError: it is none.
    """
    check_kind(who, made, dict, "a dict of torch tensors")
    for name, value in made.items():
        check_kind(f"{who}, {name!r}", value, Tensor, "a torch tensor")
    return made


def recorded(made: Any, who: str = "remember") -> Any:
    """Turns the dict of tensors that a method ``who`` returned into a record.

    Raises:
        ConfigError: as `named_tensors`.
    """
    layout = layout_in(named_tensors(who, made))
    return returned(who, made, _record(tuple(layout)), layout)


def returned(who: str, made: Any, kind: Any, layout: Values, lead: Shape = ()) -> Any:
    """Makes the record of ``kind`` of what a method ``who`` returned: its tensors, detached.

    ``made`` is a record, a dict, or the value of the first field.

    Raises:
        ConfigError: naming what was returned, and names, shapes and types of what to return.
    """
    values = vars(made) if isinstance(made, Payload) else made
    if not isinstance(values, dict):
        values = {next(iter(layout)): values}
    if values.keys() != layout.keys():
        raise ConfigError(f"{who}: expected the tensors {[*layout]}, got {[*values]}")
    found: State = {}
    for name, (shape, dtype) in layout.items():
        value = values[name]
        if (*lead, *shape) != getattr(value, "shape", None) or value.dtype != dtype:
            raise ConfigError(f"{who}: {flaw(name, value, (*lead, *shape), dtype)}")
        found[name] = value.detach().as_subclass(Tensor)
    return kind(**found)


@dataclass(frozen=True)
class PerClient:
    """A downlink payload that differs by client: a row for each.

    A server update gives a row for every client; a transport gets one for each client asked.
    """

    rows: Payload

    @property
    def point(self) -> Tensor:
        """A tensor of the shape and type of a point."""
        return self.rows.point[0]

    def bytes_to(self, clients: int) -> int:
        """Bytes sent to so many clients, which have a row each."""
        return self.rows.num_bytes()


Down = Payload | PerClient
"""What goes down in one exchange: the same for everybody, or a row for each client asked."""


# -- what a client takes -------------------------------------------------------------------------
class BadBroadcast(ValueError):
    """Error: a broadcast does not lie where its phase says; the text holds its numbers alone."""


def check_broadcast(places: Sequence[str], down: Payload, manifold: Manifold) -> None:
    """Refuses fields that do not lie where ``places`` says; a stack is refused as a whole.

    A point lies on the manifold, an ambient value has a projection on it, and everything has a
    Euclidean norm of at most 1e100. A tangent vector comes without its base point: the algorithm
    that remembers the base checks it (`check_tangent`). A row is no longer than all together.

    Raises:
        BadBroadcast: naming field, defect and bound.
    """
    for (field, value), place in zip(vars(down).items(), places, strict=True):
        name = f"the broadcast {field}"
        if place == "point":
            check_point(name, value, manifold)
        elif place != "any" or value.is_floating_point():
            _check_length(name, value)
            if place == "point-nearby":
                _check_on(f"the projection of {name}", manifold.nearest(value), manifold)


def check_point(name: str, x: Tensor, manifold: Manifold) -> None:
    """Refuses a tensor that is not a point of ``manifold``; ``name`` says what it should be.

    Raises:
        BadBroadcast: naming it, its defect and the bound.
    """
    _check_length(name, x)
    _check_on(name, x, manifold)


def check_tangent(name: str, x: Tensor, u: Tensor, manifold: Manifold) -> None:
    """Refuses a broadcast vector with a normal part at ``x``, leading dimensions allowed.

    Raises:
        BadBroadcast: naming the vector, its defect and the bound.
    """
    what = f"the broadcast {name} tangent at the point of this round within"
    defect = manifold.tangency_defect(x, u).max()
    _check_bound(what, TOLERANCE[u.dtype], "a relative normal part of ", defect)


def _check_length(name: str, value: Tensor) -> None:
    """Refuses what is too long; the squares may be too large where the norm is not."""
    flat = value.reshape(-1)
    if not flat.dot(flat).item() <= LARGEST[value.dtype] ** 2:
        length = frobenius(value, value.dim())
        _check_bound(f"{name} of Euclidean norm at most", LARGEST[value.dtype], "", length)


def _check_on(name: str, x: Tensor, manifold: Manifold) -> None:
    """Refuses what is off the manifold; of a whole space what is finite is a point."""
    if not manifold.is_whole_space:
        what = f"{name} on {manifold.name} within"
        defect = manifold.membership_defect(x).max()
        _check_bound(what, TOLERANCE[x.dtype], "a relative distance of ", defect)


def _check_bound(what: str, bound: float, measure: str, found: Tensor) -> None:
    """Refuses what is beyond a bound, or nan; ``measure`` says what was found."""
    if not float(found) <= bound:
        raise BadBroadcast(
            f"Expected {what} {bound:g}, got {measure}{float(found):.3g}; nothing was computed"
        )


# -- what a server takes -------------------------------------------------------------------------
class Expectation(NamedTuple):
    """The expected shape and place of a phase's uploads; tangent ones lie at ``base`` (*point)."""

    base: Tensor
    places: Mapping[str, str]
    manifold: Manifold

    def flaws(self, uploads: Payload, partitions: Sequence[int]) -> dict[int, str]:
        """Returns a reason for each client of ``partitions`` some field of whose row does not fit.

        All rows are checked at once, and one by one only where a row is bad.
        """
        stacked = vars(uploads)
        found: dict[int, str] = {}
        try:
            if all(bool(self._fits(name, u).all()) for name, u in stacked.items()):
                return found
        except Exception:  # a row may make the check of the whole stack fail
            pass
        for row, i in enumerate(partitions):
            try:
                flaws = (self._flaw(name, u[row]) for name, u in stacked.items())
                why = next((flaw for flaw in flaws if flaw is not None), None)
            except Exception as error:
                why = f"not readable: {type(error).__name__}: {error}"
            if why is not None:
                found[i] = why
        return found

    def _fits(self, name: str, stacked: Tensor) -> Tensor:
        """Which rows of (C, ...) are finite, of sane size, and where they belong to rounding."""
        place = self.places[name]
        if not stacked.is_floating_point():
            return torch.full((stacked.shape[0],), place == "any", device=stacked.device)
        is_sane = torch.linalg.vector_norm(stacked.flatten(1), dim=1) <= LARGEST[stacked.dtype]
        if place in ("ambient", "any") or self.manifold.is_whole_space:
            return is_sane
        return is_sane & (self._defect(place, stacked) <= TOLERANCE[stacked.dtype])

    def _defect(self, place: str, u: Tensor) -> Tensor:
        """How far uploads are from where they belong."""
        if place == "point":
            return self.manifold.membership_defect(u)
        return self.manifold.tangency_defect(self.base, u)

    def _flaw(self, name: str, u: Tensor) -> str | None:
        """Why one field of one client's upload is refused; None: it is not."""
        if bool(self._fits(name, u.unsqueeze(0))):
            return None
        place = self.places[name]
        like = u if place == "any" else self.base
        if (found := flaw(name, u, tuple(like.shape), like.dtype)) is not None:
            return found
        length = float(frobenius(u, u.dim()))
        bound = LARGEST[u.dtype]
        if not length <= bound:
            return f"Expected {name} of Euclidean norm at most {bound:g}, got {length:.3g}"
        within = TOLERANCE[u.dtype]
        defect = float(self._defect(place, u))
        if place == "point":
            return (
                f"Expected {name} on {self.manifold.name} within {within:g}, got a "
                f"relative distance of {defect:.3g}; take manifold.projx of it"
            )
        return (
            f"Expected {name} tangent at the broadcast point within {within:g}, got a "
            f"relative normal part of {defect:.3g}; take manifold.proju of it"
        )
