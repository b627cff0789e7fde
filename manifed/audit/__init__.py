"""Attacks on the library's own mechanisms, run through the same code as a training run."""
