"""What a guard at the server and the mod at a client share: updates, the ledger and the limit.

An update is what a client of a foreign Flower app changes of the arrays that it was sent. Whoever
replies chooses every byte, so names, types, shapes and lengths are compared with what was sent
before anything is decoded or allocated.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message
from flwr.serverapp.strategy import FedAvg, Strategy
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor

from manifed.errors import ConfigError, short
from manifed.fields import Frozen, PositiveCount, Values
from manifed.flower.records import float_array
from manifed.privacy.charging import Account, opened
from manifed.privacy.ledger import Entry, Ledger, ledger_key
from manifed.privacy.odometer import Odometer
from manifed.privacy.statement import Budget, Promise

_STATISTICS = ("*running_mean", "*running_var", "*num_batches_tracked")
_NEEDS_UPDATES = ("Krum", "MultiKrum", "Bulyan", "FedMedian", "FedTrimmedAvg", "QFedAvg")
_FLOATS = ("float16", "float32", "float64")
_LAST = 2**24 - 1
"""The last round that an address of noise can name."""
NODES = "nodes"
"""What an entry says of the nodes: their ids, by the places that reservations name."""
Start = Mapping[str, NDArray[np.float64]]
"""The arrays that clients train, as they were sent, in the order of the record."""


class Metrics(Frozen):
    """What clients may tell of a model: noised, and paid for as a round of training is."""

    bounds: dict[str, tuple[float, float]] = Field(min_length=1)
    """The metrics that are kept, each clamped to these bounds, such as {"eval_acc": (0, 1)}."""
    every: PositiveCount = 1
    """Of how many rounds one is followed by an evaluation."""

    @model_validator(mode="after")
    def _are_bounds(self) -> "Metrics":
        if not all(low < high and math.isfinite(high - low) for low, high in self.bounds.values()):
            raise ValueError(f"Expected bounds (low, high) with low < high, got {self.bounds}")
        return self

    @property
    def _ends(self) -> Tensor:
        """Lower and upper bounds, (2, n)."""
        return torch.tensor([*self.bounds.values()], dtype=torch.float64).T

    def vector(self, reply: Message) -> Tensor:
        """Returns a reply's metrics as a vector of norm 1 at most, 0 in the middle of the bounds.

        Raises:
            ValueError: for an error and for what is no number; others for what is no reply at all.
        """
        if reply.has_error():
            raise ValueError(f"error {reply.error.code}")
        (record,) = reply.content.metric_records.values()
        found = [float(record[name]) for name in self.bounds]  # pyright: ignore[reportArgumentType]
        if any(map(math.isnan, found)):
            raise ValueError("expected numbers")
        low, high = self._ends
        there = torch.tensor(found, dtype=torch.float64).clamp(low, high)
        return (2 * there - low - high) / (high - low) / math.sqrt(len(found))

    def values(self, mean: Tensor) -> dict[str, float]:
        """Returns the metrics that a mean of vectors stands for, which noise may put outside."""
        low, high = self._ends
        there = (low + high + (high - low) * math.sqrt(len(mean)) * mean) / 2
        return dict(zip(self.bounds, there.tolist(), strict=True))


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


def gone_on(path: Path, promise: Promise, said: Values) -> AbstractContextManager[Account]:
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


def check_strategy(strategy: Strategy, evaluate: object) -> None:
    """Refuses strategies that one noised mean cannot serve, or that ask for more than it.

    Raises:
        ConfigError: naming the strategy, or its argument.
    """
    names = [one.__name__ for one in type(strategy).__mro__]
    name = names[0]
    if found := [n for n in names if n in _NEEDS_UPDATES or n.startswith("FedXgb")]:
        raise ConfigError(
            f"strategy: {found[0]} needs each client's own update; guard shows it one noised mean"
        )
    if any(n.startswith("DifferentialPrivacy") for n in names):
        raise ConfigError(f"strategy: {name} noises already; hand guard the strategy inside")
    if type(strategy).start is not Strategy.start:
        raise ConfigError(f"strategy: {name} overrides start(), which guard replaces")
    if evaluate not in (None, "skip") and not isinstance(evaluate, Metrics):
        raise ConfigError(f"evaluate: expected 'skip' or Metrics(...), got {short(evaluate)}")
    if getattr(strategy, "fraction_evaluate", 0.0) > 0 and evaluate is None:
        raise ConfigError(
            "strategy.fraction_evaluate: clients' metrics are not noised; set it to 0, or give "
            "evaluate='skip' or Metrics(...)"
        )
    rules = (getattr(strategy, f"{what}_metrics_aggr_fn", None) for what in ("train", "evaluate"))
    if any(getattr(one, "__module__", "flwr.").split(".")[0] != "flwr" for one in rules if one):
        raise ConfigError(
            "strategy: its own metrics_aggr_fn would see nothing but one weight of 1; remove it"
        )


def accounts(
    files: ExitStack,
    path: Path,
    promise: Promise,
    declared: Promise | None,
    clip: float,
    *,
    resume: bool,
) -> tuple[Account, tuple[Promise, Account] | None]:
    """Opens the account, and that of what an app declares, until ``files`` are closed.

    Raises:
        ConfigError: for a ledger that is there, or with ``resume`` is not; others as `gone_on`.
    """
    said = {"terms": promise.terms.model_dump(mode="json"), "clip": clip}
    beside = path.with_name(path.name + ".declared")
    # Without a ledger, what is left beside it is of a run that a crash ended before it began.
    paths = [path] if declared is None or not resume else [path, beside]
    for one in paths:
        if resume != one.exists():
            raise ConfigError(
                f"ledger: expected {'the' if resume else 'no'} file {one}, got "
                f"{'none' if resume else 'one'}; resume=True goes on with one that is there"
            )
    account, second = gone_on(path, promise, said), None
    if declared is not None:
        second = declared, files.enter_context(gone_on(beside, declared, said))
    return files.enter_context(account), second


def cohort_size(strategy: Strategy, asked: int | None, population: int) -> int:
    """Returns the expected size of a cohort, by default what FedAvg would take.

    Raises:
        ConfigError: without a size for another strategy, and for one beyond the population.
    """
    if asked is None and isinstance(strategy, FedAvg):
        asked = max(int(population * strategy.fraction_train), strategy.min_train_nodes)
    if asked is None:
        raise ConfigError("clients_per_round: required with a strategy that is no FedAvg")
    if not 1 <= asked <= population:
        raise ConfigError(
            f"clients_per_round: expected 1 to population = {population}, got {asked}"
        )
    return asked
