r"""Gradients of each example of a module, by parameter: their norms and sums without the gradients.

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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Protocol

import torch
from torch import Tensor

from manifed.manifolds.base import Manifold
from manifed.manifolds.euclidean import Euclidean
from manifed.manifolds.linalg import identity_like
from manifed.manifolds.product import Power
from manifed.manifolds.stiefel import Stiefel
from manifed.problems.problem import Vectors
from manifed.problems.rows import ROUNDING_SHARE, SHORTEST, row_lengths

_EPS = 2.0**-52


@dataclass(frozen=True)
class Groups:
    """Parameters that are clipped together."""

    of: tuple[int, ...]
    """The group of each factor."""
    shares: tuple[float, ...]
    """Of the joint bound; the sum of their squares is at most one."""

    @staticmethod
    def by_prefix(names: Sequence[str], shares: Mapping[str, float]) -> "Groups":
        """Parameters by the longest prefix of their names; shares in any unit.

        Raises:
            ValueError: a share that is not above zero, a parameter of no group, an empty group.
        """
        if bad := {prefix: share for prefix, share in shares.items() if not 0 < share < math.inf}:
            raise ValueError(f"clip_shares: expected numbers above 0, got {bad}")
        prefixes = list(shares)
        found: list[int] = []
        for name in names:
            fitting = [prefix for prefix in prefixes if name.startswith(prefix)]
            if not fitting:
                raise ValueError(
                    f"clip_shares: no group has parameter {name!r}; name it, or all others by ''"
                )
            found.append(prefixes.index(max(fitting, key=len)))
        if empty := [prefix for k, prefix in enumerate(prefixes) if k not in found]:
            raise ValueError(f"clip_shares: no parameter of {sorted(names)} is in {empty}")
        # shortened by more than the roundings of the division and of the squares' sum
        total = math.hypot(*shares.values()) * (1 + 1e-12)
        return Groups(tuple(found), tuple(share / total for share in shares.values()))


class Part(Protocol):
    """The gradients with respect to one parameter."""

    @property
    def norms(self) -> Tensor:
        """Upper bounds of the metric norms of the Riemannian gradients, (..., n)."""
        ...

    def sum(self, weights: Tensor) -> Tensor:
        """Their weighted sum, flattened, (..., size of the parameter)."""
        ...


@dataclass(frozen=True)
class ModuleGradients:
    """grad f_j(x) on the product of the parameters' manifolds, one part a factor, in order."""

    parts: Sequence[Part]
    groups: Groups | None = None
    """Of parts that are clipped together; None: all are."""

    @property
    def norms(self) -> Tensor:
        """The roots of the sums of the parts' squares, (..., n); infinite where one overflows.

        With groups (groups, ..., n), each over the group's share: where that is clipped to C the
        group is clipped to C times its share, and all groups together to C.
        """
        lengths = [part.norms for part in self.parts]
        if self.groups is None:
            return _joint(lengths)
        return torch.stack(
            [
                _joint(
                    [length for length, g in zip(lengths, self.groups.of, strict=True) if g == k]
                )
                / share
                for k, share in enumerate(self.groups.shares)
            ]
        )

    def sum(self, weights: Tensor) -> Tensor:
        """sum_j weights_j grad f_j(x), shape (..., P); weights (..., n) or (groups, ..., n)."""
        of = [0] * len(self.parts) if self.groups is None else self.groups.of
        each = weights.unsqueeze(0) if self.groups is None else weights
        return torch.cat([part.sum(each[k]) for part, k in zip(self.parts, of, strict=True)], -1)


def _joint(lengths: list[Tensor]) -> Tensor:
    return torch.stack(lengths).square().sum(0).sqrt()


@dataclass(frozen=True)
class Plain:
    """Gradients that were computed one by one."""

    vectors: Vectors

    @property
    def norms(self) -> Tensor:
        """Their own, at least `SHORTEST`, so that its square is a number."""
        return self.vectors.norms.clamp_min(SHORTEST)

    def sum(self, weights: Tensor) -> Tensor:
        """Of these very vectors."""
        return self.vectors.sum(weights).flatten(-self.vectors.manifold.ndim)


@dataclass(frozen=True)
class Whole:
    """Gradients in Euclidean space, flat: ``egrads`` (..., n, size)."""

    egrads: Tensor

    @property
    def norms(self) -> Tensor:
        """Their lengths."""
        return row_lengths(self.egrads)

    def sum(self, weights: Tensor) -> Tensor:
        """One product."""
        return (weights.unsqueeze(-2) @ self.egrads).squeeze(-2)


@dataclass(frozen=True)
class Outer:
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
        height, width = row_lengths(self.left.flatten(-2)), row_lengths(self.right.flatten(-2))
        longest, is_flat = height * width, isinstance(self.manifold, Euclidean)
        if is_flat and self.left.shape[-2] == 1:  # |G| = |l| |r|
            return longest
        # over their lengths, so that squares neither overflow nor vanish
        rows, columns = self.left / height[..., None, None], self.right / width[..., None, None]
        square = ((rows @ rows.mT) * (columns @ columns.mT)).sum((-1, -2))
        if not is_flat:
            square = square + self._normal_square(rows, columns)
        return longest * (square + 32 * _EPS).clamp_min(ROUNDING_SHARE**2).sqrt()

    def _normal_square(self, rows: Tensor, columns: Tensor) -> Tensor:
        """|grad|^2 - |G|^2 from M = X^T G, and what a drifted X may add."""
        assert isinstance(self.manifold, Stiefel)
        m = (rows @ self.x.unsqueeze(-3)).mT @ columns
        full, cross = m.square().sum((-1, -2)), (m * m.mT).sum((-1, -2))
        gram = self.x.mT @ self.x
        drift = torch.linalg.matrix_norm(gram - identity_like(gram)).unsqueeze(-1)
        taken = cross if self.manifold.metric == "canonical" else (full + cross) / 2
        return 4 * drift * (1 + drift) * full - taken

    def sum(self, weights: Tensor) -> Tensor:
        """Two products: of all l with all r, and the projection at x, which is linear."""
        weighted = (weights[..., None, None] * self.left).flatten(-3, -2)
        total = (weighted.mT @ self.right.flatten(-3, -2)).reshape(self._shape(weights))
        return self.manifold.egrad2rgrad(self.x, total).flatten(-self.manifold.ndim)

    def _shape(self, weights: Tensor) -> tuple[int, ...]:
        return (*weights.shape[:-1], *self.x.shape[-self.manifold.ndim :])


def _is_cheaper_whole(left: Tensor, right: Tensor) -> bool:
    """Whether to make G, of p x q, from T positions: where products of positions cost more.

    And where G is not much more to hold than what it is made of.
    """
    positions, p, q = left.shape[-2], left.shape[-1], right.shape[-1]
    read = positions * (p + q)
    return positions > 1 and p * q <= 2 * read and positions * read > 8 * p * q


@dataclass(frozen=True)
class Table:
    """Gradients with respect to a table of V points, of which an example reads T."""

    base: Manifold
    """Of one row."""
    x: Tensor
    """(..., V, d)."""
    index: Tensor
    """Rows that are read, (..., n, T)."""
    errors: Tensor
    """Gradients with respect to what was read, (..., n, T, d)."""

    @cached_property
    def _points(self) -> Tensor:
        """The rows that are read, (..., n, T, d)."""
        lead, (size, width) = self.x.shape[:-2], self.x.shape[-2:]
        index = self.index.expand(*lead, *self.index.shape[-2:]).reshape(prod(lead), -1)
        offset = size * torch.arange(prod(lead), device=index.device).unsqueeze(-1)
        return self.x.reshape(-1, width)[index + offset].reshape(self.errors.shape)

    @cached_property
    def _vectors(self) -> Tensor:
        """Riemannian gradients at those rows; of a row read twice, their sum at the first."""
        rgrads = self.base.egrad2rgrad(self._points, self.errors)
        is_same = self.index.unsqueeze(-1) == self.index.unsqueeze(-2)
        is_first = ~is_same.tril(-1).any(-1, keepdim=True)
        return (is_same & is_first).to(rgrads) @ rgrads

    @property
    def norms(self) -> Tensor:
        """Of the rows together."""
        rows = self.base.norm_bound(self._points, self._vectors)
        return row_lengths(rows)

    def sum(self, weights: Tensor) -> Tensor:
        """Each weighted vector added to its row."""
        weighted = weights[..., None, None] * self._vectors
        lead, (size, width) = weighted.shape[:-3], self.x.shape[-2:]
        offset = size * torch.arange(prod(lead), device=weighted.device).unsqueeze(-1)
        index = self.index.expand(weighted.shape[:-1]).reshape(prod(lead), -1) + offset
        total = weighted.new_zeros(prod(lead) * size, width)
        total.index_add_(0, index.flatten(), weighted.reshape(-1, width))
        return total.reshape(*lead, size * width)


def outer(
    manifold: Manifold, x: Tensor, left: Tensor, right: Tensor, shape: tuple[int, ...]
) -> Part:
    """Gradients sum_t l_jt r_jt^T (..., n, T, *), of a parameter of that shape."""
    is_known = type(manifold) in (Euclidean, Stiefel)  # a subclass may have a metric of its own
    if not is_known or _is_cheaper_whole(left, right):
        egrads = (left.mT @ right).to(x.dtype)  # in the type of the layer; what it is, is summed
        if type(manifold) is Euclidean:
            return Whole(egrads.flatten(-2))
        return plain(manifold, x, egrads.unflatten(-1, shape[1:]))
    return Outer(manifold, x, left.to(x.dtype), right.to(x.dtype))


def plain(manifold: Manifold, x: Tensor, egrads: Tensor) -> Part:
    """Euclidean gradients (..., n, *point), one by one."""
    at = x.unsqueeze(-1 - manifold.ndim).expand(egrads.shape)
    return Plain(Vectors(manifold, x, manifold.egrad2rgrad(at, egrads)))


def is_table(manifold: Manifold) -> bool:
    """Whether its rows are points by themselves, as `table` takes them to be."""
    return type(manifold) in (Euclidean, Power)


def table(manifold: Manifold, x: Tensor, index: Tensor, errors: Tensor) -> Part:
    """Gradients with respect to rows of a table; NaN where there is no such row."""
    size = x.shape[-2]
    is_row = ((index >= 0) & (index < size)).unsqueeze(-1)
    index, errors = index.clamp(0, size - 1), torch.where(is_row, errors, math.nan)
    base = manifold.base if isinstance(manifold, Power) else Euclidean(1)
    return Table(base, x, index, errors)
