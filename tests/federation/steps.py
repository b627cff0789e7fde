"""The step of a server update, as the round function takes it."""

import torch

from manifed.algorithms.algorithm import There


def step(update, state, phase, collected, server_round, manifold):
    """The state after an exchange."""
    mean = next(iter(collected.mean.values()), torch.empty(0))
    return update.server(dict(state), mean, There(manifold, phase, server_round, collected))
