"""Run folders: manifest, metrics, checkpoints and reports."""
