"""The only part that imports Flower."""
