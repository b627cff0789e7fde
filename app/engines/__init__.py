"""The three ways to run one federation: inline, ray, deployment."""
