"""A run in another process, watched through its folder: curves, clients, budget.

Only files are read that a run writes whole or line by line, and no lock is taken. What is shown is
what may be published (runs/report/page.py): who answered, who failed, what that took and what was
really spent only where the server's view is asked for.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manifed.errors import one_line
from manifed.runs.in_force import saved_config
from manifed.runs.reading import is_there
from manifed.runs.report.figures import LINEAR
from manifed.runs.report.page import published
from manifed.runs.report.public import is_private
from manifed.runs.report.runs import read
from manifed.runs.status import Budget, Status, status_of

if TYPE_CHECKING:
    from rich.console import Group

WATCHED = (
    "cost",
    "relative_cost_gap",
    "gradient_norm",
    "held_out_loss",
    "held_out_accuracy",
    "consensus_distance",
    "epsilon",
)
"""Columns with a curve, where they were measured and may be shown."""
_ON_LINES = {*LINEAR, "held_out_loss", "held_out_accuracy", "epsilon"}
_LEVELS = "▁▂▃▄▅▆▇█"
_WIDTH = 48
"""Characters of a curve."""


@dataclass(frozen=True)
class View:
    """What is shown of a run at one moment."""

    name: str
    label: str
    """Whether the noise protects anybody: what stands before every epsilon."""
    doubts: tuple[str, ...]
    """What the folder cannot exclude."""
    state: str
    round: int
    num_rounds: int
    curves: tuple[tuple[str, tuple[float, ...]], ...]
    """Column and its values so far."""
    clients: str
    budget: Budget | None
    seconds_left: float | None
    seconds: float | None
    """What a finished run took from start to end."""
    notes: tuple[str, ...]

    def line(self) -> str:
        """For a file or a pipe: one line without control characters."""
        cells = [self.label]
        cells += [f"{name.replace('_', ' ')} {values[-1]:.4g}" for name, values in self.curves]
        cells += [] if self.budget is None else [f"budget left {_left(self.budget):.4g}"]
        cells += [] if self.seconds is None else [f"took {self.seconds:.1f} s"]
        width = len(str(self.num_rounds))
        where = f"round {self.round:>{width}}/{self.num_rounds}"
        return "  ".join([f"{one_line(self.name)}: {self.state}, {where}", *cells])

    def data(self) -> dict[str, Any]:
        """As data."""
        return asdict(self) | {"curves": {name: list(values) for name, values in self.curves}}


def view_of(directory: Path, *, is_server_view: bool = False) -> View:
    """What the folder says now; errors as `status_of`."""
    status, config = status_of(directory), saved_config(directory)
    curves: list[tuple[str, tuple[float, ...]]] = []
    is_hidden = config.privacy.kind != "none"
    if is_there(directory / "manifest.json"):
        run = read(directory)
        is_hidden = is_private(run.manifest)
        columns = (run if is_server_view else published(run)).columns
        for name in WATCHED:
            values = tuple(float(v) for v in columns.get(name, ()) if math.isfinite(v))
            curves += [(name, values)] if values else []
    federation = config.federation
    expected = federation.cohort.expected_size(federation.num_clients)
    clients = f"{expected:g} of {federation.num_clients} are asked in a round"
    clients += " on average" if federation.cohort.kind == "poisson" else ""
    notes: list[str] = []
    if is_server_view:
        clients += f"; {status.participants or 0} replies used so far"
        notes = [row for row in status.text().splitlines() if row.startswith(_OF_THE_SERVER)]
    elif status.last_error is not None:
        notes = ["the last part ended by an error: manifed status says which"]
    has_times = is_server_view or not is_hidden
    pace = status.row_seconds if has_times else None
    return View(
        name=status.name,
        state=status.state,
        round=status.round,
        num_rounds=status.num_rounds,
        curves=tuple(curves),
        clients=clients,
        label=status.label,
        doubts=status.doubts,
        budget=status.budget,
        seconds_left=_seconds_left(status, pace),
        seconds=status.seconds if has_times else None,
        notes=(*notes, f"next: {status.next_step}"),
    )


_OF_THE_SERVER = ("replies:", "missing:", "spent:", "last error:")


def _seconds_left(status: Status, pace: float | None) -> float | None:
    if pace is None or status.state != "running":
        return None
    return pace * (status.num_rounds - status.round)


def _left(budget: Budget) -> float:
    return max(0.0, budget.epsilon - budget.spent)


def sparkline(values: Sequence[float], *, is_log: bool = False, width: int = _WIDTH) -> str:
    """The values as bars of eight heights, at most ``width`` of them; a logarithm where asked."""
    shown = [v for v in values if v > 0] if is_log else list(values)
    if not shown:
        return ""
    heights = [math.log(v) for v in shown] if is_log else shown
    if len(heights) > width:
        heights = [heights[round(i * (len(heights) - 1) / (width - 1))] for i in range(width)]
    low, high = min(heights), max(heights)
    top = len(_LEVELS) - 1
    return "".join(
        _LEVELS[round(top * (h - low) / (high - low)) if high > low else 0] for h in heights
    )


def rendered(view: View) -> "Group":
    """For a terminal."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    def bar(part: float, style: str) -> Text:
        full = round(_WIDTH * min(part, 1.0))
        return Text.assemble(("━" * full, style), ("━" * (_WIDTH - full), "dim"))

    head = Text.assemble((one_line(view.name), "bold"), f"  {view.state}  ")
    head.append(f"round {view.round} of {view.num_rounds}")
    if view.seconds_left is not None:
        head.append(f", about {_duration(view.seconds_left)} left")
    if view.seconds is not None:
        head.append(f", took {_duration(view.seconds)}")
    curves = Table.grid(padding=(0, 2))
    for name, values in view.curves:
        curve = sparkline(values, is_log=name not in _ON_LINES)
        curves.add_row(
            name.replace("_", " "), Text(curve, "cyan"), Text(f"{values[-1]:.4g}", "bold")
        )
    rows: list[Any] = [head, bar(view.round / max(view.num_rounds, 1), "cyan")]
    rows += [Text(f"privacy: {view.label}"), curves]
    rows.append(Text(f"clients: {view.clients}"))
    if view.budget is not None:
        left, whole = _left(view.budget), view.budget.epsilon
        rows.append(
            Text(
                f"budget left: epsilon {left:.4g} of {whole:g} against {view.budget.adversary}, "
                f"at delta {view.budget.delta:g}"
            )
        )
        rows.append(bar(left / whole, "green"))
    notes = (*view.doubts, *view.notes)
    return Group(*rows, *(Text(one_line(note), "dim") for note in notes))


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
