"""Other ways to draw the isotropic tangent Gaussian N_x(0, stddev^2), for comparison.

Utpala, Han, Jawanpuria, Mishra: Improved Differentially Private Riemannian Optimization (2023);
Han, Mishra, Jawanpuria, Gao: Differentially Private Riemannian Optimization (2022, the MCMC
route). Both sample the law of ``manifold.tangent_gaussian`` (Algorithm 2 of the former: i.i.d.
normals through an isometry); they differ in cost and in what can go wrong:

    Basis       Algorithm 1: an explicit basis by metric Gram-Schmidt; exact, O(dim^2) memory
    Metropolis  a random-walk chain; only asymptotically exact

Randomness is one function ``normals(shape)`` of iid standard normals (a keyed stream, or a
``torch.Generator``); uniforms for accept/reject are its normal CDF.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from scipy.linalg.lapack import dpstrf  # pyright: ignore[reportAttributeAccessIssue]  # untyped
from torch import Tensor

from manifed.manifolds.base import Manifold

Normals = Callable[[tuple[int, ...]], Tensor]
"""Maps a shape to that many iid N(0, 1), float64; consecutive calls are independent."""


class StuckChainError(RuntimeError):
    """A Markov chain moved too rarely: its state is no sample of the target law."""


def normals_from(generator: torch.Generator) -> Normals:
    """Standard normals drawn from ``generator``."""
    return lambda shape: torch.randn(shape, generator=generator, dtype=torch.float64)


@dataclass(frozen=True)
class Basis:
    """Algorithm 1 of Utpala et al.: normals times an explicit metric-orthonormal basis."""

    def sample(self, manifold: Manifold, x: Tensor, stddev: float, normals: Normals) -> Tensor:
        """One draw of N_x(0, stddev^2) per point of x (..., *point), same shape."""
        lead, shape = _split_shape(manifold, x)
        points = x.reshape(-1, *shape)
        bases = torch.stack([metric_basis(manifold, point) for point in points])  # line 1
        coefficients = normals((points.shape[0], bases.shape[1]))  # line 2
        draws = torch.einsum("bd,bdp->bp", coefficients, bases.flatten(2))  # line 3
        return stddev * draws.reshape(*lead, *shape)


@dataclass(frozen=True)
class Metropolis:
    """Random-walk Metropolis on T_xM, target exp(-|v|_x^2 / (2 stddev^2)), one chain per point.

    A proposal adds ``step * P_x(z)`` with ambient normals z. With ``step=1.0`` this is the
    published baseline, whose chain may never leave 0: it then returns *no noise*. ``"adaptive"``
    tunes the step in the first half of burn-in (Robbins-Monro on its logarithm, per point), then
    freezes it.
    """

    burn_in: int = 10_000
    thinning: int = 10
    step: float | Literal["adaptive"] = "adaptive"
    target_acceptance_rate: float = 0.234
    min_acceptance_rate: float = 0.01

    def sample(self, manifold: Manifold, x: Tensor, stddev: float, normals: Normals) -> Tensor:
        """The last state of one chain per point of x (..., *point), same shape.

        Raises:
            StuckChainError: a chain accepted fewer than ``min_acceptance_rate`` of its moves;
                its state must not be released as noise.
        """
        lead, shape = _split_shape(manifold, x)
        state = torch.zeros_like(x)
        energy = x.new_zeros(lead)
        moves = x.new_zeros(lead)
        log_step = moves + math.log(self._first_step(manifold.dim(shape), stddev))
        for count in range(1, self.burn_in + self.thinning + 1):
            ambient = manifold.expand_scalar(log_step.exp()) * normals((*lead, *shape))
            proposal = state + manifold.proju(x, ambient)
            next_energy = manifold.inner(x, proposal) / (2 * stddev**2)
            chance = torch.special.ndtr(normals(lead))
            is_accepted = chance.log() < energy - next_energy
            state = torch.where(manifold.expand_scalar(is_accepted), proposal, state)
            energy = torch.where(is_accepted, next_energy, energy)
            if self.step == "adaptive" and 2 * count <= self.burn_in:
                surprise = is_accepted.to(x.dtype) - self.target_acceptance_rate
                log_step = log_step + surprise / count**0.6
            moves = moves + is_accepted
        self._check(moves, stddev)
        return state

    def _first_step(self, dim: int, stddev: float) -> float:
        return 2.38 * stddev / dim**0.5 if self.step == "adaptive" else self.step

    def _check(self, moves: Tensor, stddev: float) -> None:
        steps = self.burn_in + self.thinning
        rate = float(moves.min()) / steps
        if rate < self.min_acceptance_rate:
            raise StuckChainError(
                f"Expected acceptance_rate >= {self.min_acceptance_rate}, got {rate:.2g} over "
                f"{steps} steps (step={self.step}, stddev={stddev}): the chain has not mixed and "
                "its state is not Gaussian noise; use step='adaptive' or tangent_gaussian"
            )


def metric_basis(manifold: Manifold, x: Tensor) -> Tensor:
    """A metric-orthonormal basis of T_xM at one point, shape ``(dim, *point)``.

    Blocked Gram-Schmidt, twice, on the projections of the ambient unit vectors: the Gram matrix,
    its pivoted Cholesky factor (which finds ``dim`` independent ones) and a triangular solve.

    Raises:
        ValueError: the projections do not span ``dim`` dimensions to rounding.
    """
    shape = tuple(x.shape)
    count = math.prod(x.shape)
    dim = manifold.dim(tuple(x.shape))
    units = torch.eye(count, dtype=x.dtype, device=x.device).reshape(count, *shape)
    spanning = manifold.proju(x, units).flatten(1)
    gram = _gram(manifold, x, spanning)
    factor, pivots, rank, _ = dpstrf(gram.numpy(), lower=1)
    if rank < dim:
        raise ValueError(f"Expected rank >= {dim} of the projected unit vectors, got {rank}")
    chosen = spanning[torch.from_numpy(pivots[:dim] - 1).long()]
    first = torch.from_numpy(factor[:dim, :dim].copy()).tril()
    basis = torch.linalg.solve_triangular(first, chosen, upper=False)
    second = torch.linalg.cholesky(_gram(manifold, x, basis))
    return torch.linalg.solve_triangular(second, basis, upper=False).reshape(dim, *shape)


def _gram(manifold: Manifold, x: Tensor, vectors: Tensor) -> Tensor:
    """All inner products at x of ``vectors`` (n, entries), shape (n, n).

    The metric is bilinear: lowering every vector once (the gradient of the inner product by its
    first argument) leaves one matrix product.
    """
    tangents = vectors.reshape(-1, *x.shape)
    first = torch.zeros_like(tangents).requires_grad_()
    with torch.enable_grad():
        total = manifold.inner(x, first, tangents).sum()
    lowered = torch.autograd.grad(total, first)[0].flatten(1)
    gram = vectors @ lowered.mT
    return (gram + gram.mT) / 2


def _split_shape(manifold: Manifold, x: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(leading dimensions, shape of one point)."""
    return tuple(x.shape[: -manifold.ndim]), tuple(x.shape[-manifold.ndim :])
