"""Mechanisms, noise, accounting and the ledger; nothing here imports Flower."""
