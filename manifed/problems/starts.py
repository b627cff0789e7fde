"""Where a run starts: x^(0) from the shape of a point and the seed, never from an example.

x^(0) is broadcast without noise, so what it depends on is public. A start is handed a manifold, a
shape and a generator; no example can reach it.
"""

import math
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from manifed.manifolds.base import Manifold
from manifed.problems.dataset import Frozen

Entries = tuple[float, ...] | tuple[tuple[float, ...], ...]


class RandomStart(Frozen):
    """A random point of the manifold, the same for every algorithm that runs with one seed."""

    kind: Literal["random"] = "random"

    def point(
        self, manifold: Manifold, shape: tuple[int, ...], generator: torch.Generator
    ) -> Tensor:
        """x^(0), of ``shape``."""
        return manifold.random(*shape, generator=generator)


class OriginStart(Frozen):
    """The manifold's origin: zero, the identity, or the first unit vectors."""

    kind: Literal["origin"] = "origin"

    def point(
        self, manifold: Manifold, shape: tuple[int, ...], generator: torch.Generator
    ) -> Tensor:
        """x^(0), of ``shape``."""
        del generator
        return manifold.origin(*shape, dtype=torch.float64)


class GivenStart(Frozen):
    """A point written into the config, which everybody may read."""

    kind: Literal["given"] = "given"
    entries: Entries = Field(min_length=1)
    """Its entries: a list of numbers, or the rows of a matrix."""

    def point(
        self, manifold: Manifold, shape: tuple[int, ...], generator: torch.Generator
    ) -> Tensor:
        """x^(0), of ``shape``, projected to take up the rounding of its digits.

        Raises:
            ValueError: The entries have another shape, or are not a point of the manifold.
        """
        del generator
        lengths = {len(row) for row in self.entries if isinstance(row, tuple)}
        if len(lengths) > 1:
            raise ValueError(
                f"problem.start.entries: expected rows of one length, got {sorted(lengths)}"
            )
        x = torch.tensor(self.entries, dtype=torch.float64)
        if tuple(x.shape) != shape:
            raise ValueError(
                f"problem.start.entries: expected shape {list(shape)}, got {list(x.shape)}"
            )
        if not manifold.check_point_on_manifold(x):
            raise ValueError(
                f"problem.start.entries: expected a point of {manifold.name}, got one off it"
            )
        return manifold.projx(x)


class LayersStart(Frozen):
    """Of a network with one hidden layer: every entry uniform in +-1 / sqrt(units that feed it).

    The law with which `torch.nn.Linear` starts, weights and biases.
    """

    kind: Literal["layers"] = "layers"
    hidden: int = Field(ge=1)
    """Units of the hidden layer."""
    num_classes: int = Field(ge=2)
    """Classes of the labels, which are 0, 1, ... ."""

    def point(
        self, manifold: Manifold, shape: tuple[int, ...], generator: torch.Generator
    ) -> Tensor:
        """x^(0), of ``shape`` (d,), d = hidden (p + 1) + num_classes (hidden + 1).

        Raises:
            ValueError: no p >= 1 gives such a d, or the manifold is not flat.
        """
        second = self.num_classes * (self.hidden + 1)
        p = (math.prod(shape) - second) // self.hidden - 1
        first = self.hidden * (p + 1)
        if manifold.name != "Euclidean" or p < 1 or shape != (first + second,):
            raise ValueError(
                f"problem.start: 'layers' expects a network of {self.hidden} hidden units and "
                f"{self.num_classes} classes, got points of shape {list(shape)} of {manifold.name}"
            )
        uniform = 2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1
        return torch.cat([uniform[:first] / math.sqrt(p), uniform[first:] / math.sqrt(self.hidden)])


class ModelStart(Frozen):
    """The parameters that the factory of a module made, for problem.kind = "module"."""

    kind: Literal["model"] = "model"

    def point(
        self, manifold: Manifold, shape: tuple[int, ...], generator: torch.Generator
    ) -> Tensor:
        """None: a manifold knows no module.

        Raises:
            ValueError: always.
        """
        del manifold, shape, generator
        raise ValueError("problem.start: 'model' goes with problem.kind = 'module'; use 'random'")


Start = Annotated[
    RandomStart | OriginStart | GivenStart | LayersStart | ModelStart, Field(discriminator="kind")
]
