r"""The samplers of the DP-RSVRG paper as printed, beside their corrections, for comparison only.

Utpala, Han, Jawanpuria, Mishra: Improved Differentially Private Riemannian Optimization: Fast
Sampling and Variance Reduction (TMLR 2023), Algorithms 3-8, section 5 and Appendix A.1. Every
sampler maps a point w and iid coordinates a ~ N(0, I_d), d the dimension, to a tangent vector.
``corrected_x`` is N_w(0, 1); ``printed_x`` is what the text says, and is not:

    printed_bures_wasserstein  factor 4 instead of 2               noise doubled
    printed_log_euclidean      kernel (x-y)/(e^x-e^y) at x = l_i   not an isometry
    printed_poincare           a/4 instead of a/2                  noise HALVED: less privacy
    printed_lorentz            minus instead of plus               not even tangent
    printed_sphere             projected unit vectors as a basis   not orthonormal

Nothing of the product samples with this module (``Manifold.from_coords`` does). Symbols:
W = P diag(l) P^T, C has 1 on and 1/sqrt(2) off the diagonal, o is the Hadamard product.
"""

import math

import torch
from torch import Tensor


# -- symmetric positive definite matrices ------------------------------------------------------
def weighted_symmetric(a: Tensor) -> Tensor:
    """C o A with A symmetric of upper triangle a (..., m(m+1)/2): orthonormal at I for <,>_F."""
    m = (math.isqrt(8 * a.shape[-1] + 1) - 1) // 2
    rows, columns = torch.triu_indices(m, m)
    where = torch.zeros(m, m, dtype=torch.long)
    where[rows, columns] = where[columns, rows] = torch.arange(a.shape[-1])
    eye = torch.eye(m, dtype=a.dtype)
    return (eye + (1 - eye) / math.sqrt(2)) * a[..., where]


def _in_eigenbasis(basis: Tensor, kernel: Tensor, u: Tensor) -> Tensor:
    """P (K o P^T u P) P^T."""
    return basis @ (kernel * (basis.mT @ u @ basis)) @ basis.mT


def corrected_affine_invariant(w: Tensor, a: Tensor) -> Tensor:
    """W^(1/2) (C o A) W^(1/2) by eigendecomposition (Algorithm 3, right as printed)."""
    values, basis = torch.linalg.eigh(w)
    root = (basis * values.sqrt().unsqueeze(-2)) @ basis.mT
    return root @ weighted_symmetric(a) @ root


def _bures_kernel(values: Tensor) -> Tensor:
    return ((values.unsqueeze(-1) + values.unsqueeze(-2)) / 2).sqrt()


def corrected_bures_wasserstein(w: Tensor, a: Tensor) -> Tensor:
    """P [K o P^T (2 C o A) P] P^T, K_ij = sqrt((l_i + l_j)/2), metric tr(S_w[u] v)/2."""
    values, basis = torch.linalg.eigh(w)
    return _in_eigenbasis(basis, _bures_kernel(values), 2 * weighted_symmetric(a))


def printed_bures_wasserstein(w: Tensor, a: Tensor) -> Tensor:
    """Algorithm 4, line 3: factor 4."""
    values, basis = torch.linalg.eigh(w)
    return _in_eigenbasis(basis, _bures_kernel(values), 4 * weighted_symmetric(a))


def _difference_quotient(numerator: Tensor, denominator: Tensor, diagonal: Tensor) -> Tensor:
    """(n_i - n_j)/(d_i - d_j), ``diagonal`` where d_i = d_j."""
    top = numerator.unsqueeze(-1) - numerator.unsqueeze(-2)
    bottom = denominator.unsqueeze(-1) - denominator.unsqueeze(-2)
    is_equal = bottom.abs() < 1e-12
    return torch.where(is_equal, diagonal.unsqueeze(-1), top / torch.where(is_equal, 1.0, bottom))


def corrected_log_euclidean(w: Tensor, a: Tensor) -> Tensor:
    """P [K o P^T (C o A) P] P^T, K_ij = (l_i - l_j)/(log l_i - log l_j), K_ii = l_i."""
    values, basis = torch.linalg.eigh(w)
    kernel = _difference_quotient(values, values.log(), values)
    return _in_eigenbasis(basis, kernel, weighted_symmetric(a))


def printed_log_euclidean(w: Tensor, a: Tensor) -> Tensor:
    """Algorithm 5: K_ij = f(l_i, l_j), f(x, y) = (x - y)/(e^x - e^y), f(x, x) = e^-x."""
    values, basis = torch.linalg.eigh(w)
    kernel = _difference_quotient(values, values.exp(), (-values).exp())
    return _in_eigenbasis(basis, kernel, weighted_symmetric(a))


# -- hyperbolic space --------------------------------------------------------------------------
def corrected_poincare(w: Tensor, a: Tensor) -> Tensor:
    """(1 - |w|^2) a/2, metric 4 <u, v>/(1 - |w|^2)^2."""
    return (1 - w.square().sum(-1, keepdim=True)) * a / 2


def printed_poincare(w: Tensor, a: Tensor) -> Tensor:
    """Algorithm 6: (1 - |w|^2) a/4."""
    return (1 - w.square().sum(-1, keepdim=True)) * a / 4


def _first_unit(w: Tensor) -> Tensor:
    return torch.nn.functional.pad(torch.zeros_like(w[..., 1:]), (1, 0), value=1.0)


def _lorentz_parts(w: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    """u_0 = (0, a) and <w, u_0>_L / (1 + w_1) (e_1 + w)."""
    start = torch.nn.functional.pad(a, (1, 0))
    product = (w[..., 1:] * a).sum(-1, keepdim=True)
    return start, product / (1 + w[..., :1]) * (_first_unit(w) + w)


def corrected_lorentz(w: Tensor, a: Tensor) -> Tensor:
    """u_0 + <w, u_0>_L / (1 + w_1) (e_1 + w), the time coordinate first."""
    start, turn = _lorentz_parts(w, a)
    return start + turn


def printed_lorentz(w: Tensor, a: Tensor) -> Tensor:
    """Algorithm 7 with the transport of Appendix A.1: a minus sign."""
    start, turn = _lorentz_parts(w, a)
    return start - turn


# -- sphere ------------------------------------------------------------------------------------
def corrected_sphere(w: Tensor, a: Tensor) -> Tensor:
    """u_0 - <w, u_0>/(1 + |w_1|) (e + w), transported from the nearer of e = e_1, -e_1."""
    start = torch.nn.functional.pad(a, (1, 0))
    sign = torch.where(w[..., :1] >= 0, 1.0, -1.0).to(w)
    product = (w[..., 1:] * a).sum(-1, keepdim=True)
    return start - product / (1 + w[..., :1].abs()) * (sign * _first_unit(w) + w)


def printed_sphere(w: Tensor, a: Tensor) -> Tensor:
    """Algorithm 1 with the "implicit basis" e_i - w_(i+1) w of section 4: projections."""
    start = torch.nn.functional.pad(a, (1, 0))
    return start - (w[..., 1:] * a).sum(-1, keepdim=True) * w
