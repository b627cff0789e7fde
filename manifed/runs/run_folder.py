"""A run folder: all that one run leaves behind, written so that a crash never half-writes it.

    experiment.toml         the resolved config, the first file: from it a run is resumed
    manifest.json           what ran (runs/manifest.py); its last key is "final" once the run ended
    metrics.csv             one row per evaluated round (below)
    ledger.jsonl            what was released, charged before use (manifed/privacy/ledger.py)
    model.safetensors       the final model
    checkpoint.safetensors  where to resume (manifed/runs/checkpoint.py)
    error.json              why the last part ended before its end; gone once the run goes on
    *.png                   figures, drawn from this folder alone (runs/report)

A row has the round, what was measured (cost, gaps, gradient norm), epsilon, and sums over the
rounds since the row before: bytes of usable uploads and of broadcasts, usable replies, clients that
were asked and dropped, seconds without evaluation.

JSON knows neither NaN nor infinity: NaN is written as null, infinities as the strings "infinity"
and "-infinity" (an epsilon of "infinity" means that no noise was added).
"""

import csv
import hashlib
import io
import itertools
import json
import math
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manifed.durable import (
    append_line,
    close_to_writers,
    is_draft,
    make_folder,
    sync_file,
    sync_folder,
    write_atomically,
)
from manifed.errors import RoundFailed, one_line
from manifed.federation.kinds import KINDS
from manifed.runs.reading import (
    FolderDamaged,
    Manifest,
    check_regular,
    checked,
    is_there,
    json_object,
    read_whole,
    renamed,
)

if TYPE_CHECKING:  # who only reads numbers needs no torch
    from torch import Tensor

FINAL_KEYS = ("relative_cost_gap", "gradient_norm", "epsilon", "delta", "rounds", "seconds")
"""Keys of the manifest's "final", in order; null where one does not apply."""

_AT_THE_END = {"final", "ledger_head", "stopped", "replies", "seconds_by_part"}
"""Keys of a manifest that only the end of a run knows (`Run._finish` of runs/driver.py)."""

Cell = float | int | None
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_COUNTS = {"round", "uploads", "bytes_up", "bytes_down", "participants", "failures", *KINDS}
_WHOLE = re.compile(r"[0-9]{1,15}")
_NUMBER = re.compile(r"-?(?:[0-9]{1,400}(?:\.[0-9]{0,400})?(?:e[+-]?[0-9]{1,3})?|inf)|nan")
UNREADABLE = (OSError, ValueError, TypeError, KeyError, RuntimeError, MemoryError, OverflowError)
"""What libraries raise for bytes that are none of theirs."""


def experiment_digest(content: bytes) -> str:
    """What the manifest remembers of experiment.toml."""
    return hashlib.sha256(content).hexdigest()


@dataclass(frozen=True)
class RunFolder:
    """One run's folder; made by ``create`` before round 1 or by ``open`` for reading."""

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
    def create(cls, directory: Path, manifest: Mapping[str, Any]) -> "RunFolder":
        """A new folder holding ``manifest`` (see `claim` and `begin` for errors)."""
        encode(manifest)
        folder = cls.claim(directory)
        folder.begin(manifest)
        return folder

    def begin(self, manifest: Mapping[str, Any]) -> None:
        """Write the manifest, before round 1.

        Raises:
            ValueError: ``manifest`` already has a "final".
        """
        if "final" in manifest:
            raise ValueError('Expected a manifest without "final" before round 1, got one with it')
        write_atomically(self.manifest_path, encode(manifest))
        sync_folder(self.directory.parent)

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

    def manifest(self) -> dict[str, Any]:
        """The manifest as written, an old one in today's words.

        Raises:
            FolderDamaged: it is none that a run writes.
        """
        found = renamed(json_object(self.manifest_path))
        checked(found, Manifest, self.manifest_path)
        return found

    def check_unedited(self, digest: str | None) -> None:
        """Refuse an experiment.toml that is not the one of ``digest``, which the manifest holds.

        Raises:
            FolderDamaged: it is another one, or none.
        """
        expected = "experiment.toml as the run wrote it"
        if experiment_digest(read_whole(self.experiment_path, expected)) != digest:
            raise FolderDamaged(self.experiment_path, expected, "an edited one; restore it")

    @property
    def error_path(self) -> Path:
        """Where the last part of the run says why it ended before its end."""
        return self.directory / "error.json"

    def keep_error(self, error: BaseException) -> None:
        """Write down why a run ends before its end, if the disk lets it."""
        said = {
            "when": datetime.now(UTC).isoformat(timespec="seconds"),
            "what": one_line(f"{type(error).__name__}: {error}"),
            "is_computed": isinstance(error, RoundFailed) and error.is_computed,
        }
        with suppress(OSError):
            write_atomically(self.error_path, encode(said))

    def check_columns(self, columns: Iterable[str]) -> None:
        """Refuse metrics that rows of these columns cannot go on with.

        Raises:
            FolderDamaged: with the columns of both.
        """
        header, wanted = self._header(), list(columns)
        if header and set(header) != set(wanted):
            raise FolderDamaged(
                self.metrics_path, f"the columns {','.join(wanted)}", ",".join(header)
            )

    def append_metrics(self, row: Mapping[str, Cell]) -> None:
        """Add one row; the first row's keys become the header. None is an empty cell.

        Raises:
            ValueError: the keys of ``row`` are not those of the header.
        """
        columns = self._header() or list(row)
        if set(columns) != set(row):
            raise ValueError(
                f"Expected a row of metrics.csv with the columns {columns}, got {list(row)}; "
                "give None to what was not measured"
            )
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        if not self.metrics_path.exists():
            writer.writerow(columns)
        writer.writerow([_cell(row[column]) for column in columns])
        append_line(self.metrics_path, text.getvalue().encode())

    def metrics(self) -> dict[str, list[float | None]]:
        """Column name to values in the order of the rows; None where a cell is empty.

        Raises:
            FolderDamaged: it is no table of numbers with rounds in order; with the first bad line.
        """
        header, *rows = self._rows() or [[]]
        self._check_rows(header, rows)
        return {
            key: [float(row[place]) if row[place] else None for row in rows]
            for place, key in enumerate(header)
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

    def save_tensors(self, name: str, tensors: "Mapping[str, Tensor]") -> Path:
        """The written file, ``name``.safetensors."""
        from manifed.runs.checkpoint import tensor_bytes

        path = self._tensor_path(name)
        write_atomically(path, tensor_bytes(tensors))
        return path

    def load_tensors(self, name: str) -> "dict[str, Tensor]":
        """The tensors saved under ``name``.

        Raises:
            ValueError: the file is damaged.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        path = self._tensor_path(name)
        check_regular(path, "whole safetensors", most=1 << 40)
        try:
            return load_file(path)
        except (SafetensorError, *UNREADABLE) as error:
            raise FolderDamaged(path, "whole safetensors", f"{error}") from error

    def finish(
        self, final: Mapping[str, Cell], measured: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """The finished manifest: ``measured`` (what only the end knows), then "final", at the end.

        Raises:
            ValueError: ``final`` has not exactly ``FINAL_KEYS``, or the run is finished already.
        """
        manifest = self.manifest()
        if "final" in manifest:
            raise ValueError(f'Expected an unfinished run in {self.directory}, got "final" in it')
        if set(final) != set(FINAL_KEYS):
            raise ValueError(f"Expected the final keys {list(FINAL_KEYS)}, got {list(final)}")
        whole = {**manifest, **(measured or {}), "final": {key: final[key] for key in FINAL_KEYS}}
        content = encode(whole)
        write_atomically(self.manifest_path, content)
        return json.loads(content)

    def reopen(self, changes: Mapping[str, Any]) -> None:
        """Change the manifest of a run that goes on with more rounds: it has no end yet."""
        manifest = {key: value for key, value in self.manifest().items() if key not in _AT_THE_END}
        write_atomically(self.manifest_path, encode(manifest | dict(changes)))

    def _header(self) -> list[str]:
        return next(iter(self._rows(1)), [])

    def _rows(self, most: int | None = None) -> list[list[str]]:
        """The whole lines of metrics.csv, at most ``most``; one that a crash tore is none."""
        if not is_there(self.metrics_path):
            return []
        check_regular(self.metrics_path, "a table of metrics")
        with self.metrics_path.open("rb") as file:
            lines = [line[:-1] for line in itertools.islice(file, most) if line.endswith(b"\n")]
        try:
            return [line.decode("ascii").split(",") for line in lines]
        except UnicodeDecodeError as error:
            raise FolderDamaged(self.metrics_path, "ASCII", str(error)) from None

    def _check_rows(self, header: list[str], rows: list[list[str]]) -> None:
        path, before = self.metrics_path, -1
        if not header:  # a crash tore the first line, or there is none yet
            return
        names = [name for name in header if _NAME.fullmatch(name)]
        if len(set(names)) < len(header) or "round" not in header:
            raise FolderDamaged(
                path, "on line 1 names of columns, each once, round among them", ",".join(header)
            )
        place = header.index("round")
        for number, row in enumerate(rows, start=2):
            if len(row) != len(header):
                raise FolderDamaged(path, f"on line {number} {len(header)} cells", f"{len(row)}")
            for name, cell in zip(header, row, strict=True):
                pattern = _WHOLE if name in _COUNTS else _NUMBER
                if not pattern.fullmatch(cell) and (cell or name == "round"):
                    kind = "an integer >= 0" if name in _COUNTS else "a number or nothing"
                    raise FolderDamaged(path, f"on line {number} for {name} {kind}", repr(cell))
            if int(row[place]) <= before:
                raise FolderDamaged(
                    path, f"on line {number} a round after {before}", one_line(row[place], 40)
                )
            before = int(row[place])

    def _tensor_path(self, name: str) -> Path:
        if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
            raise ValueError(f"Expected a name of letters, digits, '-' and '_', got {name!r}")
        return self.directory / f"{name}.safetensors"


def is_fresh(directory: Path) -> bool:
    """Whether there is no such folder, or nothing in it but drafts of unfinished writes."""
    return not directory.exists() or all(is_draft(path) for path in directory.iterdir())


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
    if value is None:
        return ""
    return str(int(value)) if isinstance(value, int) else repr(float(value))
