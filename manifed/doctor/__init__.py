"""Examines a machine before the day of a run."""
