"""What a client update asks for gradients: minibatch, clip, noise, randomness."""
