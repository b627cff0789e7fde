"""A sweep: what it stands for, what it refuses, and that it goes on where it stopped."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from multiprocessing import active_children
from pathlib import Path
from threading import Thread

import pytest

from manifed.cli import sweep as sweeping
from manifed.cli.launch import Request
from manifed.cli.sweep import Trial, rows_of, seeds_of, trials_of
from manifed.errors import ConfigError
from manifed.experiment.load import load
from manifed.runs.folder import RunFolder
from manifed.runs.interrupt import Ended
from manifed.runs.report import read
from tests.runs.test_report import write_run

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "configs" / "quickstart.toml"
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
    found = trials_of(CONFIG, [text], [0], tmp_path)
    assert [one for trial in found for one in trial.setting.values()] == values


def test_seeds():
    assert seeds_of("0-3") == [0, 1, 2, 3]
    assert seeds_of("7,1-2") == [7, 1, 2]
    for wrong in ("", "3-1", "1,1-2", "x", "0-99999999", "-1", "1.5"):
        with pytest.raises(ConfigError, match="--seeds: expected"):
            seeds_of(wrong)


def test_every_setting_and_seed_has_a_folder_of_its_own(tmp_path):
    longest = ",".join(f'"{"x" * 200}{i}"' for i in range(2))
    found = trials_of(
        CONFIG, [STEPS, f"name={longest}", "federation.num_rounds=3"], [0, 4], tmp_path
    )
    assert len({trial.directory for trial in found}) == 8
    assert all(len(trial.directory.name) < 120 for trial in found)
    assert {trial.config.federation.num_rounds for trial in found} == {3}
    assert {trial.config.federation.seed for trial in found} == {0, 4}
    assert found[0].label.startswith("step_size=0.1, name=")
    assert not list(tmp_path.iterdir())
    (alone,) = trials_of(CONFIG, [], [2], tmp_path)
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
        trials_of(CONFIG, sets, [0], tmp_path)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_what_is_there_already_is_not_overwritten(tmp_path):
    (tmp_path / "seed-0").mkdir()
    (tmp_path / "seed-0" / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match="expected a new folder"):
        trials_of(CONFIG, [], [0], tmp_path)


def test_the_table_has_the_best_first_and_the_best_accuracy_is_the_greatest(tmp_path):
    runs = [
        read(write_run(tmp_path / f"{g}-{s}", seed=s, gap=g)) for g in (2.0, 1.0) for s in (1, 3)
    ]
    _, (first, second) = rows_of({"step_size=2": runs[:2], "step_size=1": runs[2:]})
    assert (first["label"], second["label"], first["runs"]) == ("step_size=1", "step_size=2", 2)
    values = [run.last("relative_cost_gap") for run in runs[2:]]
    assert first["mean"] == pytest.approx(sum(values) / 2)
    assert first["deviation"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
    assert first["epsilon"] == 2.0
    better, worse = (
        [replace(runs[0], columns={"held_out_accuracy": runs[0].columns["cost"] - less})]
        for less in (0, 1)
    )
    measure, rows = rows_of({"worse": worse, "better": better})
    assert (measure, [row["label"] for row in rows]) == ("held_out_accuracy", ["better", "worse"])
    with pytest.raises(ConfigError, match="--measure: expected a measured column"):
        rows_of({"worse": worse, "better": better}, "cost")


def _command(out, *more):
    return [
        sys.executable, "-m", "manifed", "sweep", str(CONFIG), "--set", STEPS, "--out", str(out),
        *more,
    ]  # fmt: skip


SMALL = ("federation.num_rounds=2", "output.plots=false")
LONG = ("federation.num_rounds=20000", "evaluation.every=20000", "output.plots=false")


def trial(tmp_path, name, sets):
    directory = tmp_path / "runs" / name
    request = Request(str(CONFIG), sets, out=directory, plain=True)
    return Trial(directory, request, load(CONFIG, SMALL), {})


def wait_for(path):
    deadline = time.monotonic() + 120
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.02)


def test_an_interruption_ends_the_processes_which_write_what_they_have(tmp_path, monkeypatch):
    task = trial(tmp_path, "a", LONG)

    def interrupted(_):
        wait_for(task.directory / "metrics.csv")
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
    tasks = [trial(tmp_path, name, sets) for name, sets in wanted.items()]

    def end_in_its_rounds():
        wait_for(tasks[1].directory)
        for process in active_children():
            os.kill(process.pid, signal.SIGKILL)

    Thread(target=end_in_its_rounds).start()
    with pytest.raises(BrokenProcessPool):
        list(sweeping.run_all(tasks, 1))
    assert not active_children()
    again = sweeping.run_all([tasks[1], tasks[0], tasks[2], tasks[3]], 1)
    said = [next(again) for _ in range(3)]
    again.close()
    assert [task for task, _ in said] == [tasks[0], tasks[2], tasks[3]]
    assert [error for _, error in said[:2]] == [None, None]
    assert said[2][1].startswith("training.nothing: unknown key")
    made = [(task.directory / "model.safetensors").read_bytes() for task in tasks[::2]]
    assert made[0] == made[1], "a used process makes what a new one makes"


@pytest.mark.slow
def test_a_sweep_that_was_interrupted_goes_on(tmp_path):
    """Ctrl-C in the first run, the same command again: one table, nothing run twice."""
    out = tmp_path / "sweep"
    rounds = ["--set", "federation.num_rounds=40"]
    started = subprocess.Popen(
        _command(out, *rounds), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    first = RunFolder(out / "step_size=0.1-seed-0")
    deadline = time.monotonic() + 120
    while not first.metrics_path.is_file() and time.monotonic() < deadline:
        time.sleep(0.02)
    started.send_signal(signal.SIGINT)
    _, said = started.communicate(timeout=120)
    last = said.strip().splitlines()[-1]
    command = "error: interrupted; the same command goes on: manifed sweep "
    assert (started.returncode, last[: len(command)]) == (130, command)
    assert last.endswith("--set federation.num_rounds=40")
    assert first.experiment_path.is_file()
    assert not (out / "step_size=0.5-seed-0").exists()

    done = subprocess.run(
        _command(out, *rounds, "--json"), capture_output=True, text=True, check=True
    )
    assert "The search is not accounted" in done.stderr
    result = json.loads(done.stdout)
    assert {row["label"] for row in result["rows"]} == {"step_size=0.1", "step_size=0.5"}
    with (out / "sweep.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["step_size"], row["seed"]) for row in rows] == [("0.1", "0"), ("0.5", "0")]
    # A round that was charged and then cut off has spent its share of the budget.
    assert rows[0]["round"] in {"39.0", "40.0"}
    assert rows[1]["round"] == "40.0"
    assert (out / "cost-by-round.png").is_file()

    written = {path: path.stat().st_mtime_ns for path in out.glob("*/*")}
    subprocess.run(_command(out, *rounds), capture_output=True, check=True)
    assert written == {path: path.stat().st_mtime_ns for path in out.glob("*/*")}
    other = subprocess.run(
        _command(out, "--set", "federation.num_rounds=41"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (other.returncode, "one of another config" in other.stderr) == (2, True)
    assert written == {path: path.stat().st_mtime_ns for path in out.glob("*/*")}
