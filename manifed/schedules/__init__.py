"""Schedules: step sizes, noise scales and sample sizes that change from round to round."""
