"""`manifed predict`: a new file is read as in training, and nothing but the release is used."""

import csv
import json
import runpy
import shutil
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file

from manifed.cli.launch import Request, launch
from manifed.runs.export import export
from manifed.runs.predict import card
from tests.command import invoke
from tests.fresh import ROOT

EXAMPLES = ROOT / "configs" / "examples"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The example configs beside their made-up files."""
    found = tmp_path_factory.mktemp("predict")
    for path in EXAMPLES.glob("own_*.toml"):
        shutil.copy(path, found)
    before, sys.argv = sys.argv, ["make_files.py", str(found / "files")]
    runpy.run_path(str(EXAMPLES / "make_files.py"), run_name="__main__")
    sys.argv = before
    return found


@pytest.fixture(scope="module")
def run_of(folder):
    made = {}

    def run(name, *sets):
        if (name, sets) not in made:
            out = folder / f"run-{len(made)}"
            path = str(folder / f"{name}.toml")
            launch(Request(path, ("federation.num_rounds=3", *sets), out=out, plain=True))
            made[name, sets] = out
        return made[name, sets]

    return run


def predicted(*words):
    done = invoke("predict", *words)
    assert done.exit_code == 0, done.stderr
    return [*csv.DictReader(done.stdout.splitlines())], done.stderr


def patients(folder, count):
    """The first rows of a file without what a prediction does not need, and what it had."""
    text = (folder / "files" / "patients-0.csv").read_text()
    rows = [*csv.DictReader(text.splitlines())][:count]
    names = ["age", "bmi", "glucose", "pressure"]
    path = folder / f"new-{count}.csv"
    lines = [",".join(names), *(",".join(row[name] for name in names) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path, np.array([[float(row[name]) for name in names] for row in rows])


def prepared(values, row_norm):
    """What the config does to rows: to [-1, 1] by the public ranges, then no longer than this."""
    low, high = np.array([[20, 90], [15, 45], [60, 180], [90, 170]]).T
    z = 2 * (np.clip(values, low, high) - low) / (high - low) - 1
    length = np.linalg.norm(z, axis=1, keepdims=True)
    return z / np.maximum(length / row_norm, 1)


# -- the same reading as in training -------------------------------------------------------------
def test_classes_are_those_of_the_scaled_row_with_its_intercept(folder, run_of):
    run = run_of("own_logistic_regression")
    path, values = patients(folder, 25)
    rows, _ = predicted(run, path)
    w = load_file(run / "model.safetensors")["x"]
    scores = np.hstack([prepared(values, 1.0), np.ones((25, 1))]) @ w
    assert [row["prediction"] for row in rows] == ["yes" if s > 0 else "no" for s in scores]
    assert [row["row"] for row in rows] == [str(k) for k in range(1, 26)]


def test_components_are_scores_or_rows_on_the_scale_of_the_file(folder, run_of):
    run = run_of("own_principal_components")
    path, values = patients(folder, 10)
    x = load_file(run / "model.safetensors")["x"]
    z = prepared(values, 1.0)
    rows, _ = predicted(run, path)
    found = [[float(row[f"prediction_{k}"]) for k in (1, 2)] for row in rows]
    assert found == pytest.approx(z @ x, rel=1e-9)
    rows, _ = predicted(run, path, "--rebuild")
    found = [[float(row[name]) for name in ("age", "bmi", "glucose", "pressure")] for row in rows]
    low, high = np.array([[20, 90], [15, 45], [60, 180], [90, 170]]).T
    assert found == pytest.approx(low + (z @ x @ x.T + 1) * (high - low) / 2, rel=1e-9)


def test_all_components_rebuild_a_row(folder, run_of):
    run = run_of("own_principal_components", "problem.num_components=4")
    path, values = patients(folder, 10)
    inside = np.linalg.norm(prepared(values, np.inf), axis=1) < 1
    rows, _ = predicted(run, path, "--rebuild")
    found = [[float(row[name]) for name in ("age", "bmi", "glucose", "pressure")] for row in rows]
    assert inside.any()
    assert np.array(found)[inside] == pytest.approx(values[inside], rel=1e-9)


def test_recordings_are_judged_by_their_labels(folder, run_of):
    run = run_of("own_nearest_mean")
    path = folder / "files" / "signals-1.npz"
    rows, said = predicted(run, path, "--judge")
    with np.load(path) as held:
        sides = held["side"]
    share = np.mean([row["prediction"] == side for row, side in zip(rows, sides, strict=True)])
    assert said == f"accuracy: {share:.4g}\n"


def test_a_sum_scaling_of_training_is_none_of_a_prediction(folder, run_of):
    run = run_of("own_principal_components", "problem.scaling=sum", "training.step_size=0.001")
    path, values = patients(folder, 5)
    x = load_file(run / "model.safetensors")["x"]
    rows, _ = predicted(run, path)
    assert float(rows[0]["prediction_1"]) == pytest.approx((prepared(values, 1.0) @ x)[0, 0])


# -- what it may use -----------------------------------------------------------------------------
def test_it_needs_no_ledger_no_client_and_no_budget(folder, run_of, tmp_path):
    """What is published is enough, also where the budget is spent."""
    path, _ = patients(folder, 25)
    run = run_of("own_logistic_regression", "privacy.max_epsilon=0.9")
    out = tmp_path / "public"
    export(run, out)
    assert not (out / "ledger.jsonl").exists()
    files = folder / "files"
    files.rename(folder / "away")
    try:
        assert predicted(out, path)[0] == predicted(run, path)[0]
    finally:
        (folder / "away").rename(files)


def test_a_file_is_written_whole_or_not_at_all(folder, run_of, tmp_path):
    run = run_of("own_logistic_regression")
    path, _ = patients(folder, 25)
    out = tmp_path / "predictions.csv"
    bad = tmp_path / "bad.csv"
    bad.write_text(path.read_text() + "1,2,,4\n")
    done = invoke("predict", run, bad, "--out", out)
    assert (done.exit_code, [*tmp_path.glob("*pred*")]) == (2, [])
    assert "line 27, column 'glucose': expected a finite number" in done.stderr
    assert invoke("predict", run, path, "--out", out).exit_code == 0
    assert out.read_text() == invoke("predict", run, path).stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--rebuild"], "--rebuild: expected principal components, got Logistic"),
        (["--judge"], "one column of this name, got 0"),
    ],
)
def test_what_cannot_be_predicted_is_one_line(folder, run_of, words, said):
    path, _ = patients(folder, 25)
    done = invoke("predict", run_of("own_logistic_regression"), path, *words)
    assert done.exit_code == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


# -- the card ------------------------------------------------------------------------------------
def test_a_card_says_who_is_protected_and_shows_what_is_public(run_of, tmp_path):
    run = run_of("own_logistic_regression", "privacy.noise_source=os")
    export(run, tmp_path / "public")
    text = (tmp_path / "public" / "card.md").read_text()
    assert "trained on data of 3 clients with differential privacy for each example" in text
    assert "gradient_norm" not in text
    assert "patients-" not in text
    seeded = run_of("own_logistic_regression")
    export(seeded, tmp_path / "seeded")
    text = (tmp_path / "seeded" / "card.md").read_text()
    assert "SEEDED RUN" in text
    assert "was trained on data of" not in text


def test_a_card_of_a_run_without_privacy_promises_nothing(run_of):
    run = run_of("own_logistic_regression", 'privacy={kind="none"}')
    manifest = json.loads((run / "manifest.json").read_text())
    assert "NOT PRIVATE" in card(manifest)
