"""Epsilon against rounds against every adversary of one config."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from manifed.durable import write_atomically
from manifed.runs.report.figures import COLORS, LABELS, STYLE


def draw_curve(rows: Sequence[Mapping[str, Any]], out: Path, *, title: str) -> None:
    """Write a PNG of ``rows``: {"round": r, adversary: epsilon, ...}."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    rounds = [row["round"] for row in rows]
    adversaries = [name for name in rows[0] if name != "round"]
    with rc_context(rc=STYLE):
        figure = Figure(figsize=(6.0, 4.0), layout="constrained")
        axes = figure.add_subplot()
        for i, adversary in enumerate(adversaries):
            style = "--" if adversary == "published" else "-"
            label = f"{adversary} (unsound)" if adversary == "published" else adversary
            spent, color = [row[adversary] for row in rows], COLORS[i % len(COLORS)]
            axes.plot(rounds, spent, style, color=color, label=label)
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
        axes.set_xlabel(LABELS["round"])
        axes.set_ylabel("$\\varepsilon$")
        axes.set_title(title, fontsize=10)
        axes.set_ylim(bottom=0)
        axes.legend()
        content = io.BytesIO()
        figure.savefig(content, format="png", dpi=150, metadata={"Software": None})
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, content.getvalue())
