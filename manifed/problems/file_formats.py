"""Reads a file of one's own: numbers, labels, and where in the file each example stands.

csv by the standard library, arrays by numpy and safetensors, parquet by pyarrow (an extra),
anything else by a function of one's own. Nothing is unpickled, and no error quotes a value: an
error may be read by others than the owner of the data.
"""

import csv
import importlib
import math
import traceback
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import default_collate

from manifed.durable import check_regular
from manifed.problems.data import DataSource, named

Array = NDArray[np.float64]
Format = Literal["csv", "npy", "npz", "parquet", "safetensors"]
MOST_BYTES = 1 << 33
"""Of the arrays of one file, unpacked: what says that it holds more is refused unread."""


class BadFile(ValueError):
    """A file that cannot be used: which file, line and column, what is wrong and what to do.

    It names columns of the config and no value of the file.
    """

    def __init__(
        self, path: Path, what: str, *, place: str | None = None, column: str | None = None
    ) -> None:
        where = [place] if place else []
        where += [f"column {column!r}"] if column else []
        super().__init__(f"{', '.join([str(path), *where])}: {what}")


@dataclass(frozen=True)
class Raw:
    """One file as read: n examples, nothing checked but that they are numbers of this shape."""

    path: Path
    values: Array
    """(n, *shape); NaN where an entry was not seen, and only in columns that are completed."""
    label: NDArray[Any] | None
    """(n,) text or numbers."""
    features: Array
    """(n, number of feature columns)."""
    place: Callable[[int], str]
    """"line 17" of example 15."""


class Layout(DataSource):
    """What is looked for in a file, without the rules for values."""

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
    features: tuple[str, ...] = ()
    """Columns of the features of hyperbolic points, for hyperbolic prediction."""
    format: Format | None = None
    """None: by the file's suffix."""
    delimiter: Literal[",", ";", "\t", "|"] = ","
    """Of a csv file."""
    source: str | None = None
    """``package.module:function`` that reads a file instead, of a package of one's own: it takes a
    path and returns a tensor, tensors by name, or a ``torch.utils.data.Dataset``."""

    @property
    def one_shape(self) -> tuple[int, ...]:
        """Shape of one example in the file."""
        return self.shape or (len(self.columns),)

    @property
    def has_gaps(self) -> bool:
        """Whether an empty cell, a null or NaN is an entry that was not seen."""
        raise NotImplementedError

    def _is_text(self, name: str) -> bool:
        """Whether a column or array holds text: labels, where the classes are text."""
        return name == self.label and bool(self.classes) and isinstance(self.classes[0], str)

    def raw(self, path: Path) -> Raw:
        """The examples of a file, by ``source``, ``format`` or its suffix.

        Raises:
            BadFile: for whatever else the file holds.
        """
        if self.source is not None:
            return self._of_arrays(path, _of_function(path, self.source, self))
        kind = self.format or path.suffix.lower().removeprefix(".")
        if kind not in get_args(Format):
            known = [f".{one}" for one in get_args(Format)]
            raise BadFile(
                path, f"expected a suffix of {known}, got {path.suffix!r}; set data.format"
            )
        readers = {"csv": self._of_csv, "parquet": self._of_parquet}
        try:
            check_regular(path)
            if kind in readers:
                return readers[kind](path)
            return self._of_arrays(path, _arrays(path, kind, self._arrays_wanted()))
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

    # -- tables -----------------------------------------------------------------------------------
    def _of_csv(self, path: Path) -> Raw:
        values, lines, labels = array("d"), array("q"), list[str | float]()
        with path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
            reader = csv.reader(file, delimiter=self.delimiter, strict=True)
            try:
                header = next(reader, [])
                places = self._places(path, header)
                for row in filter(None, reader):
                    line = reader.line_num
                    "".join(row).encode()
                    if len(row) != len(header):
                        raise BadFile(
                            path,
                            f"expected {len(header)} cells as in the header, got {len(row)}; quote "
                            "cells that hold the separator",
                            place=f"line {line}",
                        )
                    for name in (*self.columns, *self.features):
                        values.append(self._number(path, row[places[name]], line, name))
                    if self.label is not None:
                        cell = row[places[self.label]].strip()
                        is_text = self._is_text(self.label)
                        label = cell if is_text else self._number(path, cell, line, self.label)
                        labels.append(label)
                    lines.append(line)
            except (csv.Error, UnicodeEncodeError) as error:
                what = "expected UTF-8; save it as UTF-8"
                if isinstance(error, csv.Error):
                    what = f"expected csv, got {' '.join(str(error).split())}"
                raise BadFile(path, what, place=f"line {reader.line_num}") from None
        return self._of_table(path, np.array(values), labels, lambda i: f"line {lines[i]}")

    def _number(self, path: Path, cell: str, line: int, column: str) -> float:
        """A cell's number: "_" between digits and digits beyond ASCII are none, as in csv."""
        text = cell.strip()
        if not text and self.has_gaps and column in self.columns:
            return math.nan
        try:
            return float(text if text.isascii() and "_" not in text else "text")
        except ValueError:
            what = "expected a number with a decimal point, got text"
            if not text:
                what = "expected a number, got an empty cell; fill it in or remove the row"
            raise BadFile(path, what, place=f"line {line}", column=column) from None

    def _places(self, path: Path, found: Sequence[str]) -> dict[str, int]:
        """Where each column stands that is wanted, once each; the file's own are not quoted."""
        if not found:
            raise BadFile(
                path, "expected a line of column names and rows below it, got an empty file"
            )
        names = [name.strip() for name in found]
        wanted = (*self.columns, *self.features, *([self.label] if self.label else []))
        for name in wanted:
            if (count := names.count(name)) != 1:
                hint = "; is data.delimiter right?" if len(names) == 1 else ""
                raise BadFile(
                    path,
                    f"expected one column of this name, got {count} among {len(names)}; the first "
                    f"line names the columns{hint}",
                    column=name,
                )
        return {name: names.index(name) for name in wanted}

    def _of_parquet(self, path: Path) -> Raw:
        try:
            types: Any = importlib.import_module("pyarrow").types
            parquet: Any = importlib.import_module("pyarrow.parquet")
        except ImportError:
            raise BadFile(
                path,
                "parquet needs pyarrow, which is not installed; pip install 'manifed[parquet]'",
            ) from None
        with parquet.ParquetFile(path) as file:
            wanted = self._places(path, file.schema_arrow.names)
            if file.metadata.num_rows * 8 * len(wanted) > MOST_BYTES:
                raise BadFile(path, f"expected at most {MOST_BYTES} bytes of numbers, got more")
            table = file.read(columns=list(wanted))
        for name in wanted:
            column = table.column(name)
            is_number = types.is_integer(column.type) or types.is_floating(column.type)
            if not is_number and not self._is_text(name):
                raise BadFile(path, f"expected integers or floats, got {column.type}", column=name)
            if column.null_count and not (self.has_gaps and name in self.columns):
                raise BadFile(
                    path,
                    f"expected a {'label' if name == self.label else 'number'}, got a missing "
                    "value; fill it in or remove the row",
                    place=f"row {column.is_null().to_pylist().index(True) + 1}",
                    column=name,
                )
        numbers = [table.column(n).cast("float64", safe=False) for n in wanted if n != self.label]
        values = np.stack([column.to_numpy() for column in numbers], axis=-1)
        labels = table.column(self.label).to_pylist() if self.label is not None else []
        if labels and self._is_text(self.label or ""):
            labels = [str(label).strip() for label in labels]
        return self._of_table(path, values, labels, lambda i: f"row {i + 1}")

    def _of_table(
        self, path: Path, numbers: Array, labels: list[Any], place: Callable[[int], str]
    ) -> Raw:
        """The examples of a table's columns and then features, and the labels beside them."""
        width = len(self.columns)
        table = numbers.reshape(-1, width + len(self.features))
        found = dict(zip(self.features, table[:, width:].T, strict=True))
        if self.label is not None:
            found[self.label] = np.array(labels)
        return self._checked(path, table[:, :width].reshape(-1, *self.one_shape), found, place)

    # -- arrays -----------------------------------------------------------------------------------
    def _arrays_wanted(self) -> list[str]:
        named = (self.array, self.label, *self.features)
        return [name for name in named if name is not None]

    def _of_arrays(self, path: Path, found: Mapping[str, NDArray[Any]]) -> Raw:
        """The examples of named arrays: their number first, then the shape of one.

        Raises:
            BadFile: for an array that is missing, or of another shape or type.
        """
        for name in self._arrays_wanted():
            if name not in found:
                raise BadFile(path, f"expected an array {name!r}, got none of this name")
        x = found[self.array]
        if x.dtype.kind not in "iuf":
            raise _other_array(path, self.array, "integers or floats", x.dtype.name)
        if x.ndim != 1 + len(self.one_shape) or x.shape[1:] != self.one_shape:
            wanted = ", ".join(["n", *map(str, self.one_shape)])
            raise _other_array(path, self.array, f"shape ({wanted})", tuple(x.shape))
        return self._checked(path, x, found, lambda i: f"example {i}")

    def _checked(
        self,
        path: Path,
        x: NDArray[Any],
        found: Mapping[str, NDArray[Any]],
        place: Callable[[int], str],
    ) -> Raw:
        """Examples ``x`` with the labels and features among ``found``, one an example."""
        if not len(x):
            raise BadFile(path, "expected at least one example, got none")
        for name in (*self.features, *([self.label] if self.label else [])):
            one, is_text = found[name], self._is_text(name)
            if one.shape != (len(x),) or one.dtype.kind not in ("U" if is_text else "iuf"):
                expected = f"one {'text' if is_text else 'number'} an example, shape ({len(x)},)"
                got = f"{one.dtype.name} of shape {tuple(one.shape)}"
                raise _other_array(path, name, expected, got)
        features = np.array([found[name] for name in self.features], dtype=np.float64)
        label = found[self.label] if self.label else None
        return Raw(
            path, np.array(x, dtype=np.float64), label, features.reshape(-1, len(x)).T, place
        )


def _other_array(path: Path, name: str, expected: str, got: object) -> BadFile:
    return BadFile(path, f"array {name!r}: expected {expected}, got {got}")


def _arrays(path: Path, kind: str, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """The named arrays that a file holds; an npy file holds the first one."""
    if kind == "safetensors":
        from safetensors import safe_open

        with safe_open(str(path), framework="np") as tensors:
            there = set(tensors.keys())
            return {name: tensors.get_tensor(name) for name in names if name in there}
    with path.open("rb") as file:
        found = np.load(file, allow_pickle=False)
        if kind == "npz":
            if sum(member.file_size for member in found.zip.infolist()) > MOST_BYTES:
                raise ValueError("more bytes than are read")
            return {name: np.asarray(found[name]) for name in names if name in found.files}
        if file.read(1):
            raise ValueError("more bytes than the header says")
        return {names[0]: found}


# -- a function of one's own ----------------------------------------------------------------------
def function(name: str) -> Callable[[Path], Any]:
    """The function that ``package.module:function`` names.

    Raises:
        ValueError: as `sources.named`, or it is no function.
    """
    found = named(name, "function")
    if not callable(found) or isinstance(found, type):
        raise ValueError(f"expected a function, got {name!r}, which is {type(found).__name__}")
    return found


def _of_function(path: Path, name: str, layout: Layout) -> dict[str, NDArray[Any]]:
    """The named arrays that the function ``name`` makes of a file.

    It returns a tensor, a mapping of tensors by name, or a ``torch.utils.data.Dataset`` of
    examples, of (example, label) pairs or of such mappings. What has no name is the array of the
    layout, and the second of a pair its label.

    Raises:
        BadFile: what it returns is none of these, or it raised; what it said is not quoted, because
            it may hold data.
    """
    try:
        found = function(name)(path)
        if not isinstance(found, Mapping) and not hasattr(found, "shape"):
            found = default_collate([found[i] for i in range(len(found))])
        if isinstance(found, list | tuple):
            found = dict(zip((layout.array, layout.label or "label"), found, strict=False))
        by_name = found if isinstance(found, Mapping) else {layout.array: found}
        return {str(key): np.asarray(value) for key, value in by_name.items()}
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        raise BadFile(
            path,
            f"data.source {name!r} raised {type(error).__name__} "
            f"({Path(at.filename).name}:{at.lineno})",
        ) from None
