"""Judges what `fit` is handed, before a ledger is made or a round is charged.

Problem, algorithm and transport may be somebody's own code; what they raise is one line that names
the argument.
"""

import hashlib
import math
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manifed.algorithms.algorithm import ClientUpdate, ServerUpdate
from manifed.algorithms.payloads import BadBroadcast, check_point
from manifed.errors import ConfigError, check_kind, described, named_by, short
from manifed.experiment.assembly import starts
from manifed.federation.client import ClientSetup, ClientSide
from manifed.federation.exchange import Transport
from manifed.federation.plan import Plan
from manifed.manifolds.linalg import Shape
from manifed.problems.examples import PERSON, Examples, Mapped, codes
from manifed.problems.module_checks import NotPrivate
from manifed.problems.module_problem import ModuleProblem
from manifed.problems.own_arrays import columns_of, tensor_of
from manifed.problems.problem import InvalidRecord, Problem
from manifed.setting import Setting

Connect = Callable[..., Transport]
"""Connects to the clients of one side."""
Shards = Sequence[Any] | Mapping[str, Any] | Tensor | np.ndarray[Any, Any]
"""One entry a client, or arrays with the clients as first axis."""
Evaluate = Callable[[Tensor], Mapping[str, float]]
"""Named numbers of a model."""


def sides_of(algorithm: Any) -> tuple[ClientUpdate, ServerUpdate | None]:
    """Client and server update of an algorithm, which may be one object."""
    both = (algorithm, None)
    if isinstance(algorithm, tuple) and len(algorithm) == 2:
        both = algorithm
    client, server = both
    check_kind("algorithm", client, ClientUpdate, "a client update, or a pair of both sides")
    check_kind("algorithm", server, ServerUpdate | None, "a server update as second of a pair")
    return client, server


def connected(transport: Connect, side: ClientSide, device: str) -> Transport:
    """Makes the transport, by a function that may be somebody's own, to clients on a device."""
    try:
        found = transport(side, **({} if device == "cpu" else {"device": device}))
        found.exchange  # noqa: B018  raises if it has none
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"transport: expected a function that connects to clients, got {short(transport)}: "
            + described(error)
        ) from error
    return found


@contextmanager
def computing(
    problem: Problem, shapes: Mapping[str, Shape], name: str = "shards"
) -> Generator[None]:
    """Say of what a problem, which may be somebody's own, raises that its examples do not fit."""
    try:
        yield
    except (ConfigError, InvalidRecord, NotPrivate, ArithmeticError):
        raise
    except Exception as error:
        raise ConfigError(
            f"{name}: expected examples that {type(problem).__name__} can be computed for, got "
            f"shapes {dict(shapes)}: {described(error)}"
        ) from None


_AT_ONCE = 4096, 2**20
"""Most clients of an array, and entries, whose records are checked together."""


def examples_of(problem: Problem, shards: Shards) -> Sequence[Examples]:
    """Each client's examples: of one kind, and such that ``problem`` can be computed for them.

    Raises:
        ConfigError: naming client and record, or the columns.
        NotPrivate: a module lets examples meet.
    """
    mapped = _mapped(problem, shards)
    if mapped is not None:
        clients, entries = _AT_ONCE
        own = sum(math.prod(array.shape[1:]) for array in mapped.arrays.values())
        at_once = min(clients, max(1, entries // max(1, own)))
        for begin in range(0, len(mapped), at_once):
            some = mapped[begin : begin + at_once]
            try:
                _check(problem, some.joined())
            except Exception:  # which client's record it is, each by itself says
                each = [{k: a[i] for k, a in some.arrays.items()} for i in range(len(some))]
                _listed(problem, each, begin)
                raise
        return mapped
    is_array = isinstance(shards, Tensor | np.ndarray) and shards.ndim > 0
    if not is_array and (not isinstance(shards, Sequence) or isinstance(shards, str)):
        raise ConfigError(
            f"shards: expected a list with one entry a client, got {type(shards).__name__}"
        )
    return _listed(problem, shards)


def _mapped(problem: Problem, shards: Any) -> Mapped | None:
    """Shards of which the first axis of an array, or of each in a dict, is the client's."""
    is_dict = isinstance(shards, Mapping)
    arrays: Mapping[str, Any] = shards if is_dict else {"z": shards}
    sizes = {_size(one) for one in arrays.values()}
    if PERSON in arrays or len(sizes) != 1 or 0 in min(sizes):
        if is_dict:
            shapes = {key: tuple(getattr(one, "shape", ())) for key, one in arrays.items()}
            raise ConfigError(
                "shards: expected a list with one entry a client, or a dict of arrays of numbers "
                f"(clients, examples, ...) without {PERSON!r}, got a dict of shapes {shapes}"
            )
        return None

    def convert(part: Mapping[str, Any]) -> Examples:
        tensors = {key: tensor_of(one, f"shards, {key!r}") for key, one in part.items()}
        return problem.widened(Examples(tensors))

    return Mapped(arrays, convert)


def _size(array: Any) -> tuple[int, ...]:
    """How many clients an array has, and examples each; (0,) of what is no array of both."""
    is_dense = isinstance(array, np.ndarray) and array.dtype != object
    if isinstance(array, Tensor):
        is_dense = array.layout == torch.strided and not array.is_nested
    is_dense = is_dense and not isinstance(array, np.matrix) and array.ndim > 1
    return tuple(array.shape[:2]) if is_dense else (0,)


def _check(problem: Problem, wide: Examples) -> None:
    """Refuses records that are not finite, or none of the problem."""
    if wide.stream is None:
        problem.check_finite(wide)
    problem.check_records(wide)


def _listed(problem: Problem, shards: Any, first: int = 0) -> tuple[Examples, ...]:
    """Shards of a list, whose clients have the numbers from ``first`` on; errors as above."""
    read = tuple(_examples(f"shards: client {i}", shard) for i, shard in enumerate(shards, first))
    sizes = [*map(len, read)]
    if not sizes or not all(sizes):
        raise ConfigError(f"shards: expected at least one example a client, got sizes {sizes}")
    found = list[Examples]()
    for i, shard in enumerate(read, first):
        for what, one, like in (
            ("examples of", shard.shapes, read[0].shapes),
            ("a frame with columns", columns_of(shards[i - first]), columns_of(shards[0])),
        ):
            if one != like:
                raise ConfigError(
                    f"shards: client {i}: expected {what} {like} like client 0's, got {one}"
                )
        try:
            with computing(problem, shard.shapes):
                wide = problem.widened(shard)
                _check(problem, wide)
        except (InvalidRecord, ArithmeticError) as error:
            raise ConfigError(f"shards: client {i}, {error}; mend or remove the record") from None
        found.append(wide)
    return tuple(found)


def _examples(client: str, shard: Any) -> Examples:
    """A client's examples, real numbers in the type that they came in; shape (n, *feature)."""
    held = shard.tensors if isinstance(shard, Examples) else shard
    if isinstance(held, Mapping):
        numbers = {str(key): one for key, one in held.items() if key != PERSON}
        tensors = {key: tensor_of(one, f"{client}, {key!r}") for key, one in numbers.items()}
        if PERSON in held:
            tensors[PERSON] = codes(np.asarray(held[PERSON]).ravel().tolist())
    else:
        tensors = {"z": tensor_of(held, client)}
    for name, tensor in tensors.items():
        if not tensor.dim():
            raise ConfigError(
                f"{client}, {name!r}: expected a dense tensor of real numbers, shape "
                "(n, *feature), got one number"
            )
    with named_by(client, ValueError):
        return replace(shard, tensors=tensors) if isinstance(shard, Examples) else Examples(tensors)


def start_of(problem: Problem, x: Any, shape: Shape, seed: int) -> Tensor:
    """x^(0) as it is handed in, without what it was computed from; None: a random point.

    Raises:
        ConfigError: no point of the problem's manifold, of ``shape``.
    """
    if x is None and isinstance(problem, ModuleProblem):
        return problem.start
    if x is None:
        return problem.manifold.random(*shape, generator=starts(seed))
    found = tensor_of(x, "start")
    if not (isinstance(x, Tensor) and found.dtype == torch.float32):
        found = found.to(torch.float64)
    if found.shape != shape:
        raise ConfigError(
            f"start: expected shape {shape}, that of a point for these shards, got "
            f"{tuple(found.shape)}"
        )
    with named_by("start", BadBroadcast):
        check_point("a point", found, problem.manifold)
    return found


def hashes_of(setting: Setting, examples: Sequence[Examples], x: Tensor) -> dict[str, str]:
    """Hashes each part of what decides a fit but for the numbers in its examples, by name."""
    some = examples[:1] if isinstance(examples, Mapped) else examples
    parts = {
        **dict(setting.federation),
        "problem": (setting.problem, setting.manifold.name),
        "algorithm": (setting.training, setting.server_update),
        "privacy": setting.privacy,
        "held_out": setting.evaluation,
        "shards": ([(len(one), one.shapes) for one in some], x.shape, x.dtype),
    }
    texts = {  # without addresses of objects
        name.removeprefix("num_"): re.sub(r" at 0x[0-9a-f]+", "", repr(part))
        for name, part in parts.items()
    }
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}


def side_of(
    setting: Setting,
    problem: Problem,
    plan: Plan,
    examples: Sequence[Examples],
    shape: Shape,
    dtype: torch.dtype,
) -> ClientSide:
    """Makes the client side; a private evaluation holds some of the examples out."""
    held, outs = setting.held_out, ()
    if held is not None and setting.privacy.kind != "none":
        relation, seed = setting.privacy.neighboring_relation, setting.federation.seed
        examples, outs = zip(*(held.split(one, relation, seed) for one in examples), strict=True)
    clients = len(examples)
    return ClientSide(
        ClientSetup(problem, plan.training, plan.client_mechanism, held),
        examples,
        shape,
        setting.source(),
        dtype,
        num_examples=plan.num_examples,
        hold_outs=outs,
        rate=plan.cohort.expected_size(clients) / clients,
        unit=setting.privacy.unit,
        is_summed=plan.is_summed,
    )


def evaluated(evaluate: Evaluate, x: Tensor) -> dict[str, float]:
    """Names numbers of a model by a function of somebody's own."""
    try:
        return {str(name): float(value) for name, value in evaluate(x).items()}
    except Exception as error:  # code of somebody's own
        raise ConfigError(
            f"evaluate: expected a dict of numbers of a model {tuple(x.shape)}, got "
            f"{described(error)}"
        ) from error
