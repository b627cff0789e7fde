"""Tensors of float64 that tests draw or write down, and how near two of them must be."""

import torch


def generator(seed):
    """A generator of torch that draws what the seed says."""
    return torch.Generator().manual_seed(seed)


def normals(seed, *size):
    """Standard normals of a shape."""
    return torch.randn(size, generator=generator(seed), dtype=torch.float64)


def float64(numbers):
    """The tensor of numbers that are written down."""
    return torch.tensor(numbers, dtype=torch.float64)


def assert_near(found, expected, atol=0.0):
    """No entry, of the same type and shape, differs by more than ``atol``."""
    torch.testing.assert_close(found, expected, rtol=0, atol=atol)
