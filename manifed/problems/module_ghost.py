r"""Norms and weighted sums of a module's per-example gradients, without the gradients.

A linear layer of input r and output z has dL/dW = (dL/dz) r^T: both are known after one pass forth
and back that computes no gradient of W (Goodfellow, "Efficient per-example gradient computations",
2015). dL/dz is found by adding a zero to z and differentiating by it, which needs no hook into
autograd and goes through `torch.func`, example by example: examples cannot meet. `Reading` finds
where such layers are computed, whatever class they are of.

Of a parameter whose gradient is G_j = sum_t l_jt r_jt^T over T positions (one for a plain linear
layer), the sum over examples is one product, and (Li, Tramèr, Liang, Hashimoto, "Large Language
Models Can Be Strong Differentially Private Learners", 2022, (4))

    |G_j|^2 = sum_{t, s} <l_jt, l_js> <r_jt, r_js>.

On a Stiefel manifold the metric norm of the Riemannian gradient needs M_j = X^T G_j, of k x k, too:

    |G - X sym(M)|^2 = |G|^2 - |sym(M)|^2        (Euclidean metric)
    |G - X G^T X|_c^2 = |G|^2 - <M, M^T>         (canonical metric: <grad, grad>_c = <G, grad>)

where X^T X = I; what a drifted X may add is added. All of it is float64, whatever type the layers
computed in: the numbers l and r are what is bounded, exactly as they are.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from manifed.manifolds.base import Manifold
from manifed.manifolds.euclidean import Euclidean
from manifed.manifolds.linalg import Tensors, identity_like
from manifed.manifolds.product import Factor, Power, Product
from manifed.manifolds.stiefel import Stiefel
from manifed.problems.module_checks import OwnRows
from manifed.problems.problem import Gradients, Vectors
from manifed.problems.rows import ROUNDING_SHARE, SHORTEST, row_lengths

# -- what layers read ----------------------------------------------------------------------------
_Kind = Literal["linear", "transposed", "table", "convolution", "rows"]
"""How a parameter's gradient follows: sum_t z_t r_t^T, its transpose, rows of a table, that of
patches, or sum_t z_t."""


class Call(NamedTuple):
    """One call of a function that reads a parameter, for one example."""

    kinds: Mapping[str, _Kind]
    """What kind of gradient each parameter of the call has."""
    input: Tensor
    output: torch.Size
    unfold: nn.Unfold | None
    """What gives the patches of a convolution."""

    @property
    def numbers(self) -> int:
        """Returns how many numbers the call reads and gives, with a convolution's patches."""
        read = self.input.numel()
        if self.unfold is not None:  # channels, entries of a patch and patches
            patch: Any = self.unfold.kernel_size
            read = self.input.shape[-3] * math.prod(patch) * self.output[-2:].numel()
        return read + self.output.numel()


class Read(NamedTuple):
    """The inputs of calls, dL/dz, and other parameters' gradients, for all examples (..., n, *)."""

    inputs: list[Tensor]
    errors: list[Tensor]
    plain: dict[str, Tensor]


_Given = tuple[Tensor, Mapping[_Kind, Tensor | None], nn.Unfold | None]
"""Input, parameters by how their gradients follow, and patches."""


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> _Given | None:  # noqa: A002  # torch's name
    return (input, {"linear": weight, "rows": bias}, None) if input.dim() > 1 else None


def _convolution(
    input: Tensor,  # noqa: A002  # torch's name
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> _Given | None:
    if groups > 1 or isinstance(padding, str) or input.dim() < 4:
        return None
    unfold = nn.Unfold(tuple(weight.shape[2:]), dilation, padding, stride)
    return input, {"convolution": weight, "rows": bias}, unfold


def _table(
    input: Tensor,  # noqa: A002  # torch's name
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> _Given | None:
    del norm_type, sparse
    is_plain = padding_idx is None and max_norm is None and not scale_grad_by_freq
    return (input, {"table": weight}, None) if is_plain and input.dim() else None


_READ: Mapping[Any, Callable[..., _Given | None]] = {
    nn.functional.linear: _linear,
    nn.functional.conv2d: _convolution,
    nn.functional.embedding: _table,
}
"""Functions that are read; None where the arguments are others than those of a layer."""


class Reading(OwnRows):
    """Torch mode that records the calls to which parameters are given while a model computes."""

    def __init__(self, named: Tensors, zeros: Sequence[Tensor] | None = None) -> None:
        """``zeros`` are added to what the calls give, in order; None: nothing is."""
        super().__init__()
        self.calls: list[Call] = []
        self.outside: set[str] = set()
        """Parameters from which something else is computed."""
        self._zeros = zeros
        self._known = {id(t): (name, t, False) for name, t in named.items()}  # and transposes

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = super().__torch_function__(func, types, args, kwargs)
        given = {id(one) for one in tree_leaves((args, kwargs))} & set(self._known)
        leaves: list[Any] = tree_leaves(made)  # None where a tensor is written to
        if not given or not any(one is None or isinstance(one, Tensor) for one in leaves):
            return made
        if func == Tensor.mT.__get__:  # pyright: ignore[reportAttributeAccessIssue]
            name, _, is_turned = self._known[given.pop()]
            self._known[id(made)] = (name, made, not is_turned)
            return made
        kinds: dict[str, _Kind] = {}
        found = _READ[func](*args, **(kwargs or {})) if func in _READ else None
        if found is not None:
            for kind, tensor in found[1].items():
                name, _, is_turned = self._known.get(id(tensor), ("", None, False))
                if name and not (is_turned and kind != "linear"):
                    kinds[name] = "transposed" if is_turned else kind
        self.outside |= {self._known[one][0] for one in given} - set(kinds)
        if found is None or not kinds:
            return made
        self.calls.append(Call(kinds, found[0], made.shape, found[2]))
        return made if self._zeros is None else made + self._zeros[len(self.calls) - 1]

    def readable(self, manifold: Product) -> list[Call]:
        """Returns the calls whose parameters' gradients follow from those calls alone."""
        first: dict[str, _Kind] = {}
        others = set(self.outside)
        for call in self.calls:
            others |= {n for n, kind in call.kinds.items() if first.setdefault(n, kind) != kind}
        for factor in manifold.factors:  # of a table each row is a point
            is_flat = type(factor.manifold) in (Euclidean, Power)
            if first.get(factor.name) == "table" and not is_flat:
                others.add(factor.name)
        return without(self.calls, others)


def without(calls: Iterable[Call], names: set[str]) -> list[Call]:
    """Returns the calls that are left when these parameters are differentiated directly."""
    few = [
        call._replace(kinds={n: kind for n, kind in call.kinds.items() if n not in names})
        for call in calls
    ]
    return [call for call in few if call.kinds]


def parts_of(manifold: Product, x: Tensor, calls: Sequence[Call], read: Read) -> list[Gradients]:
    """Makes the gradients at x (..., P) from what was read, one part a factor."""
    x = x.detach()
    points = manifold.unpack(x)
    lead = x.dim()  # (..., n) has as many dimensions as (..., P)
    return [_part(f, points[f.name], calls, read, lead) for f in manifold.factors]


def _part(factor: Factor, x: Tensor, calls: Sequence[Call], read: Read, lead: int) -> Gradients:
    if factor.name in read.plain:
        return _plain(factor, x, read.plain[factor.name], lead)
    kind: _Kind = "rows"
    inputs = list[Tensor]()
    errors = list[Tensor]()
    for call, seen, error in zip(calls, read.inputs, read.errors, strict=True):
        if factor.name not in call.kinds:
            continue
        kind = call.kinds[factor.name]
        if call.unfold is not None:  # a linear layer of patches
            error = error.flatten(-2).mT  # noqa: PLW2901
            if kind == "convolution":
                met = call.unfold(seen.flatten(0, lead))
                seen = met.mT.unflatten(0, seen.shape[: lead + 1])  # noqa: PLW2901
        errors.append(error.flatten(lead, -2))
        inputs.append(seen.long().flatten(lead) if kind == "table" else seen.flatten(lead, -2))
    manifold = factor.manifold
    left = _joined(errors)
    if kind == "rows":
        return _plain(factor, x, left.sum(-2), lead)
    if kind == "table":
        base = manifold.base if isinstance(manifold, Power) else Euclidean(1)
        index = torch.cat(inputs, -1).clamp(0, x.shape[-2] - 1)
        return _Table(base, x, index, left.to(x.dtype))
    right = _joined(inputs)
    if kind == "transposed":
        left, right = right, left
    # G, of p x q, is made where products of its T positions cost more, and it is not much more to
    # hold than what it is made of; a subclass may have a metric of its own
    positions = left.shape[-2]
    size = left.shape[-1] * right.shape[-1]
    seen = positions * (left.shape[-1] + right.shape[-1])
    is_whole = positions > 1 and size <= 2 * seen and positions * seen > 8 * size
    if type(manifold) in (Euclidean, Stiefel) and not is_whole:
        return _Outer(manifold, x, left.to(x.dtype), right.to(x.dtype))
    egrads = (left.mT @ right).to(x.dtype)  # in the type of the layer; what it is, is summed
    if type(manifold) is Euclidean:  # as one position each
        flat = egrads.flatten(-2).unsqueeze(-2)
        return _Outer(manifold, x, torch.ones_like(flat[..., :1]), flat)
    return _plain(factor, x, egrads, lead)


def _joined(tensors: list[Tensor]) -> Tensor:
    """Along the positions."""
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors, -2)


def _plain(factor: Factor, x: Tensor, egrads: Tensor, lead: int) -> "_Plain":
    """Euclidean gradients (..., n, *), one by one."""
    manifold = factor.manifold
    egrads = egrads.to(x.dtype).reshape(*egrads.shape[:lead], *factor.shape)
    at = x.unsqueeze(-1 - manifold.ndim).expand(egrads.shape)
    return _Plain(manifold, x, manifold.egrad2rgrad(at, egrads))


# -- gradients with respect to one parameter -----------------------------------------------------
class _Plain(Vectors):
    """Gradients that were computed one by one."""

    @property
    def norms(self) -> Tensor:
        """Their own, at least `SHORTEST`, so that its square is a number."""
        return super().norms.clamp_min(SHORTEST)

    def sum(self, weights: Tensor) -> Tensor:
        """The sum of these very vectors."""
        return super().sum(weights).flatten(-self.manifold.ndim)


class _Outer(NamedTuple):
    """Gradients G_j = sum_t l_jt r_jt^T in Euclidean space or on a Stiefel manifold, never made."""

    manifold: Manifold
    x: Tensor
    """(..., *point)."""
    left: Tensor
    """l, (..., n, T, p)."""
    right: Tensor
    """r, (..., n, T, q)."""

    @property
    def norms(self) -> Tensor:
        """Upper bounds; at least a share of |l| |r|, beside which a sum may round."""
        height = row_lengths(self.left.flatten(-2))
        width = row_lengths(self.right.flatten(-2))
        longest = height * width
        is_flat = isinstance(self.manifold, Euclidean)
        if is_flat and self.left.shape[-2] == 1:  # |G| = |l| |r|
            return longest
        # over their lengths, so that squares neither overflow nor vanish
        rows = self.left / height[..., None, None]
        columns = self.right / width[..., None, None]
        square = ((rows @ rows.mT) * (columns @ columns.mT)).sum((-1, -2))
        if not is_flat:
            square = square + self._normal_square(rows, columns)
        return longest * (square + 2.0**-47).clamp_min(ROUNDING_SHARE**2).sqrt()

    def _normal_square(self, rows: Tensor, columns: Tensor) -> Tensor:
        """|grad|^2 - |G|^2 from M = X^T G, and what a drifted X may add."""
        assert isinstance(self.manifold, Stiefel)
        m = (rows @ self.x.unsqueeze(-3)).mT @ columns
        full = m.square().sum((-1, -2))
        cross = (m * m.mT).sum((-1, -2))
        gram = self.x.mT @ self.x
        drift = torch.linalg.matrix_norm(gram - identity_like(gram)).unsqueeze(-1)
        taken = cross if self.manifold.metric == "canonical" else (full + cross) / 2
        return 4 * drift * (1 + drift) * full - taken

    def sum(self, weights: Tensor) -> Tensor:
        """Two products: of all l with all r, and the projection at x, which is linear."""
        ndim = self.manifold.ndim
        weighted = (weights[..., None, None] * self.left).flatten(-3, -2)
        total = weighted.mT @ self.right.flatten(-3, -2)
        total = total.reshape(*weights.shape[:-1], *self.x.shape[-ndim:])
        return self.manifold.egrad2rgrad(self.x, total).flatten(-ndim)


@dataclass(frozen=True)
class _Table:
    """Gradients with respect to a table of V points, of which an example reads T."""

    base: Manifold
    """The manifold of one row."""
    x: Tensor
    """(..., V, d)."""
    index: Tensor
    """Rows that are read, (..., n, T)."""
    errors: Tensor
    """Gradients with respect to what was read, (..., n, T, d)."""

    @cached_property
    def _points(self) -> Tensor:
        """The rows that are read, (..., n, T, d)."""
        return torch.take_along_dim(self.x.unsqueeze(-3), self.index.unsqueeze(-1), -2)

    @cached_property
    def _vectors(self) -> Tensor:
        """Riemannian gradients at those rows; of a row read twice, their sum at the first."""
        rgrads = self.base.egrad2rgrad(self._points, self.errors)
        is_same = self.index.unsqueeze(-1) == self.index.unsqueeze(-2)
        is_first = ~is_same.tril(-1).any(-1, keepdim=True)
        return (is_same & is_first).to(rgrads) @ rgrads

    @property
    def norms(self) -> Tensor:
        """The norm of all rows together."""
        rows = self.base.norm_bound(self._points, self._vectors)
        return row_lengths(rows)

    def sum(self, weights: Tensor) -> Tensor:
        """Each weighted vector added to its row."""
        weighted = (weights[..., None, None] * self._vectors).flatten(-3, -2)
        index = self.index.flatten(-2).unsqueeze(-1).expand(weighted.shape)
        total = weighted.new_zeros(*weighted.shape[:-2], *self.x.shape[-2:])
        return total.scatter_add(-2, index, weighted).flatten(-2)


# -- all parameters ------------------------------------------------------------------------------
class ModuleGradients(NamedTuple):
    """grad f_j(x) on the product of the parameters' manifolds, one part a factor, in order."""

    parts: Sequence[Gradients]

    @property
    def norms(self) -> Tensor:
        """The roots of the sums of the parts' squares, (..., n); infinite where one overflows."""
        return torch.stack([part.norms for part in self.parts]).square().sum(0).sqrt()

    def sum(self, weights: Tensor) -> Tensor:
        """sum_j weights_j grad f_j(x), shape (..., P)."""
        return torch.cat([part.sum(weights) for part in self.parts], -1)
