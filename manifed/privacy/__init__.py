"""Mechanisms, noise, accounting and the ledger (floor 2; no Flower here)."""
