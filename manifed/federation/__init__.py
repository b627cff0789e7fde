"""One round of federated learning without Flower: cohort, updates, replies, aggregation."""
