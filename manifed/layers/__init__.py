"""Torch layers whose parameters live on manifolds, each beside its paper."""

from manifed.layers.adapter import StiefelAdapter, adapt
from manifed.layers.dropout import KeyedDropout
from manifed.layers.hyperbolic import (
    DistanceDecoder,
    HyperbolicClassifier,
    LorentzEmbedding,
    PoincareEmbedding,
)
from manifed.layers.orthogonal import OrthogonalLinear
from manifed.layers.spdnet import BiMap, LogEig, ReEig

__all__ = [
    "BiMap",
    "DistanceDecoder",
    "HyperbolicClassifier",
    "KeyedDropout",
    "LogEig",
    "LorentzEmbedding",
    "OrthogonalLinear",
    "PoincareEmbedding",
    "ReEig",
    "StiefelAdapter",
    "adapt",
]
