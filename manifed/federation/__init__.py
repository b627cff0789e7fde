"""A round: cohorts, updates, replies, aggregation; without Flower."""
