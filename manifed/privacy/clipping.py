"""Clipping in whatever metric the norms were measured: out of place, and NaN never passes.

Abadi et al. (2016) scale a gradient by min(1, C / norm); on a manifold the norm is the metric's at
the point (Han et al. 2024), so these functions take norms and know no geometry.
"""

import math

import torch
from torch import Tensor

SMALLEST_CLIP = 1e-140
"""A bound below this lets nothing through: products of what it leaves would round as denormals."""
SMALLEST_FACTOR = 1e-308
"""A factor below this is zero: a denormal factor has no relative accuracy."""


def clip_factors(norms: Tensor, l2_norm_clip: float | Tensor) -> Tensor:
    """min(1, l2_norm_clip / norm) for every norm, shape and dtype of ``norms``.

    Guarantees, for norms (or upper bounds of norms) of vectors v >= 0: 1, or a rounding less, where
    norm <= l2_norm_clip (exactly 1 at norm 0); exactly 0 where the norm is NaN or infinite, where
    the factor would be below 1e-308, and everywhere for a bound below 1e-140; factor * |v| <=
    l2_norm_clip up to three roundings of float64. In a narrower type the factor is shrunk by 16 of
    its own roundings, so that the product, rounded in that type, is at most l2_norm_clip.
    The caller must drop what has factor 0 (`clipped` does): 0 * NaN is NaN.

    Raises:
        ValueError: unless l2_norm_clip > 0 (infinity clips nothing, NaN is refused).
    """
    _check_bound(l2_norm_clip)
    if norms.dtype != torch.float64:
        return _narrow_factors(norms.to(torch.float64), l2_norm_clip, norms.dtype)
    factors = (norms.reciprocal() * l2_norm_clip).clamp_max_(1.0)
    is_usual = isinstance(l2_norm_clip, float) and l2_norm_clip >= SMALLEST_CLIP
    if is_usual and factors.numel() and float(factors.amin()) >= SMALLEST_FACTOR:
        return factors  # the least is NaN where one is
    is_kept = factors >= SMALLEST_FACTOR  # False for NaN
    if isinstance(l2_norm_clip, Tensor):
        is_kept = is_kept & (l2_norm_clip >= SMALLEST_CLIP)
    elif l2_norm_clip < SMALLEST_CLIP:
        return torch.zeros_like(norms)
    return torch.where(is_kept, factors, 0.0)


def _narrow_factors(norms: Tensor, l2_norm_clip: float | Tensor, dtype: torch.dtype) -> Tensor:
    """Factors that hold after products are rounded to ``dtype``; none where they would underflow.

    A norm within 16 roundings below the bound counts as above it.
    """
    info = torch.finfo(dtype)
    factors = clip_factors(norms * (1 + 16 * info.eps), l2_norm_clip)
    smallest = info.tiny / info.eps
    is_kept = (factors >= smallest) & ((factors == 1.0) | (factors * norms >= smallest))
    return torch.where(is_kept, factors, 0.0).to(dtype)


def clipped(vectors: Tensor, norms: Tensor, l2_norm_clip: float | Tensor) -> Tensor:
    """The vectors, shape ``(..., *point)``, scaled to norm at most l2_norm_clip.

    ``norms`` has shape ``(...)``: upper bounds of the vectors' norms in the metric that is clipped
    in. A vector whose norm is NaN or infinite becomes exactly zero, whatever it contains.
    """
    factors = clip_factors(norms.to(vectors.dtype), l2_norm_clip)
    is_all_kept = factors.numel() > 0 and float(factors.amin()) > 0
    factors = factors.reshape(*factors.shape, *[1] * (vectors.dim() - factors.dim()))
    scaled = factors * vectors
    return scaled if is_all_kept else torch.where(factors > 0, scaled, 0.0)


def _check_bound(l2_norm_clip: float | Tensor) -> None:
    if isinstance(l2_norm_clip, Tensor):
        is_valid = bool((l2_norm_clip > 0).all())
    else:
        is_valid = l2_norm_clip > 0 and not math.isnan(l2_norm_clip)
    if not is_valid:
        raise ValueError(f"Expected l2_norm_clip > 0, got {l2_norm_clip}")
