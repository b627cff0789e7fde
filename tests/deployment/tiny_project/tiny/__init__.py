"""A Flower app that counts."""
