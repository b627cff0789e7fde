"""Attacks on our own mechanisms: worst-case neighbours through the real halves and mechanisms."""
