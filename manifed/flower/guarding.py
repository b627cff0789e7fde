"""What a guard at the server and the mod at a client share: updates, the ledger and the limit.

An update is what a client of a foreign Flower app changes of the arrays that it was sent. Whoever
replies chooses every byte, so names, types, shapes and lengths are compared with what was sent
before anything is decoded or allocated.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message
from numpy.typing import NDArray
from torch import Tensor

from manifed.errors import ConfigError, short
from manifed.flower.records import float_array
from manifed.privacy.charging import Account, opened
from manifed.privacy.ledger import Entry, Ledger, ledger_key
from manifed.privacy.odometer import Odometer
from manifed.privacy.statement import Budget, Promise

_STATISTICS = ("*running_mean", "*running_var", "*num_batches_tracked")
_FLOATS = ("float16", "float32", "float64")
_LAST = 2**24 - 1
"""The last round that an address of noise can name."""
NODES = "nodes"
"""What an entry says of the nodes: their ids, by the places that reservations name."""
Start = Mapping[str, NDArray[np.float64]]
"""The arrays that clients train, as they were sent, in the order of the record."""


def is_frozen(name: str, frozen: Iterable[str]) -> bool:
    """Returns whether a pattern names an array that clients do not change."""
    return any(fnmatchcase(name, pattern) for pattern in frozen)


def trained(arrays: Mapping[str, Array], frozen: Sequence[str]) -> Start:
    """Returns the arrays that clients train, in float64.

    Raises:
        ConfigError: for arrays that are no parameters, and where there are none that are.
    """
    free = {name: array for name, array in arrays.items() if not is_frozen(name, frozen)}
    wrong = [
        name
        for name, array in free.items()
        if array.dtype not in _FLOATS or is_frozen(name, _STATISTICS)
    ]
    if wrong:
        raise ConfigError(
            f"arrays: expected floating-point parameters, got {', '.join(wrong)[:200]}, which "
            "are statistics of clients' data or counts; keep the server's by "
            "frozen=('*running_*', '*num_batches_tracked'), or use GroupNorm"
        )
    if not any(math.prod(array.shape) for array in free.values()):
        raise ConfigError("arrays: expected some that are trained, got none")
    return {name: array.numpy().astype(np.float64) for name, array in free.items()}


def update_of(reply: Message, start: Start, names: Iterable[str]) -> Tensor:
    """Returns the change that a reply makes to the trained arrays, flat in float64.

    Raises:
        ValueError: for a reply that is no such change; other errors for what is no reply at all.
    """
    if reply.has_error():
        raise ValueError(f"error {reply.error.code}")
    (record,) = reply.content.array_records.values()
    if set(record) != set(names):
        raise ValueError(f"expected the arrays {short(sorted(names))}")
    parts = [
        float_array(name, record[name], before.shape).to(torch.float64) - torch.from_numpy(before)
        for name, before in start.items()
    ]
    flat = torch.cat([part.flatten() for part in parts])
    if not bool(torch.isfinite(flat).all()):
        raise ValueError("expected finite entries")
    return flat


def moved(sent: Mapping[str, Array], start: Start, step: Tensor) -> ArrayRecord:
    """Returns the arrays that were sent plus a flat step, each rounded once to its own type."""
    new = dict(sent)
    first = 0
    for name, before in start.items():
        own = step[first : first + before.size].numpy().reshape(before.shape)
        new[name] = Array(np.asarray(before + own, dtype=sent[name].dtype))
        first += before.size
    return ArrayRecord(new)


# -- the ledger and the limit --------------------------------------------------------------------
def limited(promise: Promise, max_epsilon: float) -> Promise:
    """Returns the promise with a budget against its first adversary.

    Raises:
        ConfigError: one round costs more.
    """
    assert promise.delta is not None
    against = promise.adversaries[0]
    budget = Budget(max_epsilon, promise.delta, against, "max_epsilon", "raise it for more rounds")
    made = replace(promise, budget=budget)
    if not made.pays((1,)):
        raise ConfigError(
            f"max_epsilon: expected at least {made.cost(budget, (1,)):.4g}, the price of one "
            f"round, got {max_epsilon:g}; raise it or the noise"
        )
    return made


def gone_on(
    path: Path, promise: Promise, said: Mapping[str, Any]
) -> AbstractContextManager[Account]:
    """Returns the account of a ledger that is there, all of it spent, or else of a new one.

    ``said`` stands in the first line and says what later runs must have in common with the first.

    Raises:
        ConfigError: the ledger that is there says something else.
        LedgerDamaged: as `Ledger.verify`, and on entering as `charging.opened`.
    """
    first = None
    if path.exists():
        spent = Odometer()
        found = Ledger.verify(path, key=ledger_key(), feed=spent.feed)
        if found.header.get("guard") != said:
            raise ConfigError(
                f"ledger: expected one with the terms of this guard, got {path}, which has others; "
                "go on with the same population, cohort, clip and noise, or begin another file"
            )
        first = spent.covered + 1
    return opened(path, promise, last_round=_LAST, header={"guard": said}, resumed_at=first)


def placed(path: Path, nodes: Sequence[int]) -> tuple[int, ...]:
    """Returns as many nodes as a ledger names by place; new ones take the places of those gone.

    Raises:
        LedgerDamaged: as `Ledger.verify`.
    """
    known = nodes

    def told(entry: Entry) -> None:
        nonlocal known
        known = entry.said.get(NODES, known)

    Ledger.verify(path, key=ledger_key(), feed=told)
    fresh = iter(sorted({*nodes} - {*known}))
    return tuple(node if node in nodes else next(fresh) for node in known)
