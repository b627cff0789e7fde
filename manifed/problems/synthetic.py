"""Synthetic data of the papers: each recipe is a config table and a function of a generator.

Recipes that draw per client say which client each row was drawn for (``sources``), in client order,
so that the ``natural`` partition gives every client its own.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from pydantic import Field

from manifed.fields import NonNegative, Positive, PositiveCount
from manifed.problems.data import Array, Dataset, DataSource, ExampleKind, build, generator
from manifed.problems.examples import Examples, Stream


class _Recipe(DataSource):
    """Random data."""

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """What the seed's generator draws."""
        return self.draw(generator(seed, "data"))

    @abstractmethod
    def draw(self, rng: Generator) -> Dataset:
        """The data set."""


class Pooled(_Recipe):
    """Base of synthetic data whose examples belong to no client in particular."""

    num_examples: PositiveCount = 1000
    """Number of examples."""


class OfClients(_Recipe):
    """Base of synthetic data that are drawn for each client from its own distribution."""

    num_clients: PositiveCount = 10
    """Number of clients, each with its own distribution."""
    dimension: PositiveCount = 10
    """Dimension of a row."""

    def _sources(self, rows: int) -> NDArray[np.int64]:
        return np.repeat(np.arange(self.num_clients, dtype=np.int64), rows)


# -- rows -----------------------------------------------------------------------------------------


class SyntheticPCA(OfClients):
    """Synthetic rows of projected FL (Figures 6, 7). Client i draws N(0, 2i/n)."""

    kind: Literal["synthetic-pca"] = "synthetic-pca"
    provides: ClassVar[ExampleKind] = "rows"
    num_clients: PositiveCount = 30
    rows: PositiveCount = 15
    """Rows per client."""
    dimension: PositiveCount = 20

    def draw(self, rng: Generator) -> Dataset:
        """Rows ``z`` with their client as source."""
        n = self.num_clients
        stddev = np.sqrt(2.0 * np.arange(1, n + 1) / n)
        z = rng.standard_normal((n, self.rows, self.dimension)) * stddev[:, None, None]
        return build({"z": np.concatenate(z)}, sources=self._sources(self.rows))


# -- rows with a number or a label ----------------------------------------------------------------
class SyntheticLeastSquares(OfClients):
    """Synthetic least squares with Gaussian features and noisy linear targets."""

    kind: Literal["synthetic-least-squares"] = "synthetic-least-squares"
    provides: ClassVar[ExampleKind] = "regression"
    rows: PositiveCount = 20
    """Rows per client."""
    noise_stddev: NonNegative = 0.1
    """Standard deviation of the noise in the targets."""
    heterogeneity: NonNegative = 0.0
    """Standard deviation of a client's truth from the common one."""

    def draw(self, rng: Generator) -> Dataset:
        """``feature`` and ``target`` with their client as source."""
        n = self.num_clients
        rows = self.rows
        d = self.dimension
        truth = rng.standard_normal(d)
        own = truth + self.heterogeneity * rng.standard_normal((n, d))
        a = rng.standard_normal((n, rows, d))
        noise = self.noise_stddev * rng.standard_normal((n, rows))
        b = np.einsum("crd,cd->cr", a, own) + noise
        arrays = {"feature": np.concatenate(a), "target": b.ravel()}
        return build(arrays, sources=self._sources(rows))


class ScaledIdentities(OfClients):
    """DECOR's least squares: A_i = (i / sqrt n) I and b_i ~ N(0, I / i^2); use scaling "sum"."""

    kind: Literal["scaled-identities"] = "scaled-identities"
    provides: ClassVar[ExampleKind] = "regression"
    num_clients: PositiveCount = 16

    def draw(self, rng: Generator) -> Dataset:
        """``feature`` and ``target`` with their client as source, d rows per client."""
        n = self.num_clients
        d = self.dimension
        i = np.arange(1, n + 1)
        a = (i / np.sqrt(n))[:, None, None] * np.eye(d)
        b = rng.standard_normal((n, d)) / i[:, None]
        arrays = {"feature": np.concatenate(a), "target": b.ravel()}
        return build(arrays, sources=self._sources(d))


# -- points ---------------------------------------------------------------------------------------


class LogNormalSPD(Pooled):
    """Synthetic SPD matrices G^{1/2} expm(spread S) G^{1/2} with S symmetric normal.

    G has a log-spaced spectrum.
    """

    kind: Literal["spd-lognormal"] = "spd-lognormal"
    provides: ClassVar[ExampleKind] = "spd-matrices"
    dimension: PositiveCount = 10
    """Order of the matrices."""
    spread: Positive = 0.25
    """Standard deviation in the exponent."""
    condition: float = Field(default=100.0, ge=1)
    """Condition number of the centre."""

    def draw(self, rng: Generator) -> Dataset:
        """Matrices ``z``."""
        d = self.dimension
        edge = np.sqrt(self.condition)
        basis = orthonormal(d, d, rng)
        root = (basis * np.sqrt(np.geomspace(1 / edge, edge, d))) @ basis.T
        g = rng.standard_normal((self.num_examples, d, d))
        values, vectors = np.linalg.eigh(self.spread * (g + g.swapaxes(-1, -2)) / 2)
        inner = (vectors * np.exp(values)[:, None, :]) @ vectors.swapaxes(-1, -2)
        z = root @ inner @ root
        return build({"z": (z + z.swapaxes(-1, -2)) / 2})


def orthonormal(rows: int, columns: int, rng: Generator) -> Array:
    """Draws a Haar matrix with orthonormal columns, shape (rows, columns)."""
    q, r = np.linalg.qr(rng.standard_normal((rows, columns)))
    return q * np.where(np.diagonal(r) < 0, -1.0, 1.0)


# -- streams ---------------------------------------------------------------------------------------


class StreamData(DataSource):
    """Data that arrive as streams: every client reads its own stream, in order."""

    num_examples: int = Field(ge=1, le=1 << 47)  # times 2^16 attempts: places are 63 bits
    """How many records a client sets aside for the run. A round that is made again reads the next
    so many: no record is read twice."""

    def draw(self, rng: Generator, count: int) -> Examples:
        """Draws so many records."""
        raise NotImplementedError

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """Returns a sample, for the shape and the checksum."""
        sample = Stream(seed, (0,), self.num_examples, self.draw).judged()
        return build({name: t.numpy() for name, t in sample.tensors.items()})

    def shard(self, seed: int, client: int, prepare: Callable[[Examples], Examples]) -> Examples:
        """Returns the stream of a client; ``prepare`` is what the problem does with records."""
        records = Stream(
            seed, (client,), self.num_examples, lambda rng, count: prepare(self.draw(rng, count))
        )
        shape = records.judged().take(torch.zeros(1, dtype=torch.long))
        return replace(shape, stream=records)
