"""Streams: records that are computed when they are read, and of which none is kept.

Record j of client i is a pure function of (seed, i, j). It is drawn with the block of `BLOCK`
records that it lies in, and one block a client is remembered, so a run of any length holds as much
as a run of one round.

Wang and Zhang (2024), section 5: distributed parameter estimation. Client i measures
d = u^T x* + nu with u ~ N(0, R) and nu ~ N(0, stddev^2), a fresh u and nu for every record.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Final, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from manifed.problems.base import Examples, Records
from manifed.problems.dataset import Dataset, DataSource, ExampleKind, build

BLOCK: Final = 256
"""Records that are drawn together."""
JUDGED: Final = 256
"""Records of a client that models are judged by."""
_STREAM, _JUDGED = 3, 4
"""Purposes of a seed, beside those of `manifed.problems.dataset.generator`."""
COVARIANCE: Final = (
    (2, 1, 0, 1, 0, 0),
    (1, 2, 0, 1, 0, 0),
    (0, 0, 2, 0, 0, 0),
    (1, 1, 0, 2, 0, 0),
    (0, 0, 0, 0, 2, 0),
    (0, 0, 0, 0, 0, 2),
)
"""R of the paper, of every client."""

Drawn = Callable[[np.random.Generator, int], Examples]
"""So many fresh records from a generator."""


@dataclass(frozen=True, eq=False)
class DrawnRecords:
    """The records of a client, or of a stacked cohort, on demand."""

    seed: int
    clients: tuple[int, ...]
    size: int
    draw: Drawn
    is_stacked: bool = False
    _newest: dict[int, tuple[int, Examples]] = field(default_factory=dict, repr=False)
    """By client, the block that was read last and its number."""

    def take(self, positions: Tensor) -> Examples:
        """As `Records.take`."""
        at = positions.numpy(force=True)
        if not self.is_stacked:
            return self._rows(self.clients[0], at)
        rows = [self._rows(i, at[row]) for row, i in enumerate(self.clients)]
        return replace(Examples.stack(rows), counts=None)

    def judged(self) -> Examples:
        """As `Records.judged`, of the first client."""
        rng = np.random.default_rng([self.seed, _JUDGED, self.clients[0]])
        return self.draw(rng, JUDGED)

    def to(self, where: str | torch.device | torch.dtype) -> "DrawnRecords":
        """As `Records.to`."""
        draw = self.draw
        return replace(self, draw=lambda rng, count: draw(rng, count).to(where), _newest={})

    def of_clients(self, rows: slice | Tensor) -> "DrawnRecords":
        """As `Records.of_clients`."""
        picked = np.array(self.clients)[rows if isinstance(rows, slice) else rows.numpy(force=True)]
        return replace(self, clients=tuple(int(i) for i in picked))

    def stacked_with(self, others: Sequence[Records]) -> "DrawnRecords":
        """As `Records.stacked_with`."""
        mine = [cast("DrawnRecords", one).clients[0] for one in others]
        return replace(self, clients=tuple(mine), is_stacked=True, _newest={})

    def _rows(self, client: int, positions: NDArray[np.int64]) -> Examples:
        blocks, where = np.unique(positions // BLOCK, return_inverse=True)
        found = Examples.concatenate([self._block(client, int(b)) for b in blocks])
        at = torch.from_numpy(where.reshape(-1) * BLOCK + positions % BLOCK)
        return found.take(at.to(next(iter(found.tensors.values())).device))

    def _block(self, client: int, number: int) -> Examples:
        known = self._newest.get(client)
        if known is None or known[0] != number:
            rng = np.random.default_rng([self.seed, _STREAM, client, number])
            known = self._newest[client] = number, self.draw(rng, BLOCK)
        return known[1]


class StreamData(DataSource):
    """Data that are never all there: every client reads a stream of its own, in order."""

    num_examples: int = Field(ge=1, le=1 << 47)  # times 2^16 attempts: places are 63 bits
    """How many records a client sets aside for the run. A round that is made again reads the next
    so many: no record is read twice."""

    def draw(self, rng: np.random.Generator, count: int) -> Examples:
        """So many records."""
        raise NotImplementedError

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """A sample, for the shape and the checksum."""
        del data_dir
        sample = self.draw(np.random.default_rng([seed, _JUDGED, 0]), JUDGED)
        return build({name: t.numpy() for name, t in sample.tensors.items()})

    def shard(self, seed: int, client: int, prepare: Callable[[Examples], Examples]) -> Examples:
        """The stream of a client; ``prepare`` is what the problem does with records."""

        def draw(rng: np.random.Generator, count: int) -> Examples:
            return prepare(self.draw(rng, count))

        records = DrawnRecords(seed, (client,), self.num_examples, draw)
        shape = records.judged().take(torch.zeros(1, dtype=torch.long))
        return replace(shape, stream=records)


class RegressionStream(StreamData):
    """Distributed parameter estimation (Wang and Zhang 2024, section 5) in R^6."""

    kind: Literal["regression-stream"] = "regression-stream"
    provides: ClassVar[ExampleKind] = "regression"
    truth: float = 0.5
    """Every entry of x*."""
    noise_stddev: float = Field(default=1.0, ge=0)
    """Deviation of the noise in the targets."""

    def draw(self, rng: np.random.Generator, count: int) -> Examples:
        """``feature`` u and ``target`` u^T x* + nu."""
        root = np.linalg.cholesky(np.array(COVARIANCE, dtype=np.float64))
        normals = rng.standard_normal((count, len(COVARIANCE) + 1))
        u = normals[:, :-1] @ root.T
        target = self.truth * u.sum(-1) + self.noise_stddev * normals[:, -1]
        tensors = {"feature": torch.from_numpy(u), "target": torch.from_numpy(target)}
        return Examples(tensors, {"feature": 1, "target": 0})
