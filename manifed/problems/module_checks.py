"""Checks of a torch module: what cannot be private, and on which manifolds parameters lie.

A clip bounds what an example moves through its own loss. So an example may reach nothing else: no
statistic of a batch, no buffer, no other example's output. Layers that Opacus' validator refuses
are refused here as well, with its advice; whatever else mixes examples is found by moving one
example and looking at the others.

A `geoopt.ManifoldParameter` lives on its own manifold, any other parameter in Euclidean space of
its shape. Frozen parameters (``requires_grad = False``) and buffers are constants; a tied parameter
is one factor, under its first name. Leading dimensions of a manifold parameter are so many points.
"""

from copy import deepcopy
from typing import Any

import geoopt
import torch
from torch import Tensor, nn
from torch._ops import OpOverload, OpOverloadPacket
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from manifed.errors import described
from manifed.manifolds.base import Manifold
from manifed.manifolds.euclidean import Euclidean
from manifed.manifolds.linalg import Shape, standard_normal
from manifed.manifolds.of_geoopt import counterpart
from manifed.manifolds.product import Power, Product

_EXAMPLES = 4


class NotPrivate(ValueError):
    """Error: a module lets examples meet; one line with the layer and what to use instead."""

    exit_code = 2


_ADVICE: tuple[tuple[type[nn.Module], str], ...] = (
    (_BatchNorm, "takes its mean over a batch, so examples meet; use GroupNorm or LayerNorm"),
    (
        _InstanceNorm,
        "keeps statistics of examples; set track_running_stats = False, or use GroupNorm",
    ),
    (
        nn.RNNBase,
        "hides its steps in one kernel that gives no gradient of each example; write the "
        "recurrence with nn.RNNCell, nn.GRUCell or nn.LSTMCell",
    ),
    (
        nn.MultiheadAttention,
        "packs its projections into one kernel that gives no gradient of each example; use "
        "nn.Linear and torch.nn.functional.scaled_dot_product_attention",
    ),
    (
        _DropoutNd,
        "draws without a generator, so nothing repeats a run; set p = 0, or use "
        "manifed.layers.KeyedDropout",
    ),
)


# -- rows of a table that are another example's --------------------------------------------------
_UNBOUND = (torch.embedding, torch.index_fill, Tensor.index_fill, Tensor.index_fill_)
"""Their rules of vmap check no index against an example's own rows."""


def _met_by(operator: object) -> NotPrivate:
    return NotPrivate(
        f"model, loss: {operator} may meet another example by an index out of range; use "
        "torch.nn.functional.embedding or torch.where, and no operator of torch.ops"
    )


class OwnRows(TorchFunctionMode):
    """Torch mode that makes rows beyond a table NaN, where vmap would read a neighbour's.

    Operators of ``torch.ops`` are refused: their rules of vmap check no more, and there are many.

    vmap lays the tables of several examples or clients one after the other, and adds an offset. So
    an example whose index is out of range has no gradient, and counts as zero.
    """

    is_asked = False
    """Whether a table is asked just now in the way that is checked here."""
    refused: object = None
    """The operator that was, wherever a script may hide the error."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _UNBOUND or isinstance(func, OpOverload | OpOverloadPacket):
            self.refused = getattr(func, "__name__", "") if func in _UNBOUND else func
            raise _met_by(self.refused)
        rules: dict[Any, Any] = {
            nn.functional.embedding: self._own_rows,
            nn.functional.linear: _wide_linear,
        }
        return rules.get(func, func)(*args, **(kwargs or {}))

    def _own_rows(self, input: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> Tensor:  # noqa: A002  # torch's name
        """`torch.nn.functional.embedding`."""
        size = weight.shape[0]
        self.is_asked = True
        rows = nn.functional.embedding(input.clamp(0, size - 1), weight, *args, **kwargs)
        self.is_asked = False
        is_row = (input >= 0) & (input < size)
        return torch.where(is_row.unsqueeze(-1), rows, torch.nan)


def _wide_linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:  # noqa: A002  # torch's name
    """`torch.nn.functional.linear`, with zeros beside rows of odd widths.

    How such a row is added up depends on where it begins in memory, so on its place in a batch.
    """
    missing = [width % 2 for width in (weight.shape[1], weight.shape[0])]
    if not any(missing):
        return nn.functional.linear(input, weight, bias)
    wide = nn.functional.pad(weight, (0, missing[0], 0, missing[1]))
    made = nn.functional.linear(nn.functional.pad(input, (0, missing[0])), wide)
    made = made[..., : weight.shape[0]]
    return made if bias is None else made + bias


class _Unchecked(TorchDispatchMode):
    """Notes what ends in an operator that vmap does not check, however it was called.

    A script may run its operators where `OwnRows` does not see them.
    """

    def __init__(self, own_rows: OwnRows) -> None:
        super().__init__()
        self._own_rows = own_rows

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        unchecked = {"embedding", "index_fill", "embedding_backward", "embedding_dense_backward"}
        if name.rstrip("_") in unchecked and not (name == "embedding" and self._own_rows.is_asked):
            self._own_rows.refused = name
        return func(*args, **(kwargs or {}))


# -- what a forward pass shows -------------------------------------------------------------------
def check_forward(model: nn.Module, shape: Shape, dtype: torch.dtype) -> None:
    """Refuses a forward pass that changes a buffer or lets one example move another.

    Args:
        model: is not changed.
        shape: of one example.
        dtype: of its entries.

    Raises:
        NotPrivate: naming what moves.
    """
    copy = deepcopy(model)
    generator = torch.Generator().manual_seed(0)
    is_real = dtype.is_floating_point
    batch = torch.zeros(_EXAMPLES, *shape, dtype=dtype)
    last = torch.ones(shape, dtype=dtype)
    if is_real:
        batch, last = (standard_normal(t.shape, generator).to(dtype) for t in (batch, last))
    own_rows = OwnRows()
    try:
        with torch.no_grad(), own_rows, _Unchecked(own_rows):
            before = _rows(copy(batch))
            slack = 1e4 * torch.finfo(before.dtype).eps * (1 + before.abs().max())
            for size in (1, 100) if is_real else (1,):
                after = _rows(copy(torch.cat([batch[:-1], size * last.unsqueeze(0)])))
                gap = (before - after).abs().max()
                if not bool(gap <= slack):
                    raise NotPrivate(
                        "model: moving one example of a batch moves another's output by "
                        f"{float(gap):.3g}; each example must be computed by itself (no statistics "
                        "over the batch)"
                    )
    except NotPrivate:
        raise
    except Exception as error:  # forward is code of somebody's own
        if own_rows.refused is None:
            raise NotPrivate(
                f"model: forward fails on a batch of shape {(_EXAMPLES, *shape)}: "
                f"{described(error)}"
            ) from None
    if own_rows.refused is not None:
        raise _met_by(own_rows.refused)
    kept = dict(model.named_buffers())
    for name, after in copy.named_buffers():
        if name not in kept or not torch.equal(kept[name], after):
            raise NotPrivate(
                f"model: buffer {name!r} changes in forward, so it would remember examples "
                "without a clip; keep buffers constant"
            )


def _rows(output: object) -> Tensor:
    """The outputs of the examples that do not move."""
    if not isinstance(output, Tensor) or output.shape[:1] != (_EXAMPLES,):
        shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise NotPrivate(
            f"model: expected a tensor with one row an example, {_EXAMPLES} rows, got {shape}"
        )
    return output[:-1]


# -- where its parameters live --------------------------------------------------------------------
def _manifold_of(parameter: Tensor, name: str) -> Manifold:
    """The manifold of this library that a parameter lives on, of as many dimensions as it has.

    Raises:
        ValueError: naming the parameter, its manifold and those that are known, or its scale.
    """
    if not isinstance(parameter, geoopt.ManifoldParameter):
        return Euclidean(max(parameter.dim(), 1))
    try:
        base = counterpart(parameter.manifold, parameter.dim())
    except (TypeError, ValueError) as error:
        raise ValueError(f"model: parameter {name!r}: {error}") from None
    while base.ndim < parameter.dim():
        base = Power(base)
    return base


def laid_out(model: nn.Module) -> Product:
    """Returns the trained parameters by their first names, each with its manifold.

    Raises:
        NotPrivate: a layer mixes examples or keeps them.
        ValueError: nothing is trained, or a parameter is off its manifold or on an unknown one.
    """
    for name, layer in model.named_modules():
        if isinstance(layer, _InstanceNorm) and not layer.track_running_stats:
            continue
        if isinstance(layer, _DropoutNd) and not (layer.training and layer.p):
            continue
        for kind, advice in _ADVICE:
            if isinstance(layer, kind):
                where = f"{name!r} " if name else ""
                raise NotPrivate(f"model: layer {where}({type(layer).__name__}) {advice}")
    factors = dict[str, tuple[Manifold, Shape]]()
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        manifold = _manifold_of(parameter, name)
        point = as_point(parameter)
        if not manifold.check_point_on_manifold(point, atol=1e-4, rtol=1e-4):
            raise ValueError(
                f"model: parameter {name!r} is no point of {manifold.name}; project it in the "
                "constructor (ManifoldParameter.proj_())"
            )
        factors[name] = (manifold, tuple(point.shape))
    if not factors:
        raise ValueError(
            "model: expected a parameter with requires_grad, got none; unfreeze what is trained"
        )
    return Product(factors)


def as_point(parameter: Tensor) -> Tensor:
    """Returns a parameter in float64; a single number becomes a vector of one entry."""
    return torch.atleast_1d(parameter.detach().as_subclass(Tensor).to(torch.float64))
