import json
import re
import subprocess
import sys

import numpy as np
import pytest

from manifed.runs.folder import FORMAT, RunFolder
from manifed.runs.report import (
    columns_of,
    curves_of,
    figures_of,
    read,
    relabelled,
    rows_of,
)
from manifed.runs.statement import said
from tests.command import invoke
from tests.fresh import ROOT

SHOWN = {
    ("cost", "round"),
    ("relative_cost_gap", "round"),
    ("relative_cost_gap", "epsilon"),
    ("gradient_norm", "round"),
    ("gradient_norm", "epsilon"),
}
SLOW_TO_IMPORT = {
    "dp_accounting", "jinja2", "matplotlib", "networkx", "pandas", "ray", "scipy.ndimage",
    "scipy.stats", "sklearn", "sympy", "torch._dynamo", "torch._inductor", "torch.onnx",
}  # fmt: skip
"""What a run without figures, other graphs than its own and files of others does without.

geoopt itself imports scipy's linalg and optimize.
"""


def write_run(directory, *, name="rsgd", seed=1, epsilon=2.0, rounds=5, is_finished=True, gap=1.0):
    config = {"federation": {"seed": seed, "num_rounds": rounds},
              "output": {"directory": str(directory)}}  # fmt: skip
    folder = RunFolder.claim(directory)
    folder.begin({"format": FORMAT, "name": name, "config": config, "privacy": {"kind": "none"}})
    for server_round in range(rounds + 1):
        spent = None if epsilon is None else epsilon * server_round / rounds
        cost_gap = gap * seed * 0.5**server_round
        folder.append_metrics(
            {
                "round": server_round,
                "cost": cost_gap - 2.0,
                "cost_gap": cost_gap,
                "relative_cost_gap": cost_gap / 2.0,
                "gradient_norm": 2 * cost_gap,
                "epsilon": spent,
                "uploads": server_round,
            }
        )
    if is_finished:
        folder.finish(
            {
                "label": None,
                "relative_cost_gap": cost_gap / 2,
                "gradient_norm": 2 * cost_gap,
                "epsilon": epsilon,
                "delta": None if epsilon is None else 1e-5,
                "rounds": rounds,
                "seconds": 1.5,
            },
            {},
        )
    return directory


def pairs_of(runs):
    return {(y, x.split()[-1]): lines for y, x, lines in figures_of(curves_of(runs))}


@pytest.mark.parametrize(
    ("changes", "pairs"),
    [
        ({}, SHOWN),
        ({"epsilon": None}, {pair for pair in SHOWN if pair[1] == "round"}),
        ({"epsilon": np.inf}, {pair for pair in SHOWN if pair[1] == "round"}),
        ({"gap": 0.0}, {("cost", "round")}),
    ],
)
def test_a_figure_is_made_where_there_is_something_to_show(tmp_path, changes, pairs):
    assert set(pairs_of([read(write_run(tmp_path / "run", **changes))])) == pairs


def test_a_run_without_rows_draws_nothing(tmp_path):
    directory = write_run(tmp_path / "run", is_finished=False)
    (directory / "metrics.csv").unlink()
    assert not pairs_of([read(directory)])


def test_seeds_of_one_configuration_become_one_curve_with_their_mean(tmp_path):
    runs = [read(write_run(tmp_path / str(seed), seed=seed)) for seed in (1, 2, 3)]
    assert list(curves_of(runs)) == ["rsgd"]
    assert list(pairs_of(runs)["cost", "round"]) == ["rsgd, mean of 3"]
    x, y = columns_of(runs, "epsilon", "relative_cost_gap")
    np.testing.assert_allclose(x, [0.0, 0.4, 0.8, 1.2, 1.6, 2.0], rtol=1e-15)
    np.testing.assert_allclose(y.mean(axis=0), 0.5 ** np.arange(6), rtol=1e-15)


def test_configurations_of_one_name_are_told_apart_by_the_keys_that_differ(tmp_path):
    runs = [read(write_run(tmp_path / f"r{n}", rounds=n)) for n in (4, 6)]
    runs.append(read(write_run(tmp_path / "again", rounds=6, seed=2)))
    assert list(curves_of(runs)) == ["rsgd, num_rounds=4", "rsgd, num_rounds=6"]
    assert [row["run"] for _, row in rows_of(runs)] == [
        "rsgd, num_rounds=4",
        "rsgd, num_rounds=6, run 1",
        "rsgd, num_rounds=6, run 2",
    ]


def test_a_label_names_no_folder_for_its_name_may_hold_a_seed(tmp_path):
    runs = [read(write_run(tmp_path / f"seed-{s}", seed=s)) for s in (4711, 815)]
    for k, run in enumerate(runs):
        run.manifest["config"]["training"] = dict.fromkeys("abcd", k)
    assert list(curves_of(runs)) == ["rsgd (run 1)", "rsgd (run 2)"]


def test_curves_of_unequal_length_are_averaged_over_the_common_rounds(tmp_path):
    directories = [write_run(tmp_path / str(seed), seed=seed, is_finished=False) for seed in (1, 2)]
    metrics = directories[1] / "metrics.csv"
    metrics.write_text("\n".join(metrics.read_text().splitlines()[:4]) + "\n")
    x, y = columns_of([read(directory) for directory in directories], "round", "gradient_norm")
    np.testing.assert_array_equal(x, [0, 1, 2])
    assert y.shape == (2, 3)


def test_runs_stand_side_by_side_in_a_table(tmp_path):
    assert [
        " ".join(map(said, row.values()))
        for _, row in rows_of(
            [
                read(write_run(tmp_path / "a", name="private")),
                read(write_run(tmp_path / "b", name="free", epsilon=None)),
                read(write_run(tmp_path / "c", name="no-noise", epsilon=np.inf)),
                read(write_run(tmp_path / "d", name="begun", is_finished=False)),
            ]
        )
    ] == [
        "private 5 0.01562 0.0625 not private 2 1e-05",
        "free 5 0.01562 0.0625 not private - -",
        "no-noise 5 0.01562 0.0625 not private infinity 1e-05",
        "begun (unfinished) 5 0.01562 0.0625 not private 2 -",
    ]


def test_the_command_writes_its_page_into_the_folder_of_a_single_run(tmp_path):
    directory = write_run(tmp_path / "run", name="a|b")
    done = invoke("report", directory)
    assert done.exit_code == 0, done.stdout
    assert done.stdout.endswith(f"{directory / 'report.html'}\n")
    page = (directory / "report.html").read_text()
    assert all(f"{y} against".replace("_", " ") in page for y, _ in SHOWN)
    assert {line.count("|") for line in done.stdout.splitlines() if line.startswith("| ")} == {8}


def test_labels_name_curves_and_a_pdf_has_a_page_for_each_figure(tmp_path):
    folders = [write_run(tmp_path / f"{n}-{s}", rounds=n, seed=s) for n in (6, 4) for s in (1, 2)]
    lines = pairs_of(relabelled([read(one) for one in folders], ["long", "short"]))
    assert list(lines["cost", "round"]) == ["long, mean of 2", "short, mean of 2"]
    page, pdf = tmp_path / "page" / "report.html", tmp_path / "new" / "over.pdf"
    words = ["report", *folders, "--out", page.parent, "--pdf", pdf, "--label", "long"]
    for wrong in ([], ["long"], [" "], ["short", "third"]):
        done = invoke(*words, *(word for name in wrong for word in ("--label", name)))
        assert done.exit_code == 2
        assert done.stderr.startswith("error: --label: expected 2 different labels, for ['rsgd, ")
    short = write_run(tmp_path / "begun", is_finished=False)
    (short / "metrics.csv").unlink()
    assert "--pdf: expected a run with two" in invoke("report", short, "--pdf", pdf).stderr
    assert not page.parent.exists()
    assert not pdf.parent.exists()
    done = invoke("report", *folders[1:], *words[5:], "--label", "short", "--json")
    assert json.loads(done.stdout)["files"] == [str(page), str(pdf)]
    assert all(f"<td>{name}</td>" in page.read_text() for name in ("long", "short, run 2"))
    assert len(re.findall(rb"/Type /Page\b", pdf.read_bytes())) == len(SHOWN)


@pytest.mark.slow
def test_what_takes_long_to_import_is_imported_only_when_used():
    used = "manifed.cli.main, manifed.runs.report, manifed.runs.progress"
    run = (
        "manifed.cli.launch, manifed.plan, manifed.runs.driver, "
        "manifed.flower.apps, manifed.flower.client, manifed.flower.records"
    )
    code = (
        f"import sys, {used}; print(*sys.modules); import {run}, torch; "
        "from manifed.manifolds.euclidean import Euclidean; "
        "Euclidean().from_coords(torch.zeros(2, 3), torch.zeros(3)); print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    report, whole = done.stdout.splitlines()
    assert not {"matplotlib", "rich", "flwr", "torch"} & set(report.split())
    assert not SLOW_TO_IMPORT & set(whole.split())
