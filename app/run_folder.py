"""A run folder: all that one run leaves behind, written so that a crash never half-writes it.

    experiment.toml         the resolved config, the first file: from it a run is resumed
    manifest.json           what ran (app/manifest.py); its last key is "final" once the run ended
    metrics.csv             one row per evaluated round; see ``COLUMNS`` for the names reports know
    ledger.jsonl            what was released, charged before use (privacy/ledger.py)
    model.safetensors       the final model
    checkpoint.safetensors  where to resume (app/checkpoint.py)
    *.png                   figures, drawn from this folder alone (app/report)

JSON knows neither NaN nor infinity: NaN is written as null, infinities as the strings "infinity"
and "-infinity" (an epsilon of "infinity" means that no noise was added).
"""

import csv
import io
import itertools
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from app.durable import (
    append_line,
    is_draft,
    sync_file,
    sync_folder,
    tensor_bytes,
    write_atomically,
)

FINAL_KEYS = ("relative_cost_gap", "gradient_norm", "epsilon", "delta", "rounds", "seconds")
"""Keys of the manifest's "final", in order; null where one does not apply."""

COLUMNS = (
    "round",
    "cost",
    "cost_gap",
    "relative_cost_gap",
    "gradient_norm",
    "epsilon",
    "bytes_up",
    "bytes_down",
    "participants",
    "failures",
    "seconds",
)
"""Columns known by name, each where present. From ``bytes_up`` on a cell is the sum over the rounds
since the row before: bytes of usable uploads and of broadcasts, usable replies, clients that were
asked and dropped, seconds without evaluation."""

Cell = float | int | None


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
        directory.mkdir(parents=True, exist_ok=True)
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
        """The manifest as written."""
        try:
            return json.loads(self.manifest_path.read_bytes())
        except json.JSONDecodeError as error:
            raise ValueError(f"Expected JSON in {self.manifest_path}, got {error}") from error

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
        """Column name to values in the order of the rows; None where a cell is empty."""
        header, *rows = self._rows() or [[]]
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

    def save_tensors(self, name: str, tensors: Mapping[str, Tensor]) -> Path:
        """The written file, ``name``.safetensors."""
        path = self._tensor_path(name)
        write_atomically(path, tensor_bytes(tensors))
        return path

    def load_tensors(self, name: str) -> dict[str, Tensor]:
        """The tensors saved under ``name``.

        Raises:
            ValueError: the file is damaged.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        path = self._tensor_path(name)
        try:
            return load_file(path)
        except SafetensorError as error:
            raise ValueError(f"Expected whole safetensors in {path}, got {error}") from error

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

    def _header(self) -> list[str]:
        return next(iter(self._rows(1)), [])

    def _rows(self, most: int | None = None) -> list[list[str]]:
        """The whole lines of metrics.csv, at most ``most``; one that a crash tore is none."""
        if not self.metrics_path.exists():
            return []
        with self.metrics_path.open(newline="", encoding="utf-8") as file:
            lines = [line for line in itertools.islice(file, most) if line.endswith("\n")]
        return list(csv.reader(lines))

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
