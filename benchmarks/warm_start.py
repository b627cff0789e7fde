"""Does a warm start from a one-shot release pay? Part of the budget there, the rest in rounds.

    python -m benchmarks.warm_start [--epsilon 0.5 1 2] [--seeds 5] [--out benchmarks/results]

Ten clients, noise at each, (epsilon, 1e-5) for both parts together: Gaussian releases of full
batches compose exactly, mu^2 = mu_1^2 + mu_2^2, so a share a of mu^2 means multipliers divided by
sqrt(a) and sqrt(1 - a). The first part is `second-moment`, the second descent from what it gave,
with falling noise and the weighted average of a tail, at the best of a grid on the tuning seeds
1000 and 1001. Share 0 is descent alone from a random start, tuned on the same grid, and 1 the
release alone. Printed is the share of the random start's gap that is left at seeds 0, 1, ...
"""

import argparse
import json
import math
import statistics
from pathlib import Path
from typing import Any

import torch

from benchmarks.common.stopwatch import table
from benchmarks.leaderboard.cells import levels
from benchmarks.leaderboard.tasks import TASKS, Task
from manifed.errors import RoundFailed
from manifed.experiment import load as config_of
from manifed.experiment import planning
from manifed.experiment.assembly import client_side, initial_point, load_shards, plan_of
from manifed.federation.rounds import run_rounds
from manifed.federation.stacked import StackedTransport

TUNING, LOST = (1000, 1001), 1e3
SHARES = (0.0, 0.1, 0.3, 0.5, 0.7, 1.0)
ROUNDS, STEPS, FALL = (4, 12, 30), (0.25, 0.5, 1.0), 0.2
CLIP = 0.5
"""Of a gradient of a row of length 1; the second moment's is 1."""


def answer(made: dict[str, Any]) -> torch.Tensor:
    """The model of a run."""
    config = config_of.parse(made)
    plan = plan_of(config)
    transport = StackedTransport(client_side(config), device="cpu", memory_budget_mb=1024)
    state = plan.server_update.initial(initial_point(config))
    for report in run_rounds(plan, state, transport, num_rounds=config.federation.num_rounds):
        state = report.state
    return plan.server_update.output(state, plan.manifold)


def config(task: Task, seed: int, multiplier: float, clip: float, rounds: int) -> dict[str, Any]:
    """A task's table with a given noise in place of a target."""
    made = task.table(1.0, seed)
    made["federation"]["num_rounds"] = rounds
    made["privacy"]["l2_norm_clip"] = clip
    made["privacy"]["noise"] = {"kind": "multiplier", "noise_multiplier": multiplier}
    made["privacy"]["delta"] = 1e-5
    return made


def once(task: Task, epsilon: float) -> float:
    """The multiplier of one release that has the whole budget."""
    asked = {**task.table(epsilon, 0), "training": {"kind": "auto"}}
    options = planning.plan(config_of.parse(planning.stand_in(asked)), planning.Auto(), 1)
    (release,) = (o for o in options if o.training.kind == "second-moment")
    return release.noise_multiplier


def one_run(task: Task, seed: int, price: float, share: float, place: tuple[int, float]) -> float:
    """What is left of the random start's gap."""
    rounds, step = place
    start = None
    try:
        if share > 0:
            first = config(task, seed, price / math.sqrt(share), 1.0, 1)
            start = answer({**first, "training": {"kind": "second-moment"}})
        if share == 1:
            return _left(task, seed, start)
        ratio = FALL ** (1 / (rounds - 1))
        total = math.sqrt(sum(ratio ** (-2 * r) for r in range(rounds)))
        made = config(task, seed, total * price / math.sqrt(1 - share), CLIP, rounds)
        if start is not None:
            made["problem"]["start"] = {"kind": "given", "entries": start.tolist()}
        made["training"] = {
            "kind": "scheduled-rsgd",
            "step_size": step * task.steps[-1],
            "minibatch": {"kind": "full"},
            "noise_multipliers": {"kind": "geometric", "scale": 1.0, "ratio": ratio},
        } | ({} if task.maps == "exact" else {"maps": task.maps})
        first_counted = rounds // 2 if start is None else 1
        made["strategy"] = {
            "kind": "tangent-mean",
            "average": {"kind": "projector", "from_round": first_counted, "noise_ratio": ratio},
        }
        return _left(task, seed, answer(made))
    except RoundFailed:
        return LOST


def _left(task: Task, seed: int, x: torch.Tensor | None) -> float:
    assert x is not None
    lowest, start = levels(task, seed)
    blank = {**task.table(1.0, seed), "privacy": {"kind": "none"}}
    blank["training"] = {"kind": "rsgd", "step_size": 1.0, "minibatch": {"kind": "full"}}
    if task.maps != "exact":
        blank["training"]["maps"] = task.maps
    data = load_shards(config_of.parse(blank))
    return (float(data.problem.objective(x, data.examples)) - lowest) / (start - lowest)


def measured(tasks: list[Task], epsilons: list[float], seeds: int) -> list[dict[str, Any]]:
    """A row for every task, epsilon and share."""
    rows = list[dict[str, Any]]()
    for task in tasks:
        for epsilon in epsilons:
            price = once(task, epsilon)
            for share in SHARES:
                places = [(r, s) for r in ROUNDS for s in STEPS] if share < 1 else [(2, 1.0)]
                tried = {
                    place: statistics.mean(
                        one_run(task, seed, price, share, place) for seed in TUNING
                    )
                    for place in (places if len(places) > 1 else [])
                }
                best = min(tried, key=tried.__getitem__) if tried else places[0]
                found = [one_run(task, seed, price, share, best) for seed in range(seeds)]
                rows.append(
                    {"task": task.name, "epsilon": epsilon, "share": share, "rounds": best[0],
                     "step": best[1] * task.steps[-1], "left": found}
                )  # fmt: skip
                print(task.name, epsilon, share, best, f"{statistics.mean(found):.3g}", flush=True)
    return rows


def text_of(rows: list[dict[str, Any]]) -> str:
    """A table with a line for every task and epsilon."""
    lines = list[list[str]]()
    for key in dict.fromkeys((r["task"], r["epsilon"]) for r in rows):
        mine = [r for r in rows if (r["task"], r["epsilon"]) == key]
        cells = [
            f"{statistics.mean(r['left']):.3g} ({statistics.stdev(r['left']):.1g})" for r in mine
        ]
        lines.append([key[0], f"{key[1]:g}", *cells])
    head = ["task", "epsilon", "descent alone", *(f"{s:g}" for s in SHARES[1:-1]), "release alone"]
    return "\n".join(
        ["# Warm start from a one-shot release", "", "`python -m benchmarks.warm_start`", "",
         "Share of a random start's gap that is left, mean (standard deviation), by the share of "
         "the budget that the release has:", "", table(head, lines), ""]
    )  # fmt: skip


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [task.name for task in TASKS if task.one_shot == "second-moment"]
    parser.add_argument(
        "--task", nargs="+", choices=names, default=["pca-digits-1", "pca-digits-2"]
    )
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.5, 1.0, 2.0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="folder for warm_start.md")
    parser.add_argument("--json", action="store_true", help="the rows as the last line")
    given = parser.parse_args()
    torch.set_num_threads(1)
    tasks = [task for task in TASKS if task.name in given.task]
    rows = measured(tasks, given.epsilon, given.seeds)
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "warm_start.md").write_text(text_of(rows), encoding="utf-8")
    if given.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
