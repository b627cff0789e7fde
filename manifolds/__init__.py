"""Riemannian manifolds as geoopt.Manifold subclasses with exact numerics (floor 1)."""
