"""Losses, per-example Riemannian gradients and data (floor 2; no Flower here)."""
