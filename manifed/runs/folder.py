"""The folder of one run, written so that a crash never leaves a half-written file.

    experiment.toml         the resolved config, the first file: from it a run is resumed
    manifest.json           what ran (runs/manifest.py); its last key is "final" once the run ended
    metrics.csv             one row per evaluated round
    ledger.jsonl            what was released, charged before use (manifed/privacy/ledger.py)
    model.safetensors       the final model
    checkpoint.safetensors  where to resume (runs/checkpoint.py)
    error.json              why the last part ended before its end; gone once the run goes on

A row of metrics has the round, what was measured, epsilon with its label (privacy/events.py) before
it, and sums over the rounds since the row before. JSON knows neither NaN nor infinity: NaN is
written as null, infinities as "infinity" and "-infinity" (no noise was added).

Anything may have happened to a file that is read: every refusal is one line with the file, what was
expected and what was found, and writes nothing.
"""

import hashlib
import json
import math
import os
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import from_json

from manifed import durable
from manifed.durable import sync, write_atomically
from manifed.errors import RoundFailed, described, one_line, short
from manifed.fields import Document, Values
from manifed.privacy.events import AdversaryName, Label

if TYPE_CHECKING:  # who only reads numbers needs no torch
    from torch import Tensor

FORMAT = 3
"""The format of run folders; folders of earlier formats are refused."""
LABEL = "label"
"""The one column of words: whether the noise behind the row's epsilon protects anybody."""
_NUMBER = r"(-?([0-9]{1,400}(\.[0-9]{0,400})?(e[+-]?[0-9]{1,3})?|inf)|nan)?", "a number or nothing"
_CELLS = {
    "round": (r"[0-9]{1,15}", "an integer >= 0"),
    LABEL: ("|".join(map(re.escape, ("", *Label))), f"one of {', '.join(Label)}"),
}
"""What a cell of metrics is, where it is no `_NUMBER`: a pattern and words for it."""
_Cell = float | int | str | None


class FolderDamaged(ValueError):
    """Error: a file of a run folder is not what a run writes; the text is one line."""

    exit_code = 2

    def __init__(self, path: Path, expected: str, found: str) -> None:
        super().__init__(one_line(f"{path}: expected {expected}, got {found}"))


# -- what a manifest is ----------------------------------------------------------------------------
def _shown(text: str) -> str:
    if not text.isprintable():  # half of a surrogate pair is not either
        raise ValueError("printable text")
    return text


Words = Annotated[str, AfterValidator(_shown)]
_Number = Annotated[float, Field(ge=-1e300, le=1e300, allow_inf_nan=False)]
_Epsilon = Annotated[float, Field(ge=0, le=1e300)] | Literal["infinity"]
_Delta = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0, le=10**15)]
Pairs = list[Annotated[list[Count], Field(min_length=2, max_length=2)]]
HeadText = Annotated[str, Field(pattern=r"^[0-9]{1,18}:[0-9a-f]{64}$")]


class Table(BaseModel):
    """A table of a file in a run folder; unknown keys are not read."""

    model_config = ConfigDict(strict=True, extra="ignore")


_Shape = TypeVar("_Shape", bound=Table)


class _Adversary(Table):
    name: AdversaryName | Literal["one-node", "coalition", "everybody", "published"]
    text: Words
    epsilon: _Epsilon
    delta: _Delta
    remark: Words | None = None


class _Privacy(Table):
    kind: Literal["none", "example-level", "client-level", "correlated"]
    label: Words | None = None
    noise_source: Literal["os", "seed"] | None = None
    noise_origins: list[Words] = []
    is_declared: bool = False
    unit: Words = ""
    neighboring_relation: Words = ""
    released: Words = ""
    mechanism: Words = ""
    floating_point: Words = ""
    adversaries: list[_Adversary] = []
    notes: list[Words] = []

    @model_validator(mode="after")
    def _promises_something(self) -> Self:
        told = (self.noise_source, self.unit, self.neighboring_relation, self.adversaries)
        if self.kind != "none" and not all(told):
            raise ValueError("a statement with its noise_source, unit, relation and adversaries")
        return self


class Final(Table):
    """The final numbers of a run: these keys, in this order, null where one does not apply."""

    label: Words | None = None
    relative_cost_gap: _Number | Literal["infinity", "-infinity"] | None
    gradient_norm: _Number | Literal["infinity"] | None
    epsilon: _Epsilon | None
    delta: _Delta | None
    rounds: Count
    seconds: _Number | None = None
    """Left out of what is published."""


class _Manifest(Table):
    name: Annotated[str, AfterValidator(lambda text: text.encode() and text)]
    privacy: _Privacy
    config: Document
    config_sha256: Words = ""
    experiment_sha256: Words | None = None
    ledger_run_id: Words | None = None
    ledger_head: HeadText | None = None
    num_examples: Pairs | None = None
    """N_i of clients 0, 1, ...: a size, and how many clients in a row have it."""
    stopped: str | None = None
    final: Final = Final.model_construct()


# -- the folder ------------------------------------------------------------------------------------
class RunFolder:
    """The folder of one run, new (``claim`` and ``begin``) or opened for reading."""

    def __init__(self, directory: Path) -> None:
        """Names a folder; nothing is read or made."""
        self.directory = directory
        self.experiment_path = directory / "experiment.toml"
        self.manifest_path = directory / "manifest.json"
        self.metrics_path = directory / "metrics.csv"
        self.ledger_path = directory / "ledger.jsonl"
        self.checkpoint_path = directory / "checkpoint.safetensors"
        self.error_path = directory / "error.json"

    @classmethod
    def claim(cls, directory: Path) -> "RunFolder":
        """Makes a new folder without a manifest; drafts of an unfinished write do not count.

        Raises:
            FileExistsError: ``directory`` holds something already.
            NotADirectoryError: ``directory`` is a file.
        """
        if not is_fresh(directory):
            raise FileExistsError(
                f"Expected a new or empty run folder, got {directory}, which is not empty; "
                "name another one with --out or remove it"
            )
        durable.make_folder(directory)
        durable.close_to_writers(directory)
        return cls(directory)

    @classmethod
    def open(cls, directory: Path) -> "RunFolder":
        """Opens an existing run folder.

        Raises:
            FileNotFoundError: there is no manifest in it.
        """
        folder = cls(directory)
        if not folder.manifest_path.is_file():
            raise FileNotFoundError(
                f"Expected a run folder with manifest.json, got {directory}; name a folder that "
                "a run has written"
            )
        return folder

    @property
    def is_finished(self) -> bool:
        """Whether the run in the folder is finished."""
        return self.manifest_path.is_file() and "final" in self.manifest()

    # -- manifest --
    def begin(self, manifest: Values) -> None:
        """Writes the manifest, before round 1."""
        write_atomically(self.manifest_path, encode(manifest))
        sync(self.directory.parent)

    def manifest(self) -> Document:
        """Reads the manifest as written.

        Raises:
            FolderDamaged: it is none that a run of this version writes.
        """
        found = json_object(self.manifest_path)
        if found.get("format") != FORMAT:
            other = f"format {short(found.get('format'))}, which another version of manifed wrote"
            raise FolderDamaged(
                self.manifest_path,
                f"a run folder of format {FORMAT}",
                f"{other}; read it with that one",
            )
        checked(found, _Manifest, self.manifest_path)
        return found

    def finish(self, final: Mapping[str, _Cell], measured: Document) -> None:
        """Adds ``measured`` to the manifest, then "final" with the keys of `Final`."""
        write_atomically(
            self.manifest_path,
            encode(
                self.manifest()
                | measured
                | {"final": {key: final[key] for key in Final.model_fields}}
            ),
        )

    def check_unedited(self, digest: str | None) -> None:
        """Refuses an experiment.toml whose hash is not ``digest``, which the manifest holds.

        Raises:
            FolderDamaged: it is another one, or none.
        """
        expected = "experiment.toml as the run wrote it"
        with _refused(self.experiment_path, expected):
            content = durable.read_regular(self.experiment_path)
        if hashlib.sha256(content).hexdigest() != digest:
            raise FolderDamaged(self.experiment_path, expected, "an edited one; restore it")

    def keep_error(self, error: BaseException) -> None:
        """Writes why a run ended before its end, if the disk lets it."""
        said = {
            "when": datetime.now(UTC).isoformat(timespec="seconds"),
            "what": described(error, 600),
            "is_computed": isinstance(error, RoundFailed) and error.is_computed,
        }
        with suppress(OSError):
            write_atomically(self.error_path, encode(said))

    # -- metrics --
    def append_metrics(self, row: Mapping[str, _Cell]) -> None:
        """Add one row; the first row's keys become the header. None is an empty cell.

        Raises:
            ValueError: the keys of ``row`` are not those of the header.
        """
        columns = list(row)
        text = f"{','.join(row)}\n"
        if self.metrics_path.exists():
            with self.metrics_path.open(encoding="ascii") as file:
                columns = file.readline().rstrip("\n").split(",")
            text = ""
        if {*columns} != {*row}:
            raise ValueError(
                f"Expected a row of metrics.csv with the columns {columns}, got {list(row)}; "
                "give None to what was not measured"
            )
        text += ",".join(_cell(row[column]) for column in columns) + "\n"
        durable.append_line(self.metrics_path, text.encode())

    def rows(self) -> list[dict[str, str]]:
        """Reads the whole rows of metrics.csv, by column, without one that a crash tore.

        Raises:
            FolderDamaged: it is no table of numbers with rounds in order; with the first bad line.
        """
        path = self.metrics_path
        found = list[dict[str, str]]()
        if not os.path.lexists(path):
            return found
        check_regular(path, "a table of metrics")
        try:
            text = path.read_bytes().decode("ascii")
        except UnicodeDecodeError as error:
            raise FolderDamaged(path, "ASCII", str(error)) from None
        header, *lines = [line.split(",") for line in text.split("\n")[:-1]] or [["round"]]
        names = {name for name in header if re.fullmatch(r"[A-Za-z_]\w{0,99}", name)}
        if len(names) < len(header) or "round" not in header:
            raise FolderDamaged(
                path, "on line 1 names of columns, each once, round among them", ",".join(header)
            )
        before = -1
        for number, line in enumerate(lines, start=2):
            if len(line) != len(header):
                raise FolderDamaged(path, f"on line {number} {len(header)} cells", f"{len(line)}")
            row = dict(zip(header, line, strict=True))
            for name, cell in row.items():
                pattern, kind = _CELLS.get(name, _NUMBER)
                if not re.fullmatch(pattern, cell):
                    raise FolderDamaged(
                        path, f"on line {number} for {name} {kind}", repr(cell[:80])
                    )
            if (now := int(row["round"])) <= before:
                raise FolderDamaged(path, f"on line {number} a round after {before}", str(now))
            before = now
            found.append(row)
        return found

    def metrics(self, last: int | None = None) -> dict[str, list[float | None]]:
        """Reads the columns of numbers; None where a cell is empty.

        Raises:
            FolderDamaged: as `rows`, or the rows do not end with the round ``last``.
        """
        rows = self.rows()
        told = rows[-1]["round"] if rows else "none"
        if last is not None and told != str(last):
            raise FolderDamaged(self.metrics_path, f"rows up to round {last}, the last", told)
        return {
            name: [float(row[name]) if row[name] else None for row in rows]
            for name in (rows[0] if rows else ())
            if name != LABEL
        }

    def drop_metrics_after(self, server_round: int) -> None:
        """Removes a torn last row and rows beyond ``server_round``, which a resumed run writes."""
        kept = [row for row in self.rows() if int(row["round"]) <= server_round]
        if kept:
            text = "".join(",".join(line) + "\n" for line in (kept[0], *map(dict.values, kept)))
            write_atomically(self.metrics_path, text.encode())
        else:
            self.metrics_path.unlink(missing_ok=True)
            sync(self.directory)

    # -- tensors --
    def save_tensors(self, name: str, tensors: "Mapping[str, Tensor]") -> Path:
        """Writes ``name``.safetensors and returns its path."""
        path = self.directory / f"{name}.safetensors"
        write_atomically(path, tensor_bytes(tensors))
        return path

    def load_tensors(self, name: str) -> "dict[str, Tensor]":
        """Reads the tensors saved under ``name``.

        Raises:
            FolderDamaged: the file is damaged.
        """
        return read_tensors(self.directory / f"{name}.safetensors", "whole safetensors")[0]


# -- reading and writing ---------------------------------------------------------------------------
def is_fresh(directory: Path) -> bool:
    """Whether a folder does not exist, or holds only drafts of unfinished writes."""
    return not directory.exists() or all(map(durable.is_draft, directory.iterdir()))


def check_regular(path: Path, expected: str, most: int = durable.MOST_BYTES) -> None:
    """Refuses, before opening it, a path that is no regular file of at most ``most`` bytes.

    Raises:
        FolderDamaged: for none, a folder, a pipe, a device, a loop of links.
    """
    with _refused(path, expected):
        durable.check_regular(path, most)


@contextmanager
def _refused(path: Path, expected: str) -> Generator[None]:
    """Say of what the system refuses that the folder is damaged."""
    try:
        yield
    except OSError as error:
        found = "none" if isinstance(error, FileNotFoundError) else str(error.strerror or error)
        raise FolderDamaged(path, expected, found) from None


def json_object(path: Path, content: bytes | str | None = None) -> Document:
    """Reads the JSON object in a file: finite numbers, bounded depth, whole characters.

    ``content``: a part of the file that was read already.

    Raises:
        FolderDamaged: for anything else.
    """
    if content is None:
        with _refused(path, "JSON"):
            content = durable.read_regular(path)
    try:
        found = from_json(content, allow_inf_nan=False)
    except ValueError as error:  # also tables 200 deep, and integers of thousands of digits
        raise FolderDamaged(path, "JSON", str(error)) from None
    if not isinstance(found, dict):
        raise FolderDamaged(path, "a JSON object", short(found))
    return found


def checked(table: Values, shape: type[_Shape], path: Path) -> _Shape:
    """Reads a table of the file ``path``, which must be of ``shape``.

    Raises:
        FolderDamaged: with the first field that is wrong.
    """
    try:
        return shape.model_validate(table)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(one_line(str(part), 80) for part in first["loc"])
        wanted = first["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
        found = short(first["input"])
        if first["type"] == "missing":
            wanted, found = "a value", "none"
        raise FolderDamaged(path, f"for {where} {wanted}", found) from None


def read_tensors(path: Path, expected: str) -> "tuple[dict[str, Tensor], dict[str, str]]":
    """Reads the tensors of a safetensors file, and its metadata.

    Raises:
        FolderDamaged: there is none, or it is damaged.
    """
    from safetensors import safe_open

    check_regular(path, expected, most=1 << 40)
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
            return tensors, file.metadata() or {}
    except Exception as error:  # whatever bytes make of the library
        raise FolderDamaged(path, expected, str(error)) from error


def tensor_bytes(tensors: "Mapping[str, Tensor]", metadata: dict[str, str] | None = None) -> bytes:
    """Encodes ``tensors`` as safetensors; views and device tensors are copied to the CPU."""
    from safetensors.torch import save
    from torch import contiguous_format

    return save(
        {
            name: tensor.detach().cpu().clone(memory_format=contiguous_format)
            for name, tensor in tensors.items()
        },
        metadata,
    )


def with_label(row: Mapping[str, _Cell], label: str) -> dict[str, _Cell]:
    """Returns a row of metrics with its label, if it has one, right before its epsilon."""
    found = dict[str, _Cell]()
    for key, value in row.items():
        found |= {LABEL: label, key: value} if key == "epsilon" else {key: value}
    return found


def encode(value: Values) -> bytes:
    """Writes ``value`` as indented JSON, without NaN or infinity (see the module's first lines)."""
    return (json.dumps(jsonable(value), indent=2, allow_nan=False) + "\n").encode()


def jsonable(value: Any) -> Any:
    """Returns ``value`` as JSON holds it: NaN as None, infinities as words, paths as text."""
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: "infinity", -math.inf: "-infinity"}.get(value)
    return value


def printable(path: Path) -> str:
    """Returns a path for one line of any terminal, quoted with escapes where it must be."""
    text = str(path)
    return text if text.isprintable() else repr(text)


def _cell(value: _Cell) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return str(int(value)) if isinstance(value, int) else repr(float(value))
