"""One cell: a method on a task at an epsilon, tuned on its own seeds and measured on others."""

import hashlib
import json
import math
import statistics
import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from benchmarks.common.cases import rounds_of
from benchmarks.leaderboard.methods import AUTO, CENTRAL, LONG, METHODS, ROUNDS, Setting
from benchmarks.leaderboard.tasks import CLIENTS, MOST_UPLOADS, Task
from manifed.audit.bound import find_all
from manifed.audit.of_config import attacks_of
from manifed.errors import BudgetExhausted, ConfigError, RoundFailed
from manifed.experiment import load as config_of
from manifed.experiment.assembly import initial_point, load_shards, plan_of
from manifed.experiment.schema import Experiment, sha256
from manifed.plan import promise_of

TUNING = (1000, 1001)
FINALISTS = 3
PLACES = 2
LOST = 1e3
"""The gap of a run that failed, as a share of the start's: far worse than any that ran."""
Cell = dict[str, Any]
Ranked = tuple[float, Setting]
"""A mean share on tuning seeds, and what has it."""


@lru_cache(maxsize=256)
def _levels(text: str) -> tuple[float, float]:
    """(f*, f(x^(0))) of a task's data, at the seed of a config without privacy and method."""
    config = config_of.parse(json.loads(text))
    data = load_shards(config)
    best = data.problem.optimum(data.examples).value
    return best, float(data.problem.objective(initial_point(config), data.examples))


def levels(task: Task, seed: int) -> tuple[float, float]:
    """(f*, f(x^(0)))."""
    table = task.table(1.0, seed)
    table["privacy"] = {"kind": "none"}
    table["training"] = {"kind": "rsgd", "step_size": 1.0, "minibatch": {"kind": "full"}}
    if task.maps != "exact":
        table["training"]["maps"] = task.maps
    return _levels(json.dumps(table))


def run(task: Task, config: Experiment) -> dict[str, float]:
    """What is left of the start's gap, and the accuracy, of one run."""
    began = time.process_time()
    lowest, start = levels(task, config.federation.seed)
    setup = time.process_time() - began
    try:
        plan, rounds = rounds_of(config)
        *_, last = rounds
        x = plan.server_update.output(last.state, plan.manifold)
    except (RoundFailed, BudgetExhausted):
        return {"share": LOST, "seconds": time.process_time() - began - setup}
    seconds = time.process_time() - began - setup
    data = load_shards(config)
    found = (float(data.problem.objective(x, data.examples)) - lowest) / (start - lowest)
    told = {"share": min(found, LOST) if math.isfinite(found) else LOST, "seconds": seconds}
    right = [data.problem.correct(x, shard) for shard in data.examples]
    if all(one is not None for one in right):
        told["accuracy"] = float(torch.cat([one for one in right if one is not None]).mean())
    return told


def tuned(task: Task, epsilon: float, candidates: Sequence[Setting]) -> list[Ranked]:
    """The candidates that a config admits, best first by their mean share on tuning seeds.

    All are run on the first of these seeds, and the best of them on the others too.
    """
    found = []
    for setting in candidates:
        try:
            config = config_of.parse(setting.into(task.table(epsilon, TUNING[0])))
        except ConfigError:
            continue
        found.append((run(task, config)["share"], setting))
    found.sort(key=lambda one: one[0])
    final = []
    for first, setting in found[:FINALISTS] if len(found) > 1 else []:
        shares = [first]
        for seed in TUNING[1:]:
            config = config_of.parse(setting.into(task.table(epsilon, seed)))
            shares.append(run(task, config)["share"])
        final.append((statistics.mean(shares), setting))
    return sorted(final, key=lambda one: one[0]) or found


def measured(task: Task, configs: Sequence[Experiment], **more: Any) -> Cell:
    """A cell from one config a seed, which differ in the seed alone."""
    rows = [run(task, config) for config in configs]
    first = configs[0]
    plan = plan_of(first)
    point = initial_point(first)
    layout = [phase.up.layout(tuple(point.shape), point.dtype) for phase in plan.phases]
    numbers = sum(math.prod(shape) for fields in layout for shape, _ in fields.values())
    promise = promise_of(first.setting, plan.num_examples)
    adversary, *_ = promise.planned(first.federation.num_rounds)["adversaries"]
    return {
        "shares": [row["share"] for row in rows],
        "accuracies": [row["accuracy"] for row in rows if "accuracy" in row],
        "seconds": statistics.median(row["seconds"] for row in rows),
        "uploads": first.federation.num_rounds,
        "numbers_up": first.federation.num_rounds * numbers,
        "claimed": adversary["epsilon"],
        "config_sha256": sha256(first),
        "method": _given(config_of.dump(first)["training"]),
        **more,
    }


def fresh(task: Task, epsilon: float, method: str, plain: Cell | None, seeds: int) -> Cell:
    """A cell as it is measured now; ``plain`` is that of plain descent, for the methods beside it.

    One that a task or its manifold does not admit holds ``refused`` alone.
    """
    began = time.process_time()
    if method == AUTO:
        found = _of_auto(task, epsilon, seeds)
    elif method == CENTRAL:
        found = _central(task, epsilon, seeds)
    else:
        places = [Setting(**one) for one in (plain or {"places": []})["places"]]
        ranked = tuned(task, epsilon, list(METHODS[method](task, places)))
        if not ranked:
            return {"refused": "no config of it is admitted on this task"}
        best = ranked[0][1]
        configs = [config_of.parse(best.into(task.table(epsilon, seed))) for seed in range(seeds)]
        places = [vars(setting) for _, setting in ranked[:PLACES]]
        found = measured(task, configs, strategy=best.strategy, tuning=ranked[0][0], places=places)
    return {**found, "cpu_seconds": time.process_time() - began}


def _of_auto(task: Task, epsilon: float, seeds: int) -> Cell:
    """The planner's: each config is resolved, and so frozen, before it is hashed and run."""
    configs = []
    for seed in range(seeds):
        table = {**task.table(epsilon, seed), "training": {"kind": "auto"}}
        table["federation"]["num_rounds"] = MOST_UPLOADS
        try:
            configs.append(config_of.parse(table))
        except ConfigError as refused:
            return {"refused": str(refused)}
    return measured(task, configs, strategy=_strategy_of(configs[0]))


def _given(table: dict[str, Any]) -> dict[str, Any]:
    """A table without what is not set."""
    return {key: value for key, value in table.items() if value is not None}


def _strategy_of(config: Experiment) -> dict[str, Any] | None:
    """Average and momentum of the server's table."""
    table = config_of.dump(config).get("strategy")
    if table is None:
        return None
    return {key: table[key] for key in ("average", "momentum") if table.get(key) is not None}


def _central(task: Task, epsilon: float, seeds: int) -> Cell:
    """All records at one client: one-shot where there is one, else plain descent."""
    if task.one_shot is not None:
        settings = [Setting({"kind": task.one_shot}, 1)]
    else:
        settings = [s for s in METHODS["rsgd"](task, []) if s.rounds >= max(ROUNDS)]
    tables = [setting.into(task.table(epsilon, TUNING[0], 1)) for setting in settings]
    shares = [run(task, config_of.parse(table))["share"] for table in tables]
    best = settings[shares.index(min(shares))]
    configs = [config_of.parse(best.into(task.table(epsilon, seed, 1))) for seed in range(seeds)]
    return measured(task, configs, strategy=best.strategy)


def audited(task: Task, epsilon: float, cell: Cell, trials: int) -> Cell:
    """What attacks on a cell's config prove: epsilon, at the delta where it is most of the claim.

    Beside it the claim at that delta, for the rounds that were attacked; {} where nothing is held
    to an attack.
    """
    table = task.table(epsilon, 0)
    setting = Setting(cell["method"], cell["uploads"], cell["strategy"])
    try:
        attacks = attacks_of(config_of.parse(setting.into(table)), trials)
    except ConfigError:
        return {}
    verdict = max(find_all(attacks), key=lambda found: found.power)
    return {
        "proved": verdict.epsilon_lower_bound,
        "proved_of": verdict.claimed_epsilon,
        "proved_delta": verdict.delta,
        "attacks": len(attacks),
        "trials": verdict.trials,
    }


def path_of(folder: Path, task: str, epsilon: float, method: str) -> Path:
    """The file of a cell."""
    return folder / f"{task}_{epsilon:g}_{method.replace(', ', '-').replace(' ', '-')}.json"


def spec_of(task: Task, epsilon: float, method: str, seeds: int) -> str:
    """A hash of what a cell is an answer to: another question is measured again."""
    said = [repr(task), epsilon, method, seeds, TUNING, CLIENTS, PLACES, FINALISTS, ROUNDS, LONG]
    return hashlib.sha256(repr(said).encode()).hexdigest()[:16]
