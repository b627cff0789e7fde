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
    labels = _labels(list(groups.values()))
    return [
        Curve(label if len(group) == 1 else f"{label}, mean of {len(group)}", tuple(group))
        for label, group in zip(labels, groups.values(), strict=True)
    ]


def names_of(runs: Sequence[Run]) -> list[str]:
    """What tables call the runs: as `curves_of` labels them, repetitions with their seed."""
    found: dict[int, str] = {}
    curves = curves_of(runs)
    for curve, label in zip(curves, _labels([curve.runs for curve in curves]), strict=True):
        for k, run in enumerate(curve.runs, start=1):
            config = run.manifest.get("config") or {}
            seed = (config.get("federation") or {}).get("seed")
            own = f"run {k}" if seed is None else f"seed {seed}"
            found[id(run)] = label if len(curve.runs) == 1 else f"{label}, {own}"
    return [found[id(run)] for run in runs]


_MOST_KEYS = 3
"""That a label names; where more differ it counts, for a folder's name may tell a seed."""


def _labels(groups: Sequence[Sequence[Run]]) -> list[str]:
    """The name of each group; where several have one name, with the keys in which they differ."""
    labels: list[str] = []
    for k, group in enumerate(groups, start=1):
        first = group[0]
        others = [_flat(other[0]) for other in groups if other[0].name == first.name]
        if len(others) == 1:
            labels.append(first.name)
            continue
        keys = [key for key in dict.fromkeys(key for one in others for key in one)
                if len({json.dumps(one.get(key)) for one in others}) > 1]  # fmt: skip
        own = _flat(first)
        told = [f"{key.rpartition('.')[2]}={own[key]}" for key in keys if own.get(key) is not None]
        is_clear = 0 < len(told) <= _MOST_KEYS
        labels.append(f"{first.name}, {', '.join(told)}" if is_clear else f"{first.name} (run {k})")
    return labels


def _flat(run: Run) -> dict[str, Any]:
    """The config that `curves_of` compares, one entry a key: "training.step_size"."""
    return dict(flat(_comparable(run.manifest.get("config") or {})))


def flat(table: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """The leaves of a config's table, each with its key in dots."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


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
