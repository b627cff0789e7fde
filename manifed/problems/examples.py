"""Examples of one client or of a stacked cohort, as named tensors or as a stream."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from manifed.errors import ConfigError, short

KEY = "dropout_key"
"""The tensor of uniforms, one an example and step, that an oracle adds for `Problem.needs_keys`."""
PERSON = "person"
"""The tensor (n,) of whole numbers that says whose a row is, and later who a record is."""
SHARE = "share"
"""The tensor (n, m) of what each row of a person counts for: 1/k, and 0 where it repeats one."""
_BLOCK = 256
"""Records of a stream that are drawn together, and of a client that models are judged by."""


@dataclass(frozen=True)
class Examples:
    """n examples as named tensors, each of shape ``(..., n, *feature)``.

    ``feature_ndim`` says how many trailing dimensions of each tensor belong to one example; without
    it tensors have shape (n, *feature). Tensors do not change in place: an oracle remembers what it
    found out about full batches.
    """

    tensors: Mapping[str, Tensor]
    feature_ndim: Mapping[str, int] = field(default_factory=dict[str, int])
    counts: Tensor | None = None
    """How many examples of a stacked cohort are each client's own, (C,); others pad. None: all."""
    stream: "Stream | None" = None
    """Where records come from that nobody keeps: ``tensors`` then show the shape of one, and only
    `take` gives any."""
    size: int = field(init=False)
    """n."""

    def __post_init__(self) -> None:
        held: Any = self.tensors
        if not isinstance(held, Mapping) or not all(isinstance(t, Tensor) for t in held.values()):
            raise ConfigError(f"tensors: expected a dict of torch tensors, got {short(held)}")
        if not self.feature_ndim:
            of_columns = {key: tensor.dim() - 1 for key, tensor in self.tensors.items()}
            object.__setattr__(self, "feature_ndim", of_columns)
        if self.stream is not None:
            object.__setattr__(self, "size", self.stream.size)
            return
        sizes = {k: t.shape[-1 - self.feature_ndim[k]] for k, t in self.tensors.items()}
        if len(set(sizes.values())) != 1:
            raise ValueError(f"Expected one number of examples in every tensor, got {sizes}")
        object.__setattr__(self, "size", next(iter(sizes.values())))

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, key: str) -> Tensor:
        return self.tensors[key]

    def take(self, indices: Tensor) -> "Examples":
        """Returns the examples at ``indices`` (..., b), with the tensors' leading dimensions."""
        if self.stream is not None:
            return self.stream.take(indices)
        return Examples(
            {k: _gather(t, indices, self.feature_ndim[k]) for k, t in self.tensors.items()},
            self.feature_ndim,
        )

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of one example's tensors."""
        ndim = self.feature_ndim
        return {key: tuple(t.shape[t.dim() - ndim[key] :]) for key, t in self.tensors.items()}

    def beside(self, name: str, column: Tensor) -> "Examples":
        """Returns examples with one more number each, ``column`` (..., n)."""
        tensors = {**self.tensors, name: column}
        return Examples(tensors, {**self.feature_ndim, name: 0}, self.counts)

    def to(self, where: str | torch.device | torch.dtype) -> "Examples":
        """Moves the examples to a device, or turns their real numbers into another type."""
        is_type = isinstance(where, torch.dtype)
        moved = {
            key: t if is_type and not t.is_floating_point() else t.to(where)
            for key, t in self.tensors.items()
        }
        counts = self.counts if self.counts is None or is_type else self.counts.to(where)
        stream = self.stream and self.stream.to(where)
        return Examples(moved, self.feature_ndim, counts, stream)

    @property
    def judged(self) -> "Examples":
        """Returns the examples by which a simulation judges models: all of them."""
        return self if self.stream is None else self.stream.judged()

    def of_clients(self, rows: slice | Tensor) -> "Examples":
        """The examples of some clients of a stacked cohort."""
        picked = {key: tensor[rows] for key, tensor in self.tensors.items()}
        counts = None if self.counts is None else self.counts[rows]
        stream = self.stream and self.stream.of_clients(rows)
        return Examples(picked, self.feature_ndim, counts, stream)

    def of_client(self, i: int) -> "Examples":
        """The examples of one client of a stacked cohort, without what pads them."""
        count = self.size if self.counts is None else int(self.counts[i])
        own = {k: t[i].narrow(0, 0, count) for k, t in self.tensors.items()}
        return Examples(own, self.feature_ndim)

    @staticmethod
    def stack(shards: "Sequence[Examples]") -> "Examples":
        """A cohort's shards (C, n_max, *feature), short ones padded by repeating example 0.

        Padding must be given weight zero by whoever draws minibatches (oracles/minibatch.py). That
        of an empty shard repeats example 0 of the longest.
        """
        if isinstance(shards, Mapped):
            return shards.stacked()
        longest = max(shards, key=len)
        each = shards if longest.stream else [_padded(shard, longest) for shard in shards]
        padded = {key: torch.stack([one[key] for one in each]) for key in longest.tensors}
        counts = torch.tensor([len(shard) for shard in shards])
        stream = longest.stream
        if stream is not None:
            clients = tuple(shard.stream.clients[0] for shard in shards if shard.stream)
            stream = replace(stream, clients=clients, is_stacked=True, _newest={})
        return Examples(padded, longest.feature_ndim, counts, stream)

    @staticmethod
    def concatenate(shards: "Sequence[Examples]") -> "Examples":
        """Joins the examples of all shards, in order."""
        first = shards[0]
        return Examples(
            {
                key: torch.cat([s[key] for s in shards], dim=-1 - first.feature_ndim[key])
                for key in first.tensors
            },
            first.feature_ndim,
        )


@dataclass(frozen=True)
class Mapped(Sequence[Examples]):
    """Shards of one size that lie behind one another in arrays, of which none is kept.

    Arrays have shape (clients, n, *feature) and may be memory maps: a shard is read, and turned
    into what a problem computes with, whenever it is asked for.
    """

    arrays: Mapping[str, Any]
    """Tensors or numpy arrays."""
    convert: Callable[[Mapping[str, Any]], Examples]
    """Turns arrays (n, *feature) into the examples that a problem computes with."""

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    def __getitem__(self, i: Any) -> Any:
        part = {key: array[i] for key, array in self.arrays.items()}
        return self.convert(part) if isinstance(i, int) else replace(self, arrays=part)

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many examples each client has."""
        return (next(iter(self.arrays.values())).shape[1],) * len(self)

    def stacked(self) -> Examples:
        """Returns all shards as `Examples.stack` does."""
        each, sizes = self.joined(), self.sizes
        whole = {k: t.unflatten(0, (len(sizes), sizes[0])) for k, t in each.tensors.items()}
        return Examples(whole, each.feature_ndim, torch.tensor(sizes))

    def joined(self) -> Examples:
        """Returns all shards as one client's."""
        return self.convert({k: a.reshape(-1, *a.shape[2:]) for k, a in self.arrays.items()})


def _gather(tensor: Tensor, indices: Tensor, feature_ndim: int) -> Tensor:
    """``tensor[..., indices, *feature]`` with batched leading dimensions."""
    if indices.dim() == 1:
        return tensor.index_select(-1 - feature_ndim, indices)
    places = [
        torch.arange(count, device=indices.device).reshape(-1, *[1] * (indices.dim() - 1 - i))
        for i, count in enumerate(indices.shape[:-1])
    ]
    return tensor[(*places, indices)]


def _padded(shard: Examples, longest: Examples) -> Examples:
    """The shard with copies of its example 0 behind it; without any, copies of the longest's."""
    if len(shard) == len(longest):
        return shard
    places = torch.arange(len(longest), device=next(iter(longest.tensors.values())).device)
    return (shard if len(shard) else longest).take(places * (places < len(shard)))


@dataclass(frozen=True, eq=False)
class Stream:
    """A client's or cohort's records that are computed when they are read.

    Record j of client i is a pure function of (seed, i, j). It is drawn with the block of `_BLOCK`
    records that it lies in, and one block a client is remembered, so a run of any length holds as
    much as a run of one round.
    """

    seed: int
    clients: tuple[int, ...]
    size: int
    """How many a client has."""
    draw: Callable[[np.random.Generator, int], Examples]
    """So many fresh records from a generator."""
    is_stacked: bool = False
    _newest: dict[int, tuple[int, Examples]] = field(default_factory=dict, repr=False)
    """By client, the block that was read last and its number."""

    def take(self, positions: Tensor) -> Examples:
        """Returns the examples at ``positions`` >= 0, (b,) of a client or (C, b) of a cohort."""
        at = positions.numpy(force=True)
        if not self.is_stacked:
            return self._rows(self.clients[0], at)
        rows = [self._rows(i, at[row]) for row, i in enumerate(self.clients)]
        return replace(Examples.stack(rows), counts=None)

    def judged(self) -> Examples:
        """Returns a few of the first client's examples that no position reaches, to judge by."""
        return self.draw(np.random.default_rng([self.seed, 4, self.clients[0]]), _BLOCK)

    def to(self, where: str | torch.device | torch.dtype) -> "Stream":
        """Moves the stream as `Examples.to` does."""
        draw = self.draw
        return replace(self, draw=lambda rng, count: draw(rng, count).to(where), _newest={})

    def of_clients(self, rows: slice | Tensor) -> "Stream":
        """Returns the streams of some clients of a stacked cohort."""
        picked = np.array(self.clients)[rows if isinstance(rows, slice) else rows.numpy(force=True)]
        return replace(self, clients=tuple(int(i) for i in picked))

    def _rows(self, client: int, positions: NDArray[np.int64]) -> Examples:
        blocks, where = np.unique(positions // _BLOCK, return_inverse=True)
        found = Examples.concatenate([self._block(client, int(b)) for b in blocks])
        at = torch.from_numpy(where.reshape(-1) * _BLOCK + positions % _BLOCK)
        return found.take(at.to(next(iter(found.tensors.values())).device))

    def _block(self, client: int, number: int) -> Examples:
        known = self._newest.get(client)
        if known is None or known[0] != number:
            rng = np.random.default_rng([self.seed, 3, client, number])
            known = self._newest[client] = number, self.draw(rng, _BLOCK)
        return known[1]


# -- records that are persons -------------------------------------------------------------------
def codes(names: Iterable[Any]) -> Tensor:
    """Returns a whole number for each name (a text or a number), the same at every client."""
    found = list[int]()
    for name in names:
        is_whole = isinstance(name, float) and name.is_integer()
        text = str(int(name) if is_whole else name).encode("utf-8", "surrogatepass")
        found.append(int.from_bytes(blake2b(text, digest_size=8).digest(), "little", signed=True))
    return torch.tensor(found, dtype=torch.int64)


def count(examples: Examples) -> int:
    """Returns how many records examples make: their rows, or the persons whose rows they are."""
    person = examples.tensors.get(PERSON)
    return len(examples) if person is None else len(person.unique())


def without_persons(examples: Examples) -> Examples:
    """Returns examples without the column that says whose they are."""
    rest = {key: tensor for key, tensor in examples.tensors.items() if key != PERSON}
    return replace(examples, tensors=rest)


def grouped(examples: Examples, person: Tensor, most: int) -> Examples:
    """Makes a record of each person, of rows (n, *feature): tensors (persons, most, *feature)."""
    names, numbers = np.unique(person.numpy(force=True), return_counts=True)
    order = np.argsort(person.numpy(force=True), kind="stable")
    rows = numbers[:, None]
    kept = np.minimum(rows, most)
    slot = np.arange(most)
    place = np.where(slot < kept, slot * rows // kept, 0)
    index = torch.from_numpy(order[(np.cumsum(numbers) - numbers)[:, None] + place])
    share = torch.from_numpy((slot < kept) / kept)
    return Examples(
        {
            **{key: tensor[index] for key, tensor in examples.tensors.items()},
            SHARE: share,
            PERSON: torch.from_numpy(names),
        },
        {**{key: n + 1 for key, n in examples.feature_ndim.items()}, SHARE: 1, PERSON: 0},
    )


def rows_of(examples: Examples) -> Examples:
    """Returns all rows of persons, (..., persons * m, *feature); other examples as they are."""
    if SHARE not in examples.tensors:
        return examples
    tensors, ndim = dict[str, Tensor](), dict[str, int]()
    for key, held in examples.tensors.items():
        if key in (SHARE, PERSON):
            continue
        depth = examples.feature_ndim[key]  # 0: one number a person, which all her rows have
        tensor = held if depth else held.unsqueeze(-1).expand(examples[SHARE].shape)
        ndim[key] = max(depth - 1, 0)
        at = tensor.dim() - ndim[key] - 2
        tensors[key] = tensor.flatten(at, at + 1)
    return Examples(tensors, ndim)


def mean_of_rows(each: Tensor, persons: Examples, ndim: int) -> Tensor:
    """Sums entries of each person's rows (..., n, m, *entry), times the shares, over m.

    Row by row: how torch adds up a dimension may depend on the size of the whole call.
    """
    share = persons[SHARE].to(each.dtype)
    weights = share.reshape(*share.shape, *[1] * ndim)
    first, *rest = (weights * each).unbind(each.dim() - 1 - ndim)
    return sum(rest, first)


def check_apart(shards: Sequence[Examples], privacy: Any) -> None:
    """Refuses persons, where they are protected, who are at more clients than is declared.

    Raises:
        ConfigError: with the number of clients, and nobody's name.
    """
    if privacy.unit != "person" or not all(PERSON in shard.tensors for shard in shards):
        return
    names = torch.cat([shard[PERSON] for shard in shards])
    found = int(names.unique(return_counts=True)[1].max())
    if found > privacy.sites_per_person:
        raise ConfigError(
            f"privacy.sites_per_person: expected at least {found}, because a person has rows at "
            f"{found} clients, got {privacy.sites_per_person}; declare {found}, or keep each "
            "person at one client"
        )
