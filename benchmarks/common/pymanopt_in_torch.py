"""pymanopt's formulas, call for call, in torch: what a win of numpy's shorter calls is told by.

`peers.py` checks that they give pymanopt's results, and races them beside it and ours.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor


def _stiefel_projection(x: Tensor, u: Tensor) -> Tensor:
    along = x.mT @ u
    return u - x @ (0.5 * (along + along.mT))


def _svd_retraction(x: Tensor, u: Tensor) -> Tensor:
    left, _, right = torch.linalg.svd(x + u, full_matrices=False)
    return left @ right


def _stiefel_exponential(x: Tensor, u: Tensor) -> Tensor:
    along, k = x.mT @ u, x.shape[-1]
    eye = torch.eye(k, dtype=x.dtype).expand_as(along)
    block = torch.cat((torch.cat((along, -u.mT @ u), -1), torch.cat((eye, along), -1)), -2)
    b = torch.linalg.matrix_exp(block)[..., :k]
    return torch.cat((x, u), -1) @ (b @ torch.linalg.matrix_exp(-along))


def _subspace_logarithm(x: Tensor, y: Tensor) -> Tensor:
    overlap = y.mT @ x
    above = torch.linalg.solve(overlap, y.mT - overlap @ x.mT)
    left, sines, right = torch.linalg.svd(above.mT, full_matrices=False)
    return (left * torch.atan(sines).unsqueeze(-2)) @ right


def _herm(a: Tensor) -> Tensor:
    return 0.5 * (a + torch.conj(a.mT))


def _spd_product(x: Tensor, u: Tensor, v: Tensor) -> Tensor:
    left, right = torch.linalg.solve(x, u), torch.linalg.solve(x, v)
    return torch.tensordot(left, right.mT, dims=x.dim())


def _spd_retraction(x: Tensor, u: Tensor) -> Tensor:
    return _herm(x + u + u @ torch.linalg.solve(x, u) / 2)


def _spd_exponential(x: Tensor, u: Tensor) -> Tensor:
    return x @ torch.linalg.matrix_exp(torch.linalg.solve(x, u))


def _spd_logarithm(x: Tensor, y: Tensor) -> Tensor:
    factor = torch.linalg.cholesky(x)
    inverse = torch.linalg.inv(factor)
    values, basis = torch.linalg.eigh(inverse @ y @ torch.conj(inverse.mT))
    values = torch.log(values).unsqueeze(-1)
    return factor @ (basis @ (values * torch.conj(basis.mT))) @ torch.conj(factor.mT)


def _ball_exponential(x: Tensor, u: Tensor) -> Tensor:
    size = torch.linalg.vector_norm(u, dim=-1, keepdim=True)
    factor = 2 / (1 - (x * x).sum(-1, keepdim=True))
    y = u * (torch.tanh(size * factor / 2) / (size + (size == 0)))
    along = (x * y).sum(-1, keepdim=True)
    p, q = (x * x).sum(-1, keepdim=True), (y * y).sum(-1, keepdim=True)
    return (x * (1 + 2 * along + q) + y * (1 - p)) / (1 + 2 * along + p * q)


def _normalised(a: Tensor) -> Tensor:
    return a / torch.linalg.vector_norm(a, dim=0).unsqueeze(0)


def _column_exponential(x: Tensor, u: Tensor) -> Tensor:
    size = (u**2).sum(0).sqrt().unsqueeze(0)
    return x * torch.cos(size) + u * torch.sinc(size / math.pi)


FORMULAS: dict[tuple[str, str], Callable[..., Tensor]] = {
    ("Stiefel", "proju"): _stiefel_projection,
    ("Stiefel", "expmap"): _stiefel_exponential,
    ("Stiefel polar", "retr"): _svd_retraction,
    ("Grassmann", "proju"): lambda x, u: u - x @ (x.mT @ u),
    ("Grassmann", "retr"): _svd_retraction,
    ("Grassmann", "logmap"): _subspace_logarithm,
    ("SPD", "inner"): _spd_product,
    ("SPD", "retr"): _spd_retraction,
    ("SPD", "expmap"): _spd_exponential,
    ("SPD", "logmap"): _spd_logarithm,
    ("PoincareBall", "expmap"): _ball_exponential,
    ("Oblique", "retr"): lambda x, u: _normalised(x + u),
    ("Oblique", "expmap"): _column_exponential,
}
