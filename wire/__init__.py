"""What travels between server and clients, and how it becomes Flower records (floor 1)."""
