"""What of a torch module cannot be private, said in one line before anything is computed.

A clip bounds what an example moves through its own loss. So an example may reach nothing else: no
statistic of a batch, no buffer, no other example's output. Layers that Opacus' validator refuses
are refused here as well, with its advice; whatever else mixes examples is found by moving one
example and looking at the others.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from manifed.errors import one_line

EXAMPLES = 4


class NotPrivate(ValueError):
    """A module that lets examples meet; one line with the layer and what to use instead."""


def check_layers(model: nn.Module) -> None:
    """Refuse layers by what they are.

    Raises:
        NotPrivate: naming the layer and what takes its place.
    """
    for name, layer in model.named_modules():
        advice = _advice(layer)
        if advice is not None:
            where = f"{name!r} " if name else ""
            raise NotPrivate(f"model: layer {where}({type(layer).__name__}) {advice}")


def _advice(layer: nn.Module) -> str | None:
    if isinstance(layer, _BatchNorm):
        return "takes its mean over a batch, so examples meet; use GroupNorm or LayerNorm"
    if isinstance(layer, _InstanceNorm) and layer.track_running_stats:
        return "keeps statistics of examples; set track_running_stats = False, or use GroupNorm"
    if isinstance(layer, nn.RNNBase):
        return (
            "hides its steps in one kernel that gives no gradient of each example; write the "
            "recurrence with nn.RNNCell, nn.GRUCell or nn.LSTMCell"
        )
    if isinstance(layer, nn.MultiheadAttention):
        return (
            "packs its projections into one kernel that gives no gradient of each example; use "
            "nn.Linear and torch.nn.functional.scaled_dot_product_attention"
        )
    if (
        isinstance(layer, (nn.Dropout, nn.modules.dropout._DropoutNd))
        and layer.training
        and layer.p
    ):
        return (
            "draws without a generator, so nothing repeats a run; set p = 0, or use "
            "manifed.layers.KeyedDropout"
        )
    return None


def met_by(operator: object) -> str:
    """What is said of an operator whose rule of vmap checks no index against its example's rows."""
    return (
        f"model, loss: {operator} may meet another example by an index out of range; use "
        "torch.nn.functional.embedding or torch.where, and no operator of torch.ops"
    )


class _Unchecked(TorchDispatchMode):
    """Refuses what ends in an operator that vmap does not check, however it was called.

    A script runs its operators where `OwnRows` does not see them. A table that is asked by
    `torch.nn.functional.embedding` may be read.
    """

    def __init__(self, tables: "_Tables") -> None:
        super().__init__()
        self._tables = tables
        self.found: str | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        name = func.overloadpacket.__name__
        if name.rstrip("_") in _UNCHECKED and not (name == "embedding" and self._tables.is_open):
            self.found = name
        return func(*args, **(kwargs or {}))


class _Tables(TorchFunctionMode):
    """Knows when a table is asked in the way that `OwnRows` checks."""

    is_open = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        if func is not nn.functional.embedding:
            return func(*args, **(kwargs or {}))
        self.is_open = True
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.is_open = False


_UNCHECKED = {"embedding", "index_fill", "embedding_backward", "embedding_dense_backward"}


def check_forward(model: nn.Module, feature: Tensor) -> None:
    """Refuse what a forward pass shows: a buffer that moves, an example that moves another.

    Args:
        model: is put back as it was.
        feature: shape and type of one example, (*feature); its numbers are not used.

    Raises:
        NotPrivate: naming what moves.
    """
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        with torch.no_grad(), _Tables() as tables, _Unchecked(tables) as unchecked:
            for batch, moved in _batches(feature):
                first, second = _rows(model(batch)), _rows(model(moved))
                _check_apart(first, second, len(batch))
        if unchecked.found is not None:
            raise NotPrivate(met_by(unchecked.found))
        for name, buffer in model.named_buffers():
            if not torch.equal(buffer, buffers[name]):
                raise NotPrivate(
                    f"model: buffer {name!r} changes in forward, so it would remember examples "
                    "without a clip; keep buffers constant"
                )
    except NotPrivate:
        raise
    except Exception as error:  # forward is code of somebody's own
        said = one_line(f"{type(error).__name__}: {error}", 200)
        raise NotPrivate(
            f"model: forward fails on a batch of shape {(EXAMPLES, *feature.shape)}: {said}"
        ) from None
    finally:
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(buffers[name])


def _batches(feature: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Made-up batches, and the same with the last example moved."""
    shape = (EXAMPLES, *feature.shape)
    if not feature.is_floating_point():
        batch = torch.zeros(shape, dtype=feature.dtype)
        moved = batch.clone()
        moved[-1] = 1
        yield batch, moved
        return
    generator = torch.Generator().manual_seed(0)
    batch = torch.randn(shape, generator=generator, dtype=torch.float64).to(feature.dtype)
    for size in (1.0, 100.0):
        moved = batch.clone()
        moved[-1] = size * torch.randn(feature.shape, generator=generator, dtype=torch.float64).to(
            feature.dtype
        )
        yield batch, moved


def _rows(output: object) -> Tensor:
    if not isinstance(output, Tensor) or output.dim() == 0 or output.shape[0] != EXAMPLES:
        shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise NotPrivate(
            f"model: expected a tensor with one row an example, {EXAMPLES} rows, got {shape}"
        )
    return output.reshape(EXAMPLES, -1)


def _check_apart(first: Tensor, second: Tensor, count: int) -> None:
    """Refuse outputs of unmoved examples that differ by more than rounding."""
    here, there = first[: count - 1], second[: count - 1]
    eps = torch.finfo(here.dtype).eps if here.is_floating_point() else 0.0
    slack = 1e4 * eps * (1 + here.abs().max())
    gap = (here - there).abs().max() if here.numel() else torch.tensor(0.0)
    if not bool(gap <= slack):
        raise NotPrivate(
            f"model: moving one example of a batch moves another's output by {float(gap):.3g}; "
            "each example must be computed by itself (no statistics over the batch)"
        )
