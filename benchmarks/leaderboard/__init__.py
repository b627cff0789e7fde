"""Methods beside each other at equal trust and budget: python -m benchmarks.leaderboard."""
