"""Laplace noise of scale 1: density exp(-|x|) / 2, mean 0, variance 2.

From a uniform u, as the noise source makes them (odd multiples of 2^-53, symmetric about 1/2), by
the inverse of the distribution function: |x| is at most 36.04. From four normals, z1 z2 + z3 z4: a
product of two has the characteristic function (1 + t^2)^(-1/2), so a sum of two has that of the
Laplace law. Inverting it is a search over secret draws, as with summed normals (noise.py).
"""

import torch
from torch import Tensor


def of_uniforms(u: Tensor) -> Tensor:
    """The Laplace quantiles of u in (0, 1); same shape."""
    centred = u - 0.5  # exact
    return -centred.sign() * torch.log1p(-2 * centred.abs())


def of_normals(z: Tensor, axis: int) -> Tensor:
    """z1 z2 + z3 z4 of the four normals along ``axis``, which goes."""
    one, two, three, four = z.unbind(axis)
    return one * two + three * four
