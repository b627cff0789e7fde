"""Federated and decentralised learning on Riemannian manifolds with differential privacy."""
