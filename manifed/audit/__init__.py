"""Attacks on our own mechanisms: worst-case neighbouring datasets through the code that runs."""
