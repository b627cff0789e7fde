"""Plug-ins of manifed: algorithms and prices that go beyond its papers."""
