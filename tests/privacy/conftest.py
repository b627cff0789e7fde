"""Draws of hypothesis that are the same in every run."""

from hypothesis import settings

settings.register_profile("privacy", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("privacy")
