"""Configuration of the synthetic data sets (recipes: manifed/problems/synthetic.py)."""

from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field

from manifed.problems import synthetic
from manifed.problems.dataset import Dataset, DataSource, ExampleKind, build, generator


class SyntheticEigengap(DataSource):
    """PriRFed Figure 1: eigengap nu, N = 16 clients with their own basis unless it is shared."""

    kind: Literal["synthetic-eigengap"] = "synthetic-eigengap"
    provides: ClassVar[ExampleKind] = "rows"
    num_clients: int = Field(default=16, ge=1)
    """Clients that rows are made for, each from its own law."""
    rows: int = Field(default=70, ge=1)
    """Rows a client."""
    dimension: int = Field(default=25, ge=5)
    """Of a row, or of the space that the points lie in."""
    gap: float = Field(default=1e-3, gt=0, lt=0.7)
    """nu, between the two leading eigenvalues."""
    is_shared_basis: bool = False
    """All clients have one eigenbasis."""

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """Rows ``z`` with their client as source."""
        del data_dir
        z, sources = synthetic.eigengap(
            self.num_clients,
            self.rows,
            self.dimension,
            generator(seed, "data"),
            gap=self.gap,
            is_shared_basis=self.is_shared_basis,
        )
        return build({"z": z}, sources=sources)


class SyntheticPCA(DataSource):
    """Projected FL Figures 6 and 7: client i's entries are N(0, variance 2i/n)."""

    kind: Literal["synthetic-pca"] = "synthetic-pca"
    provides: ClassVar[ExampleKind] = "rows"
    num_clients: int = Field(default=30, ge=1)
    """Clients that rows are made for, each from its own law."""
    rows: int = Field(default=15, ge=1)
    """Rows a client."""
    dimension: int = Field(default=20, ge=1)
    """Of a row, or of the space that the points lie in."""

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """Rows ``z`` with their client as source."""
        del data_dir
        rng = generator(seed, "data")
        z, sources = synthetic.growing_variance(self.num_clients, self.rows, self.dimension, rng)
        return build({"z": z}, sources=sources)


class SpikedRows(DataSource):
    """Rows like one class of MNIST for a leading eigenvector (Utpala et al. 2023, Figure 3b)."""

    kind: Literal["spiked-rows"] = "spiked-rows"
    provides: ClassVar[ExampleKind] = "rows"
    num_examples: int = Field(default=6903, ge=2)
    """Examples in all."""
    dimension: int = Field(default=784, ge=2)
    """Of a row, or of the space that the points lie in."""
    squared_norm: float = Field(default=100.0, gt=0)
    """Mean squared norm of a row; about 100 for pixels in [0, 1]."""

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """Rows ``z``."""
        del data_dir
        rng = generator(seed, "data")
        sizes = (self.num_examples, self.dimension)
        return build({"z": synthetic.spiked_rows(*sizes, rng, squared_norm=self.squared_norm)})


class Wishart(DataSource):
    """PriRFed Figure 3: Wishart matrices within ``radius`` of the identity (null: all)."""

    kind: Literal["wishart"] = "wishart"
    provides: ClassVar[ExampleKind] = "spd-matrices"
    num_examples: int = Field(default=5000, ge=1)
    """Examples in all."""
    dimension: int = Field(default=2, ge=1)
    """Side of the matrices."""
    radius: float | None = Field(default=1.0, gt=0)
    """Largest distance from the identity; None takes every matrix."""

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """Matrices ``z``."""
        del data_dir
        rng = generator(seed, "data")
        z = synthetic.wishart(self.num_examples, self.dimension, rng, radius=self.radius)
        return build({"z": z}, feature_ndim={"z": 2})


class LogNormalSPD(DataSource):
    """Matrices G^{1/2} expm(spread S) G^{1/2}, S symmetric normal, G with log-spaced spectrum."""

    kind: Literal["spd-lognormal"] = "spd-lognormal"
    provides: ClassVar[ExampleKind] = "spd-matrices"
    num_examples: int = Field(default=1000, ge=1)
    """Examples in all."""
    dimension: int = Field(default=10, ge=1)
    """Side of the matrices."""
    spread: float = Field(default=0.25, gt=0)
    """Deviation in the exponent."""
    condition: float = Field(default=100.0, ge=1)
    """Condition number of the centre."""

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """Matrices ``z``."""
        del data_dir
        rng = generator(seed, "data")
        z = synthetic.lognormal_spd(
            self.num_examples, self.dimension, rng, spread=self.spread, condition=self.condition
        )
        return build({"z": z}, feature_ndim={"z": 2})


class SPDClasses(DataSource):
    """Equally many matrices of each class, as `LogNormalSPD` around a G of its own."""

    kind: Literal["spd-classes"] = "spd-classes"
    provides: ClassVar[ExampleKind] = "labelled-spd-matrices"
    num_examples: int = Field(default=1000, ge=1)
    """Examples in all."""
    dimension: int = Field(default=4, ge=1)
    """Side of the matrices."""
    num_classes: int = Field(default=2, ge=2)
    """Classes of the labels, which are 0, 1, ... ."""
    spread: float = Field(default=0.25, gt=0)
    """Deviation in the exponent."""
    condition: float = Field(default=10.0, ge=1)
    """Condition number of the centre."""

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """Matrices ``z`` and their class numbers ``label``, class after class in turn."""
        del data_dir
        rng, size = generator(seed, "data"), -(-self.num_examples // self.num_classes)
        each = [
            synthetic.lognormal_spd(
                size, self.dimension, rng, spread=self.spread, condition=self.condition
            )
            for _ in range(self.num_classes)
        ]
        z = np.stack(each, axis=1).reshape(-1, self.dimension, self.dimension)[: self.num_examples]
        label = np.arange(self.num_examples) % self.num_classes
        return build(
            {"z": z, "label": label.astype(np.float64)},
            feature_ndim={"z": 2, "label": 0},
            labels=label,
        )


class SphereCloud(DataSource):
    """Points exp_c(spread * N(0, I)) around a random centre c of the sphere."""

    kind: Literal["sphere-cloud"] = "sphere-cloud"
    provides: ClassVar[ExampleKind] = "sphere-points"
    num_examples: int = Field(default=1000, ge=1)
    """Examples in all."""
    dimension: int = Field(default=10, ge=2)
    """Of the vectors; the sphere has one less."""
    spread: float = Field(default=0.1, gt=0)
    """Deviation of the tangent vectors around the centre."""

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """Unit vectors ``z``."""
        del data_dir
        rng = generator(seed, "data")
        return build(
            {"z": synthetic.sphere_cloud(self.num_examples, self.dimension, rng, self.spread)}
        )


class SyntheticLeastSquares(DataSource):
    """Gaussian features and noisy linear targets, one truth per client if heterogeneous."""

    kind: Literal["synthetic-least-squares"] = "synthetic-least-squares"
    provides: ClassVar[ExampleKind] = "regression"
    num_clients: int = Field(default=10, ge=1)
    """Clients that rows are made for, each from its own law."""
    rows: int = Field(default=20, ge=1)
    """Rows a client."""
    dimension: int = Field(default=10, ge=1)
    """Of a row, or of the space that the points lie in."""
    noise_stddev: float = Field(default=0.1, ge=0)
    """Deviation of the noise in the targets."""
    heterogeneity: float = Field(default=0.0, ge=0)
    """Deviation of a client's own truth from the common one."""

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """``feature`` and ``target`` with their client as source."""
        del data_dir
        a, b, sources = synthetic.least_squares(
            self.num_clients,
            self.rows,
            self.dimension,
            generator(seed, "data"),
            noise_stddev=self.noise_stddev,
            heterogeneity=self.heterogeneity,
        )
        return build({"feature": a, "target": b}, sources=sources)


class ScaledIdentities(DataSource):
    """DECOR's least squares: A_i = (i / sqrt n) I and b_i ~ N(0, I / i^2); use scaling "sum"."""

    kind: Literal["scaled-identities"] = "scaled-identities"
    provides: ClassVar[ExampleKind] = "regression"
    num_clients: int = Field(default=16, ge=1)
    """Clients that rows are made for, each from its own law."""
    dimension: int = Field(default=10, ge=1)
    """Of a row, or of the space that the points lie in."""

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """``feature`` and ``target`` with their client as source."""
        del data_dir
        rng = generator(seed, "data")
        a, b, sources = synthetic.scaled_identities(self.num_clients, self.dimension, rng)
        return build({"feature": a, "target": b}, sources=sources)


class SyntheticLogistic(DataSource):
    """A stand-in shaped like a9a: 14 categorical blocks one-hot in 123 columns, 24 % positive."""

    kind: Literal["synthetic-logistic"] = "synthetic-logistic"
    provides: ClassVar[ExampleKind] = "classification"
    num_examples: int = Field(default=32000, ge=1)
    """Examples in all."""

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """``feature`` and ``label``."""
        del data_dir
        features, labels = synthetic.one_hot_logistic(self.num_examples, generator(seed, "data"))
        arrays = {"feature": features, "label": labels.astype(np.float64)}
        return build(arrays, labels=labels)


class ClassMixture(DataSource):
    """A Gaussian mixture with several components a class, in the place of images."""

    kind: Literal["class-mixture"] = "class-mixture"
    provides: ClassVar[ExampleKind] = "labelled-rows"
    num_examples: int = Field(default=16_000, ge=1)
    """Examples in all."""
    dimension: int = Field(default=40, ge=1)
    """Of a row, or of the space that the points lie in."""
    num_classes: int = Field(default=10, ge=2)
    """Classes of the labels, which are 0, 1, ... ."""
    components: int = Field(default=20, ge=2)
    """Of all classes together; component c is of class c mod num_classes."""
    spread: float = Field(default=0.5, gt=0)
    """Deviation of the components' centres; that of examples around theirs is 1."""

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """``z`` and ``label``."""
        del data_dir
        z, labels = synthetic.class_mixture(
            self.num_examples, self.dimension, self.num_classes, generator(seed, "data"),
            components=self.components, spread=self.spread,
        )  # fmt: skip
        return build({"z": z, "label": labels.astype(np.float64)}, labels=labels)


class SyntheticLowRank(DataSource):
    """Projected FL Figure 4: columns of a low-rank matrix, exact, noisy or heterogeneous."""

    kind: Literal["synthetic-low-rank"] = "synthetic-low-rank"
    provides: ClassVar[ExampleKind] = "columns"
    num_clients: int = Field(default=10, ge=1)
    """Clients that rows are made for, each from its own law."""
    columns: int = Field(default=100, ge=1)
    """Columns a client."""
    dimension: int = Field(default=100, ge=1)
    """Of a row, or of the space that the points lie in."""
    rank: int = Field(default=2, ge=1)
    """Of the matrix."""
    oversampling: float = Field(default=10.0, gt=0)
    """Entries seen over the degrees of freedom."""
    noise_stddev: float = Field(default=0.0, ge=0)
    """Deviation of the noise in the entries."""
    heterogeneity: float = Field(default=0.0, ge=0)
    """Deviation of a client's own truth from the common one."""

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """``column`` and ``mask`` with their client as source; ``true_basis`` in ``meta``."""
        del data_dir
        drawn = synthetic.low_rank(
            self.num_clients,
            self.columns,
            self.dimension,
            self.rank,
            generator(seed, "data"),
            oversampling=self.oversampling,
            noise_stddev=self.noise_stddev,
            heterogeneity=self.heterogeneity,
        )
        arrays = {"column": drawn["column"], "mask": drawn["mask"]}
        meta = {"true_basis": torch.tensor(drawn["true_basis"])}
        return build(arrays, sources=drawn["sources"], meta=meta)
