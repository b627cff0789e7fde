"""The gradient oracle of a client: minibatch, clip, noise, randomness and count."""
