"""Losses, per-example Riemannian gradients and data; nothing here imports Flower."""
