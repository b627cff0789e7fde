"""The leaderboard: rivals run as manifed would run them, its interval, and cells that go on."""

import argparse
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.leaderboard import __main__ as board
from benchmarks.leaderboard import convex, held_out, rivals
from benchmarks.leaderboard.published_tables import SETS
from benchmarks.leaderboard.rivals import Pooled, Setting, sigma
from benchmarks.leaderboard.tasks import TASKS
from manifed.experiment.assembly import load_shards
from manifed.experiment.load import parse
from manifed.plan import example_mechanism

BY_NAME = {task.name: task for task in TASKS}


def as_config(task, setting, epsilon, seed):
    """The config of manifed that runs a rival's numbers."""
    ratio = setting.fall ** (1 / max(setting.rounds - 1, 1))
    first = min(math.floor((1 - setting.tail) * setting.rounds), setting.rounds - 1) + 1
    kind = "projector" if task.name.startswith("pca") else "geodesic"
    table = task.table(epsilon, seed)
    table["privacy"]["l2_norm_clip"] = setting.clip
    table["federation"]["num_rounds"] = setting.rounds
    table["training"] = {
        "kind": "scheduled-rsgd", "step_size": setting.move / setting.clip,
        "minibatch": {"kind": "full"}, "maps": task.maps,
        "noise_multipliers": {"kind": "geometric", "scale": 1.0, "ratio": ratio},
    }  # fmt: skip
    table["strategy"] = {"average": {"kind": kind, "from_round": first, "noise_ratio": ratio}}
    return parse(table)


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("pca-digits-1", Setting(0.5, 0.3, 30)),
        ("least-squares", Setting(2.0, 0.5, 20)),
        ("logistic-breast-cancer", Setting(1.0, 1.0, 10)),
    ],
)
def test_a_rival_is_what_manifed_runs(name, setting):
    """Twelve runs of each: their means agree within four standard errors."""
    task = BY_NAME[name]
    data = board.source_of(task, 10)
    theirs = [float(rivals.run(data(s), 1.0, [setting], 500 + s)) for s in range(12)]
    ours = []
    for seed in range(12):
        levels = (data(seed).lowest, data(seed).highest)
        ours.append(board.share_of(as_config(task, setting, 1.0, seed), levels)[0])
    error = math.sqrt((np.var(ours, ddof=1) + np.var(theirs, ddof=1)) / 12)
    assert abs(np.mean(ours) - np.mean(theirs)) < 4 * error
    assert error < 0.25 * np.mean(ours)


@pytest.mark.parametrize("name", ["pca-digits-1", "pca-digits-2"])
def test_components_have_the_gradients_of_the_problem(name):
    data = Pooled(BY_NAME[name], 0, 10)
    clip = 0.4
    x = data.start.unsqueeze(0)
    each = data.problem.rgrads(data.start, data.examples)
    sizes = each.flatten(1).norm(dim=1)
    cut = each * (clip / sizes).clamp_max(1.0).reshape(-1, *[1] * (each.dim() - 1))
    torch.testing.assert_close(
        data.gradients(x, torch.tensor([clip]).double())[0], cut.mean(0), rtol=1e-6, atol=1e-9
    )


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_a_rival_has_the_noise_of_the_target(epsilon):
    config = as_config(BY_NAME["pca-digits-1"], Setting(1.0, 0.1, 1, fall=1.0), epsilon, 0)
    mechanism = example_mechanism(config.setting, (180, 179))
    assert mechanism.noise.multiplier == pytest.approx(sigma(epsilon), rel=2e-3)


def test_rivals_without_descent_find_the_minimum_where_nothing_is_noisy(monkeypatch):
    data = Pooled(BY_NAME["logistic-breast-cancer"], 0, 10)
    monkeypatch.setattr(data, "deviation", lambda epsilon: 0.0)
    assert convex.newton(data, 1.0, 30, 1.0, 1.0, 0) < 1e-6
    monkeypatch.setattr(data, "clients", 0)  # no random slope; a ridge remains, and classes part
    assert convex.objective_perturbation(data, 1e7, 1.0, 1.0, 0) < 0.02


def test_the_interval_holds_the_ratio_in_19_of_20_draws():
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(200):
        best = rng.gamma(8.0, size=20)
        ours = best * rng.gamma(8.0, 1.3 / 8, size=20)
        low, high = board.interval(ours, best)
        hits += low <= 1.3 <= high
    assert 172 <= hits <= 200
    assert board.interval([1.0, 2.0], [1.0, 2.0]) == (1.0, 1.0)


def cell(task, *shares, best=(1e-3, 1e-3), epsilon=1.0):
    rival = {"descent": {"shares": list(best), "setting": "-"}}
    mine = {"shares": list(shares), "accuracy": None}
    return {
        "task": task, "clients": 10, "epsilon": epsilon, "lowest": 0.0, "highest": 2.0,
        "rivals": rival, "auto": mine,
    }  # fmt: skip


def test_losses_come_first_and_the_headline_is_a_mean_over_tasks():
    rows = board.judged(
        [cell("a", 1e-3, 1e-3), cell("a", 4e-3, 4e-3), cell("b", 2e-3, 2e-3),
         cell("c", 9.0, 9.0, best=(0.6, 0.7))]
    )  # fmt: skip
    assert [row["ratio"] for row in rows[:3]] == pytest.approx([4.0, 2.0, 1.0])
    assert not rows[-1]["counts"]
    told = board.headline(rows)
    assert told["geometric_mean"] == pytest.approx(2.0)  # 2 of task a, 2 of task b
    assert (told["counted"], told["within"], told["worst"]) == (3, 1 / 3, pytest.approx(4.0))
    assert rows[0]["excess"] == pytest.approx(8e-3)


@pytest.mark.slow
@pytest.mark.one_week_in(3)
def test_a_tuned_rival_is_as_good_as_numbers_found_by_hand():
    """Two seeds with a bad draw must not choose: that once left rivals five times too weak."""
    data = board.source_of(BY_NAME["least-squares"], 10)
    by_hand = Setting(0.155, 0.766, 100, tail=0.8)
    shares = [
        np.mean([float(rivals.run(data(s), 0.5, [one], s)) for s in board.SEEDS])
        for one in (rivals.tuned(data, 0.5), by_hand)
    ]
    assert shares[0] < 1.2 * shares[1]


def test_seeds_that_tune_are_never_reported():
    assert not {*rivals.TUNING, *rivals.CHOOSING} & {*board.SEEDS}


def test_the_cells_are_listed_before_anything_is_run():
    given = {"held_out": None, "task": None, "epsilon": None, "trust": None}

    def cells(**changed):
        asked = board.questions(argparse.Namespace(**given | changed))
        return [(task.name, clients, epsilon) for task, clients, epsilon in asked]

    listed = cells()
    wide = len(board.WIDE)
    assert len(listed) == len({*listed}) == 3 * (len(TASKS) + 4) + 2 * wide
    assert {name for name, _, _ in cells(trust="secure-sum")} == {*board.WIDE}
    names = [name for held in SETS for name, _, _ in cells(held_out=held)]
    assert len(names) == 3 * len({*names}) == 3 * (6 + 6 + 6 + 3 + 6 + 6 + 6)
    assert not {*names} & {*BY_NAME}


def made_up(task, rng, count):
    """Rows of the columns of a task, whose tables are not here."""
    rows = rng.uniform(size=(count, len(task.columns)))
    kind = task.data["examples"]
    if kind == "spd-matrices":
        return np.tile(np.eye(task.data["shape"][0]).ravel(), (count, 1))
    if kind == "classification":
        rows[:, -1] = rows[:, -1] > 0.5
    return rows / 2 if kind == "hyperbolic-points" else rows


@pytest.mark.parametrize(
    "task", [one for held in SETS.values() for one in held], ids=lambda task: task.name
)
def test_held_out_tasks_are_read_from_files_and_planned(task, monkeypatch):
    drawn = replace(task, make=lambda rng, count: made_up(task, rng, count))
    monkeypatch.setitem(held_out._TASKS, task.name, drawn)
    held_out.written.cache_clear()
    config = parse(task.table(1.0, 0, task.clients))
    assert config.training.kind == "scheduled-rsgd"
    assert sum(config.federation.num_examples) <= task.count * 1.1
    shards = load_shards(config).examples
    assert [len(one) for one in shards] == [*config.federation.num_examples]
    held_out.written.cache_clear()


@pytest.mark.slow
@pytest.mark.one_week_in(3)
def test_finished_cells_are_not_measured_again(tmp_path, monkeypatch, capsys):
    words = ["leaderboard", "--task", "diabetes", "--epsilon", "2", "--cells", str(tmp_path)]
    monkeypatch.setattr("sys.argv", words)
    monkeypatch.setattr(board, "SEEDS", board.SEEDS[:3])
    monkeypatch.setattr(rivals, "tuned", lambda *_: Setting(0.155, 0.766, 10))
    board.main()
    first = capsys.readouterr().out
    monkeypatch.setattr(board, "theirs", lambda *_: pytest.fail("tuned twice"))
    monkeypatch.setattr(board, "ours", lambda *_: pytest.fail("run twice"))
    board.main()
    assert capsys.readouterr().out.splitlines()[-1] == first.splitlines()[-1]
