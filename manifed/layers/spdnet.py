"""Networks on covariance matrices: bilinear maps, rectified and logarithmic eigenvalues.

Huang, Van Gool: A Riemannian Network for SPD Matrix Learning (AAAI 2017): BiMap (1), ReEig (2),
LogEig (5). The gradients of the two spectral layers are Daleckii's and Krein's, with closed divided
differences: the ones of (13)-(20) there divide by differences of eigenvalues, and are NaN where two
are equal, as they are after ReEig.
"""

import torch
from torch import Tensor, nn

from manifed.layers.orthogonal import frame
from manifed.manifolds.linalg import LOG, ScalarFunction, packed, sym, sym_function


class BiMap(nn.Module):
    """X -> W^T X W for a frame W of St(in, out): (..., in, in) to (..., out, out).

    ``frame`` is W, the transpose of the W_k of (1).
    """

    def __init__(self, in_size: int, out_size: int) -> None:
        """Matrices become smaller, or stay: out_size <= in_size."""
        super().__init__()
        self.frame = frame(in_size, out_size)

    def forward(self, matrix: Tensor) -> Tensor:
        """Symmetric matrices to symmetric matrices, positive definite ones to such."""
        return sym(self.frame.mT @ matrix @ self.frame)  # (1)


class ReEig(nn.Module):
    """Raises eigenvalues below a threshold to it: V max(threshold, w) V^T."""

    def __init__(self, threshold: float = 1e-4) -> None:
        """The epsilon of (2)."""
        super().__init__()
        if not threshold > 0:
            raise ValueError(f"Expected threshold > 0, got {threshold}")
        self.threshold = threshold

    def forward(self, matrix: Tensor) -> Tensor:
        """(..., d, d), symmetric."""
        least = self.threshold

        def difference(a: Tensor, b: Tensor) -> Tensor:
            is_apart = a != b
            rise = (a.clamp_min(least) - b.clamp_min(least)) / torch.where(is_apart, a - b, 1.0)
            return torch.where(is_apart, rise, (a > least).to(a))

        return sym_function(matrix, ScalarFunction(lambda w: w.clamp_min(least), difference))  # (2)


class LogEig(nn.Module):
    """The matrix logarithm, where covariance matrices become vectors of an orthonormal basis."""

    def forward(self, matrix: Tensor) -> Tensor:
        """(..., d, d), positive definite, to (..., d(d+1)/2)."""
        return packed(sym_function(matrix, LOG))  # (5)
