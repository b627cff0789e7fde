"""What a fit is handed, judged before a ledger is made or a round is charged."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from manifed.algorithms.broadcast import BadBroadcast, check_point
from manifed.errors import ConfigError, one_line
from manifed.problems.base import KEY, Examples, Problem
from manifed.problems.finite_sum import FiniteSum
from manifed.problems.module_checks import NotPrivate
from manifed.problems.records import InvalidRecord

Shard = Examples | Tensor | Mapping[str, Tensor]


def examples_of(problem: Problem, shards: Sequence[Shard]) -> tuple[Examples, ...]:
    """Each client's examples: of one kind, and such that ``problem`` can be computed for them.

    Raises:
        ConfigError: naming client and record, or the columns.
        NotPrivate: a module lets examples meet.
    """
    if not isinstance(shards, Sequence | Tensor):
        raise ConfigError(f"shards: expected one entry a client, got {type(shards).__name__}")
    found = tuple(_examples(i, shard) for i, shard in enumerate(shards))
    if not found or not all(len(shard) for shard in found):
        sizes = [len(shard) for shard in found]
        raise ConfigError(f"shards: expected at least one example a client, got sizes {sizes}")
    for i, shard in enumerate(found):
        if _shapes(shard) != _shapes(found[0]):
            raise ConfigError(
                f"shards: client {i}: expected examples of {_shapes(found[0])} like client 0's, "
                f"got {_shapes(shard)}"
            )
    for i, shard in enumerate(found):
        try:
            _check_records(problem, shard)
        except InvalidRecord as error:
            raise ConfigError(f"shards: client {i}, {error}; mend or remove the record") from None
        except Exception as error:  # a problem may be somebody's own
            raise _unfit(problem, shard, error) from None
    return found


def point_shape(problem: Problem, examples: Examples) -> tuple[int, ...]:
    """The shape of a point; errors as `examples_of`."""
    try:
        return tuple(problem.point_shape(examples))
    except NotPrivate:
        raise
    except Exception as error:  # a problem may be somebody's own
        raise _unfit(problem, examples, error) from None


def check_start(problem: Problem, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The point x^(0) as it is handed in, without what it was computed from.

    Raises:
        ConfigError: no point of the problem's manifold, of ``shape``.
    """
    if (
        not isinstance(x, Tensor)
        or x.dtype not in (torch.float64, torch.float32)
        or not _is_dense(x)
    ):
        raise ConfigError(
            f"start: expected a dense tensor of float64 or float32, got {_described(x)}"
        )
    if tuple(x.shape) != shape:
        raise ConfigError(
            f"start: expected shape {shape}, that of a point for these shards, got {tuple(x.shape)}"
        )
    try:
        check_point("a point", x.detach(), problem.manifold)
    except BadBroadcast as error:
        raise ConfigError(f"start: {error}") from None
    return x.detach()


def check_computed(problem: Problem, x: Tensor, examples: Examples) -> None:
    """Try the gradient of one example at ``x``.

    What fails by the example's numbers alone (an `ArithmeticError`) is left to the oracle.

    Raises:
        ConfigError: it cannot be computed, or is no vector at x.
    """
    one = examples.take(torch.zeros(1, dtype=torch.long)).to(x.dtype)
    one = one.beside(KEY, torch.zeros(1, dtype=torch.float64)) if problem.needs_keys else one
    try:
        gradients = problem.gradients(x, one)
        found = gradients.sum(torch.ones_like(gradients.norms))
    except ArithmeticError:
        return
    except Exception as error:  # a problem may be somebody's own
        raise _unfit(problem, examples, error) from None
    if found.shape != x.shape:
        raise ConfigError(
            f"problem: expected gradients of the shape of a point, {tuple(x.shape)}, got "
            f"{tuple(found.shape)}"
        )


def _examples(client: int, shard: Shard) -> Examples:
    """A client's examples, real numbers in float64; each tensor has shape (n, *feature)."""
    if not isinstance(shard, Examples | Tensor | Mapping):
        raise ConfigError(
            f"shards: client {client}: expected Examples, a tensor or a dict of tensors, got "
            f"{type(shard).__name__}"
        )
    tensors = {"z": shard} if isinstance(shard, Tensor) else shard
    tensors = tensors.tensors if isinstance(tensors, Examples) else tensors
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor) or not _is_dense(tensor) or tensor.dim() == 0:
            raise ConfigError(
                f"shards: client {client}, {name!r}: expected a dense tensor of real numbers, "
                f"shape (n, *feature), got {_described(tensor)}"
            )
    try:
        found = shard if isinstance(shard, Examples) else Examples.of_columns(dict(tensors))
    except ValueError as error:
        raise ConfigError(f"shards: client {client}: {error}") from None
    return found.to(torch.float64)


def _check_records(problem: Problem, shard: Examples) -> None:
    """Refuse data that nothing may be computed from.

    Raises:
        InvalidRecord: naming the record.
    """
    for name, tensor in shard.tensors.items() if shard.stream is None else ():
        is_finite = torch.isfinite(tensor).reshape(len(shard), -1).all(-1)
        if not bool(is_finite.all()):
            first = int((~is_finite).nonzero()[0])
            raise InvalidRecord(f"record {first}: expected finite entries of {name!r}, got others")
    if isinstance(problem, FiniteSum):
        problem.check_records(shard)


def _shapes(examples: Examples) -> dict[str, tuple[int, ...]]:
    """Of one example, by the names of its tensors."""
    ndim = examples.feature_ndim
    return {k: tuple(t.shape[t.dim() - ndim[k] :]) for k, t in sorted(examples.tensors.items())}


def _is_dense(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided and not (tensor.is_meta or tensor.is_complex())


def _described(value: object) -> str:
    if not isinstance(value, Tensor):
        return type(value).__name__
    kind = "meta" if value.is_meta else f"{value.layout}".removeprefix("torch.")
    return f"{value.dtype} of shape {tuple(value.shape)} ({kind})"


def _unfit(problem: Problem, examples: Examples, error: Exception) -> ConfigError:
    said = one_line(f"{type(error).__name__}: {error}", 200)
    return ConfigError(
        f"shards: expected examples that {type(problem).__name__} can be computed for, got shapes "
        f"{_shapes(examples)}: {said}"
    )
