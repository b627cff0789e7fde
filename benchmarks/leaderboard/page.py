"""The tables and pictures of what was measured."""

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.stopwatch import table
from benchmarks.leaderboard.gate import FACTOR, WORKS, Row
from benchmarks.leaderboard.methods import AUTO, CENTRAL, LEFT_OUT
from benchmarks.leaderboard.tasks import TASKS, Task

Board = dict[str, dict[float, dict[str, dict[str, Any]]]]
"""Cells by task, epsilon and method."""


def text_of(board: Board, rows: Sequence[Row], command: str) -> str:
    """Markdown: the gate, then every task."""
    parts = ["# Leaderboard", "", f"`{command}`", "", *_gate(rows)]
    for task in TASKS:
        if task.name in board:
            parts += ["", f"## {task.title}", "", _of_task(board[task.name])]
    parts += ["", "## Left out", "", *(f"* {name}: {why}." for name, why in LEFT_OUT.items())]
    return "\n".join([*parts, ""])


def audits(board: Board, words: Sequence[str]) -> str:
    """Markdown: what attacks proved of each method, beside what is claimed."""
    rows = [
        [task.title, f"{epsilon:g}", name, f"{cell['claimed']:.3f}", f"{cell['proved']:.3f}",
         f"{cell['proved_of']:.3f}", f"{cell['proved_delta']:g}", str(cell["attacks"]),
         str(cell["trials"])]
        for task in TASKS
        for epsilon, cells in sorted(board.get(task.name, {}).items())
        for name, cell in cells.items()
        if "proved_of" in cell
    ]  # fmt: skip
    head = ["task", "epsilon", "method", "claimed, delta 1e-5", "proved", "claimed there", "delta",
            "attacks", "trials"]  # fmt: skip
    return "\n".join(
        [
            "# Proved beside claimed",
            "",
            f"`{' '.join(['python -m benchmarks.leaderboard', *words])}`",
            "",
            "Proved: a lower bound of epsilon at 95 % for all attacks on a config together, at the "
            "delta where it is the largest share of the claim. Claimed there: for the rounds that "
            "were attacked, at that delta. Trials: runs on each dataset that decide the bound.",
            "",
            table(head, rows),
            "",
        ]
    )


def _gate(rows: Sequence[Row]) -> list[str]:
    counted = [row for row in rows if row.is_counted]
    tally = {name: sum(r.verdict == name for r in counted) for name in ("within", "open", "loses")}
    said = ", ".join(f"{count} {name}" for name, count in tally.items())
    head = ["task", "epsilon", "best", "its share", "auto's share", "ratio", "95 %", "verdict"]
    cells = [
        [
            row.task, f"{row.epsilon:g}", row.best, f"{row.best_share:.3g}",
            "-" if row.auto_share is None else f"{row.auto_share:.3g}",
            "-" if row.auto_share is None else f"{row.ratio:.2f}",
            "-" if row.auto_share is None else f"{row.low:.2f} to {row.high:.2f}",
            row.verdict + (f" ({_short(row.why)})" if row.why else ""),
        ]
        for row in rows
    ]  # fmt: skip
    return [
        "## Gate",
        "",
        f"`auto` against the best method of each cell, factor {FACTOR:g}. Share: what is left of "
        f"the start's gap, (f(x) - f*) / (f(x0) - f*). Counted where the best is below {WORKS:g}: "
        f"{len(counted)} of {len(rows)} cells, {said}.",
        "",
        table(head, cells),
    ]


def _short(why: str) -> str:
    return "auto has no plan for it" if "plans for problem.kind" in why else why


def _of_task(found: dict[float, dict[str, dict[str, Any]]]) -> str:
    has_accuracy = any(c.get("accuracies") for cells in found.values() for c in cells.values())
    head = ["epsilon", "method", "share", "sd", *(["accuracy"] if has_accuracy else []), "uploads",
            "numbers up", "CPU s", "claimed", "proved", "setting"]  # fmt: skip
    rows = []
    for epsilon in sorted(found):
        cells = found[epsilon]
        names = sorted(cells, key=lambda m: (m == CENTRAL, _mean(cells[m])))
        for name in names:
            cell = cells[name]
            if "shares" not in cell:
                continue
            shown = f"**{name}**" if name == AUTO else name
            accuracy = []
            if has_accuracy:
                accuracy = [f"{statistics.mean(cell['accuracies']):.3f}"]
            proved = cell.get("proved")
            rows.append(
                [
                    f"{epsilon:g}", shown, f"{_mean(cell):.3g}",
                    f"{statistics.stdev(cell['shares']):.2g}", *accuracy, str(cell["uploads"]),
                    str(cell["numbers_up"]), f"{cell['seconds']:.2g}", f"{cell['claimed']:.2f}",
                    "-" if proved is None else f"{proved:.2f}", setting_of(cell),
                ]
            )  # fmt: skip
    return table(head, rows)


def _mean(cell: dict[str, Any]) -> float:
    return statistics.mean(cell["shares"]) if "shares" in cell else math.inf


def setting_of(cell: dict[str, Any]) -> str:
    """What distinguishes a cell's training, in a few words."""
    training = cell["method"]
    words = []
    if "step_size" in training:
        words.append(f"step {training['step_size']:.3g}")
    if training.get("minibatch", {}).get("kind") == "poisson":
        words.append(f"Poisson batches of {training['minibatch']['batch_size']}")
    if training.get("local_steps", 1) > 1:
        words.append(f"{training['local_steps']} local steps")
    if isinstance(training.get("noise_multipliers"), dict):
        words.append(f"noise x {training['noise_multipliers']['ratio']:g} a round")
    if cell.get("strategy"):
        words += [f"{key} {_told(value)}" for key, value in cell["strategy"].items()]
    return ", ".join([training["kind"], *words])


def _told(value: Any) -> str:
    return (
        f"{value['kind']} from {value['from_round']}" if isinstance(value, dict) else f"{value:g}"
    )


def plot(task: Task, found: dict[float, dict[str, dict[str, Any]]], path: Path) -> None:
    """Share against epsilon, a line a method, bands the range over seeds."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from manifed.runs.report import COLORS, DASHES, STYLE
    from reproduction.pictures import plain_ticks

    names = sorted({m for cells in found.values() for m, c in cells.items() if "shares" in c})
    colours = COLORS[:6] + COLORS[7:]  # black is that of the plan
    with rc_context(rc=STYLE):
        figure = Figure(figsize=(7, 4.6), layout="constrained")
        axis = figure.add_subplot()
        for i, name in enumerate(names):
            epsilons = [e for e in sorted(found) if "shares" in found[e].get(name, {})]
            shares = [found[e][name]["shares"] for e in epsilons]
            style = {"auto": ("k", "-", 2.5), CENTRAL: ("0.6", ":", 1.5)}
            dashes = DASHES[i // len(colours) % len(DASHES)]
            colour, line, width = style.get(name, (colours[i % len(colours)], dashes, 1.0))
            means = [statistics.mean(one) for one in shares]
            axis.loglog(
                epsilons, means, line, color=colour, linewidth=width, marker=".", label=name
            )
            if name == AUTO:
                low = [min(s) for s in shares]
                high = [max(s) for s in shares]
                axis.fill_between(epsilons, low, high, color=colour, alpha=0.12, linewidth=0)
        axis.axhline(WORKS, color="0.8", linewidth=0.8)
        plain_ticks(axis)
        axis.set_title(task.title, fontsize=10)
        axis.set_xticks(sorted(found), [f"{epsilon:g}" for epsilon in sorted(found)])
        axis.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
        axis.set_xlabel("$\\varepsilon$ ($\\delta$ = 0.00001)")
        axis.set_ylabel("share of the start's gap that is left")
        axis.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
        figure.savefig(path, dpi=90, metadata={"Software": None})
