"""Epsilon against rounds against every adversary of one config."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from manifed.durable import write_atomically


def draw_curve(rows: Sequence[Mapping[str, Any]], out: Path, *, title: str) -> None:
    """Write a PNG of ``rows``: {"round": r, adversary: epsilon, ...}."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.0, 4.0), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    rounds = [row["round"] for row in rows]
    for adversary in (name for name in rows[0] if name != "round"):
        style = "--" if adversary == "published" else "-"
        label = f"{adversary} (unsound)" if adversary == "published" else adversary
        axes.plot(rounds, [row[adversary] for row in rows], style, label=label)
    axes.set_xlabel("round")
    axes.set_ylabel("epsilon")
    axes.set_title(title)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=150)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, content.getvalue())
