"""Clipping in whatever metric the norms were measured: out of place, and NaN never passes.

Abadi et al. (2016) scale a gradient by min(1, C / norm); on a manifold the norm is the metric's at
the point (Han et al. 2024), so these functions take norms and know no geometry.
"""

import math

import torch
from torch import Tensor


def clip_factors(norms: Tensor, l2_norm_clip: float | Tensor) -> Tensor:
    """min(1, l2_norm_clip / norm) for every norm, shape of ``norms``.

    Guarantees, for norms of vectors v >= 0: exactly 1 where norm <= l2_norm_clip (also at norm 0);
    exactly 0 where the norm is NaN or infinite; factor * norm <= l2_norm_clip up to one rounding.
    The caller must drop what has factor 0 (`clipped` does): 0 * NaN is NaN.

    Raises:
        ValueError: unless l2_norm_clip > 0 (infinity clips nothing, NaN is refused).
    """
    _check_bound(l2_norm_clip)
    factors = torch.where(norms <= l2_norm_clip, torch.ones_like(norms), l2_norm_clip / norms)
    return torch.where(torch.isfinite(norms), factors, torch.zeros_like(norms))


def clipped(vectors: Tensor, norms: Tensor, l2_norm_clip: float | Tensor) -> Tensor:
    """The vectors, shape ``(..., *point)``, scaled to norm at most l2_norm_clip.

    ``norms`` has shape ``(...)``: the vectors' norms in the metric that is clipped in. A vector
    whose norm is NaN or infinite becomes exactly zero, whatever it contains.
    """
    factors = clip_factors(norms, l2_norm_clip)
    factors = factors.reshape(*factors.shape, *[1] * (vectors.dim() - factors.dim()))
    return torch.where(factors > 0, factors * vectors, torch.zeros_like(vectors))


def _check_bound(l2_norm_clip: float | Tensor) -> None:
    if isinstance(l2_norm_clip, Tensor):
        is_valid = bool((l2_norm_clip > 0).all())
    else:
        is_valid = l2_norm_clip > 0 and not math.isnan(l2_norm_clip)
    if not is_valid:
        raise ValueError(f"Expected l2_norm_clip > 0, got {l2_norm_clip}")
