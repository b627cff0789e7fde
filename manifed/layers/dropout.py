"""Dropout whose draws depend on an address: the client, the round, the step, the example's place.

Srivastava, Hinton, Krizhevsky, Sutskever, Salakhutdinov: Dropout: A Simple Way to Prevent Neural
Networks from Overfitting (2014). torch's own draws from one generator a process, so that a run
repeats neither on another engine nor in another order. Here each example comes with a number, from
the run's addressed stream, and every entry's fate is a hash of it (Steele, Lea, Flood: Fast
Splittable Pseudorandom Number Generators, 2014: the mixer of SplitMix64).

What is dropped protects nobody, and nothing is charged less for it: the hash need not be secret.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from itertools import count

import torch
from torch import Tensor, nn

_BITS = 53


class KeyedDropout(nn.Module):
    """Entries are zero with probability p, else divided by 1 - p, where there is a key.

    Without one, as where a model is judged or used outside this library, all entries stay.
    """

    def __init__(self, p: float = 0.5) -> None:
        """0 <= p < 1."""
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"p: expected 0 <= p < 1, got {p}")
        self.p = p
        self._key: Tensor | None = None
        self._calls = count()

    def forward(self, feature: Tensor) -> Tensor:
        """Any shape, of one example."""
        if self._key is None:
            return feature
        entries = torch.arange(feature.numel(), device=feature.device).reshape(feature.shape)
        bits = _mixed(_mixed(self._key + (next(self._calls) << 32)) + entries)
        uniforms = _shifted(bits, 64 - _BITS).to(torch.float64) / 2**_BITS
        return torch.where(uniforms < self.p, 0.0, feature / (1 - self.p))


@contextmanager
def keyed(layers: Sequence[KeyedDropout], key: Tensor | None) -> Generator[None]:
    """The layers of a model drop by ``key``, a uniform of one example; None: they drop nothing."""
    if key is None or not layers:
        yield
        return
    number = (key * 2**_BITS).long()
    try:
        for place, layer in enumerate(layers):
            layer._key, layer._calls = _mixed(number + (place << 54)), count()
        yield
    finally:
        for layer in layers:
            layer._key = None


def _shifted(z: Tensor, by: int) -> Tensor:
    """The unsigned shift of 64 bits to the right."""
    return (z >> by) & ((1 << (64 - by)) - 1)


def _mixed(z: Tensor) -> Tensor:
    """SplitMix64's finaliser, of whole numbers modulo 2^64."""
    z = z - 0x61C8864680B583EB  # 0x9E3779B97F4A7C15 as a signed word, and so on
    z = (z ^ _shifted(z, 30)) * -0x40A7B892E31B1A47  # 0xBF58476D1CE4E5B9
    z = (z ^ _shifted(z, 27)) * -0x6B2FB644ECCEEE15  # 0x94D049BB133111EB
    return z ^ _shifted(z, 31)
