"""What the layers of a module saw, from which the gradients of their parameters follow.

A linear layer of input a and output z has dL/dW = (dL/dz) a^T: both are known after one pass forth
and back that computes no gradient of W (Goodfellow, "Efficient per-example gradient computations",
2015). dL/dz is found by adding a zero to z and differentiating by it, which needs no hook into
autograd and goes through `torch.func`, example by example: examples cannot meet.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, TypedDict

import torch
from torch import Tensor, nn
from torch._ops import OpOverload, OpOverloadPacket
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from manifed.layers import LorentzEmbedding, OrthogonalLinear, PoincareEmbedding
from manifed.manifolds.product import Product
from manifed.problems.module_checks import NotPrivate, met_by
from manifed.problems.module_gradients import Part, outer, plain, table

Kind = Literal["linear", "transposed", "table", "convolution", "rows"]
"""How a parameter's gradient follows: sum_t z_t a_t^T, its transpose, rows of a table, that of
patches, or sum_t z_t."""

_TABLES = (nn.Embedding, PoincareEmbedding, LorentzEmbedding)


@dataclass(frozen=True)
class Watched:
    """A layer with the parameters that are read off it."""

    layer: nn.Module
    roles: Mapping[str, Kind]
    """Of each trained parameter, by its first name in the model."""


@dataclass(frozen=True)
class Call:
    """One call of a watched layer, for one example."""

    watched: Watched
    input: Tensor
    output: torch.Size
    given: int
    """Arguments by position."""

    @property
    def is_usual(self) -> bool:
        """Whether the layer was given one batch: what is read off it has positions then."""
        layer = self.watched.layer
        least = 4 if isinstance(layer, nn.Conv2d) else 1 if isinstance(layer, _TABLES) else 2
        return self.given == 1 and self.input.dim() >= least

    @property
    def numbers(self) -> tuple[int, int]:
        """How many it reads and gives, and with the patches of a convolution written out."""
        seen, made = self.input.numel(), self.output.numel()
        return seen + made, seen * prod(getattr(self.watched.layer, "kernel_size", ())) + made


class Read(TypedDict):
    """Of all examples, (..., n, *): inputs and dL/dz of calls, gradients of what is not watched."""

    inputs: list[Tensor]
    errors: list[Tensor]
    plain: dict[str, Tensor]


class Trace:
    """Listens to the layers of a model while it is computed for one example."""

    def __init__(self, model: nn.Module, trained: Sequence[str]) -> None:
        """``model`` keeps hooks that do nothing outside `listening`."""
        names = {id(p): name for name, p in model.named_parameters() if name in trained}
        self._zeros: Sequence[Tensor] | None = None
        self._calls: list[Call] | None = None
        self._depth = 0
        self.roles: dict[str, Kind] = {}
        mixed: set[str] = set()
        found: list[Watched] = []
        for layer in model.modules():
            own = layer.named_parameters(recurse=False, remove_duplicate=False)
            roles: dict[str, Kind] = {}
            for key, parameter in own:
                if (kind := _role(layer, key)) is not None and id(parameter) in names:
                    roles[names[id(parameter)]] = kind
            mixed |= {n for n, kind in roles.items() if self.roles.setdefault(n, kind) != kind}
            found.append(Watched(layer, roles))
        self.forget(mixed)
        for watched in found:
            if watched.roles:
                watched.layer.register_forward_pre_hook(self._enter)
                watched.layer.register_forward_hook(self._hook_of(watched))

    def forget(self, names: set[str]) -> None:
        """Leave these parameters to be differentiated by."""
        self.roles = {name: kind for name, kind in self.roles.items() if name not in names}

    @contextmanager
    def listening(self, zeros: Sequence[Tensor] | None = None) -> Generator[list[Call]]:
        """The calls, in order; ``zeros`` are added to their outputs (None: nothing is)."""
        self._calls, self._zeros, self._depth = [], zeros, 0
        try:
            yield self._calls
        finally:
            self._calls, self._zeros = None, None

    @contextmanager
    def looking(self, named: Mapping[str, Tensor]) -> Generator[None]:
        """Forgets parameters that a pass with these tensors leaves out, or uses outside layers.

        A watched layer that is called otherwise than with one batch counts as such a use.
        """
        outside = _Outside({id(t): n for n, t in named.items()}, lambda: self._depth == 0)
        with self.listening() as calls:
            with outside:
                yield
            self.forget(
                {name for call in calls if not call.is_usual for name in call.watched.roles}
            )
            used = {name for call in calls for name in call.watched.roles}
        self.forget(outside.found | (set(self.roles) - used))

    def _enter(self, layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        del layer, inputs
        self._depth += 1

    def _hook_of(self, watched: Watched) -> Any:
        def hook(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
            del layer
            self._depth -= 1
            calls = self._calls
            if calls is None or not any(name in self.roles for name in watched.roles):
                return None
            position = len(calls)
            calls.append(Call(watched, inputs[0] if inputs else output, output.shape, len(inputs)))
            return output if self._zeros is None else output + self._zeros[position]

        return hook


class _Outside(TorchFunctionMode):
    """Notes which tensors others are computed from, outside the layers that are watched."""

    def __init__(self, names: Mapping[int, str], is_outside: Callable[[], bool]) -> None:
        super().__init__()
        self.found: set[str] = set()
        self._names, self._is_outside = names, is_outside

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if self._is_outside() and any(isinstance(one, Tensor) for one in tree_leaves(made)):
            leaves = tree_leaves((args, kwargs))
            self.found |= {self._names[id(one)] for one in leaves if id(one) in self._names}
        return made


class OwnRows(TorchFunctionMode):
    """Rows that an index names beyond a table are NaN; vmap would read those of a neighbour.

    Operators of ``torch.ops`` are refused: their rules of vmap check no more, and there are many.

    It lays the tables of several examples or clients one after the other, and adds an offset. So
    an example whose index is out of range has no gradient, and counts as zero.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _UNBOUND or isinstance(func, OpOverload | OpOverloadPacket):
            raise NotPrivate(met_by(getattr(func, "__name__", "") if func in _UNBOUND else func))
        if func is nn.functional.embedding:
            return _own_rows(*args, **(kwargs or {}))
        if func is nn.functional.linear:
            return _wide_linear(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


_UNBOUND = (torch.embedding, torch.index_fill, Tensor.index_fill, Tensor.index_fill_)
"""Their rules of vmap check no index against an example's own rows."""


def _own_rows(input: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> Tensor:  # noqa: A002  # torch's name
    """`torch.nn.functional.embedding`."""
    size = weight.shape[0]
    rows = nn.functional.embedding(input.clamp(0, size - 1), weight, *args, **kwargs)
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


def _role(layer: nn.Module, key: str) -> Kind | None:
    """How the parameter follows from a call; None: it must be differentiated by.

    Of these very classes: a class that inherits may compute something else, and so may hooks.
    """
    if layer._forward_hooks or layer._forward_pre_hooks or "forward" in vars(layer):
        return None
    kind = type(layer)
    if kind in (nn.Linear, nn.Conv2d, OrthogonalLinear) and key == "bias":
        return "rows"
    if kind in (nn.Linear, OrthogonalLinear):
        turned = isinstance(layer, OrthogonalLinear) and layer.in_features >= layer.out_features
        return "transposed" if turned else "linear"
    if isinstance(layer, nn.Conv2d) and kind is nn.Conv2d:
        is_plain = layer.groups == 1 and layer.padding_mode == "zeros"
        return "convolution" if is_plain and not isinstance(layer.padding, str) else None
    if isinstance(layer, nn.Embedding) and kind is nn.Embedding:
        is_plain = layer.max_norm is None and layer.padding_idx is None
        return "table" if is_plain and not layer.scale_grad_by_freq else None
    return "table" if kind in _TABLES else None


def assembled(manifold: Product, x: Tensor, calls: Sequence[Call], read: Read) -> list[Part]:
    """The gradients at x (..., P), from what was read, one part a factor."""
    x = x.detach()
    points, lead = manifold.unpack(x), x.dim()  # (..., n) has as many dimensions as (..., P)
    parts = list[Part]()
    for factor in manifold.factors:
        of, point, egrads = factor.manifold, points[factor.name], read["plain"].get(factor.name)
        if egrads is None:
            kind: Kind = next(
                r[factor.name] for c in calls if factor.name in (r := c.watched.roles)
            )
            met = list[tuple[Tensor, Tensor]]()
            for call, seen, error in zip(calls, read["inputs"], read["errors"], strict=True):
                if factor.name in call.watched.roles:
                    met.append(_matched(call.watched.layer, kind, seen, error, lead))
            inputs, errors = [one for one, _ in met], _joined([error for _, error in met])
            if kind == "table":
                parts.append(table(of, point, torch.cat(inputs, -1), errors.to(x.dtype)))
                continue
            if kind != "rows":
                left, right = errors, _joined(inputs)
                if kind == "transposed":
                    left, right = right, left
                parts.append(outer(of, point, left, right, factor.shape))
                continue
            egrads = errors.sum(-2)
        egrads = egrads.to(x.dtype).reshape(*egrads.shape[:lead], *factor.shape)
        parts.append(plain(of, point, egrads))
    return parts


def _joined(tensors: list[Tensor]) -> Tensor:
    """Along the positions."""
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors, -2)


def _matched(
    layer: nn.Module, kind: Kind, seen: Tensor, error: Tensor, lead: int
) -> tuple[Tensor, Tensor]:
    """Inputs and errors, one row a position: (..., n, T, in) and (..., n, T, out)."""
    if kind == "table":
        return seen.long().flatten(lead), error.flatten(lead, -2)
    if isinstance(layer, nn.Conv2d):  # a linear layer of patches
        error = error.flatten(-2).mT
        if kind == "convolution":
            assert not isinstance(layer.padding, str)
            met = nn.Unfold(layer.kernel_size, layer.dilation, layer.padding, layer.stride)(
                seen.flatten(0, lead)
            )
            seen = met.mT.unflatten(0, seen.shape[: lead + 1])
    return seen.flatten(lead, -2), error.flatten(lead, -2)
