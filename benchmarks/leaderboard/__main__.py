"""The planner against rivals that are free in all their numbers, in one command that goes on.

    python -m benchmarks.leaderboard                          # every cell that is listed
    python -m benchmarks.leaderboard --task logistic-a9a --epsilon 0.5
    python -m benchmarks.leaderboard --trust secure-sum       # noise once over all clients
    python -m benchmarks.leaderboard --held-out later         # of published_tables.py, or published

A cell is a task, an epsilon and a number of clients. Its rivals are tuned (`rivals.py`) and kept;
``auto`` is measured again when its config has changed. Both report seeds 0 to 19, paired by data
and start. Finished cells are files below --cells and are not measured again. --out FOLDER writes
leaderboard.md and leaderboard.json from what is there.
Data: MANIFED_DATA, and LEADERBOARD_WHEELS (own_data.py).
"""

import argparse
import hashlib
import json
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common.cases import rounds_of
from benchmarks.common.stopwatch import table as markdown
from benchmarks.leaderboard import convex, rivals
from benchmarks.leaderboard.published_tables import SETS
from benchmarks.leaderboard.tasks import TASKS, Task
from manifed.audit.bound import find
from manifed.audit.of_config import attacks_of
from manifed.durable import write_atomically
from manifed.errors import BudgetExhausted, ConfigError, RoundFailed
from manifed.experiment.assembly import initial_point, load_shards
from manifed.experiment.load import parse
from manifed.experiment.schema import Experiment, sha256

EPSILONS = (0.5, 1.0, 2.0)
SEEDS = tuple(range(20))
RUNS = 4000
"""Of a mechanism with and without a canary, in an audit."""
FACTOR, WORKS = 1.2, 0.5
"""Within which ratio a cell is called won; and below which best share it counts."""
MORE = {"pca-digits-1": (50,), "least-squares": (4, 50), "logistic-breast-cancer": (4,)}
"""Numbers of clients beside ten."""
FAR = {0.1, 10.0}
WIDE = ("pca-digits-1", "pca-digits-2", "least-squares", "least-squares-skewed", "diabetes",
        "logistic-breast-cancer", "hyperbolic-mean")  # fmt: skip
"""Tasks that are raced under a secure sum, and by ten clients at the epsilons of FAR as well."""
Cell = dict[str, Any]


def questions(given: argparse.Namespace) -> Iterator[tuple[Task, int, float]]:
    """The cells, which are listed before anything is run."""
    kept = SETS.get(given.held_out)
    for task in kept or TASKS:
        if given.task and task.name not in given.task:
            continue
        if given.trust and task.name not in WIDE:
            continue
        counts = (task.clients, *MORE.get(task.name, ()))
        for clients in counts:
            is_wide = not kept and not given.trust and clients == 10 and task.name in WIDE
            for epsilon in sorted({*EPSILONS, *(FAR if is_wide else ())}):
                if not given.epsilon or epsilon in given.epsilon:
                    yield task, clients, epsilon


# -- ours ----------------------------------------------------------------------------------------
def share_of(config: Experiment, levels: tuple[float, float]) -> tuple[float, float | None]:
    """What one run leaves of the start's gap, and its accuracy where there are classes."""
    try:
        plan, rounds = rounds_of(config)
        *_, last = rounds
        x = plan.server_update.output(last.state, plan.manifold)
    except (RoundFailed, BudgetExhausted):
        return 1e3, None
    data = load_shards(config)
    lowest, highest = levels
    found = (float(data.problem.objective(x, data.examples)) - lowest) / (highest - lowest)
    right = [data.problem.correct(x, shard) for shard in data.examples]
    known = [one for one in right if one is not None]
    return (min(found, 1e3) if math.isfinite(found) else 1e3), (
        float(torch.cat(known).mean()) if known else None
    )


def planned(task: Task, clients: int, epsilon: float, seed: int, trust: str | None) -> Experiment:
    """The config of a plan, which is resolved, and so frozen, before it is run."""
    table = task.table(epsilon, seed, clients)
    return parse({**table, "privacy": {**table["privacy"], "trust": trust}} if trust else table)


def ours(task: Task, clients: int, epsilon: float, data: Any, trust: str | None) -> Cell:
    """The cell of the planner: what its plans reach, and the numbers of the first one."""
    rows = []
    for seed in SEEDS:
        config = planned(task, clients, epsilon, seed, trust)
        pooled = data(seed)
        rows.append(share_of(config, (pooled.lowest, pooled.highest)))
    first = planned(task, clients, epsilon, 0, trust)
    privacy: Any = first.privacy
    return {
        "shares": [share for share, _ in rows],
        "accuracy": None if rows[0][1] is None else float(np.mean([a for _, a in rows])),
        "method": first.training.kind,
        "rounds": first.federation.num_rounds,
        "clip": privacy.l2_norm_clip,
        "adaptive": privacy.adaptive and privacy.adaptive.model_dump(),
        "config": sha256(first),
        "audit": None if trust else audited(first),
    }


def audited(config: Experiment) -> Cell | None:
    """What an attack proves of a plan, in the worst case where there is one (95 %).

    None where too little is claimed for any attack to prove.
    """
    try:
        verdict = find(attacks_of(config, RUNS)[-1])
    except ConfigError:
        return None
    return {"proved": verdict.epsilon_lower_bound, "claimed": verdict.claimed_epsilon}


# -- rivals --------------------------------------------------------------------------------------
def theirs(data: Any, epsilon: float) -> Cell:
    """The cell of tuned descent."""
    best = rivals.tuned(data, epsilon)
    shares = [float(rivals.run(data(s), epsilon, [best], s)) for s in SEEDS]
    return {"descent": {"shares": shares, "setting": asdict(best)}}


def released(data: Any, epsilon: float, kept: Cell) -> Cell:
    """The cells of the best one-shot release and of other rivals without descent; some are kept."""
    first = data(rivals.TUNING[0])
    families = {"one-shot": rivals.one_shots(first), **convex.releases(first)}
    for family, choices in families.items():
        if not choices or family in kept:
            continue
        tried = []
        for name, (release, numbers) in choices.items():
            shares = [release(data(s), epsilon, *numbers, s) for s in rivals.CHOOSING]
            tried.append((float(np.mean(shares)), name, release, numbers))
        _, name, release, numbers = min(tried, key=lambda one: one[0])
        shares = [release(data(s), epsilon, *numbers, s) for s in SEEDS]
        kept = {**kept, family: {"shares": shares, "setting": name}}
    return kept


def source_of(task: Task, clients: int, trust: str | None = None) -> Any:
    """Gives the data of a seed; data that no seed changes are loaded once, with other starts."""

    @cache
    def at(seed: int) -> rivals.Pooled:
        if task.has_seeded_data or seed == 0:
            pooled = rivals.Pooled(task, seed, clients)
            if trust is not None:  # the noise of one, as a curator of all data would add
                pooled.clients = 1
            return pooled
        return at(0).started_at(initial_point(rivals.plain(task, seed, clients)))

    return at


# -- the table -----------------------------------------------------------------------------------
def interval(ours: Any, best: Any) -> tuple[float, float]:
    """The paired bootstrap 95 % interval of a ratio of means."""
    rng = np.random.default_rng(0)
    picked = rng.integers(len(ours), size=(4000, len(ours)))
    ratios = np.asarray(ours)[picked].mean(1) / np.asarray(best)[picked].mean(1)
    low, high = np.quantile(ratios, [0.025, 0.975])
    return float(low), float(high)


def judged(cells: list[Cell]) -> list[Cell]:
    """A row for each cell, losses first."""
    rows = []
    for cell in cells:
        name, best = min(cell["rivals"].items(), key=lambda one: np.mean(one[1]["shares"]))
        mine, share = float(np.mean(cell["auto"]["shares"])), float(np.mean(best["shares"]))
        low, high = interval(cell["auto"]["shares"], best["shares"])
        rows.append({
            **cell, "best": name, "best_share": share, "share": mine, "ratio": mine / share,
            "low": low, "high": high, "worst": max(cell["auto"]["shares"]),
            "setting": best["setting"], "counts": share < WORKS,
            "excess": mine * (cell["highest"] - cell["lowest"]),
        })  # fmt: skip
    return sorted(rows, key=lambda row: (not row["counts"], -row["ratio"]))


def headline(rows: list[Cell]) -> dict[str, float]:
    """Geometric mean over tasks of the ratios of the cells that count, and how many are won."""
    counted = [row for row in rows if row["counts"]]
    tasks = sorted({row["task"] for row in counted})
    each = [
        np.mean([math.log(row["ratio"]) for row in counted if row["task"] == task])
        for task in tasks
    ]
    return {
        "cells": len(rows),
        "counted": len(counted),
        "geometric_mean": float(np.exp(np.mean(each))) if each else math.nan,
        "within": sum(row["ratio"] <= FACTOR for row in counted) / max(1, len(counted)),
        "worst": max((row["ratio"] for row in counted), default=math.nan),
    }


def _told(setting: Any) -> str:
    if isinstance(setting, str):
        return setting
    return (
        f"clip {setting['clip']:.3g}, move {setting['move']:.3g}, {setting['rounds']} rounds, "
        f"noise to {setting['fall']:g}, tail {setting['tail']:g}, "
        f"momentum {setting['momentum']:g}"
    )


def text_of(rows: list[Cell], command: str) -> str:
    """Markdown: the headline, and every cell with both sides' numbers."""
    said = headline(rows)
    head = ["task", "clients", "epsilon", "auto", "best rival", "ratio", "95 %", "worst seed",
            "f - f*", "accuracy", "audit", "auto's rounds and clip",
            "the rival's numbers"]  # fmt: skip
    lines = []
    for row in rows:
        mine = row["auto"]
        audit = mine.get("audit")
        clip = "bound" if mine["adaptive"] is None else "rises to"
        target = "" if mine["adaptive"] is None else f"{mine['adaptive']['target_quantile']:g} of "
        lines.append([
            row["task"], str(row["clients"]), f"{row['epsilon']:g}", f"{row['share']:.3g}",
            f"{row['best_share']:.3g}",
            f"{row['ratio']:.2f}" if row["counts"] else f"({row['ratio']:.2f})",
            f"{row['low']:.2f} to {row['high']:.2f}", f"{row['worst']:.3g}",
            f"{row['excess']:.2g}",
            "-" if mine["accuracy"] is None else f"{mine['accuracy']:.3f}",
            "-" if audit is None else f"{audit['proved']:.2f} of {audit['claimed']:.2f}",
            f"{mine['rounds']}, {clip} {target}{mine['clip']:g}", _told(row["setting"]),
        ])  # fmt: skip
    return "\n".join([
        "# Leaderboard", "", f"`{command}`", "",
        "Shares of the start's gap, (f(x) - f*) / (f(x0) - f*), means of seeds 0 to 19; rivals are "
        "tuned on other seeds in clip, move, rounds, noise, tail and momentum, which is not "
        "charged. Ratios in brackets do not count, because no rival gets below half of the start. "
        f"An audit is the epsilon that {RUNS} runs of a plan's mechanism prove (95 %), of what is "
        "claimed for them at the delta where most is proved. "
        f"{said['counted']} of {said['cells']} cells count: geometric mean over tasks "
        f"{said['geometric_mean']:.2f}, {100 * said['within']:.0f} % within {FACTOR:g}, worst "
        f"{said['worst']:.2f}.",
        "", markdown(head, lines), "",
    ])  # fmt: skip


def main() -> None:
    """Measures what is not there yet, and prints and writes the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", nargs="+")
    parser.add_argument("--epsilon", type=float, nargs="+", choices=sorted({*EPSILONS, *FAR}))
    parser.add_argument("--trust", choices=["secure-sum"])
    parser.add_argument("--held-out", choices=SETS)
    parser.add_argument("--cells", type=Path, default=Path("runs/leaderboard"))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.cells.mkdir(parents=True, exist_ok=True)
    tuner = hashlib.sha256(Path(rivals.__file__).read_bytes()).hexdigest()[:8]
    cells = []
    for task, clients, epsilon in questions(given):
        data = source_of(task, clients, given.trust)
        told = f"{task!r} {clients} {epsilon} {tuner}{given.trust or ''}"
        asked = hashlib.sha256(told.encode()).hexdigest()[:16]
        name = "_".join([task.name, str(clients), f"{epsilon:g}", *filter(None, [given.trust])])
        path = given.cells / f"{name}.json"
        cell = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        began = time.process_time()
        if cell.get("asked") != asked:
            pooled = data(0)
            cell = {
                "task": task.name, "clients": clients, "epsilon": epsilon, "asked": asked,
                "lowest": pooled.lowest, "highest": pooled.highest, "rivals": theirs(data, epsilon),
            }  # fmt: skip
        cell["rivals"] = released(data, epsilon, cell["rivals"])
        config = planned(task, clients, epsilon, 0, given.trust)
        if cell.get("auto", {}).get("config") != sha256(config):
            cell["auto"] = ours(task, clients, epsilon, data, given.trust)
        elif "audit" not in cell["auto"] and not given.trust:
            cell["auto"]["audit"] = audited(config)
        write_atomically(path, json.dumps(cell, indent=1).encode())
        cells.append(cell)
        (row,) = judged([cell])
        print(
            f"{task.name:24s} {clients:3d} {epsilon:4g}  auto {row['share']:.3g}  {row['best']} "
            f"{row['best_share']:.3g}  ratio {row['ratio']:.2f}  "
            f"({time.process_time() - began:.0f} s)",
            flush=True,
        )
    rows = judged(cells)
    print(json.dumps(headline(rows)))
    if given.out is not None:
        name = f"held_out_{given.held_out}" if given.held_out else "leaderboard"
        name += f"_{given.trust.replace('-', '_')}" if given.trust else ""
        command = " ".join(["python -m benchmarks.leaderboard", *sys.argv[1:]])
        (given.out / f"{name}.md").write_text(text_of(rows, command), encoding="utf-8")
        lines = ",\n".join(json.dumps(row) for row in cells)
        (given.out / f"{name}.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
