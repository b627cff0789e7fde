"""The server halves of the algorithms, and the round loop over a Flower Grid (floor 3)."""
