"""A site's own process, which owns data, ledger and budget and gives out noised payloads."""
