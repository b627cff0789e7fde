"""The folder that one run leaves behind, written so that a crash never half-writes it.

    experiment.toml         the resolved config, the first file: from it a run is resumed
    manifest.json           what ran (runs/manifest.py); its last key is "final" once the run ended
    metrics.csv             one row per evaluated round
    ledger.jsonl            what was released, charged before use (manifed/privacy/ledger.py)
    model.safetensors       the final model
    checkpoint.safetensors  where to resume (runs/checkpoint.py)
    error.json              why the last part ended before its end; gone once the run goes on
    *.png                   figures, drawn from this folder alone (runs/report)

A row of metrics has the round, what was measured, epsilon with its label (privacy/label.py) before
it, and sums over the rounds since the row before. JSON knows neither NaN nor infinity: NaN is
written as null, infinities as "infinity" and "-infinity" (no noise was added).

Anything may have happened to a file that is read: every refusal is one line with the file, what was
expected and what was found, and writes nothing.
"""

import hashlib
import json
import math
import re
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from manifed import durable
from manifed.durable import (
    append_line,
    close_to_writers,
    is_draft,
    make_folder,
    sync_file,
    sync_folder,
    write_atomically,
)
from manifed.errors import RoundFailed, one_line, short
from manifed.federation.replies import KINDS
from manifed.privacy.events import AdversaryName, MaskAdversaryName
from manifed.privacy.label import LABELS

if TYPE_CHECKING:  # who only reads numbers needs no torch
    from torch import Tensor

FORMAT = 3
"""Of run folders; those of earlier versions are refused."""
LABEL = "label"
"""The one column of words: whether the noise behind the row's epsilon protects anybody."""
_DEEPEST = 64
"""Levels of nesting in JSON; a manifest has eight."""
Cell = float | int | str | None


class FolderDamaged(ValueError):
    """A file of a run folder is not what a run writes; one line."""

    exit_code = 2

    def __init__(self, path: Path, expected: str, found: str) -> None:
        super().__init__(one_line(f"{path}: expected {expected}, got {found}"))


# -- what a manifest is ----------------------------------------------------------------------------
def _shown(text: str) -> str:
    text.encode()  # half of a surrogate pair is no text
    if not text.isprintable():
        raise ValueError("printable text")
    return text


Words = Annotated[str, AfterValidator(_shown)]
Number = Annotated[float, Field(ge=-1e300, le=1e300, allow_inf_nan=False)]
Epsilon = Annotated[float, Field(ge=0, le=1e300)] | Literal["infinity"]
Delta = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0, le=10**15)]
HeadText = Annotated[str, Field(pattern=r"^[0-9]{1,18}:[0-9a-f]{64}$")]


class Table(BaseModel):
    """A table of a file, of which other keys are not read."""

    model_config = ConfigDict(strict=True, extra="ignore")


class _Adversary(Table):
    name: AdversaryName | MaskAdversaryName | Literal["published"]
    text: Words
    epsilon: Epsilon
    delta: Delta
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
    """What a run came to: these keys, in this order, null where one does not apply."""

    label: Words | None = None
    relative_cost_gap: Number | Literal["infinity", "-infinity"] | None
    gradient_norm: Number | Literal["infinity"] | None
    epsilon: Epsilon | None
    delta: Delta | None
    rounds: Count
    seconds: Number


class _Manifest(Table):
    name: Annotated[str, AfterValidator(lambda text: text.encode() and text)] | None = None
    privacy: _Privacy | None = None
    config: dict[str, Any] | None = None
    config_sha256: Words = ""
    experiment_sha256: Words | None = None
    ledger_run_id: Words | None = None
    ledger_head: HeadText | None = None
    num_examples: list[Annotated[list[Count], Field(min_length=2, max_length=2)]] | None = None
    """N_i of clients 0, 1, ...: a size, and how many clients in a row have it."""
    stopped: str | None = None
    final: Final = Final.model_construct()


# -- the folder ------------------------------------------------------------------------------------
@dataclass(frozen=True)
class RunFolder:
    """One run's folder; made by ``claim`` and ``begin`` before round 1, or there for reading."""

    directory: Path

    @classmethod
    def claim(cls, directory: Path) -> "RunFolder":
        """A new folder without a manifest; what an unfinished write left there does not count.

        Raises:
            FileExistsError: ``directory`` holds something already.
            NotADirectoryError: ``directory`` is a file.
        """
        if directory.exists() and not directory.is_dir():
            raise NotADirectoryError(f"Expected a folder for the run, got the file {directory}")
        if not is_fresh(directory):
            raise FileExistsError(
                f"Expected a new or empty run folder, got {directory}, which is not empty; "
                "name another one with --out or remove it"
            )
        make_folder(directory)
        close_to_writers(directory)
        return cls(directory)

    @classmethod
    def open(cls, directory: Path) -> "RunFolder":
        """The existing folder.

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
    def manifest_path(self) -> Path:
        """Where the manifest is."""
        return self.directory / "manifest.json"

    @property
    def experiment_path(self) -> Path:
        """Where the resolved config is."""
        return self.directory / "experiment.toml"

    @property
    def metrics_path(self) -> Path:
        """Where the rows of the rounds are."""
        return self.directory / "metrics.csv"

    @property
    def ledger_path(self) -> Path:
        """Where the privacy ledger is."""
        return self.directory / "ledger.jsonl"

    @property
    def checkpoint_path(self) -> Path:
        """Where the newest checkpoint is."""
        return self.directory / "checkpoint.safetensors"

    @property
    def error_path(self) -> Path:
        """Where the last part of the run says why it ended before its end."""
        return self.directory / "error.json"

    # -- manifest --
    def begin(self, manifest: Mapping[str, Any]) -> None:
        """Write the manifest, before round 1."""
        write_atomically(self.manifest_path, encode(manifest))
        sync_folder(self.directory.parent)

    def manifest(self) -> dict[str, Any]:
        """The manifest as written.

        Raises:
            FolderDamaged: it is none that a run of this version writes.
        """
        found = json_object(self.manifest_path)
        if found.get("format") != FORMAT:
            given = short(found.get("format"))
            raise FolderDamaged(
                self.manifest_path, f"a run folder of format {FORMAT}",
                f"format {given}, which another version of manifed wrote; read it with that one",
            )  # fmt: skip
        checked(found, _Manifest, self.manifest_path)
        return found

    def reopen(self, changes: Mapping[str, Any]) -> None:
        """Change the manifest of a run that goes on with more rounds: it has no end yet."""
        at_the_end = ("final", "ledger_head", "stopped", "replies")
        manifest = {key: value for key, value in self.manifest().items() if key not in at_the_end}
        write_atomically(self.manifest_path, encode(manifest | dict(changes)))

    def finish(self, final: Mapping[str, Cell], measured: Mapping[str, Any] | None = None) -> None:
        """Add ``measured`` (what only the end knows), then "final", at the end.

        Raises:
            ValueError: ``final`` has not exactly the keys of `Final`, or the run is finished.
        """
        manifest, keys = self.manifest(), list(Final.model_fields)
        if "final" in manifest or set(final) != set(keys):
            raise ValueError(f"Expected an unfinished run and the final keys {keys}, got {final}")
        whole = {**manifest, **(measured or {}), "final": {key: final[key] for key in keys}}
        write_atomically(self.manifest_path, encode(whole))

    def check_unedited(self, digest: str | None) -> None:
        """Refuse an experiment.toml that is not the one of ``digest``, which the manifest holds.

        Raises:
            FolderDamaged: it is another one, or none.
        """
        expected = "experiment.toml as the run wrote it"
        with _refused(self.experiment_path, expected):
            content = durable.read_regular(self.experiment_path)
        if experiment_digest(content) != digest:
            raise FolderDamaged(self.experiment_path, expected, "an edited one; restore it")

    def keep_error(self, error: BaseException) -> None:
        """Write down why a run ends before its end, if the disk lets it."""
        said = {
            "when": datetime.now(UTC).isoformat(timespec="seconds"),
            "what": one_line(f"{type(error).__name__}: {error}"),
            "is_computed": isinstance(error, RoundFailed) and error.is_computed,
        }
        with suppress(OSError):
            write_atomically(self.error_path, encode(said))

    # -- metrics --
    def check_columns(self, columns: Iterable[str]) -> None:
        """Refuse metrics that rows of these columns cannot go on with.

        Raises:
            FolderDamaged: with the columns of both.
        """
        header, wanted = self._rows()[:1], list(columns)
        if header and set(header[0]) != set(wanted):
            expected = f"the columns {','.join(wanted)}"
            raise FolderDamaged(self.metrics_path, expected, ",".join(header[0]))

    def append_metrics(self, row: Mapping[str, Cell]) -> None:
        """Add one row; the first row's keys become the header. None is an empty cell.

        Raises:
            ValueError: the keys of ``row`` are not those of the header.
        """
        columns, text = list(row), ""
        if self.metrics_path.exists():
            with self.metrics_path.open(encoding="ascii") as file:
                columns = file.readline().rstrip("\n").split(",")
        else:
            text = ",".join(columns) + "\n"
        if set(columns) != set(row):
            raise ValueError(
                f"Expected a row of metrics.csv with the columns {columns}, got {list(row)}; "
                "give None to what was not measured"
            )
        text += ",".join(_cell(row[column]) for column in columns) + "\n"
        append_line(self.metrics_path, text.encode())

    def metrics(self) -> dict[str, list[float | None]]:
        """Column of numbers to values in the order of the rows; None where a cell is empty.

        Raises:
            FolderDamaged: it is no table of numbers with rounds in order; with the first bad line.
        """
        header, *rows = self._rows() or [[]]
        self._check_rows(header, rows)
        return {
            key: [float(row[place]) if row[place] else None for row in rows]
            for place, key in enumerate(header)
            if key != LABEL
        }

    def sync_metrics(self) -> None:
        """Make every row so far survive a power cut."""
        if self.metrics_path.exists():
            sync_file(self.metrics_path)

    def drop_metrics_after(self, server_round: int) -> None:
        """Forget a torn last row and those beyond ``server_round``: a resumed run writes them."""
        if not self.metrics_path.exists():
            return
        header, *rows = self._rows() or [[]]
        kept = [row for row in rows if int(row[header.index("round")]) <= server_round]
        if not kept:
            self.metrics_path.unlink()
            sync_folder(self.directory)
            return
        content = "".join(",".join(row) + "\n" for row in [header, *kept]).encode()
        if content != self.metrics_path.read_bytes():
            write_atomically(self.metrics_path, content)

    def _rows(self) -> list[list[str]]:
        """The whole lines of metrics.csv; one that a crash tore is none."""
        if not is_there(self.metrics_path):
            return []
        check_regular(self.metrics_path, "a table of metrics")
        lines = self.metrics_path.read_bytes().split(b"\n")[:-1]
        try:
            return [line.decode("ascii").split(",") for line in lines]
        except UnicodeDecodeError as error:
            raise FolderDamaged(self.metrics_path, "ASCII", str(error)) from None

    def _check_rows(self, header: list[str], rows: list[list[str]]) -> None:
        path, before = self.metrics_path, -1
        if not header:  # a crash tore the first line, or there is none yet
            return
        names = {name for name in header if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,99}", name)}
        if len(names) < len(header) or "round" not in header:
            raise FolderDamaged(
                path, "on line 1 names of columns, each once, round among them", ",".join(header)
            )
        counts = {"round", "uploads", "bytes_up", "bytes_down", "participants", "failures", *KINDS}
        whole = re.compile(r"[0-9]{1,15}")
        number = re.compile(r"-?(?:[0-9]{1,400}(?:\.[0-9]{0,400})?(?:e[+-]?[0-9]{1,3})?|inf)|nan")
        for line, row in enumerate(rows, start=2):
            if len(row) != len(header):
                raise FolderDamaged(path, f"on line {line} {len(header)} cells", f"{len(row)}")
            for name, cell in zip(header, row, strict=True):
                if name == LABEL:
                    is_fit, kind = cell in ("", *LABELS), f"one of {', '.join(LABELS)}"
                elif name in counts:
                    is_fit, kind = bool(whole.fullmatch(cell)), "an integer >= 0"
                else:
                    is_fit, kind = bool(number.fullmatch(cell)), "a number or nothing"
                if not is_fit and (cell or name == "round"):
                    found = repr(cell[:80])
                    raise FolderDamaged(path, f"on line {line} for {name} {kind}", found)
            now = row[header.index("round")]
            if int(now) <= before:
                raise FolderDamaged(path, f"on line {line} a round after {before}", now)
            before = int(now)

    # -- tensors --
    def save_tensors(self, name: str, tensors: "Mapping[str, Tensor]") -> Path:
        """The written file, ``name``.safetensors."""
        path = self.directory / f"{name}.safetensors"
        write_atomically(path, tensor_bytes(tensors))
        return path

    def load_tensors(self, name: str) -> "dict[str, Tensor]":
        """The tensors saved under ``name``.

        Raises:
            FolderDamaged: the file is damaged.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        path = self.directory / f"{name}.safetensors"
        check_regular(path, "whole safetensors", most=1 << 40)
        try:
            return load_file(path)
        except (SafetensorError, OSError, ValueError, TypeError, KeyError, RuntimeError,
                MemoryError, OverflowError) as error:  # fmt: skip
            raise FolderDamaged(path, "whole safetensors", f"{error}") from error


# -- reading and writing ---------------------------------------------------------------------------
def is_fresh(directory: Path) -> bool:
    """Whether there is no such folder, or nothing in it but drafts of unfinished writes."""
    return not directory.exists() or all(is_draft(path) for path in directory.iterdir())


def is_there(path: Path) -> bool:
    """Whether the folder has an entry of this name, of any kind, also a link to nothing.

    Raises:
        FolderDamaged: the system refuses to look.
    """
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise FolderDamaged(path, "a readable file", str(error.strerror)) from None
    return True


def check_regular(path: Path, expected: str, most: int = durable.MOST_BYTES) -> None:
    """Refuse what is no regular file of at most ``most`` bytes, before anything opens it.

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


def json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file: finite numbers, bounded depth, no key twice, whole characters.

    Raises:
        FolderDamaged: for anything else.
    """
    with _refused(path, "JSON"):
        content = durable.read_regular(path)
    return object_of(content, path)


def object_of(content: bytes | str, path: Path) -> dict[str, Any]:
    """The JSON object in the bytes of ``path``; errors as `json_object`."""

    def refuse(name: str) -> NoReturn:
        raise ValueError(f"{name}, which is no JSON")

    def once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        if len(table := dict(pairs)) < len(pairs):
            raise ValueError("one key twice in a table")
        return table

    try:
        found = json.loads(content, parse_constant=refuse, object_pairs_hook=once)
    except RecursionError:
        raise FolderDamaged(path, f"JSON at most {_DEEPEST} deep", "deeper tables") from None
    except ValueError as error:  # no JSON, no UTF-8, an integer of thousands of digits
        raise FolderDamaged(path, "JSON", str(error)) from None
    if not isinstance(found, dict):
        raise FolderDamaged(path, "a JSON object", short(found))
    level: list[Any] = [found]
    for _ in range(_DEEPEST):
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, dict | list)
        ]
    if level:
        raise FolderDamaged(path, f"JSON at most {_DEEPEST} deep", "deeper tables")
    try:  # what can be read must be fit to be shown and written
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise FolderDamaged(path, "text", "half of a surrogate pair") from None
    return found


def checked(table: Mapping[str, Any], shape: type[BaseModel], path: Path) -> None:
    """Refuse a table of the file ``path`` that is not of ``shape``.

    Raises:
        FolderDamaged: with the first field that is wrong.
    """
    try:
        shape.model_validate(table)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=True)[0]
        where = ".".join(one_line(str(part), 80) for part in first["loc"])
        found = "none" if first["type"] == "missing" else short(first["input"])
        message = first["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
        wanted = "a value" if first["type"] == "missing" else message
        raise FolderDamaged(path, f"for {where} {wanted}", found) from None


def tensor_bytes(
    tensors: "Mapping[str, Tensor]", metadata: Mapping[str, str] | None = None
) -> bytes:
    """The safetensors encoding of ``tensors``; views and device tensors are copied to the CPU."""
    from safetensors.torch import save
    from torch import contiguous_format

    plain = {
        name: tensor.detach().cpu().clone(memory_format=contiguous_format)
        for name, tensor in tensors.items()
    }
    return save(plain, dict(metadata) if metadata else None)


def experiment_digest(content: bytes) -> str:
    """What the manifest remembers of experiment.toml."""
    return hashlib.sha256(content).hexdigest()


def with_label(row: Mapping[str, Cell], label: str) -> dict[str, Cell]:
    """A row of metrics with its label right before its epsilon, if it has one."""
    found: dict[str, Cell] = {}
    for key, value in row.items():
        found |= {LABEL: label, key: value} if key == "epsilon" else {key: value}
    return found


def encode(value: Mapping[str, Any]) -> bytes:
    """``value`` as indented JSON, without NaN or infinity (see the module's first lines)."""
    return (json.dumps(jsonable(value), indent=2, allow_nan=False) + "\n").encode()


def jsonable(value: Any) -> Any:
    """``value`` with NaN as None, infinities as words, paths as text and tuples as lists."""
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else ("infinity" if value > 0 else "-infinity")
    return value


def printable(path: Path) -> str:
    """A path on one line of any terminal: as it is, or quoted with escapes where it must be."""
    return str(path) if str(path).isprintable() else repr(str(path))


def _cell(value: Cell) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return str(int(value)) if isinstance(value, int) else repr(float(value))
