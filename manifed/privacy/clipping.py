"""Clipping in whatever metric the norms were measured: out of place, and NaN never passes.

Abadi et al. (2016) scale a gradient by min(1, C / norm); on a manifold the norm is the metric's at
the point (Han et al. 2024), so these functions take norms and know no geometry.
"""

import torch
from torch import Tensor

_SMALLEST_CLIP = 1e-140
"""A bound below this lets nothing through: products of what it leaves would round as denormals."""
_SMALLEST_FACTOR = 1e-308
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
    bound = torch.as_tensor(l2_norm_clip, dtype=torch.float64)
    if not bool((bound > 0).all()):
        raise ValueError(f"Expected l2_norm_clip > 0, got {l2_norm_clip}")
    if norms.dtype != torch.float64:
        return _narrow_factors(norms.to(torch.float64), l2_norm_clip, norms.dtype)
    factors = (norms.reciprocal() * l2_norm_clip).clamp_max_(1.0)
    is_kept = (factors >= _SMALLEST_FACTOR) & (bound >= _SMALLEST_CLIP)  # False for NaN
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
    factors = factors.reshape(*factors.shape, *[1] * (vectors.dim() - factors.dim()))
    return torch.where(factors > 0, factors * vectors, 0.0)
