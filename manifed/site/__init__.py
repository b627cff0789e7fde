"""A site's own process: it owns file, ledger, budget and memory, and gives out noised payloads."""
