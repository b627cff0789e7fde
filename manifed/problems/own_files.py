"""Data files: ``data = { kind = "file", ... }``, one file per client.

The config says publicly what one example is: its columns or shape, its classes, the bounds of its
numbers and what becomes of what lies outside. Shapes and start points follow from that alone
(`FileData.blank`); the files are read where they lie.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import model_validator
from torch import Tensor

from manifed.errors import short
from manifed.fields import Positive, PositiveCount, Values
from manifed.problems.data import Dataset, ExampleKind, checksum, named
from manifed.problems.examples import PERSON, Examples, codes
from manifed.problems.file_formats import Array, BadFile, Layout, Pairs, Raw
from manifed.problems.file_points import covariances, directions, hyperboloid, matrices

_Interval = tuple[float, float]
_Outside = Literal["refuse", "clip", "project"]
_LARGEST = 1e100
"""The largest bound; two bounds lie one over it apart at least, so rescaled values are finite."""
_FINITE = "expected a finite number, got NaN, infinity or nothing; mend it or remove the row"


class _Kind(NamedTuple):
    """What examples of a kind are, and which keys of the config are for them."""

    provides: ExampleKind
    takes: tuple[str, ...]
    outside: tuple[str, ...] = ("refuse", "clip", "project")
    shape: str = "[d]"


_BOUNDS = ("range", "rescale_to", "row_norm")
_CELLS = ("missing", "has_missing_columns", "categories")
_PROJECTED = ("refuse", "project")
_KINDS = {
    "rows": _Kind("rows", ("label", "classes", *_BOUNDS, *_CELLS)),
    "regression": _Kind("regression", ("label", "label_range", "has_intercept", *_BOUNDS, *_CELLS)),
    "classification": _Kind(
        "classification", ("label", "classes", "has_intercept", *_BOUNDS, *_CELLS)
    ),
    "spd-matrices": _Kind("spd-matrices", ("label", "classes", "range"), _PROJECTED, "[m, m]"),
    "signals": _Kind(
        "spd-matrices", ("label", "classes", "range", "rescale_to"), ("refuse", "clip"),
        "[channels, times]",
    ),
    "sphere-points": _Kind("sphere-points", (), _PROJECTED),
    "hyperbolic-points": _Kind("hyperbolic-pairs", ("features", "query", "row_norm"), _PROJECTED),
    "columns": _Kind("columns", _BOUNDS, ("refuse", "clip")),
}  # fmt: skip
"""By ``examples``."""


class FileData(Layout):
    """Data in one file for each client: csv, npy, npz, parquet or safetensors."""

    later: ClassVar[tuple[str, ...]] = (
        "person", "rows_per_person", "missing", "has_missing_columns", "categories", "synonyms",
        "empty_cells", "aliases",
    )  # fmt: skip
    kind: Literal["file"] = "file"
    examples: Literal[
        "rows", "regression", "classification", "spd-matrices", "signals", "sphere-points",
        "hyperbolic-points", "columns",
    ]  # fmt: skip
    """Kind of example. "signals" become covariance matrices."""
    query: tuple[float, ...] = ()
    """Public features of the point to predict, for hyperbolic prediction."""
    coordinates: Literal["poincare", "lorentz"] = "poincare"
    """Coordinates of hyperbolic points."""
    is_row_wise: bool = False
    """Declares that ``source`` computes each example from its own record only."""
    range: _Interval | tuple[_Interval, ...] | None = None
    """Public bounds of every entry, of each column, or of the eigenvalues of SPD matrices."""
    label_range: _Interval | None = None
    """Public bounds of a regression's label."""
    rescale_to: _Interval | None = None
    """Map ``range`` linearly to this interval, column by column."""
    row_norm: Positive | None = None
    """Public bound of a row's length, or of a hyperbolic point's distance from the origin."""
    outside: _Outside = "refuse"
    """A row beyond a bound: refuse the file, clip entries and then length, or project onto the
    manifold (rows: onto the sphere of radius ``row_norm``)."""
    ridge: Positive = 1e-6
    """Added to the diagonal of a signal's covariance."""
    is_centred: bool = True
    """Subtract each signal's mean over time."""
    has_intercept: bool = False
    """Append a constant 1 to each row, after the bounds are applied."""
    missing: Pairs[float] = ()
    """Public constants for empty cells, by column: ``{ BMI = 27.0 }``. Other columns may have no
    empty cell."""
    has_missing_columns: bool = False
    """Whether each column of ``missing`` has an entry more, 1 where a cell was empty, else 0."""
    aliases: Pairs[tuple[str, ...]] = ()
    """Other texts for a class: ``{ yes = ["y", "1"] }``."""
    rows_per_person: PositiveCount | None = None
    """Most rows of one person that count, spread evenly over hers; required with ``person``."""
    paths: tuple[str, ...] = ()
    """Files of the clients in a simulation, relative to the config."""

    @model_validator(mode="after")
    def _fits(self) -> "FileData":
        for is_wrong, why in self._faults():
            if is_wrong:
                raise ValueError(why)
        return self

    def _faults(self) -> Iterator[tuple[bool, str]]:
        """What may be wrong, one after the other: whether it is, and what is said then."""
        kind = self.examples
        classes = self.classes
        columns = self.columns
        of = _KINDS[kind]
        for name in sorted({key for each in _KINDS.values() for key in each.takes} - {*of.takes}):
            is_given = getattr(self, name) != FileData.model_fields[name].default
            yield is_given, f"{name}: expected none with examples = {kind!r}; remove it"
        yield (
            self.outside not in of.outside,
            f"outside: expected one of {list(of.outside)} with examples = {kind!r}, got "
            f"{self.outside!r}",
        )
        names = (*columns, *self.beside)
        yield (
            len(set(names)) != len(names) or not all(names),
            "columns, label, features: expected each column once and with a name",
        )
        if kind in ("regression", "classification"):
            yield self.label is None, f"label: required with examples = {kind!r}"
        yield (
            bool(classes) != (self.label is not None and kind != "regression"),
            "classes: expected it together with label (the public list of the label's values)",
        )
        yield (
            kind == "classification" and len(classes) != 2,
            "classes: expected the two classes of a classification, the second one counting as +1, "
            f"got {len(classes)}",
        )
        yield (
            len(set(map(str, classes))) < len(classes) or len(set(map(type, classes))) > 1,
            "classes: expected each class once, all texts or integers",
        )
        yield self.rescale_to is not None and self.range is None, "rescale_to: needs range"
        yield (
            self.outside == "project" and self.row_norm is None and {*_BOUNDS} <= {*of.takes},
            "outside: 'project' needs row_norm, the radius of the sphere",
        )
        yield (
            (self.person is None) != (self.rows_per_person is None),
            "person, rows_per_person: expected both or none, a column that names persons and how "
            "many rows of one count",
        )
        yield (
            self.person is not None and bool(self.query),
            "person: expected none with query, because each row's weight depends on all rows of a "
            "client",
        )
        if self.source is not None:
            try:
                named(self.source, "function")
            except ValueError as error:
                yield True, f"source: {error}"
        named_by_table = {"missing": dict(self.missing), "synonyms": dict(self.synonyms)}
        for key, known in (("missing", columns), ("synonyms", names)):
            yield (
                not {*named_by_table[key]} <= {*known},
                f"{key}: expected names among {list(known)}, got {list(named_by_table[key])}",
            )
        yield (
            self.has_missing_columns and not self.missing,
            "has_missing_columns: needs missing, the columns whose cells may be empty",
        )
        yield (
            not {*dict(self.aliases)} <= {*map(str, classes)},
            f"aliases: expected classes among {list(classes)}, got {[*dict(self.aliases)]}",
        )
        yield (
            any(len({*levels}) < max(1, len(levels)) for _, levels in self.categories),
            "categories: expected the values of a column, each of them once",
        )
        for name, others in self.synonyms:
            is_wrong = self.is_text(name) and {*dict(others).values()} != {1.0}
            yield is_wrong, f"synonyms: expected factors 1 for the text column {name!r}"
        shape = self.one_shape
        size = np.prod(shape, dtype=float)
        yield (
            min(shape) < 1 or size > 1 << 24,
            "columns, shape: expected the columns of a table, or a shape of an array's examples "
            f"with sizes >= 1, got shape = {list(self.shape)}",
        )
        yield (
            bool(columns) and size != len(columns),
            f"shape: expected a shape of {len(columns)} columns, got {list(self.shape)}",
        )
        yield (
            len(shape) != len(of.shape.split(",")) or (of.shape == "[m, m]" and len({*shape}) > 1),
            f"shape: examples = {kind!r} are of shape {of.shape}, got {list(shape)}",
        )
        count = len(self.features)
        yield (
            count != len(self.query),
            f"query: expected a number for each of {count} features, got {len(self.query)}",
        )
        for name in ("range", "label_range", "rescale_to"):
            low, high = np.array(getattr(self, name) or (0.0, 1.0)).reshape(-1, 2).T
            is_sound = (high - low >= 1 / _LARGEST) & (high <= _LARGEST) & (low >= -_LARGEST)
            yield (
                not is_sound.all(),
                f"{name}: expected low < high, {1 / _LARGEST:g} apart at least and no larger than "
                f"{_LARGEST:g}, got {short(list(getattr(self, name) or ()))}",
            )
        if self.range is not None:
            yield (
                np.shape(self.range) not in ((2,), (*shape, 2)),
                f"range: expected one pair, or one for each column of {list(shape)}, got "
                f"{len(self.range)}",
            )
            yield (
                kind == "spd-matrices" and self._bounds()[0] <= 0,
                f"range: expected eigenvalues above 0, got {self.range}",
            )

    @property
    def provides(self) -> ExampleKind:
        """The kind of examples in the files."""
        kind: Any = _KINDS[self.examples].provides
        if self.label is not None and kind in ("rows", "spd-matrices"):
            kind = f"labelled-{kind}"
        return kind

    @property
    def meta(self) -> Values:
        """The facts that belong to no example: the query of a hyperbolic prediction."""
        query = torch.tensor(self.query, dtype=torch.float64)
        return {"query_feature": query} if self.query else {}

    def mixes_records(self) -> str | None:
        """Returns the function that may look at all records, unless it is declared not to."""
        if self.source is None or self.is_row_wise:
            return None
        return (
            "data.is_row_wise: a source of one's own may let one record change another's example; "
            "expected true with privacy (a declaration that it does not), got false"
        )

    # -- examples ---------------------------------------------------------------------------------
    def blank(self) -> Examples:
        """Returns one valid made-up example, whose shapes follow from the config alone."""
        middle = 0.0 if self.range is None else self._bounds().mean(0)
        values = np.zeros((1, *self.one_shape)) + middle
        if self.examples == "spd-matrices":
            values[0] = np.eye(self.one_shape[0]) * (middle or 1.0)
        elif self.examples == "sphere-points" or self.coordinates == "lorentz":
            values[0, 0] = 1.0
        beside: dict[str, NDArray[Any]] = {name: np.zeros(1) for name in self.features}
        if self.label is not None:
            beside[self.label] = np.array([*self.classes, *(self.label_range or ()), 0.0][:1])
        if self.person is not None:
            beside[self.person] = np.array(["nobody"])
        beside |= {name: np.array(levels[:1]) for name, levels in self.categories}
        inside = self.model_copy(update={"outside": "clip"})
        return inside._examples(Raw(Path("blank"), values, beside, str))

    def read(self, path: Path) -> Examples:
        """Reads the examples of one client's file.

        Raises:
            BadFile: naming file, line and column; nothing of what the file holds.
        """
        return self._examples(self.raw(path))

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """Reads all clients' files, each one as a separate source."""
        del data_dir, seed
        if not self.paths:
            raise ValueError(
                "data.paths: expected a file for each client of a simulation, got none; in a "
                "deployment each site names its own"
            )
        shards = [self.read(Path(path)) for path in self.paths]
        whole = Examples.concatenate(shards)
        clients = np.repeat(range(len(shards)), list(map(len, shards)))
        digest = checksum(*(tensor.numpy() for tensor in whole.tensors.values()))
        return Dataset(whole, digest, sources=clients, meta=self.meta)

    # -- rules ------------------------------------------------------------------------------------
    def _bounds(self) -> Array:
        """Low and high ends of ``range``, one for all or one a column."""
        return np.moveaxis(np.array(self.range, dtype=np.float64), -1, 0)

    def _refuse(
        self,
        raw: Raw,
        is_bad: NDArray[np.bool_],
        what: str,
        column: str | None = None,
        mend: _Outside | None = None,
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
            flat = np.ravel_multi_index(entry, self.one_shape)
            column = self.columns[flat] if self.columns else f"entry {entry}"
        hint = f"; mend it, or set data.outside = {mend!r}" if mend else ""
        raise BadFile(raw.path, f"{what}{hint}", place=raw.place(first), column=column)

    def refused(self, path: Path) -> tuple[int, list[str]]:
        """Returns how many examples a file has, and why each is refused that could not be read.

        For the owner of the file alone: ``read`` refuses the file at the first of them.
        """
        raw = self.raw(path)
        said = list[str]()
        for i in range(len(raw.values)):
            one = {name: column[i : i + 1] for name, column in raw.beside.items()}
            place = raw.place(i)
            try:
                self._examples(Raw(path, raw.values[i : i + 1], one, lambda _, at=place: at))
            except BadFile as error:
                said.append(str(error))
        return len(raw.values), said

    def _examples(self, raw: Raw) -> Examples:
        is_empty = np.isnan(raw.values)
        values = self._entries(raw)
        for name, levels in self.categories:
            is_each = raw.beside[name][:, None] == np.array(levels)
            what = f"expected one of data.categories = {list(levels)}, got another text"
            self._refuse(raw, ~np.any(is_each, axis=-1), what, name)
            values = np.hstack([values, is_each])
        if self.has_missing_columns:
            at = [self.columns.index(name) for name, _ in self.missing]
            values = np.hstack([values, is_empty[:, at]])
        tensors: dict[str, NDArray[Any]] = {"z": values}
        match self.examples:
            case "spd-matrices":
                bounds = None if self.range is None else self._bounds()
                tensors["z"], is_outside = matrices(values, bounds)
                what = "expected a symmetric positive definite matrix with eigenvalues inside " \
                    "data.range"  # fmt: skip
                self._refuse(raw, is_outside, what, mend="project")
            case "signals":
                tensors["z"] = covariances(values, self.ridge, is_centred=self.is_centred)
            case "hyperbolic-points":
                features = [raw.beside[name] for name in self.features]
                target, is_outside = hyperboloid(values, self.coordinates, self.row_norm)
                what = f"expected a point in {self.coordinates} coordinates, at most " \
                    "data.row_norm from the origin"  # fmt: skip
                self._refuse(raw, is_outside, what, mend="project")
                tensors = {
                    "feature": np.column_stack([values[:, :0], *features]),
                    "target": target,
                }
            case "sphere-points":
                tensors["z"], length = directions(values)
                self._refuse(raw, length == 0, "expected a direction, got a row of zeros")
                is_off = np.abs(length - 1) > 1e-9
                self._refuse(raw, is_off, "expected a row of length 1", mend="project")
            case "columns":
                is_seen = ~np.isnan(values)
                tensors = {"mask": is_seen.astype(float), "column": np.nan_to_num(values, nan=0.0)}
                self._refuse(
                    raw, ~np.any(is_seen, axis=-1), "expected at least one entry that was seen"
                )
            case "regression" | "classification":
                ones = np.ones((len(values), int(self.has_intercept)))
                tensors = {"feature": np.hstack([values, ones])}
            case "rows":
                pass
        if self.label is not None:
            name = "target" if self.examples == "regression" else "label"
            tensors[name] = self._labels(raw, raw.beside[self.label])
        for value in tensors.values():
            is_bad = ~np.isfinite(value).reshape(len(value), -1)
            what = (
                "expected numbers that are finite, and their squares; mend them, or set data.range"
            )
            self._refuse(raw, np.any(is_bad, axis=-1), what)
        found = Examples(
            {key: torch.from_numpy(np.ascontiguousarray(value)) for key, value in tensors.items()}
        )
        if self.person is None:
            return found
        names = raw.beside[self.person]
        self._refuse(raw, names == "", "expected the name of a person, got nothing", self.person)
        return Examples({**found.tensors, PERSON: codes(names.tolist())})

    def _labels(self, raw: Raw, label: NDArray[Any]) -> NDArray[Any]:
        """Targets inside ``label_range``, class numbers, or the signs of two classes."""
        if not self.classes:
            values = label.astype(np.float64)
            self._refuse(raw, ~np.isfinite(values), _FINITE, self.label)
            inside = np.clip(values, *(self.label_range or (-np.inf, np.inf)))
            what = "expected a number inside data.label_range"
            self._refuse(raw, inside != values, what, self.label, mend="clip")
            return inside
        also = dict(self.aliases)
        each = [np.isin(label, [one, *also.get(str(one), ())]) for one in self.classes]
        is_each = np.stack(each, -1)
        what = f"expected one of data.classes = {list(self.classes)}, got another label"
        self._refuse(raw, ~np.any(is_each, axis=-1), what, self.label)
        index = is_each.argmax(-1).astype(float)
        return 2 * index - 1 if self.examples == "classification" else index

    # -- rules for one row ------------------------------------------------------------------------
    # Each takes n rows and returns n rows; no row changes another. A bound that privacy relies on
    # may depend on the config alone: no mean, deviation, rank or count of the file is looked at.
    def _entries(self, raw: Raw) -> Array:
        """Finite entries inside ``range``, rescaled; rows no longer than ``row_norm``, or all so.

        Of a hyperbolic point ``row_norm`` is another bound.
        """
        values = raw.values.copy()
        for name, constant in self.missing:
            column = values[:, self.columns.index(name)]
            column[np.isnan(column)] = constant
        is_bad = np.isinf(values) if self.examples == "columns" else ~np.isfinite(values)
        self._refuse(raw, is_bad, _FINITE)
        if self.range is not None and self.examples != "spd-matrices":
            low, high = self._bounds()
            is_outside = (values < low) | (values > high)
            self._refuse(raw, is_outside, "expected a number inside data.range", mend="clip")
            values = np.clip(values, low, high)
            if self.rescale_to is not None:
                least, most = self.rescale_to
                values = least + (values - low) * ((most - least) / (high - low))
        if self.row_norm is None or self.examples == "hyperbolic-points":
            return values
        unit, length = directions(values)
        if self.outside == "project":
            return unit * self.row_norm
        is_long = length > self.row_norm * (1 + 1e-12)
        what = f"expected a row of length <= data.row_norm = {self.row_norm:g}"
        self._refuse(raw, is_long, what, mend="clip")
        return np.where(is_long[:, None], unit * self.row_norm, values)

    def unscaled(self, values: Tensor) -> Tensor:
        """Returns entries (n, d) on the scale of a file, of such that were rescaled."""
        if self.range is None or self.rescale_to is None:
            return values
        low, high = map(torch.from_numpy, self._bounds())
        least, most = self.rescale_to
        return low + (values - least) * ((high - low) / (most - least))
