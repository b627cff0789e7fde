"""Data of one's own: ``data = { kind = "file", ... }``, one file a client.

The config says publicly what one example is: its columns or shape, its classes, the bounds of its
numbers and what becomes of what lies outside. Shapes and start points follow from that alone
(`FileData.blank`); the files are read where they lie.
"""

from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator

from manifed.errors import short
from manifed.problems import rows as row_rules
from manifed.problems.data import Dataset, ExampleKind, checksum
from manifed.problems.examples import Examples
from manifed.problems.file_formats import Array, BadFile, Layout, Raw, function

Interval = tuple[float, float]
Outside = Literal["refuse", "clip", "project"]
_LARGEST = 1e100
"""Of a bound; two bounds are one over it apart at least: what is rescaled stays finite."""
_FINITE = "expected a finite number, got NaN or infinity"


class _Kind(NamedTuple):
    """What examples of a kind are, and which keys of the config are for them."""

    provides: ExampleKind
    takes: tuple[str, ...]
    outside: tuple[Outside, ...]
    shape: str = "[d]"


_BOUNDS = ("range", "rescale_to", "row_norm")
_ANY: tuple[Outside, ...] = ("refuse", "clip", "project")
_CLIPPED: tuple[Outside, ...] = ("refuse", "clip")
_PROJECTED: tuple[Outside, ...] = ("refuse", "project")
KINDS = {
    "rows": _Kind("rows", ("label", "classes", *_BOUNDS), _ANY),
    "regression": _Kind(
        "regression", ("label", "label_range", "has_intercept", *_BOUNDS), _ANY
    ),
    "classification": _Kind(
        "classification", ("label", "classes", "has_intercept", *_BOUNDS), _ANY
    ),
    "spd-matrices": _Kind("spd-matrices", ("label", "classes", "range"), _PROJECTED, "[m, m]"),
    "signals": _Kind(
        "spd-matrices", ("label", "classes", "range", "rescale_to"), _CLIPPED, "[channels, times]"
    ),
    "sphere-points": _Kind("sphere-points", (), _PROJECTED),
    "hyperbolic-points": _Kind(
        "hyperbolic-pairs", ("features", "query", "row_norm"), _PROJECTED
    ),
    "columns": _Kind("columns", _BOUNDS, _CLIPPED),
}  # fmt: skip
"""By ``examples``."""


class FileData(Layout):
    """A file for each client: csv, npy, npz, parquet, safetensors."""

    kind: Literal["file"] = "file"
    examples: Literal[
        "rows", "regression", "classification", "spd-matrices", "signals", "sphere-points",
        "hyperbolic-points", "columns",
    ]  # fmt: skip
    """What one example is; "signals" become covariance matrices."""
    query: tuple[float, ...] = ()
    """The features that hyperbolic prediction is asked for: public."""
    coordinates: Literal["poincare", "lorentz"] = "poincare"
    """What the entries of a hyperbolic point are."""
    is_row_wise: bool = False
    """Declares that ``source`` computes each example from its own record alone."""
    range: Interval | tuple[Interval, ...] | None = None
    """Public bounds: of every entry, of each column, or of the eigenvalues of SPD matrices."""
    label_range: Interval | None = None
    """Public bounds of the label of a regression."""
    rescale_to: Interval | None = None
    """Map ``range`` linearly to this, each column by itself."""
    row_norm: float | None = Field(default=None, gt=0)
    """Public bound of a row's length; of a hyperbolic point's distance from the origin."""
    outside: Outside = "refuse"
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
        for is_wrong, why in chain(self._faults_of_keys(), self._faults_of_numbers()):
            if is_wrong:
                raise ValueError(why)
        return self

    def _faults_of_keys(self) -> Iterator[tuple[bool, str]]:
        """What may be wrong, one after the other: whether it is, and what is said then."""
        kind, of, classes = self.examples, KINDS[self.examples], self.classes
        for name in sorted({key for each in KINDS.values() for key in each.takes} - {*of.takes}):
            is_given = getattr(self, name) != FileData.model_fields[name].default
            yield is_given, f"{name}: examples = {kind!r} take none"
        expected = f"outside: expected one of {list(of.outside)} with examples = {kind!r}, got "
        yield self.outside not in of.outside, f"{expected}{self.outside!r}"
        yield (
            not self.columns and not self.shape,
            "columns: expected the columns of a table, or shape = [...] of an array's examples",
        )
        names = (*self.columns, *self.features, *([self.label] if self.label else []))
        yield (
            len(set(names)) != len(names) or not all(names),
            "columns: expected each column once, for one purpose, each with a name",
        )
        is_labelled = kind in ("regression", "classification")
        yield is_labelled and self.label is None, f"label: required with examples = {kind!r}"
        needs_classes = self.label is not None and kind != "regression"
        yield (
            bool(classes) != needs_classes,
            "classes: needs label, and label needs it: the public list of the label's values",
        )
        yield (
            kind == "classification" and len(classes) != 2,
            "classes: expected the two classes of a classification, the second one counting as +1, "
            f"got {len(classes)}",
        )
        is_once = len(set(map(str, classes))) == len(classes) and len(set(map(type, classes))) < 2
        yield not is_once, "classes: expected each class once, all texts or integers"
        yield self.rescale_to is not None and self.range is None, "rescale_to: needs range"
        yield (
            self.outside == "project" and "row_norm" in of.takes and "range" in of.takes
            and self.row_norm is None,
            "outside: 'project' needs row_norm, the radius of the sphere",
        )  # fmt: skip
        if self.source is not None:
            try:
                function(self.source)
            except ValueError as error:
                yield True, f"source: {error}"

    def _faults_of_numbers(self) -> Iterator[tuple[bool, str]]:
        """Whether a shape or bound does not fit the other keys, and the refusal of it."""
        shape, columns, kind = self.one_shape, self.columns, self.examples
        size = np.prod(shape, dtype=float)
        yield (
            min(shape) < 1 or size > 1 << 24,
            f"shape: expected sizes from 1 on, got {list(self.shape)}",
        )
        yield (
            bool(columns) and size != len(columns),
            f"shape: expected a shape of {len(columns)} columns, got {list(self.shape)}",
        )
        wanted = KINDS[kind].shape
        yield (
            len(shape) != len(wanted.split(",")) or (wanted == "[m, m]" and len({*shape}) > 1),
            f"shape: examples = {kind!r} are of shape {wanted}, got {list(shape)}",
        )
        count = len(self.features)
        yield (
            count != len(self.query),
            f"query: expected a number for each of {count} features, got {len(self.query)}",
        )
        for name in ("range", "label_range", "rescale_to"):
            interval = getattr(self, name)
            bounds = np.array(interval if interval is not None else (0.0, 1.0)).reshape(-1, 2)
            is_apart = bounds[:, 1] - bounds[:, 0] >= 1 / _LARGEST
            yield (
                not (is_apart & (np.abs(bounds) <= _LARGEST).all(-1)).all(),
                f"{name}: expected low < high, {1 / _LARGEST:g} apart at least and no larger than "
                f"{_LARGEST:g}, got {short(list(interval or ()))}",
            )
        is_each = self.range is not None and np.shape(self.range) != (2,)
        count = len(self.range or ())
        yield (
            is_each and shape != (count,),
            f"range: expected one pair, or one for each column of {list(shape)}, got {count}",
        )
        yield (
            kind == "spd-matrices" and self.range is not None and self._bounds()[0] <= 0,
            f"range: expected eigenvalues above 0, got {self.range}",
        )

    @property
    def has_gaps(self) -> bool:
        """In columns that are completed."""
        return self.examples == "columns"

    @property
    def provides(self) -> ExampleKind:
        """The kind of its examples."""
        match KINDS[self.examples].provides:
            case "rows" if self.label is not None:
                return "labelled-rows"
            case "spd-matrices" if self.label is not None:
                return "labelled-spd-matrices"
            case other:
                return other

    @property
    def meta(self) -> Mapping[str, Any]:
        """What belongs to no example: the query of a hyperbolic prediction."""
        query = torch.tensor(self.query, dtype=torch.float64)
        return {"query_feature": query} if self.query else {}

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
            values[0] = np.eye(self.one_shape[0]) * (
                1.0 if self.range is None else self._bounds()[0]
            )
        elif self.range is not None:
            values = values + sum(self._bounds()) / 2
        elif self.examples == "sphere-points" or self.coordinates == "lorentz":
            values[0, 0] = 1.0
        label = None
        if self.label is not None:
            label = np.array([self.classes[0] if self.classes else (self.label_range or (0.0,))[0]])
        features = np.zeros((1, len(self.features)))
        made = self.model_copy(update={"outside": "clip"})
        return made._examples(Raw(Path("blank"), values, label, features, lambda _: ""))

    def read(self, path: Path) -> Examples:
        """The examples of one client's file.

        Raises:
            BadFile: naming file, line and column; nothing of what the file holds.
        """
        return self._examples(self.raw(path))

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
        clients = np.repeat(np.arange(len(shards)), [len(shard) for shard in shards])
        arrays = [tensor.numpy() for tensor in whole.tensors.values()]
        return Dataset(whole, checksum(*arrays), sources=clients, meta=self.meta)

    # -- rules ------------------------------------------------------------------------------------
    def _bounds(self) -> tuple[Any, Any]:
        """Low and high ends of ``range``, one for all or one a column."""
        pairs = np.array(self.range, dtype=np.float64)
        return pairs[..., 0], pairs[..., 1]

    def _refuse(
        self,
        raw: Raw,
        is_bad: NDArray[np.bool_],
        what: str,
        column: str | None = None,
        mend: Outside | None = None,
    ) -> None:
        """Refuse the first example with a flag; flags of entries name their column.

        ``mend``: what ``outside`` may be instead of "refuse", where bad means outside of a bound.

        Raises:
            BadFile: if there is one.
        """
        if not is_bad.any() or (mend is not None and self.outside != "refuse"):
            return
        first, *entry = np.argwhere(is_bad)[0].tolist()
        if entry:
            flat = int(np.ravel_multi_index(entry, self.one_shape))
            column = self.columns[flat] if self.columns else f"entry {entry}"
        hint = f"; mend it, or set data.outside = {mend!r}" if mend else ""
        raise BadFile(raw.path, f"{what}{hint}", place=raw.place(first), column=column)

    def _examples(self, raw: Raw) -> Examples:
        values = self._entries(raw)
        tensors: dict[str, NDArray[Any]] = {}
        match self.examples:
            case "spd-matrices":
                bounds = None if self.range is None else self._bounds()
                tensors["z"], is_outside = row_rules.positive_definite(values, bounds)
                what = "expected a symmetric positive definite matrix with eigenvalues inside " \
                    "data.range"  # fmt: skip
                self._refuse(raw, is_outside, what, mend="project")
            case "signals":
                tensors["z"] = row_rules.covariances(values, self.ridge, is_centred=self.is_centred)
            case "hyperbolic-points":
                found = row_rules.to_hyperboloid(values, self.coordinates, self.row_norm)
                tensors["feature"], (tensors["target"], is_outside) = raw.features, found
                what = f"expected a point in {self.coordinates} coordinates, at most " \
                    "data.row_norm from the origin"  # fmt: skip
                self._refuse(raw, is_outside, what, mend="project")
                for name, column in zip(self.features, raw.features.T, strict=True):
                    self._refuse(raw, ~np.isfinite(column), _FINITE, name)
            case "sphere-points":
                tensors["z"], length = row_rules.directions(values)
                self._refuse(raw, length == 0, "expected a direction, got a row of zeros")
                is_off = np.abs(length - 1) > 1e-9
                self._refuse(raw, is_off, "expected a row of length 1", mend="project")
            case "columns":
                rows = self._rows(raw, values)
                tensors["mask"] = (~np.isnan(rows)).astype(np.float64)
                tensors["column"] = np.nan_to_num(rows, nan=0.0)
                is_blank = tensors["mask"].sum(-1) == 0
                self._refuse(raw, is_blank, "expected at least one entry that was seen")
            case "rows":
                tensors["z"] = self._rows(raw, values)
            case "regression" | "classification":
                ones = np.ones((len(values), int(self.has_intercept)))
                tensors["feature"] = np.hstack([self._rows(raw, values), ones])
        if raw.label is not None:
            name = "target" if self.examples == "regression" else "label"
            tensors[name] = self._labels(raw, raw.label)
        for value in tensors.values():
            is_bad = ~np.isfinite(value).reshape(len(value), -1)
            what = "expected numbers whose squares are finite; bound them by data.range"
            self._refuse(raw, np.any(is_bad, axis=-1), what)
        return Examples.of_columns(
            {key: torch.from_numpy(np.ascontiguousarray(value)) for key, value in tensors.items()}
        )

    def _entries(self, raw: Raw) -> Array:
        """Finite entries inside ``range``, rescaled."""
        values = raw.values
        is_bad = np.isinf(values) if self.has_gaps else ~np.isfinite(values)
        self._refuse(raw, is_bad, _FINITE)
        if self.range is None or self.examples == "spd-matrices":
            return values
        low, high = self._bounds()
        is_outside = (values < low) | (values > high)
        self._refuse(raw, is_outside, "expected a number inside data.range", mend="clip")
        values = np.clip(values, low, high)
        if self.rescale_to is None:
            return values
        least, most = self.rescale_to
        return least + (values - low) * ((most - least) / (high - low))

    def _rows(self, raw: Raw, rows: Array) -> Array:
        """Rows no longer than ``row_norm``, or all of that length."""
        if self.row_norm is None:
            return rows
        if self.outside == "project":
            return row_rules.directions(rows)[0] * self.row_norm
        rows, is_long = row_rules.shortened(rows, self.row_norm)
        what = f"expected a row of length <= data.row_norm = {self.row_norm:g}"
        self._refuse(raw, is_long, what, mend="clip")
        return rows

    def _labels(self, raw: Raw, label: NDArray[Any]) -> NDArray[Any]:
        """Targets inside ``label_range``, class numbers, or the signs of two classes."""
        if self.examples == "regression":
            values = label.astype(np.float64)
            self._refuse(raw, ~np.isfinite(values), _FINITE, self.label)
            inside = np.clip(values, *(self.label_range or (-np.inf, np.inf)))
            what = "expected a number inside data.label_range"
            self._refuse(raw, inside != values, what, self.label, mend="clip")
            return inside
        index = np.full(len(label), -1.0)
        for i, name in enumerate(self.classes):
            index[label == name] = i
        what = f"expected one of data.classes = {list(self.classes)}, got another label"
        self._refuse(raw, index < 0, what, self.label)
        return 2 * index - 1 if self.examples == "classification" else index
