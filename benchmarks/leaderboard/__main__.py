"""The leaderboard, in one command that goes on where it was stopped.

    python -m benchmarks.leaderboard --gate                  # 6 tasks, epsilon 0.5, 1, 2
    python -m benchmarks.leaderboard                         # all tasks, epsilon 0.1 to 5
    python -m benchmarks.leaderboard --only auto --again     # the planner's cells once more

Each cell is a file below --cells; what is there is not measured again. --limit SECONDS of
processor time stops in good order. --out FOLDER writes leaderboard.md, leaderboard.json and a
picture a task from what is there.
Data: MANIFED_DATA, and LEADERBOARD_WHEELS (benchmarks/leaderboard/own_data.py).
"""

import argparse
import json
import logging
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.leaderboard import gate, page
from benchmarks.leaderboard.cells import Cell, audited, fresh, path_of, spec_of
from benchmarks.leaderboard.methods import AUTO, CENTRAL, METHODS
from benchmarks.leaderboard.tasks import TASKS, Task
from manifed.durable import write_atomically

GATE_EPSILONS = (0.5, 1.0, 2.0)
ALL_EPSILONS = (0.1, 0.5, 1.0, 2.0, 5.0)
EVERY = (*METHODS, AUTO, CENTRAL)


def questions(given: argparse.Namespace) -> Iterator[tuple[Task, float, str]]:
    """The cells that are asked for; plain descent first, on which the others build."""
    chosen = [t for t in TASKS if (t.name in given.task if given.task else True)]
    if given.gate:
        chosen = [task for task in chosen if task.in_gate]
    for epsilon in given.epsilon or (GATE_EPSILONS if given.gate else ALL_EPSILONS):
        for task in chosen:
            for method in EVERY:
                if not given.only or method in given.only:
                    yield task, epsilon, method


def known(folder: Path, task: Task, epsilon: float, method: str, seeds: int) -> Cell | None:
    """A cell that was measured before, if it answers the same question."""
    path = path_of(folder, task.name, epsilon, method)
    if not path.is_file():
        return None
    cell = json.loads(path.read_text(encoding="utf-8"))
    return cell if cell["spec"] == spec_of(task, epsilon, method, seeds) else None


def measure(given: argparse.Namespace) -> None:
    """What is asked for and not there yet, until the time is up."""
    began = time.process_time()
    given.cells.mkdir(parents=True, exist_ok=True)
    for task, epsilon, method in questions(given):
        cell = known(given.cells, task, epsilon, method, given.seeds)
        is_new = cell is None or given.again
        if cell is None or given.again:
            plain = known(given.cells, task, epsilon, "rsgd", given.seeds)
            cell = fresh(task, epsilon, method, plain, given.seeds)
            cell["spec"] = spec_of(task, epsilon, method, given.seeds)
        if given.audit and "shares" in cell and "proved_of" not in cell and method != CENTRAL:
            cell = cell | audited(task, epsilon, cell, given.audit)
            is_new = True
        if is_new:
            said = {"task": task.name, "epsilon": epsilon, "name": method, **cell}
            encoded = json.dumps(said, indent=1).encode()
            write_atomically(path_of(given.cells, task.name, epsilon, method), encoded)
            share = (
                "refused" if "shares" not in cell else f"{sum(cell['shares']) / given.seeds:.3g}"
            )
            print(f"{task.name:24s} {epsilon:4g}  {method:24s} {share}", flush=True)
        if given.limit and time.process_time() - began > given.limit:
            print("the time is up; the same command goes on from here", flush=True)
            return


def collected(given: argparse.Namespace) -> tuple[page.Board, list[gate.Row]]:
    """All cells that are there, and the gate's rows."""
    board = {}
    rows = []
    for task in TASKS:
        for epsilon in ALL_EPSILONS:
            found = {m: known(given.cells, task, epsilon, m, given.seeds) for m in EVERY}
            cells = {m: cell for m, cell in found.items() if cell is not None}
            if not cells:
                continue
            board.setdefault(task.name, {})[epsilon] = cells
            row = gate.row_of(task.name, epsilon, cells)
            if task.in_gate and epsilon in GATE_EPSILONS and row is not None:
                rows.append(row)
    return board, rows


def written(given: argparse.Namespace, board: page.Board, rows: list[gate.Row]) -> None:
    """The page, the numbers and the pictures."""
    given.out.mkdir(parents=True, exist_ok=True)
    text = page.text_of(board, rows, "python -m benchmarks.leaderboard")
    (given.out / "leaderboard.md").write_text(text, encoding="utf-8")
    dropped = {"spec", "places"}
    flat = [
        {"task": name, "epsilon": epsilon, "name": method}
        | {k: v for k, v in cell.items() if k not in dropped}
        for name, epsilons in board.items()
        for epsilon, cells in epsilons.items()
        for method, cell in cells.items()
        if "shares" in cell
    ]
    lines = ",\n".join(json.dumps(row) for row in flat)
    (given.out / "leaderboard.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    for task in TASKS:
        if task.name in board:
            page.plot(task, board[task.name], given.out / f"leaderboard-{task.name}.png")


def main() -> None:
    """Measure, and say what was found; with --json the gate's rows as the last line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gate", action="store_true", help="the gate's tasks and epsilons alone")
    parser.add_argument("--task", nargs="+", choices=[task.name for task in TASKS])
    parser.add_argument("--epsilon", type=float, nargs="+", choices=ALL_EPSILONS)
    parser.add_argument("--only", nargs="+", choices=EVERY, metavar="METHOD")
    parser.add_argument("--again", action="store_true", help="measure what is there once more")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--audit", type=int, metavar="TRIALS", help="attack each config too")
    parser.add_argument("--audit-out", type=Path, metavar="FILE", help="what the attacks proved")
    parser.add_argument("--limit", type=float, metavar="SECONDS", help="of processor time")
    parser.add_argument("--cells", type=Path, default=Path("runs/leaderboard"))
    parser.add_argument("--out", type=Path, help="folder for the page and the pictures")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("manifed").setLevel(logging.ERROR)  # settings that fail are part of tuning
    measure(given)
    board, rows = collected(given)
    if given.out is not None:
        written(given, board, rows)
    if given.audit_out is not None:
        given.audit_out.write_text(page.audits(board, sys.argv[1:]), encoding="utf-8")
    for row in rows:
        print(f"{row.task:24s} {row.epsilon:4g}  {row.verdict:12s} {row.ratio:6.2f}  {row.best}")
    if given.json:
        print(json.dumps([_plain(row) for row in rows], allow_nan=False))


def _plain(row: gate.Row) -> dict[str, Any]:
    """A row as JSON, which has no infinity."""
    told = {**vars(row), "verdict": row.verdict, "ratio": row.ratio}
    return {k: None if isinstance(v, float) and math.isinf(v) else v for k, v in told.items()}


if __name__ == "__main__":
    main()
