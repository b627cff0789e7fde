"""Data of one's own: ``data = { kind = "file", ... }``, one file a client.

The config says publicly what one example is: its columns or shape, its classes, the bounds of its
numbers and what becomes of what lies outside. Shapes and start points follow from that alone
(`FileData.blank`); the files are read where they lie.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator

from manifed.errors import short
from manifed.problems import row_rules, sources
from manifed.problems.base import Examples
from manifed.problems.dataset import Dataset, DataSource, ExampleKind
from manifed.problems.file_formats import Array, BadFile, Format, Layout, Raw, read
from manifed.problems.readers import checksum

Kind = Literal[
    "rows", "regression", "classification", "spd-matrices", "signals", "sphere-points",
    "hyperbolic-points", "columns",
]  # fmt: skip
Interval = tuple[float, float]

_PROVIDES: Mapping[Kind, ExampleKind] = {
    "rows": "rows",
    "regression": "regression",
    "classification": "classification",
    "spd-matrices": "spd-matrices",
    "signals": "spd-matrices",
    "sphere-points": "sphere-points",
    "hyperbolic-points": "hyperbolic-pairs",
    "columns": "columns",
}
_NEAREST = 1e-100
"""Distance of two bounds; they are one over it in size at most: what is rescaled stays finite."""
_LABELLED = ("regression", "classification")
_MATRICES = ("spd-matrices", "signals")
_POINTS = ("spd-matrices", "sphere-points", "hyperbolic-points")


class FileData(DataSource):
    """A file for each client: csv, npy, npz, parquet, safetensors."""

    kind: Literal["file"] = "file"
    examples: Kind
    """What one example is; "signals" become covariance matrices."""
    columns: tuple[str, ...] = ()
    """Of a csv or parquet table: the entries of one example, in this order."""
    shape: tuple[int, ...] = ()
    """Of one example; as many entries as ``columns`` where nothing is given."""
    array: str = "x"
    """The array of an npz or safetensors file that holds the examples, number first."""
    label: str | None = None
    """Column or array of the labels."""
    classes: tuple[int | str, ...] = ()
    """Public: the labels that there can be. Of two, logistic regression takes the second for +1."""
    mask: str | None = None
    """Array of 1 where an entry was seen, for examples = "columns"; NaN and empty cells say it too.
    """
    features: tuple[str, ...] = ()
    """Columns of the features of hyperbolic points, for hyperbolic prediction."""
    query: tuple[float, ...] = ()
    """The features that hyperbolic prediction is asked for: public."""
    coordinates: Literal["poincare", "lorentz"] = "poincare"
    """What the entries of a hyperbolic point are."""
    format: Format | None = None
    """None: by the file's suffix."""
    delimiter: Literal[",", ";", "\t", "|"] = ","
    """Of a csv file."""
    source: str | None = None
    """``package.module:function`` that reads a file instead, of a package of one's own: it takes a
    path and returns a tensor, tensors by name, or a ``torch.utils.data.Dataset``."""
    is_row_wise: bool = False
    """Declares that ``source`` computes each example from its own record alone."""
    dtype: str | None = None
    """The type that arrays must have; None: any integers or floats. Computed is in float64."""
    range: Interval | tuple[Interval, ...] | None = None
    """Public bounds: of every entry, of each column, or of the eigenvalues of SPD matrices."""
    label_range: Interval | None = None
    """Public bounds of the label of a regression."""
    rescale_to: Interval | None = None
    """Map ``range`` linearly to this, each column by itself."""
    row_norm: float | None = Field(default=None, gt=0)
    """Public bound of a row's length; of a hyperbolic point's distance from the origin."""
    outside: Literal["refuse", "clip", "project"] = "refuse"
    """A row beyond a bound: refuse the file; clip its entries, then its length; or project it onto
    the manifold (rows and sphere points: onto the sphere of radius ``row_norm``)."""
    ridge: float = Field(default=1e-6, gt=0)
    """Added to the diagonal of the covariance of a signal."""
    is_centred: bool = True
    """Subtract each signal's own mean over time."""
    has_intercept: bool = False
    """Append a constant 1 to the row of a regression or classification, after its bounds."""
    paths: tuple[str, ...] = ()
    """Simulations only: the clients' files, relative to the config. A site's own path is its own.
    """

    @model_validator(mode="after")
    def _fits(self) -> "FileData":
        self._check_shape()
        self._check_labels()
        self._check_bounds()
        self._check_of_kind()
        self._check_source()
        return self

    def _check_shape(self) -> None:
        if not self.columns and not self.shape:
            raise ValueError(
                "columns: expected the columns of a table, or shape = [...] of an array's examples"
            )
        names = (*self.columns, *self.features, *([self.label] if self.label else []))
        if len(set(names)) != len(names) or not all(names):
            raise ValueError(
                "columns: expected each column once, for one purpose, each with a name"
            )
        if min(self.one_shape) < 1 or np.prod(self.one_shape, dtype=float) > 1 << 24:
            raise ValueError(f"shape: expected sizes from 1 on, got {list(self.shape)}")
        if self.columns and np.prod(self.one_shape) != len(self.columns):
            raise ValueError(
                f"shape: expected a shape of {len(self.columns)} columns, got {list(self.shape)}"
            )
        ndim = 2 if self.examples in _MATRICES else 1
        if len(self.one_shape) != ndim:
            what = "[m, m]" if self.examples == "spd-matrices" else "[channels, times]"
            what = what if ndim == 2 else "[d]"
            raise ValueError(
                f"shape: examples = {self.examples!r} are of shape {what}, got "
                f"{list(self.one_shape)}"
            )
        if self.examples == "spd-matrices" and self.one_shape[0] != self.one_shape[1]:
            raise ValueError(f"shape: expected square matrices, got {list(self.one_shape)}")

    def _check_source(self) -> None:
        if self.source is None:
            return
        if self.format is not None:
            raise ValueError("source: expected a function or data.format, got both")
        try:
            sources.function(self.source)
        except ValueError as error:
            raise ValueError(f"source: {error}") from None

    def _check_labels(self) -> None:
        if self.examples in _LABELLED and self.label is None:
            raise ValueError(f"label: required with examples = {self.examples!r}, but not given")
        if self.examples == "classification" and len(self.classes) != 2:
            raise ValueError(
                "classes: expected the two classes of a classification, the second one counting "
                f"as +1, got {len(self.classes)}"
            )
        if len(set(map(str, self.classes))) != len(self.classes):
            raise ValueError("classes: expected each class once")
        if len({type(name) for name in self.classes}) > 1:
            raise ValueError("classes: expected texts or integers, got both")
        if self.classes and (self.label is None or self.examples == "regression"):
            raise ValueError("classes: needs label, the column of the classes, and no regression")
        if self.label is not None and not self.classes and self.examples != "regression":
            raise ValueError("classes: required beside label: the public list of its values")
        if self.label is not None and self.examples not in (*_LABELLED, *_MATRICES, "rows"):
            raise ValueError(f"label: examples = {self.examples!r} have no label")

    def _check_bounds(self) -> None:
        for name, interval in (("range", self.range), ("label_range", self.label_range),
                               ("rescale_to", self.rescale_to)):  # fmt: skip
            bounds = np.array(interval if interval is not None else (0.0, 1.0)).reshape(-1, 2)
            is_apart = bounds[:, 1] - bounds[:, 0] >= _NEAREST
            if not (is_apart & (np.abs(bounds) <= 1 / _NEAREST).all(-1)).all():
                raise ValueError(
                    f"{name}: expected low < high, {_NEAREST:g} apart at least and no larger than "
                    f"{1 / _NEAREST:g}, got {short(list(interval or ()))}"
                )
        pairs = np.array(self.range if self.range is not None else (0.0, 1.0))
        num_pairs = None if pairs.shape == (2,) else len(pairs)
        if num_pairs is not None and self.one_shape != (num_pairs,):
            raise ValueError(
                f"range: expected one pair, or one for each column of {list(self.one_shape)}, got "
                f"{num_pairs}"
            )
        if self.examples == "spd-matrices" and self.range is not None and self._bounds()[0] <= 0:
            raise ValueError(f"range: expected eigenvalues above 0, got {self.range}")
        if self.label_range is not None and self.examples != "regression":
            raise ValueError("label_range: for examples = 'regression' only")
        if self.rescale_to is not None and (self.range is None or self.examples in _POINTS):
            raise ValueError("rescale_to: needs range, and examples that are no points")
        if self.range is not None and self.examples in ("sphere-points", "hyperbolic-points"):
            raise ValueError(f"range: examples = {self.examples!r} take row_norm or none")
        if self.row_norm is not None and self.examples in (*_MATRICES, "sphere-points"):
            raise ValueError(f"row_norm: examples = {self.examples!r} take range or none")

    def _check_of_kind(self) -> None:
        if self.outside == "clip" and self.examples in _POINTS:
            raise ValueError("outside: points of a manifold are refused or projected, got 'clip'")
        if self.outside == "project" and self.examples in ("signals", "columns"):
            raise ValueError(f"outside: {self.examples!r} are refused or clipped, got 'project'")
        needs_norm = self.outside == "project" and self.examples in ("rows", *_LABELLED)
        if needs_norm and self.row_norm is None:
            raise ValueError("outside: 'project' needs row_norm, the radius of the sphere")
        if self.mask is not None and self.examples != "columns":
            raise ValueError("mask: for examples = 'columns' only")
        if self.has_intercept and self.examples not in _LABELLED:
            raise ValueError("has_intercept: for a regression or a classification only")
        if (self.features or self.query) and self.examples != "hyperbolic-points":
            raise ValueError("features, query: for examples = 'hyperbolic-points' only")
        if len(self.features) != len(self.query):
            raise ValueError(
                f"query: expected a number for each of {len(self.features)} features, got "
                f"{len(self.query)}"
            )
        if self.min_size > self.one_shape[-1]:
            raise ValueError(f"shape: expected at least {self.min_size} entries, got 1")

    @property
    def min_size(self) -> int:
        """Fewest entries of one example: a point of the hyperboloid has a time and a place."""
        is_pair = self.examples == "hyperbolic-points" and self.coordinates == "lorentz"
        return 2 if is_pair else 1

    @property
    def one_shape(self) -> tuple[int, ...]:
        """Shape of one example in the file."""
        return self.shape or (len(self.columns),)

    @property
    def provides(self) -> ExampleKind:
        """The kind of its examples."""
        if self.examples in _MATRICES and self.label is not None:
            return "labelled-spd-matrices"
        if self.examples == "rows" and self.label is not None:
            return "labelled-rows"
        return _PROVIDES[self.examples]

    @property
    def meta(self) -> Mapping[str, Any]:
        """What belongs to no example: the query of a hyperbolic prediction."""
        if not self.query:
            return {}
        return {"query_feature": torch.tensor(self.query, dtype=torch.float64)}

    def mixes_records(self) -> str | None:
        """A function of one's own may look at all records, unless it is declared not to."""
        if self.source is None or self.is_row_wise:
            return None
        return (
            "data.is_row_wise: a source of one's own may let one record change another's example; "
            "expected true with privacy (a declaration that it does not), got false"
        )

    # -- examples ---------------------------------------------------------------------------------
    def blank(self) -> Examples:
        """One valid made-up example: the shapes of all others, from the config alone."""
        values = np.zeros((1, *self.one_shape))
        if self.examples == "spd-matrices":
            values[0] = np.eye(self.one_shape[0])
        elif self.examples == "sphere-points" or (
            self.examples == "hyperbolic-points" and self.coordinates == "lorentz"
        ):
            values[0, 0] = 1.0
        if self.range is not None and self.examples != "hyperbolic-points":
            low, high = self._bounds()
            values = values + (low + high) / 2 if self.examples not in _POINTS else values * low
        label = None
        if self.label is not None:
            label = np.array([self.classes[0] if self.classes else (self.label_range or (0.0,))[0]])
        features = np.zeros((1, len(self.features))) if self.features else None
        made = self.model_copy(update={"outside": "refuse"})
        return made._examples(Path("blank"), Raw(values, label, features, lambda _: ""))

    def read(self, path: Path) -> Examples:
        """The examples of one client's file.

        Raises:
            BadFile: naming file, line and column; nothing of what the file holds.
        """
        layout = Layout(
            shape=self.one_shape,
            columns=self.columns,
            array=self.array,
            label=self.label,
            mask=self.mask,
            features=self.features,
            delimiter=self.delimiter,
            dtype=self.dtype,
            has_gaps=self.examples == "columns",
            has_text_labels=bool(self.classes) and isinstance(self.classes[0], str),
        )
        if self.source is not None:
            return self._examples(path, sources.read(path, self.source, layout))
        return self._examples(path, read(path, layout, self.format))

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """All clients' files, each one a source of its own."""
        del data_dir, seed
        if not self.paths:
            raise ValueError(
                "data.paths: expected a file for each client of a simulation, got none; in a "
                "deployment each site names its own"
            )
        shards = [self.read(Path(path)) for path in self.paths]
        whole = Examples.concatenate(shards)
        sources = np.repeat(np.arange(len(shards)), [len(shard) for shard in shards])
        arrays = [tensor.numpy() for tensor in whole.tensors.values()]
        return Dataset(whole, checksum(*arrays), sources=sources, meta=self.meta)

    # -- rules ------------------------------------------------------------------------------------
    def _bounds(self) -> tuple[Array, Array]:
        """Low and high ends of ``range``, one for all or one a column."""
        pairs = np.array(self.range, dtype=np.float64)
        return pairs[..., 0], pairs[..., 1]

    def _column(self, index: tuple[int, ...]) -> str | None:
        flat = int(np.ravel_multi_index(index, self.one_shape))
        return self.columns[flat] if self.columns else f"entry {list(index)}"

    def _refuse(
        self, path: Path, raw: Raw, is_bad: NDArray[np.bool_], what: str, column: str | None = None
    ) -> None:
        """Refuse the first example with a flag; flags of entries name their column.

        Raises:
            BadFile: if there is one.
        """
        if not is_bad.any():
            return
        first, *entry = (int(i) for i in np.argwhere(is_bad)[0])
        if entry:
            column = self._column(tuple(entry))
        raise BadFile(path, what, place=raw.place(first), column=column)

    def _examples(self, path: Path, raw: Raw) -> Examples:
        values = self._entries(path, raw)
        match self.examples:
            case "spd-matrices":
                tensors = {"z": self._matrices(path, raw, values)}
            case "signals":
                tensors = {
                    "z": row_rules.covariances(values, self.ridge, is_centred=self.is_centred)
                }
            case "hyperbolic-points":
                tensors = self._hyperbolic(path, raw, values)
            case "sphere-points":
                z, is_zero = row_rules.on_sphere(values, 1.0)
                self._refuse(path, raw, is_zero, "expected a direction, got a row of zeros")
                is_off = np.abs(row_rules.lengths(values) - 1) > 1e-9
                if self.outside == "refuse":
                    self._refuse(path, raw, is_off, "expected a row of length 1")
                tensors = {"z": z}
            case "columns":
                rows = self._rows(path, raw, values)
                mask = (~np.isnan(rows)).astype(np.float64)
                self._refuse(
                    path, raw, mask.sum(-1) == 0, "expected at least one entry that was seen"
                )
                tensors = {"column": np.nan_to_num(rows, nan=0.0), "mask": mask}
            case "rows":
                tensors = {"z": self._rows(path, raw, values)}
            case "regression" | "classification":
                tensors = {"feature": self._rows(path, raw, values)}
                if self.has_intercept:
                    ones = np.ones((len(values), 1))
                    tensors["feature"] = np.hstack([tensors["feature"], ones])
        if self.label is not None:
            name = "target" if self.examples == "regression" else "label"
            tensors[name] = self._labels(path, raw)
        for value in tensors.values():
            is_bad = ~np.isfinite(value).reshape(len(value), -1)
            what = "expected numbers whose squares are finite; bound them by data.range"
            self._refuse(path, raw, np.any(is_bad, axis=-1), what)
        return Examples(
            {key: torch.from_numpy(np.ascontiguousarray(value)) for key, value in tensors.items()},
            {key: value.ndim - 1 for key, value in tensors.items()},
        )

    def _entries(self, path: Path, raw: Raw) -> Array:
        """Finite entries inside ``range``, rescaled."""
        values = raw.values
        is_bad = np.isinf(values) if self.examples == "columns" else ~np.isfinite(values)
        self._refuse(path, raw, is_bad, "expected a finite number, got NaN or infinity")
        if self.range is None or self.examples == "spd-matrices":
            return values
        low, high = self._bounds()
        values, is_outside = row_rules.clipped(values, low, high)
        if self.outside == "refuse":
            self._refuse(path, raw, is_outside, "expected a number inside data.range; mend it, or "
                         "set data.outside = 'clip'")  # fmt: skip
        if self.rescale_to is None:
            return values
        return row_rules.rescaled(values, low, high, self.rescale_to)

    def _rows(self, path: Path, raw: Raw, rows: Array) -> Array:
        if self.row_norm is None:
            return rows
        if self.outside == "project":
            return row_rules.on_sphere(rows, self.row_norm)[0]
        rows, is_long = row_rules.shortened(rows, self.row_norm)
        if self.outside == "refuse":
            self._refuse(path, raw, is_long, f"expected a row of length <= data.row_norm = "
                         f"{self.row_norm:g}; mend it, or set data.outside = 'clip'")  # fmt: skip
        return rows

    def _matrices(self, path: Path, raw: Raw, values: Array) -> Array:
        bounds = None if self.range is None else self._bounds()
        z, is_outside = row_rules.positive_definite(values, bounds)
        if self.outside == "refuse":
            self._refuse(path, raw, is_outside, "expected a symmetric positive definite matrix "
                         "with eigenvalues inside data.range; mend it, or set data.outside = "
                         "'project'")  # fmt: skip
        return z

    def _hyperbolic(self, path: Path, raw: Raw, values: Array) -> dict[str, Array]:
        points, is_outside = row_rules.to_hyperboloid(values, self.coordinates, self.row_norm)
        if self.outside == "refuse":
            self._refuse(path, raw, is_outside, f"expected a point in {self.coordinates} "
                         "coordinates, at most data.row_norm from the origin; mend it, or set "
                         "data.outside = 'project'")  # fmt: skip
        features = np.zeros((len(points), 0)) if raw.features is None else raw.features
        for j, name in enumerate(self.features):
            is_bad = ~np.isfinite(features[:, j])
            self._refuse(path, raw, is_bad, "expected a finite number, got NaN or infinity", name)
        return {"feature": features, "target": points}

    def _labels(self, path: Path, raw: Raw) -> NDArray[Any]:
        assert raw.label is not None
        if self.examples == "regression":
            values = raw.label.astype(np.float64)
            what = "expected a finite number, got NaN or infinity"
            self._refuse(path, raw, ~np.isfinite(values), what, self.label)
            if self.label_range is None:
                return values
            clipped, is_outside = row_rules.clipped(
                values, np.array(self.label_range[0]), np.array(self.label_range[1])
            )
            if self.outside == "refuse":
                what = "expected a number inside data.label_range"
                self._refuse(path, raw, is_outside, what, self.label)
            return clipped
        index = np.full(len(raw.label), -1.0)
        for i, name in enumerate(self.classes):
            index[raw.label == name] = i
        what = f"expected one of data.classes = {list(self.classes)}, got another label"
        self._refuse(path, raw, index < 0, what, self.label)
        return 2 * index - 1 if self.examples == "classification" else index
