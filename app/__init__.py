"""Flower's doors, assembly, engines, run folder and reports (floor 4)."""
