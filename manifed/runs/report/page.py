"""The report as one HTML file that needs nothing beside it: no network, no script to be read.

What a run folder says enters the template as text; a policy in the page's head allows no script but
the page's own.
"""

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from manifed.runs.report.figures import figures_of, picture
from manifed.runs.report.runs import Run, curves_of
from manifed.runs.statement import label_in_manifest, statement_of

HEADER = ("run", "rounds", "relative cost gap", "gradient norm", "label", "epsilon", "delta")
MOST_ROWS = 60
"""Of a table of values; all of them are in metrics.csv."""


def rows_of(runs: Sequence[Run]) -> list[tuple[str, ...]]:
    """A row for each run; "-" stands for what does not apply, is not known or may not be shown."""
    rows: dict[int, tuple[str, ...]] = {}
    for curve in curves_of(runs):
        for k, run in enumerate(curve.runs, start=1):
            ends = ("relative_cost_gap", "gradient_norm", "epsilon")
            now = {"rounds": run.last("round"), **{key: run.last(key) for key in ends}}
            final = run.final or now
            label = label_in_manifest(run.manifest, final.get("epsilon"))
            rounds, gap, norm, *spent = (said(final.get(key)) for key in ("rounds", *ends, "delta"))
            name = curve.label + (f", run {k}" if len(curve.runs) > 1 else "")
            name += "" if run.final else " (unfinished)"
            rows[id(run)] = (name, rounds, gap, norm, label, *spent)
    return [rows[id(run)] for run in runs]


def said(value: object) -> str:
    """Four digits of a number; an empty place as "-"."""
    if isinstance(value, float):
        return "-" if np.isnan(value) else f"{value:.4g}"
    return "-" if value is None else str(value)


def page_of(runs: Sequence[Run], *, is_server_view: bool = False) -> str:
    """The HTML of runs as they may be shown (`public.viewed`)."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
    )
    rows, charts = rows_of(runs), list[dict[str, Any]]()
    for y, x, words, lines in figures_of(curves_of(runs)):
        drawn = picture(lines, words, y, "svg").decode()
        told = r'<metadata>.*?</metadata>| xmlns(:\w+)?="[^"]*"'
        svg = re.sub(told, "", drawn[drawn.index("<svg") :], flags=re.DOTALL)
        values = [
            (label, said(a), said(b))
            for label, (first, found) in lines.items()
            for a, b in zip(first.tolist(), found.mean(axis=0).tolist(), strict=True)
        ]
        kept = sorted({round(i) for i in np.linspace(0, len(values) - 1, MOST_ROWS)})
        charts.append(
            {
                "caption": f"{y} against {words}".replace("_", " "),
                "svg": Markup(re.sub(r'(\bid="|href="#|url\(#)', rf"\1{y}-by-{x}-", svg)),
                "header": ("curve", words, y),
                "rows": [values[i] for i in kept],
            }
        )
    text = environment.get_template("page.html").render(
        title=rows[0][0] if len(runs) == 1 else f"{len(runs)} runs",
        is_server_view=is_server_view,
        header=HEADER,
        rows=rows,
        charts=charts,
        runs=[
            (row[0], statement_of(run.manifest.get("privacy") or {"kind": "none"}),
             json.dumps({k: v for k, v in run.manifest.items() if k != "privacy"}, indent=1))
            for run, row in zip(runs, rows, strict=True)
        ],
    )  # fmt: skip
    script = text[text.rindex("<script>") + 8 : text.rindex("</script>")]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return text.replace("HASH-OF-THE-SCRIPT", digest, 1)
