"""Reads a data file: numbers, labels, and the place of each example in the file.

csv by the standard library, arrays by numpy and safetensors, parquet by pyarrow (an extra),
anything else by a function of one's own. Nothing is unpickled, and no error quotes a value: an
error may be read by others than the owner of the data.
"""

import csv
import importlib
from array import array
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator
from torch.utils.data import default_collate

from manifed.durable import check_regular
from manifed.errors import Missing, raised_at
from manifed.manifolds.linalg import Shape
from manifed.problems.data import Array, DataSource, named

_Format = Literal["csv", "npy", "npz", "parquet", "safetensors"]
_Found = Mapping[str, NDArray[Any]]
"""Columns or arrays of a file by name, as many entries as examples in each."""
_Place = Callable[[int], str]
"""Where in its file an example stands: "line 17" of example 15."""
_MOST_BYTES = 1 << 33
"""The most bytes of the arrays of one file, unpacked; a file that states more is refused unread."""


def _pairs(table: Any) -> Any:
    """A table of a config as pairs, which have a hash."""
    return tuple(table.items()) if isinstance(table, Mapping) else table


_T = TypeVar("_T")
Pairs = Annotated[tuple[tuple[str, _T], ...], BeforeValidator(_pairs)]


class BadFile(ValueError):
    """Error: a file cannot be used; which file, line and column, what is wrong, what to do.

    It names columns of the config and no value of the file.
    """

    def __init__(
        self, path: Path, what: str, *, place: str | None = None, column: str | None = None
    ) -> None:
        where = filter(None, (str(path), place, column and f"column {column!r}"))
        super().__init__(f"{', '.join(where)}: {what}")


class Raw(NamedTuple):
    """The contents of one file: n examples, checked only to be numbers of one shape."""

    path: Path
    values: Array
    """(n, *shape); NaN where there is nothing."""
    beside: _Found
    """Features and label by name, (n,) text or numbers each."""
    place: _Place


class Layout(DataSource):
    """The columns, arrays and shapes that are looked for in a file, without rules for values."""

    columns: tuple[str, ...] = ()
    """Columns of a csv or parquet table that hold the entries of an example, in order."""
    shape: Shape = ()
    """Shape of one example. Default: a vector of the ``columns``."""
    array: str = "x"
    """Array of an npz or safetensors file. Its first dimension counts the examples."""
    label: str | None = None
    """Column or array of the labels."""
    classes: tuple[int | str, ...] = ()
    """Public list of possible labels. Logistic regression takes the second for +1."""
    person: str | None = None
    """Column or array that names the person of each row, for ``privacy.unit = "person"``."""
    categories: Pairs[tuple[str, ...]] = ()
    """Text columns with the public list of their values: ``{ ward = ["A", "B"] }``. Each value
    becomes an entry of the row, 1 or 0, behind the ``columns``."""
    synonyms: Pairs[Pairs[float]] = ()
    """Other names of columns, with the factor to their unit:
    ``{ glucose = { glucose_mmol = 18.02 } }``."""
    empty_cells: tuple[str, ...] = ()
    """Texts that stand for an empty cell of a csv file, such as "NA"."""
    features: tuple[str, ...] = ()
    """Columns of features, for hyperbolic prediction."""
    format: _Format | None = None
    """None: by the file's suffix."""
    delimiter: Literal[",", ";", "\t", "|"] = ","
    """Separator of a csv file."""
    source: str | None = None
    """``package.module:function`` of your package that reads a file. It takes a path and returns a
    tensor, tensors by name, or a ``torch.utils.data.Dataset``."""

    @property
    def one_shape(self) -> Shape:
        """Shape of one example in the file."""
        return self.shape or (len(self.columns),)

    @property
    def beside(self) -> tuple[str, ...]:
        """Columns or arrays with one entry an example: features, categories, label and person."""
        return (*self.features, *dict(self.categories), *filter(None, (self.label, self.person)))

    def is_text(self, name: str) -> bool:
        """Whether a column holds text: persons, categories, and labels whose classes are text."""
        is_label = name == self.label and bool(self.classes) and isinstance(self.classes[0], str)
        return is_label or name == self.person or name in dict(self.categories)

    def raw(self, path: Path) -> Raw:
        """The examples of a file, by ``source``, ``format`` or its suffix.

        Raises:
            BadFile: for whatever else the file holds.
        """
        if self.source is not None:
            return self._of_arrays(path, self._of_function(path))
        kind = self.format or path.suffix.lower().removeprefix(".")
        if kind not in get_args(_Format):
            known = [f".{one}" for one in get_args(_Format)]
            raise BadFile(
                path, f"expected a suffix of {known}, got {path.suffix!r}; set data.format"
            )
        try:
            check_regular(path)
            if kind not in ("csv", "parquet"):
                return self._of_arrays(path, _arrays(path, kind, (self.array, *self.beside)))
            found, place = (self._csv if kind == "csv" else self._parquet)(path)
            x = np.stack([found[name] for name in self.columns], axis=-1)
            return self._checked(path, x.reshape(-1, *self.one_shape), found, place)
        except BadFile:
            raise
        except Exception as error:  # of any kind: these are parsers of bytes nobody vouches for
            what = (
                f"expected a whole {kind} file of integers, floats or text, got one that cannot be "
                "read, is larger than its header says or than memory, or would have to be unpickled"
            )
            if said := getattr(error, "strerror", None):
                what = f"expected a readable file, got {said!r}"
            raise BadFile(path, what) from None

    def _of_arrays(self, path: Path, found: _Found) -> Raw:
        return self._checked(path, found.get(self.array), found, "example {}".format)

    def _checked(self, path: Path, x: NDArray[Any] | None, found: _Found, place: _Place) -> Raw:
        """Examples ``x`` with the labels and features among ``found``, one an example.

        Raises:
            BadFile: for an array that is missing, or of another shape or type.
        """
        count = len(x) if x is not None and x.ndim else 0
        arrays = [(self.array, x, self.one_shape), *((n, found.get(n), ()) for n in self.beside)]
        for name, one, shape in arrays:
            kind, what = ("U", "text") if self.is_text(name) else ("iuf", "integers or floats")
            if name == self.person:
                kind, what = "Uiu", "text or integers"
            if one is None or one.dtype.kind not in kind or one.shape != (count, *shape):
                got = "none" if one is None else f"{one.dtype.name} of shape {one.shape}"
                expected = f"{what} of shape (n, {', '.join(map(str, shape))})"
                raise BadFile(path, f"array {name!r}: expected {expected}, got {got}")
        if not count:
            raise BadFile(path, "expected at least one example, got none")
        return Raw(path, np.array(x, dtype=np.float64), found, place)

    # -- tables -----------------------------------------------------------------------------------
    def _places(self, path: Path, found: list[str]) -> dict[str, tuple[int, float]]:
        """Where each column stands that is wanted, once each, and the factor to its unit.

        The file's own names are not quoted.
        """
        if not found:
            raise BadFile(
                path, "expected a line of column names and rows below it, got an empty file"
            )
        names = [name.strip() for name in found]
        places = dict[str, tuple[int, float]]()
        for name in (*self.columns, *self.beside):
            alike = {**dict(dict(self.synonyms).get(name, ())), name: 1.0}
            at = [(i, alike[one]) for i, one in enumerate(names) if one in alike]
            if (count := len(at)) != 1:
                hint = "; is data.delimiter right?" if len(names) == 1 else ""
                raise BadFile(
                    path,
                    f"expected one column of this name, got {count} among {len(names)}; the first "
                    f"line names the columns{hint}",
                    column=name,
                )
            places[name] = at[0]
        return places

    def _csv(self, path: Path) -> tuple[_Found, _Place]:
        """The columns of a csv file that are wanted."""
        values = array("d")
        lines = array("q")
        texts = list[list[str]]()
        with path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
            reader = csv.reader(file, delimiter=self.delimiter, strict=True)
            try:
                header = next(reader, [])
                places = self._places(path, header)
                numbers = [name for name in places if not self.is_text(name)]
                for row in filter(None, reader):
                    line = f"line {reader.line_num}"
                    "".join(row).encode()
                    if len(row) != len(header):
                        raise BadFile(
                            path,
                            f"expected {len(header)} cells as in the header, got {len(row)}; quote "
                            "cells that hold the separator",
                            place=line,
                        )
                    cells = {name: row[at].strip() for name, (at, _) in places.items()}
                    for name in numbers:
                        cell = cells.pop(name) or "nan"
                        cell = "nan" if cell in self.empty_cells else cell
                        try:  # "_" between digits and digits beyond ASCII are no number in csv
                            values.append(
                                float(cell if cell.isascii() and "_" not in cell else "text")
                            )
                        except ValueError:
                            what = "expected a number with a decimal point, got text"
                            raise BadFile(path, what, place=line, column=name) from None
                    texts.append([*cells.values()])
                    lines.append(reader.line_num)
            except (csv.Error, UnicodeEncodeError) as error:
                what = "expected UTF-8; save it as UTF-8"
                if isinstance(error, csv.Error):
                    what = f"expected csv, got {' '.join(str(error).split())}"
                raise BadFile(path, what, place=f"line {reader.line_num}") from None
        columns = zip(numbers, np.array(values).reshape(-1, len(numbers)).T, strict=True)
        found: dict[str, NDArray[Any]] = {name: u * places[name][1] for name, u in columns}
        named = [name for name in places if name not in found]
        found |= {name: np.array([row[i] for row in texts], str) for i, name in enumerate(named)}
        return found, lambda i: f"line {lines[i]}"

    def _parquet(self, path: Path) -> tuple[_Found, _Place]:
        """The columns of a parquet file that are wanted."""
        try:
            parquet: Any = importlib.import_module("pyarrow.parquet")
        except ImportError:
            raise BadFile(path, str(Missing("pyarrow"))) from None
        with parquet.ParquetFile(path) as file:
            wanted = self._places(path, file.schema_arrow.names)
            if file.metadata.num_rows * 8 * len(wanted) > _MOST_BYTES:
                raise BadFile(path, f"expected at most {_MOST_BYTES} bytes of numbers, got more")
            names = file.schema_arrow.names
            table = file.read(columns=[names[at] for at, _ in wanted.values()])
        found: dict[str, NDArray[Any]] = {}
        for name, (at, factor) in wanted.items():
            column = table.column(names[at])
            if self.is_text(name):
                labels = ["" if label is None else str(label) for label in column.to_pylist()]
                found[name] = np.strings.strip(np.array(labels, dtype=str))
                continue
            found[name] = column.to_numpy()
            if found[name].dtype.kind not in "iuf":
                raise BadFile(path, f"expected integers or floats, got {column.type}", column=name)
            found[name] = found[name] * factor
        return found, lambda i: f"row {i + 1}"

    # -- a function of one's own ------------------------------------------------------------------
    def _of_function(self, path: Path) -> _Found:
        """The named arrays that ``source`` makes of a file.

        It returns a tensor, a mapping of tensors by name, or a ``torch.utils.data.Dataset`` of
        examples, of (example, label) pairs or of such mappings. What has no name is ``array``, and
        the second of a pair ``label``.

        Raises:
            BadFile: what it returns is none of these, or it raised; what it said is not quoted,
                because it may hold data.
        """
        try:
            found = named(str(self.source), "function")(path)
            if not isinstance(found, Mapping) and not hasattr(found, "shape"):
                found = default_collate([found[i] for i in range(len(found))])
            if isinstance(found, list | tuple):
                found = dict(zip((self.array, self.label or "label"), found, strict=False))
            by_name = found if isinstance(found, Mapping) else {self.array: found}
            return {str(key): np.asarray(value) for key, value in by_name.items()}
        except Exception as error:
            raise BadFile(
                path,
                f"data.source {self.source!r} raised {type(error).__name__} ({raised_at(error)})",
            ) from None


# -- arrays ---------------------------------------------------------------------------------------
def _arrays(path: Path, kind: str, names: tuple[str, ...]) -> _Found:
    """The named arrays that a file holds; an npy file holds the first one."""
    if kind == "safetensors":
        from safetensors import safe_open

        with safe_open(str(path), framework="np") as tensors:
            return {name: tensors.get_tensor(name) for name in {*names} & {*tensors.keys()}}
    with path.open("rb") as file:
        found = np.load(file, allow_pickle=False)
        if kind == "npz":
            if sum(member.file_size for member in found.zip.infolist()) > _MOST_BYTES:
                raise ValueError("more bytes than are read")
            return {name: np.asarray(found[name]) for name in names if name in found.files}
        if file.read(1):
            raise ValueError("more bytes than the header says")
        return {names[0]: found}
