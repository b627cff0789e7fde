"""What the examples share: seeded modules, one private fit, a table, a picture."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from torch import Tensor, nn

import manifed
from manifed.runs.report import COLORS, STYLE

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
Pairs = tuple[Tensor, Tensor]
Scores = Mapping[str, Mapping[str, Sequence[float]]]
"""What was trained -> epsilon as text ("none": not private) -> one score a seed."""


def privacy_of(epsilon: float | None, delta: float, clip: float = 1.0) -> Any:
    """For each example; seeded, so that the numbers of a page can be had again."""
    if epsilon is None:
        return None
    return manifed.ExampleLevel(
        epsilon=epsilon, delta=delta, l2_norm_clip=clip, noise_source="seed"
    )


def accuracy(model: nn.Module, sites: Sequence[Pairs], test: Pairs, **options: Any) -> float:
    """Of the last model of a fit, on public examples."""
    return float(manifed.fit_module(model, sites, test=test, **options).curves["test_accuracy"][-1])


def table(scores: Scores, *, scale: float = 100.0) -> str:
    """Markdown: a row an epsilon, mean and spread over the seeds."""
    names = list(scores)
    lines = [f"| epsilon | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for epsilon in scores[names[0]]:
        cells = []
        for name in names:
            values = scale * np.array(scores[name][epsilon])
            cells.append(f"{values.mean():.1f} ({values.min():.1f} to {values.max():.1f})")
        lines.append(f"| {epsilon} | {' | '.join(cells)} |")
    return "\n".join(lines)


def drawn(scores: Scores, title: str, label: str) -> Figure:
    """Mean scores against epsilon with the range over seeds; dashed: without privacy."""
    with rc_context(rc=STYLE):
        figure = Figure(figsize=(5.6, 3.8), layout="constrained")
        axes = figure.add_subplot()
        for color, (name, found) in zip(COLORS, scores.items(), strict=False):
            private = {float(key): values for key, values in found.items() if key != "none"}
            mean = [float(np.mean(values)) for values in private.values()]
            axes.plot(list(private), mean, color=color, marker="o", markersize=4, label=name)
            low, high = ([f(values) for values in private.values()] for f in (min, max))
            axes.fill_between(list(private), low, high, color=color, alpha=0.15, linewidth=0)
            if "none" in found:
                axes.axhline(
                    float(np.mean(found["none"])), color=color, linestyle="--", linewidth=1
                )
        budgets = [float(key) for key in next(iter(scores.values())) if key != "none"]
        axes.set_xscale("log")
        axes.set_xticks(budgets, [f"{budget:g}" for budget in budgets])
        axes.minorticks_off()
        axes.set_xlabel("$\\varepsilon$ (dashed: not private)")
        axes.set_ylabel(label)
        axes.set_title(title, fontsize=10)
        figure.legend(loc="outside lower center", ncols=2)
    return figure


def told(name: str, scores: Scores, title: str, label: str, argv: Sequence[str] | None) -> int:
    """Write ``name``.json and ``name``.png into --out, and the table on the screen."""
    out = arguments(argv).out
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_text(json.dumps(scores, indent=1) + "\n", encoding="utf-8")
    drawn(scores, title, label).savefig(out / f"{name}.png", dpi=110, metadata={"Software": None})
    sys.stdout.write(table(scores) + "\n")
    return 0


def arguments(argv: Sequence[str] | None, about: str | None = None) -> argparse.Namespace:
    """``--out``, ``--seeds``, ``--rounds`` and ``--data``."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--out", type=Path, default=PICTURES, help="folder of json and picture")
    parser.add_argument("--seeds", type=int, default=3, help="how often everything is trained")
    parser.add_argument("--rounds", type=int, default=30, help="of each fit")
    parser.add_argument("--data", type=Path, default=None, help="a file that is not in the package")
    return parser.parse_args(argv)
