"""Synthetic data of single figures and comparisons: ``kind = "reproduction.recipes:Class"``.

Each recipe is its configuration, and a function of a generator, as `manifed.problems.synthetic`.
"""

from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, NonNegativeFloat, PositiveFloat

from manifed.fields import PositiveCount
from manifed.problems.data import Array, Dataset, ExampleKind, build
from manifed.problems.examples import Examples
from manifed.problems.synthetic import (
    LogNormalSPD,
    OfClients,
    Pooled,
    StreamData,
    orthonormal,
)


class Eigengap(OfClients):
    """PriRFed Figure 1: eigengap nu, N = 16 clients with their own basis unless it is shared.

    Rows of Z_i = U_i S_i V_i, S_i = diag(1, 1 - 1.1 nu, ..., 1 - 1.4 nu, |y_1|/d, |y_2|/d, ...), y
    standard normal; U_i and V_i have random orthonormal columns. As the paper writes it every
    client has its own V_i, so the leading directions are unrelated.
    """

    kind: Literal["reproduction.recipes:Eigengap"] = "reproduction.recipes:Eigengap"
    provides: ClassVar[ExampleKind] = "rows"
    num_clients: PositiveCount = 16
    rows: PositiveCount = 70
    """Rows per client."""
    dimension: int = Field(default=25, ge=5)
    gap: float = Field(default=1e-3, gt=0, lt=0.7)
    """nu, between the two leading eigenvalues."""
    is_shared_basis: bool = False
    """All clients have one eigenbasis."""

    def draw(self, rng: np.random.Generator) -> Dataset:
        """Rows ``z`` with their client as source."""
        rows = self.rows
        d = self.dimension
        if rows < d:
            raise ValueError(
                f"Expected rows >= d >= 5 (U_i has d orthonormal columns), got rows={rows}, d={d}"
            )
        leading = np.array([1.0, *(1.0 - factor * self.gap for factor in (1.1, 1.2, 1.3, 1.4))])
        shared = orthonormal(d, d, rng)
        blocks = []
        for _ in range(self.num_clients):
            tail = np.abs(rng.standard_normal(d - len(leading))) / d
            basis = shared if self.is_shared_basis else orthonormal(d, d, rng)
            spectrum = np.concatenate([leading, tail])
            blocks.append((orthonormal(rows, d, rng) * spectrum) @ basis)
        return build({"z": np.concatenate(blocks)}, sources=self._sources(rows))


class Wishart(Pooled):
    """PriRFed Figure 3: Wishart matrices within ``radius`` of the identity (null: all).

    W(I/d, d) matrices, kept by rejection, as the public code of Han et al. does for the paper's
    "diameter bound"; the distance is affine-invariant, |log eigenvalues|.
    """

    kind: Literal["reproduction.recipes:Wishart"] = "reproduction.recipes:Wishart"
    provides: ClassVar[ExampleKind] = "spd-matrices"
    num_examples: PositiveCount = 5000
    dimension: PositiveCount = 2
    """Order of the matrices."""
    radius: PositiveFloat | None = 1.0
    """Largest distance from the identity; None takes every matrix."""

    def draw(self, rng: np.random.Generator) -> Dataset:
        """Matrices ``z``."""
        kept = []
        d = self.dimension
        count = 0
        drawn = 0
        block = min(50_000, max(256, 4 * self.num_examples))
        while count < self.num_examples:
            g = rng.standard_normal((block, d, d)) / np.sqrt(d)
            z = g @ np.swapaxes(g, -1, -2)
            values = np.linalg.eigvalsh(z)
            inside = values[:, 0] > 1e-12
            if self.radius is not None:
                logs = np.log(np.where(inside[:, None], values, 1.0))
                inside &= np.sqrt(np.square(logs).sum(-1)) < self.radius
            kept.append(z[inside])
            count = count + int(inside.sum())
            drawn = drawn + block
            if drawn >= 50_000 and count < 1e-3 * drawn:
                raise ValueError(
                    f"Only {count} of {drawn} Wishart matrices of size {d} lie within "
                    f"radius={self.radius} of the identity; raise radius or lower d"
                )
        return build({"z": np.concatenate(kept)[: self.num_examples]})


class LowRank(OfClients):
    """Projected FL Figure 4: columns of a low-rank matrix, exact, noisy or heterogeneous.

    Of A = L R an entry is seen with probability oversampling * rank (d + T - rank) / (d T), for T =
    num_clients * columns (section A.4.2). In the paper's exact instance every client shares the
    optimum; beyond it there are noise in A, and a factor L_i = L + heterogeneity * N(0, 1) of each
    client.
    """

    kind: Literal["reproduction.recipes:LowRank"] = "reproduction.recipes:LowRank"
    provides: ClassVar[ExampleKind] = "columns"
    columns: PositiveCount = 100
    """Columns a client."""
    dimension: PositiveCount = 100
    rank: PositiveCount = 2
    """Of the matrix."""
    oversampling: PositiveFloat = 10.0
    """Entries seen over the degrees of freedom."""
    noise_stddev: NonNegativeFloat = 0.0
    """Deviation of the noise in the entries."""
    heterogeneity: NonNegativeFloat = 0.0
    """Standard deviation of a client's truth from the common one."""

    def draw(self, rng: np.random.Generator) -> Dataset:
        """``column`` and ``mask`` with their client as source; ``true_basis`` in ``meta``."""
        n = self.num_clients
        columns = self.columns
        d = self.dimension
        rank = self.rank
        total = n * columns
        rate = self.oversampling * rank * (d + total - rank) / (d * total)
        if not 0 < rate <= 1:
            raise ValueError(
                f"Expected a rate of seen entries in (0, 1], got {rate:.3g}; "
                f"lower oversampling={self.oversampling}"
            )
        left = rng.standard_normal((d, rank))
        right = rng.standard_normal((n, rank, columns))
        own = left + self.heterogeneity * rng.standard_normal((n, d, rank))
        full = own @ right + self.noise_stddev * rng.standard_normal((n, d, columns))
        mask = (rng.uniform(size=(n, d, columns)) <= rate).astype(np.float64)
        by_row = {"column": full * mask, "mask": mask}
        return build(
            {key: each.transpose(0, 2, 1).reshape(total, d) for key, each in by_row.items()},
            sources=self._sources(columns),
            meta={"true_basis": torch.tensor(np.linalg.qr(left)[0])},
        )


class SphereCloud(Pooled):
    """Points exp_c(spread * N(0, I)) around a random centre c of the sphere."""

    kind: Literal["reproduction.recipes:SphereCloud"] = "reproduction.recipes:SphereCloud"
    provides: ClassVar[ExampleKind] = "sphere-points"
    dimension: int = Field(default=10, ge=2)
    """Of the vectors; the sphere has one less."""
    spread: PositiveFloat = 0.1
    """Deviation of the tangent vectors around the centre."""

    def draw(self, rng: np.random.Generator) -> Dataset:
        """Unit vectors ``z``."""
        centre = rng.standard_normal(self.dimension)
        centre /= np.linalg.norm(centre)
        u = self.spread * rng.standard_normal((self.num_examples, self.dimension))
        u -= (u @ centre)[:, None] * centre
        length = np.linalg.norm(u, axis=1, keepdims=True)
        return build({"z": np.cos(length) * centre + np.sinc(length / np.pi) * u})


class HyperbolicCloud(Pooled):
    """Points exp_o(spread * N(0, I)) around the origin of the hyperboloid, with normal features."""

    kind: Literal["reproduction.recipes:HyperbolicCloud"] = "reproduction.recipes:HyperbolicCloud"
    provides: ClassVar[ExampleKind] = "hyperbolic-pairs"
    dimension: PositiveCount = 10
    """Of hyperbolic space; points have one coordinate more."""
    num_features: PositiveCount = 3
    """Columns of the features."""
    spread: PositiveFloat = 0.5
    """Deviation of the tangent vectors around the centre."""

    def draw(self, rng: np.random.Generator) -> Dataset:
        """``feature`` (n, num_features) and ``target`` (n, dimension + 1)."""
        u = self.spread * rng.standard_normal((self.num_examples, self.dimension))
        radius = np.linalg.norm(u, axis=1, keepdims=True)
        points = np.hstack([np.cosh(radius), np.sinh(radius) * u / radius])
        features = rng.standard_normal((self.num_examples, self.num_features))
        query = torch.zeros(self.num_features, dtype=torch.float64)
        return build({"feature": features, "target": points}, meta={"query_feature": query})


class SPDClasses(LogNormalSPD):
    """Equally many matrices of each class, as `LogNormalSPD` around a G of its own."""

    kind: Literal["reproduction.recipes:SPDClasses"] = "reproduction.recipes:SPDClasses"  # pyright: ignore[reportIncompatibleVariableOverride]
    provides: ClassVar[ExampleKind] = "labelled-spd-matrices"
    dimension: PositiveCount = 4
    num_classes: int = Field(default=2, ge=2)
    """Number of classes. Labels are 0, 1, ... ."""
    condition: float = Field(default=10.0, ge=1)

    def draw(self, rng: np.random.Generator) -> Dataset:
        """Matrices ``z`` and their class numbers ``label``, class after class in turn."""
        d = self.dimension
        size = -(-self.num_examples // self.num_classes)
        one = LogNormalSPD(
            num_examples=size, dimension=d, spread=self.spread, condition=self.condition
        )
        each = [one.draw(rng).examples["z"] for _ in range(self.num_classes)]
        z = np.stack(each, axis=1).reshape(-1, d, d)[: self.num_examples]
        label = np.arange(self.num_examples) % self.num_classes
        return build({"z": z, "label": label.astype(np.float64)}, labels=label)


class ClassMixture(Pooled):
    """A Gaussian mixture with several components a class, in the place of images."""

    kind: Literal["reproduction.recipes:ClassMixture"] = "reproduction.recipes:ClassMixture"
    provides: ClassVar[ExampleKind] = "labelled-rows"
    num_examples: PositiveCount = 16_000
    dimension: PositiveCount = 40
    """Of a row, or of the space that the points lie in."""
    num_classes: int = Field(default=10, ge=2)
    """Number of classes. Labels are 0, 1, ... ."""
    components: int = Field(default=20, ge=2)
    """Of all classes together; component c is of class c mod num_classes."""
    spread: PositiveFloat = 0.5
    """Deviation of the components' centres; that of examples around theirs is 1."""

    def draw(self, rng: np.random.Generator) -> Dataset:
        """``z`` and ``label``."""
        centres = self.spread * rng.standard_normal((self.components, self.dimension))
        component = rng.integers(0, self.components, self.num_examples)
        z = centres[component] + rng.standard_normal((self.num_examples, self.dimension))
        labels = (component % self.num_classes).astype(np.int64)
        return build({"z": z, "label": labels.astype(np.float64)}, labels=labels)


class SpikedRows(Pooled):
    """Rows like one class of MNIST for a leading eigenvector (Utpala et al. 2023, Figure 3b).

    z = sum_k sqrt(l_k) c_k q_k with q orthonormal, c_1 ~ N(1, 0.3^2), 99 other c_k ~ N(0, 1), l_1
    one half and l_k proportional to k^-1.5, scaled to the mean squared norm. Spec 003 §8.5.
    """

    kind: Literal["reproduction.recipes:SpikedRows"] = "reproduction.recipes:SpikedRows"
    provides: ClassVar[ExampleKind] = "rows"
    num_examples: int = Field(default=6903, ge=2)
    dimension: int = Field(default=784, ge=2)
    """Of a row, or of the space that the points lie in."""
    squared_norm: PositiveFloat = 100.0
    """Mean squared norm of a row; about 100 for pixels in [0, 1]."""

    def draw(self, rng: np.random.Generator) -> Dataset:
        """Rows ``z``."""
        count = min(100, self.dimension)
        spectrum = np.arange(1, count + 1) ** -1.5
        spectrum[1:] *= 0.5 / spectrum[1:].sum()
        spectrum[0] = 0.5
        coefficients = rng.standard_normal((self.num_examples, count))
        coefficients[:, 0] = 1 + 0.3 * coefficients[:, 0]
        z = (coefficients * np.sqrt(spectrum)) @ orthonormal(self.dimension, count, rng).T
        return build({"z": z * np.sqrt(self.squared_norm / np.square(z).sum(1).mean())})


class OneHotLogistic(Pooled):
    """A stand-in shaped like a9a: 14 categorical blocks one-hot in 123 columns, 24 % positive."""

    kind: Literal["reproduction.recipes:OneHotLogistic"] = "reproduction.recipes:OneHotLogistic"
    provides: ClassVar[ExampleKind] = "classification"
    num_examples: PositiveCount = 32000

    def draw(self, rng: np.random.Generator) -> Dataset:
        """``feature`` and ``label``."""
        features, labels = one_hot_logistic(self.num_examples, rng)
        arrays = {"feature": features, "label": labels.astype(np.float64)}
        return build(arrays, labels=labels)


def one_hot_logistic(
    num_examples: int, rng: np.random.Generator
) -> tuple[Array, NDArray[np.int64]]:
    """Features and labels -1, 1 shaped like a9a's: 11 blocks of 9 and 3 of 8 one-hot columns.

    Levels have Dirichlet(0.7) probabilities; labels are those of a random logistic model whose
    intercept is set so that 24 % of the logits are positive.
    """
    blocks = []
    for size in [9] * 11 + [8] * 3:
        levels = rng.choice(size, size=num_examples, p=rng.dirichlet(np.full(size, 0.7)))
        blocks.append(np.eye(size)[levels])
    features = np.concatenate(blocks, axis=1)
    logits = features @ rng.standard_normal(features.shape[1]) + rng.logistic(size=num_examples)
    return features, np.where(logits > np.quantile(logits, 1 - 0.24), 1, -1).astype(np.int64)


COVARIANCE = (
    (2, 1, 0, 1, 0, 0),
    (1, 2, 0, 1, 0, 0),
    (0, 0, 2, 0, 0, 0),
    (1, 1, 0, 2, 0, 0),
    (0, 0, 0, 0, 2, 0),
    (0, 0, 0, 0, 0, 2),
)
"""R of the paper, of every client."""


class RegressionStream(StreamData):
    """Distributed parameter estimation (Wang and Zhang 2024, section 5) in R^6."""

    kind: Literal["reproduction.recipes:RegressionStream"] = "reproduction.recipes:RegressionStream"
    provides: ClassVar[ExampleKind] = "regression"
    truth: float = 0.5
    """Every entry of x*."""
    noise_stddev: NonNegativeFloat = 1.0
    """Standard deviation of the noise in the targets."""

    def draw(self, rng: np.random.Generator, count: int) -> Examples:
        """``feature`` u and ``target`` u^T x* + nu."""
        root = np.linalg.cholesky(np.array(COVARIANCE, dtype=np.float64))
        normals = rng.standard_normal((count, len(COVARIANCE) + 1))
        u = normals[:, :-1] @ root.T
        target = self.truth * u.sum(-1) + self.noise_stddev * normals[:, -1]
        tensors = {"feature": torch.from_numpy(u), "target": torch.from_numpy(target)}
        return Examples(tensors, {"feature": 1, "target": 0})
