"""The schema of an experiment and its one reader."""
