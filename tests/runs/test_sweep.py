"""A sweep: what it stands for, what it refuses, and that it goes on where it stopped."""

import json
import os
import re
import signal
import subprocess
import sys
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from multiprocessing import active_children
from pathlib import Path
from threading import Thread

import pytest

from manifed.cli import sweep as sweeping
from manifed.cli.launch import Request
from manifed.cli.sweep import Trial, rows_of, trials_of
from manifed.errors import ConfigError
from manifed.experiment.load import load
from manifed.runs.folder import RunFolder
from manifed.runs.interrupt import Ended
from manifed.runs.report import read
from tests.command import invoke
from tests.runs.running import QUICKSTART, refused, wait_for
from tests.runs.test_report import write_run

CONFIG = Path(QUICKSTART)
STEPS = "training.step_size=0.1,0.5"


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("training.step_size=0.1, 0.5", ["0.1", "0.5"]),
        ('description="x,y",z', ['"x,y"', "z"]),
        (
            "federation.cohort={kind='fixed-size',cohort_size=2},{kind='all'}",
            ["{kind='fixed-size',cohort_size=2}", "{kind='all'}"],
        ),
    ],
)
def test_commas_part_values_outside_brackets_and_quotes(tmp_path, text, values):
    assert [
        one for trial in trials_of(CONFIG, [text], "0", tmp_path) for one in trial.setting.values()
    ] == values


def test_seeds(tmp_path):
    for text, seeds in (("0-3", [0, 1, 2, 3]), ("7,1-2", [7, 1, 2])):
        trials = trials_of(CONFIG, [], text, tmp_path)
        assert [trial.config.federation.seed for trial in trials] == seeds
    for wrong in ("", "3-1", "1,1-2", "x", "0-99999999", "-1", "1.5"):
        with pytest.raises(ConfigError, match="--seeds: expected"):
            trials_of(CONFIG, [], wrong, tmp_path)


def test_every_setting_and_seed_has_a_folder_of_its_own(tmp_path):
    longest = ",".join(f'"{"x" * 200}{i}"' for i in range(2))
    sets = [STEPS, f"name={longest}", "federation.num_rounds=3"]
    found = trials_of(CONFIG, sets, "0,4", tmp_path)
    assert len({trial.directory for trial in found}) == 8
    assert all(len(trial.directory.name) < 120 for trial in found)
    assert {trial.config.federation.num_rounds for trial in found} == {3}
    assert {trial.config.federation.seed for trial in found} == {0, 4}
    assert found[0].label.startswith("step_size=0.1, name=")
    assert not list(tmp_path.iterdir())
    (alone,) = trials_of(CONFIG, [], "2", tmp_path)
    assert (alone.directory.name, alone.label) == ("seed-2", "quickstart")


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (["training.step_size=0.1,x"], "training.step_size"),
        (["training.stepsize=0.1,1"], "did you mean 'step_size'"),
        ([STEPS, "training.step_size=1"], "every key once"),
        (["federation.seed=1,2"], "--seeds"),
        (["a.b"], "--set: expected"),
        (["a.b=1,"], "--set: expected"),
        (["a.b=1,1"], "--set: expected"),
    ],
)
def test_a_wrong_sweep_is_one_line_before_anything_runs(tmp_path, sets, said):
    with pytest.raises(ConfigError, match=said) as error:
        trials_of(CONFIG, sets, "0", tmp_path)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_what_is_there_already_is_not_overwritten(tmp_path):
    (tmp_path / "seed-0").mkdir()
    (tmp_path / "seed-0" / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match="expected a new folder"):
        trials_of(CONFIG, [], "0", tmp_path)


def test_the_table_has_the_best_first_and_the_best_accuracy_is_the_greatest(tmp_path):
    runs = [
        read(write_run(tmp_path / f"{g}-{s}", seed=s, gap=g)) for g in (2.0, 1.0) for s in (1, 3)
    ]
    _, (first, second) = rows_of({"step_size=2": runs[:2], "step_size=1": runs[2:]})
    assert (first["label"], second["label"], first["runs"]) == ("step_size=1", "step_size=2", 2)
    one, other = (run.last("relative_cost_gap") for run in runs[2:])
    assert first["mean"] == pytest.approx((one + other) / 2)
    assert first["deviation"] == pytest.approx(abs(one - other) / 2**0.5)
    assert first["epsilon"] == 2.0
    cost = runs[0].columns["cost"]
    groups = {
        f"less by {less}": [replace(runs[0], columns={"held_out_accuracy": cost - less})]
        for less in (1, 0)
    }
    measure, rows = rows_of(groups)
    assert measure == "held_out_accuracy"
    assert [row["label"] for row in rows] == ["less by 0", "less by 1"]
    price = {"release": [replace(runs[0], columns={"epsilon": cost})]}
    assert rows_of(price)[0] == "epsilon"


SMALL = ("federation.num_rounds=2",)
LONG = ("federation.num_rounds=20000", "evaluation.every=20000")


def trial(tmp_path, name, sets):
    directory = tmp_path / "runs" / name
    return Trial(directory, Request(QUICKSTART, sets, out=directory), load(CONFIG, SMALL), {})


@pytest.mark.slow
def test_an_interruption_ends_the_processes_which_write_what_they_have(tmp_path, monkeypatch):
    task = trial(tmp_path, "a", LONG)

    def interrupted(_):
        wait_for((task.directory / "metrics.csv").exists)
        raise Ended(signal.SIGTERM)

    monkeypatch.setattr(sweeping, "as_completed", interrupted)
    with pytest.raises(Ended):
        list(sweeping.run_all([task], 1))
    assert not active_children()
    assert RunFolder(task.directory).manifest()
    assert not RunFolder(task.directory).is_finished


@pytest.mark.slow
def test_a_process_that_dies_ends_the_sweep_and_its_run_comes_last_the_next_time(tmp_path):
    wanted = {"a": SMALL, "b": LONG, "c": SMALL, "d": (*SMALL, "training.nothing=1")}
    a, b, c, d = (trial(tmp_path, name, sets) for name, sets in wanted.items())

    def end_in_its_rounds():
        wait_for(b.directory.exists)
        for process in active_children():
            os.kill(process.pid, signal.SIGKILL)

    Thread(target=end_in_its_rounds).start()
    with pytest.raises(BrokenProcessPool):
        list(sweeping.run_all([a, b, c, d], 1))
    assert not active_children()
    again = sweeping.run_all([b, a, c, d], 1)
    *whole, (last, error) = (next(again) for _ in range(3))
    again.close()
    assert (whole, last) == ([(a, None), (c, None)], d)
    assert error.startswith("training.nothing: unknown key")
    assert len({(task.directory / "model.safetensors").read_bytes() for task in (a, c)}) == 1, (
        "a used process makes what a new one makes"
    )


@pytest.mark.slow
def test_a_sweep_that_was_interrupted_goes_on(tmp_path):
    """Ctrl-C in the first run, the same command again: one table, nothing run twice."""
    out = tmp_path / "sweep"
    words = ["sweep", QUICKSTART, "--set", STEPS, "--out", str(out)]
    drawn = "federation.cohort={kind='fixed-size',cohort_size=5}"
    rounds = ["--set", drawn, "--set", "federation.num_rounds=400"]
    started = subprocess.Popen(
        [sys.executable, "-m", "manifed", *words, *rounds], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    first = RunFolder(out / "step_size=0.1-seed-0")
    wait_for(first.metrics_path.exists)
    started.send_signal(signal.SIGINT)
    _, said = started.communicate(timeout=120)
    last = said.strip().splitlines()[-1]
    command = "error: interrupted; rerun to resume: manifed sweep "
    assert (started.returncode, last[: len(command)]) == (130, command)
    assert last.endswith("--set federation.num_rounds=400")
    assert first.experiment_path.is_file()
    assert not (out / "step_size=0.5-seed-0").exists()

    done = invoke(*words, *rounds, "--json")
    assert "The search is not accounted" in done.stderr
    assert {row["label"] for row in json.loads(done.stdout)["rows"]} == {
        "step_size=0.1",
        "step_size=0.5",
    }
    # A round that was charged and then cut off has spent its share of the budget.
    rounds_of = [read(out / f"step_size={step}-seed-0").last("round") for step in ("0.1", "0.5")]
    assert rounds_of in ([399.0, 400.0], [400.0, 400.0])

    written = {path: path.stat().st_mtime_ns for path in out.glob("*/*")}
    assert "2 different labels" in refused(*words, *rounds, "--label", "one")
    named = ["--label", "one", "--label", "two", "--pdf", tmp_path / "new" / "sweep.pdf", "--json"]
    rows = json.loads(invoke(*words, *rounds, *named).stdout)["rows"]
    assert {row["label"] for row in rows} == {"one", "two"}
    pages = re.findall(rb"/Type /Page\b", named[-2].read_bytes())
    assert len(pages) == 3, "epsilon by round tells the cohort's draws, which are no release"
    assert "one of another config" in refused(*words, "--set", "federation.num_rounds=401")
    assert written == {path: path.stat().st_mtime_ns for path in out.glob("*/*")}
