"""What travels between server and clients: all of it, on one page.

In a star, points go down and tangent (or ambient) vectors go up. Nothing un-noised rides along: no
loss, no norm, no example count. Each payload is a frozen record of tensors; with a leading
dimension it is the stacked payload of a cohort.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor

from manifed.manifolds.linalg import packed_size

Layout = tuple[tuple[int, ...], torch.dtype]
"""Shape and type of a tensor."""


@dataclass(frozen=True)
class Payload:
    """A frozen record of tensors, of the shape and type of a point unless `layout` says other.

    The first field of what goes down always has the shape and type of a point.
    """

    places: ClassVar[int] = 0
    """How many places the layout of this kind has (`sized`)."""

    def tensors(self) -> dict[str, Tensor]:
        """The fields by name, in declaration order."""
        return vars(self).copy()

    @classmethod
    @cache
    def names(cls) -> tuple[str, ...]:
        """The names of the fields."""
        return tuple(field.name for field in fields(cls))

    @classmethod
    def layout(cls, shape: tuple[int, ...], dtype: torch.dtype) -> Mapping[str, Layout]:
        """Shape and type of every field, in order, where a point has these."""
        return dict.fromkeys(cls.names(), (shape, dtype))

    def num_bytes(self) -> int:
        """Size of the tensors in bytes."""
        return sum([tensor.nbytes for tensor in vars(self).values()])

    @classmethod
    def stack(cls, payloads: "Sequence[Self]") -> Self:
        """The payloads of a cohort in one, leading dimension C."""
        columns = [[p.tensors()[name] for p in payloads] for name in cls.names()]
        return cls(*[torch.stack(column) for column in columns])

    def take(self, index: int | slice | Tensor) -> Self:
        """The payload of the client(s) at ``index`` of a stacked one."""
        return type(self)(*[t[index] for t in self.tensors().values()])

    def to(self, device: str | torch.device) -> Self:
        """Returns the payload on ``device``."""
        return type(self)(*[t.to(device) for t in self.tensors().values()])


P = TypeVar("P", bound=Payload)


@cache
def sized(kind: type[P], places: int) -> type[P]:
    """The payload with so many places."""
    made: Any = type(f"{kind.__name__}{places}", (kind,), {"places": places})
    return made


@dataclass(frozen=True)
class Point(Payload):
    """Down: the broadcast point x, on the manifold or (projected FL) near it."""

    x: Tensor


@dataclass(frozen=True)
class MeanGradient(Payload):
    """Down, second phase of RFedSVRG: the mean gradient at the point of the first phase."""

    gradient: Tensor


@dataclass(frozen=True)
class PointAndDisplacement(Payload):
    """Down, projected FL with partial participation: x and the mean of the known displacements."""

    x: Tensor
    u: Tensor


@dataclass(frozen=True)
class Displacement(Payload):
    """Up: a vector at the broadcast point (tangent, or ambient for projected FL)."""

    u: Tensor


@dataclass(frozen=True)
class SymmetricMean(Displacement):
    """Up: a symmetric matrix of the order d of a point's first axis, in coordinates of Sym(d)."""

    @classmethod
    def layout(cls, shape: tuple[int, ...], dtype: torch.dtype) -> Mapping[str, Layout]:
        """d(d+1)/2 numbers."""
        return {"u": ((packed_size(shape[0]),), dtype)}


@dataclass(frozen=True)
class GramMean(Displacement):
    """Up: the second moment of rows of a point's length with a target, in coordinates of Sym."""

    @classmethod
    def layout(cls, shape: tuple[int, ...], dtype: torch.dtype) -> Mapping[str, Layout]:
        """(d+1)(d+2)/2 numbers."""
        return {"u": ((packed_size(shape[0] + 1),), dtype)}


@dataclass(frozen=True)
class PerClient:
    """What goes down where it differs by client.

    A server update gives a row for every client; a transport gets one for each client asked.
    """

    rows: Payload


Down = Payload | PerClient
"""What goes down in one exchange: the same for everybody, or a row for each client asked."""


def downs(down: Down, clients: int) -> list[Payload]:
    """What each of so many clients is sent."""
    if isinstance(down, PerClient):
        return [down.rows.take(row) for row in range(clients)]
    return [down] * clients


def down_bytes(down: Down, clients: int) -> int:
    """Bytes sent to so many clients."""
    return down.rows.num_bytes() if isinstance(down, PerClient) else down.num_bytes() * clients
