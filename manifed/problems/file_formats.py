"""What is written in a file of one's own: numbers, labels and where each example stands.

csv by the standard library, arrays by numpy and safetensors, parquet by pyarrow (an extra). Nothing
is unpickled, no size in a header is believed before it is compared with the file's, and no error
quotes a value: an error may be read by others than the owner of the data.
"""

import csv
import importlib
import lzma
import math
import struct
import zipfile
import zlib
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import IO, Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from manifed.errors import short
from manifed.regular import check_regular

Array = NDArray[np.float64]
Format = Literal["csv", "npy", "npz", "parquet", "safetensors"]

SUFFIXES: Mapping[str, Format] = {
    ".csv": "csv", ".npy": "npy", ".npz": "npz", ".parquet": "parquet",
    ".safetensors": "safetensors",
}  # fmt: skip
MOST_BYTES = 1 << 33
"""Of one array, unpacked: a size in a header beyond it is refused unread."""
_MOST_SIZES = 8
"""Of one array: a client's examples have three."""
_BROKEN_ARCHIVE = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, NotImplementedError,
    RuntimeError, ValueError, OverflowError,
)  # fmt: skip
"""What the standard library raises for a damaged, encrypted or strange archive."""


class BadFile(ValueError):
    """A file that cannot be used: which file, line and column, what is wrong and what to do.

    It names columns of the config and no value of the file.
    """

    def __init__(
        self, path: Path, what: str, *, place: str | None = None, column: str | None = None
    ) -> None:
        where = [
            str(path),
            *([place] if place else []),
            *([f"column {column!r}"] if column else []),
        ]
        super().__init__(f"{', '.join(where)}: {what}")


@dataclass(frozen=True)
class Layout:
    """What is looked for in a file: the config's words, without the rules for values."""

    shape: tuple[int, ...]
    """Of one example."""
    columns: tuple[str, ...] = ()
    """Of a csv or parquet table, in this order the entries of one example."""
    array: str = "x"
    """Of an npz or safetensors file, or of what a source returns."""
    label: str | None = None
    mask: str | None = None
    features: tuple[str, ...] = ()
    delimiter: str = ","
    dtype: str | None = None
    has_gaps: bool = False
    """Whether an empty cell, a null or NaN is an entry that was not seen."""
    has_text_labels: bool = False


@dataclass(frozen=True)
class Raw:
    """One file as read: n examples, nothing checked but that they are numbers of this shape."""

    values: Array
    """(n, *shape); NaN where an entry was not seen, and only with ``has_gaps``."""
    label: NDArray[Any] | None
    """(n,) text or numbers."""
    features: Array | None
    """(n, number of feature columns)."""
    place: Callable[[int], str]
    """"line 17" of example 15."""


def read(path: Path, layout: Layout, file_format: Format | None = None) -> Raw:
    """The examples of a file, by ``file_format`` or its suffix.

    Raises:
        BadFile: for whatever else the file holds.
    """
    kind = file_format or SUFFIXES.get(path.suffix.lower())
    if kind is None:
        raise BadFile(
            path,
            f"expected a suffix of {sorted(SUFFIXES)}, got {path.suffix!r}; set data.format",
        )
    try:
        check_regular(path)
        match kind:
            case "csv":
                return _read_csv(path, layout)
            case "parquet":
                return _read_parquet(path, layout)
            case "npy":
                with path.open("rb") as file:
                    found = {layout.array: _read_npy(path, file, path.stat().st_size)}
                return of_arrays(path, found, layout)
            case "npz":
                return of_arrays(path, _read_npz(path, layout), layout)
            case "safetensors":
                return of_arrays(path, _read_safetensors(path, layout), layout)
    except OSError as error:
        raise BadFile(
            path, f"expected a readable file, got {error.strerror or type(error).__name__!r}"
        ) from None
    except MemoryError:
        raise BadFile(path, "expected a file that fits into memory") from None


# -- tables ---------------------------------------------------------------------------------------
def _read_csv(path: Path, layout: Layout) -> Raw:
    wanted, label = (*layout.columns, *layout.features), layout.label
    values, lines, labels = array("d"), array("q"), list[Any]()
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file, delimiter=layout.delimiter, strict=True)
        try:
            header = _header(path, next(reader, None), (*wanted, *([label] if label else [])))
            width = len(header)
            take = itemgetter(*[header.index(name) for name in wanted])
            at = header.index(label) if label else None
            is_one = len(wanted) == 1
            for row in reader:
                if not row:
                    continue
                if len(row) != width:
                    raise BadFile(
                        path,
                        f"expected {width} cells as in the header, got {len(row)}; quote cells "
                        "that hold the separator",
                        place=f"line {reader.line_num}",
                    )
                cells = (take(row),) if is_one else take(row)
                try:
                    _check_plain("".join(cells))
                    values.extend(map(float, cells))
                except ValueError:
                    place = f"line {reader.line_num}"
                    values = values[: len(lines) * len(wanted)]
                    values.extend(_numbers(path, cells, wanted, place, layout))
                lines.append(reader.line_num)
                if at is not None:
                    labels.append(row[at].strip())
        except csv.Error as error:
            raise BadFile(
                path, f"expected csv, got {_said(error)}", place=f"line {reader.line_num}"
            ) from None
        except UnicodeDecodeError:
            raise BadFile(
                path, "expected UTF-8; save it as UTF-8", place=f"line {_not_utf8(path)}"
            ) from None
    table = np.frombuffer(values, dtype=np.float64).reshape(len(lines), len(wanted))
    number_of_line = np.frombuffer(lines, dtype=np.int64)
    return _of_table(
        path, table, labels if at is not None else None, layout,
        lambda i: f"line {number_of_line[i]}",
    )  # fmt: skip


def _check_plain(text: str) -> None:
    """Refuse what is a number to Python and not to csv: "_" between digits, digits beyond ASCII.

    Raises:
        ValueError: there is some.
    """
    if "_" in text or not text.isascii():
        raise ValueError


def _number(cell: str) -> float:
    _check_plain(cell)
    return float(cell)


def _said(error: csv.Error) -> str:
    return " ".join(str(error).split())


def _not_utf8(path: Path) -> int:
    raw = path.read_bytes()
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        return raw.count(b"\n", 0, error.start) + 1
    return 1


def _header(path: Path, found: Sequence[str] | None, wanted: Sequence[str]) -> list[str]:
    """The names of a table, with each wanted one exactly once; the file's own are not quoted."""
    if found is None:
        raise BadFile(path, "expected a line of column names and rows below it, got an empty file")
    names = [name.strip() for name in found]
    for name in wanted:
        if (count := names.count(name)) != 1:
            hint = "; is data.delimiter right?" if len(names) == 1 else ""
            raise BadFile(
                path,
                f"expected one column of this name, got {count} among {len(names)}; the first "
                f"line names the columns{hint}",
                column=name,
            )
    return names


def _numbers(
    path: Path, cells: Sequence[str], names: Sequence[str], place: str, layout: Layout
) -> list[float]:
    """The numbers of one row, of which at least one cell is none by itself."""
    found: list[float] = []
    for position, (cell, name) in enumerate(zip(cells, names, strict=True)):
        is_gap = layout.has_gaps and position < len(layout.columns)
        if not cell.strip():
            if not is_gap:
                raise BadFile(
                    path, "expected a number, got an empty cell; fill it in or remove the row",
                    place=place, column=name,
                )  # fmt: skip
            found.append(math.nan)
            continue
        try:
            found.append(_number(cell))
        except ValueError:
            raise BadFile(
                path, "expected a number with a decimal point, got text", place=place, column=name
            ) from None
    return found


def _of_table(
    path: Path,
    table: Array,
    labels: Sequence[Any] | None,
    layout: Layout,
    place: Callable[[int], str],
) -> Raw:
    if not len(table):
        raise BadFile(path, "expected at least one example, got none below the column names")
    width = len(layout.columns)
    features = table[:, width:] if layout.features else None
    label = None
    if labels is not None:
        label = np.array(labels, dtype=object)
        if not layout.has_text_labels:
            label = _numeric_labels(path, label, cast(str, layout.label), place)
    return Raw(table[:, :width].reshape(-1, *layout.shape), label, features, place)


def _numeric_labels(
    path: Path, label: NDArray[Any], name: str, place: Callable[[int], str]
) -> Array:
    found = np.empty(len(label))
    for i, cell in enumerate(label):
        try:
            found[i] = _number(cell) if isinstance(cell, str) else float(cell)
        except (TypeError, ValueError):
            what = "text" if cell not in {"", None} else "an empty cell"
            raise BadFile(
                path, f"expected a number, got {what}", place=place(i), column=name
            ) from None
    return found


def _read_parquet(path: Path, layout: Layout) -> Raw:
    try:
        arrow, parquet = (
            importlib.import_module("pyarrow"),
            importlib.import_module("pyarrow.parquet"),
        )
    except ImportError:
        raise BadFile(
            path, "parquet needs pyarrow, which is not installed; pip install 'manifed[parquet]'"
        ) from None
    numbers = (*layout.columns, *layout.features)
    wanted = (*numbers, *([layout.label] if layout.label else []))
    try:
        with parquet.ParquetFile(path) as file:
            _header(path, file.schema_arrow.names, wanted)
            if file.metadata.num_rows * 8 * len(wanted) > MOST_BYTES:
                raise BadFile(path, f"expected at most {MOST_BYTES} bytes of numbers, got more")
            table = file.read(columns=list(wanted))
    except (arrow.ArrowException, OSError, ValueError) as error:
        if isinstance(error, BadFile | FileNotFoundError | PermissionError):
            raise
        raise BadFile(path, "expected a whole parquet file, got one that cannot be read") from None
    place = _row
    by_column = [_numbers_of(path, table.column(name), name, layout) for name in numbers]
    values = np.stack(by_column, axis=-1) if by_column else np.empty((table.num_rows, 0))
    labels = _labels_of(path, table.column(layout.label), layout) if layout.label else None
    return _of_table(path, values, labels, layout, place)


def _row(i: int) -> str:
    return f"row {i + 1}"


def _numbers_of(path: Path, column: Any, name: str, layout: Layout) -> Array:
    types = importlib.import_module("pyarrow").types
    is_real = types.is_integer(column.type) or types.is_floating(column.type)
    if not is_real:
        raise BadFile(path, f"expected integers or floats, got {column.type}", column=name)
    if column.null_count and not (layout.has_gaps and name in layout.columns):
        first = column.is_null().to_pylist().index(True)
        raise BadFile(
            path, "expected a number, got a missing value; fill it in or remove the row",
            place=_row(first), column=name,
        )  # fmt: skip
    return np.asarray(column.cast("float64", safe=False).to_numpy(), dtype=np.float64)


def _labels_of(path: Path, column: Any, layout: Layout) -> list[Any]:
    labels = column.to_pylist()
    if None in labels:
        raise BadFile(
            path, "expected a label, got a missing value; fill it in or remove the row",
            place=_row(labels.index(None)), column=layout.label,
        )  # fmt: skip
    return [label.strip() if isinstance(label, str) else label for label in labels]


# -- arrays ---------------------------------------------------------------------------------------
def _read_npy(path: Path, file: IO[bytes], size: int, name: str = "") -> NDArray[Any]:
    """The array of an npy stream of ``size`` bytes; its header is compared with them first."""
    lib, what = np.lib.format, f"array {name!r}: " if name else ""
    try:
        version = lib.read_magic(file)
        head = {(1, 0): lib.read_array_header_1_0, (2, 0): lib.read_array_header_2_0}[version]
        shape, is_fortran, dtype = head(file)
    except Exception:
        # whatever numpy's parser of an untrusted header raises
        raise BadFile(path, f"{what}expected an npy array, got another header") from None
    if dtype.hasobject or dtype.fields is not None or dtype.kind not in "iufUb":
        raise BadFile(path, f"{what}expected numbers or text, got objects that need unpickling")
    wanted = math.prod(shape) * dtype.itemsize
    is_plain = all(type(size) is int and 0 <= size <= MOST_BYTES for size in shape)
    if not (is_plain and dtype.itemsize and len(shape) <= _MOST_SIZES and wanted <= MOST_BYTES):
        raise BadFile(
            path,
            f"{what}expected at most {_MOST_SIZES} sizes from 0 on and {MOST_BYTES} bytes of "
            f"numbers or text, the header says shape {short(shape)} of {dtype.str!r}",
        )
    body = file.read(wanted + 1) if wanted <= size else b""
    if len(body) != wanted:
        raise BadFile(path, f"{what}expected {wanted} bytes after the header, got {len(body)}")
    flat = np.frombuffer(body, dtype=dtype)
    return flat.reshape(shape, order="F" if is_fortran else "C")


def _read_npz(path: Path, layout: Layout) -> dict[str, NDArray[Any]]:
    found: dict[str, NDArray[Any]] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            for name in _names(layout):
                if names.count(f"{name}.npy") != 1:
                    raise BadFile(path, f"expected one array {name!r}, got {names.count(name)}")
                with archive.open(f"{name}.npy") as file:
                    size = archive.getinfo(f"{name}.npy").file_size
                    found[name] = _read_npy(path, file, size, name)
    except BadFile:
        raise
    except _BROKEN_ARCHIVE:
        raise BadFile(path, "expected a whole npz file, got one that cannot be read") from None
    return found


def _names(layout: Layout) -> tuple[str, ...]:
    """The arrays that are looked for."""
    named = (layout.array, layout.label, layout.mask, *layout.features)
    return tuple(name for name in named if name is not None)


def _read_safetensors(path: Path, layout: Layout) -> dict[str, NDArray[Any]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="np") as file:
            there = set(file.keys())
            if missing := [name for name in _names(layout) if name not in there]:
                raise BadFile(path, f"expected an array {missing[0]!r}, got none of this name")
            return {name: file.get_tensor(name) for name in _names(layout)}
    except SafetensorError:
        raise BadFile(
            path, "expected a whole safetensors file, got one that cannot be read"
        ) from None
    except (TypeError, AttributeError, KeyError):  # bfloat16 and other types that numpy has not
        raise BadFile(path, "expected arrays of integers or floats that numpy has") from None


def of_arrays(path: Path, found: Mapping[str, NDArray[Any]], layout: Layout) -> Raw:
    """The examples of named arrays: their number first, then the shape of one.

    Raises:
        BadFile: for an array that is missing, or of another shape or type.
    """
    for name in _names(layout):
        if name not in found:
            raise BadFile(path, f"expected an array {name!r}, got none of this name")
    x = found[layout.array]
    if x.dtype.kind not in "iuf" or (layout.dtype is not None and x.dtype.name != layout.dtype):
        wanted = layout.dtype or "integers or floats"
        raise BadFile(path, f"array {layout.array!r}: expected {wanted}, got {x.dtype.name}")
    if x.shape[1:] != layout.shape or x.ndim != 1 + len(layout.shape):
        wanted = ", ".join(["n", *map(str, layout.shape)])
        raise BadFile(
            path, f"array {layout.array!r}: expected shape ({wanted}), got {tuple(x.shape)}"
        )
    if not len(x):
        raise BadFile(path, "expected at least one example, got none")
    values = np.array(x, dtype=np.float64)
    if layout.mask is not None:
        values = _unseen(path, values, found[layout.mask], layout.mask)
    each = [_one_each(path, found[name], name, len(x), "iuf") for name in layout.features]
    features = np.stack(each, axis=-1).astype(np.float64) if each else None
    label = None
    if layout.label is not None:
        kinds = "U" if layout.has_text_labels else "iuf"
        label = _one_each(path, found[layout.label], layout.label, len(x), kinds)
    return Raw(values, label, features, lambda i: f"example {i}")


def _one_each(path: Path, found: NDArray[Any], name: str, count: int, kinds: str) -> NDArray[Any]:
    if found.shape != (count,) or found.dtype.kind not in kinds:
        what = "text" if kinds == "U" else "number"
        raise BadFile(
            path,
            f"array {name!r}: expected one {what} an example, shape ({count},), got "
            f"{found.dtype.name} of shape {tuple(found.shape)}",
        )
    return found


def _unseen(path: Path, values: Array, mask: NDArray[Any], name: str) -> Array:
    if mask.shape != values.shape or mask.dtype.kind not in "iufb":
        raise BadFile(
            path, f"array {name!r}: expected shape {values.shape}, got {tuple(mask.shape)}"
        )
    if not np.isin(mask, (0, 1)).all():
        raise BadFile(path, f"array {name!r}: expected 1 where an entry was seen and 0 elsewhere")
    return np.where(mask.astype(bool), values, np.nan)
