"""A low-rank change of a linear layer that is trained in its place, with an orthonormal factor.

Hu, Shen, Wallis, Allen-Zhu, Li, Wang, Wang, Chen: LoRA: Low-Rank Adaptation of Large Language
Models (ICLR 2022): W + B A, one factor zero at the start. Here the left one is a frame U on
St(out, rank), as the outer factors are in StelLA: Subspace Learning in Low-rank Adaptation using
Stiefel Manifold (NeurIPS 2025): U spans what is changed, A says how. A is zero at the start, so
that the layer begins as the one it adapts; it has rank * (in + out) numbers instead of in * out,
and noise has as many directions to go.
"""

from collections.abc import Sequence
from copy import deepcopy

from torch import Tensor, nn, zeros

from manifed.layers.orthogonal import frame


class StiefelAdapter(nn.Module):
    """x -> base(x) + x A^T U^T, U^T U = I; the base is frozen."""

    def __init__(self, linear: nn.Linear, rank: int) -> None:
        """``linear`` becomes ``base`` and takes no gradients any more.

        Raises:
            ValueError: a rank above one of its sides.
        """
        super().__init__()
        most = min(linear.in_features, linear.out_features)
        if not 1 <= rank <= most:
            raise ValueError(f"rank: expected 1 to {most}, the shorter side, got {rank}")
        self.base = linear.requires_grad_(requires_grad=False)
        self.frame = frame(linear.out_features, rank)
        self.coefficients = nn.Parameter(zeros(rank, linear.in_features))

    def forward(self, feature: Tensor) -> Tensor:
        """(..., in) to (..., out)."""
        change = nn.functional.linear(feature, self.coefficients)
        return self.base(feature) + nn.functional.linear(change, self.frame)


def adapt(model: nn.Module, rank: int, *, names: Sequence[str] | None = None) -> nn.Module:
    """A copy of the model with all its parameters frozen and adapters around linear layers.

    Args:
        model: what was trained before, on data that may be known.
        rank: of every adapter.
        names: of the linear layers, as `named_modules` has them; None: all of them.

    Raises:
        ValueError: a name that is no linear layer of the model, or nothing to adapt.
    """
    copy = deepcopy(model).requires_grad_(requires_grad=False)
    linear = {name: layer for name, layer in copy.named_modules() if isinstance(layer, nn.Linear)}
    if unknown := sorted(set(names or ()) - set(linear)):
        raise ValueError(f"names: expected linear layers among {sorted(linear)}, got {unknown}")
    chosen = {name: linear[name] for name in (linear if names is None else names)}
    if not chosen:
        raise ValueError("model: expected at least one linear layer to adapt, got none")
    if "" in chosen:  # the model itself
        return StiefelAdapter(chosen[""], rank)
    for name, layer in chosen.items():
        copy.set_submodule(name, StiefelAdapter(layer, rank))
    return copy
