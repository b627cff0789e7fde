"""The client halves of the algorithms, and the turn a Flower client takes (floor 3)."""
