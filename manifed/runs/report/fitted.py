"""The curves of a fit, drawn: one panel for each number that was evaluated, and one for epsilon."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from manifed.runs.report.figures import COLORS, LABELS, STYLE
from manifed.runs.statement import label_in

Values = Sequence[float | None]
_COUNTS = ("round", "epsilon", "participants", "failures")
"""Columns of every fit; all others are what its ``evaluate`` said."""


class FitFigure(Figure):
    """A figure that a notebook shows by itself, whatever its plotting backend."""

    def _repr_png_(self) -> bytes:
        content = io.BytesIO()
        self.savefig(content, format="png", dpi=110, metadata={"Software": None})
        return content.getvalue()


def figure_of(curves: Mapping[str, Values], statement: Mapping[str, Any]) -> FitFigure:
    """Panels side by side over the rounds, under a title that says what the run promises.

    Args:
        curves: "round" and, as long, every other column; None where nothing was measured.
        statement: the privacy statement as data.
    """
    names = [name for name in curves if name not in _COUNTS]
    if any(value is not None for value in curves.get("epsilon", ())):
        names.append("epsilon")
    names = names or ["participants"]
    with rc_context(rc=STYLE):
        figure = FitFigure(figsize=(1.0 + 3.2 * len(names), 3.2), layout="constrained")
        for i, name in enumerate(names):
            rounds, values = _numbers(curves, "round"), _numbers(curves, name)
            axes = figure.add_subplot(1, len(names), i + 1)
            axes.plot(
                rounds,
                values,
                color=COLORS[i % len(COLORS)],
                marker="o" if len(values) <= 25 else None,
                markersize=3.5,
            )
            axes.set_xlabel(LABELS["round"])
            axes.set_ylabel(LABELS.get(name, name.replace("_", " ")))
            if name == "epsilon":
                axes.set_ylim(bottom=0)
        figure.suptitle(_promise(statement), fontsize=10)
    return figure


def _numbers(curves: Mapping[str, Values], name: str) -> list[float]:
    """A column, with NaN where nothing was measured; none of a fit without rounds."""
    return [float("nan") if value is None else value for value in curves.get(name, ())]


def _promise(statement: Mapping[str, Any]) -> str:
    """Release, seeded run or not private, and the bound against the first adversary."""
    said = label_in(statement)
    for one in statement.get("adversaries", ()):
        bound = f"({one['epsilon']:.3g}, {one['delta']:g})-DP against {one['name']}"
        return f"{said}; {bound}, for each {statement['unit']}"
    return said
