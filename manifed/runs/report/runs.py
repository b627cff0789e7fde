"""What reports know of a run: its folder's manifest and metrics, nothing from memory."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from manifed.runs.reading import FolderDamaged
from manifed.runs.run_folder import RunFolder

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

    def total(self, column: str) -> float | None:
        """The sum of ``column`` over all rows."""
        values = self.columns.get(column, np.empty(0))
        return float(np.nansum(values)) if values.size and not np.isnan(values).all() else None


@dataclass(frozen=True)
class Curve:
    """Runs of one configuration that differ in their seed only."""

    label: str
    runs: Sequence[Run]

    def values(self, x: str, y: str) -> tuple[Column, Column]:
        """Columns x (n,) and y (runs, n) over the rounds that all runs have measured."""
        tables = [_by_round(run, x, y) for run in self.runs]
        rounds = sorted(set.intersection(*(set(table) for table in tables)))
        first = np.array([tables[0][r][0] for r in rounds], dtype=np.float64)
        rows = [[table[r][1] for r in rounds] for table in tables]
        return first, np.array(rows, dtype=np.float64).reshape(len(tables), len(rounds))


def read(directory: Path) -> Run:
    """The run in ``directory``.

    Raises:
        FileNotFoundError: it is no run folder.
        FolderDamaged: its manifest or metrics are damaged.
    """
    folder = RunFolder.open(directory)
    manifest, rows = folder.manifest(), folder.metrics()
    if "final" in manifest:
        last, told = manifest["final"]["rounds"], rows.get("round", [])
        if not told or told[-1] != last:
            found = f"rows up to {told[-1]:.0f}" if told else "no row"
            raise FolderDamaged(folder.metrics_path, f"rows up to round {last}, the last", found)
    columns = {
        key: np.array([np.nan if value is None else value for value in values], dtype=np.float64)
        for key, values in rows.items()
    }
    return Run(directory, manifest.get("name") or directory.resolve().name, manifest, columns)


def curves_of(runs: Iterable[Run]) -> list[Curve]:
    """The runs grouped by configuration (seed and folder aside), in order of first appearance."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        key = json.dumps([run.name, _comparable(run.manifest.get("config"))], sort_keys=True)
        groups.setdefault(key, []).append(run)
    names = [group[0].name for group in groups.values()]
    return [
        Curve(_label(group, is_unique=names.count(group[0].name) == 1), tuple(group))
        for group in groups.values()
    ]


def _label(group: Sequence[Run], *, is_unique: bool) -> str:
    first = group[0]
    label = first.name if is_unique else f"{first.name} ({first.directory.resolve().name})"
    return label if len(group) == 1 else f"{label}, mean of {len(group)}"


def _comparable(config: Any) -> Any:
    """``config`` without what may differ between repetitions: seeds and where results go."""
    if isinstance(config, Mapping):
        kept = {key: value for key, value in config.items() if key not in {"seed", "output"}}
        return {key: _comparable(value) for key, value in kept.items()}
    return config


def _by_round(run: Run, x: str, y: str) -> dict[float, tuple[float, float]]:
    """Round to (x, y), where both were measured and are finite."""
    if not {"round", x, y} <= set(run.columns):
        return {}
    rows = zip(run.columns["round"], run.columns[x], run.columns[y], strict=True)
    return {r: (a, b) for r, a, b in rows if np.isfinite(a) and np.isfinite(b)}
