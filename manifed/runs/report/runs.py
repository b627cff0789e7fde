"""What reports know of a run: its folder's manifest and metrics, nothing from memory."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from manifed.runs.folder import FolderDamaged, RunFolder

Column = NDArray[np.float64]


@dataclass(frozen=True)
class Run:
    """One run folder, read."""

    directory: Path
    name: str
    manifest: Mapping[str, Any]
    columns: Mapping[str, Column]

    @property
    def final(self) -> Mapping[str, Any]:
        """The manifest's "final"; empty while the run goes on or after it failed."""
        return self.manifest.get("final", {})

    def last(self, column: str) -> float | None:
        """The newest measured value of ``column``."""
        values = self.columns.get(column, np.empty(0))
        measured = values[~np.isnan(values)]
        return float(measured[-1]) if measured.size else None


@dataclass(frozen=True)
class Curve:
    """Runs of one configuration that differ in their seed only."""

    label: str
    runs: Sequence[Run]

    def values(self, x: str, y: str) -> tuple[Column, Column]:
        """Columns x (n,) and y (runs, n) over the rounds that all runs have measured."""
        tables: list[dict[float, tuple[float, float]]] = []
        for run in self.runs:
            found = [run.columns.get(name, np.empty(0)) for name in ("round", x, y)]
            rows = zip(*found, strict=False)
            tables.append({r: (a, b) for r, a, b in rows if np.isfinite(a) and np.isfinite(b)})
        rounds = sorted(set(tables[0]).intersection(*tables))
        first = np.array([tables[0][r][0] for r in rounds], dtype=np.float64)
        rows = [[table[r][1] for r in rounds] for table in tables]
        return first, np.array(rows, dtype=np.float64).reshape(len(tables), len(rounds))


def read(directory: Path) -> Run:
    """The run in ``directory``.

    Raises:
        FileNotFoundError: it is no run folder.
        FolderDamaged: its manifest or metrics are damaged, or its config was changed.
    """
    folder = RunFolder.open(directory)
    manifest, rows = folder.manifest(), folder.metrics()
    if (digest := manifest.get("experiment_sha256")) is not None:
        folder.check_unedited(digest)
    if "final" in manifest:
        last, told = manifest["final"]["rounds"], rows.get("round", [])
        if not told or told[-1] != last:
            found = f"rows up to {told[-1]:.0f}" if told else "no row"
            raise FolderDamaged(folder.metrics_path, f"rows up to round {last}, the last", found)
    columns = {key: np.array(values, dtype=np.float64) for key, values in rows.items()}
    return Run(directory, manifest.get("name") or directory.resolve().name, manifest, columns)


def curves_of(runs: Iterable[Run]) -> list[Curve]:
    """The runs grouped by configuration (seed and output aside), in order of first appearance.

    A label names the keys in which runs of one name differ, at most three; where more differ it
    counts, for a folder's name may tell a seed.
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        key = json.dumps([run.name, _settings(run)], sort_keys=True)
        groups.setdefault(key, []).append(run)
    curves: list[Curve] = []
    for k, group in enumerate(groups.values(), start=1):
        label, own = group[0].name, _settings(group[0])
        others = [_settings(one[0]) for one in groups.values() if one[0].name == label]
        if len(others) > 1:
            keys = dict.fromkeys(key for one in others for key in one)
            told = [
                f"{key.rpartition('.')[2]}={own[key]}"
                for key in keys
                if own.get(key) is not None and any(one.get(key) != own[key] for one in others)
            ]
            label += f", {', '.join(told)}" if 0 < len(told) <= 3 else f" (run {k})"
        curves.append(Curve(label, tuple(group)))
    return curves


def _settings(run: Run) -> dict[str, Any]:
    """The config's keys in dots, without what may differ between repetitions."""
    found: dict[str, Any] = {}

    def walk(table: Mapping[str, Any], prefix: str) -> None:
        for key, value in table.items():
            if isinstance(value, Mapping):
                walk(value, f"{prefix}{key}.")
            elif key != "seed":
                found[f"{prefix}{key}"] = value

    table = run.manifest.get("config") or {}
    walk({key: value for key, value in table.items() if key != "output"}, "")
    return found
