"""Run folders: manifest, metrics, checkpoints, reports."""
