"""A figure of a paper: only what is missing runs, and its picture is drawn from run folders."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from manifed.durable import held
from manifed.errors import ConfigError
from manifed.experiment.load import load, to_toml
from manifed.problems.real import DataMissing
from manifed.runs.folder import RunFolder
from manifed.runs.report import read
from reproduction import pictures
from reproduction.__main__ import PAPERS, main
from reproduction.figure_files import FIGURES, figure_named, read_figure
from reproduction.figures import DOWNLOADED, Asked, judged, named_by, runs_wanted
from reproduction.judged import ARCHIVE, archived
from reproduction.pictures import draw_panels, values_of
from tests.fresh import ROOT
from tests.runs.test_report import write_run

SMALL = """
title = "Two steps"
paper = "-"
shows = "A longer step is faster."
name = "steps-{step}"
base = "{quickstart}"
seeds = 2
parts.step.short = { training.step_size = 0.1 }
parts.step.long = { training.step_size = 0.5 }

[[axes]]
y = "cost"

[[axes]]
x = "epsilon"
y = "gradient_norm"
log = ["x", "y"]

[[panels]]
title = "quickstart"
label = "{step}"
""".replace("{quickstart}", str(ROOT / "configs" / "quickstart.toml"))


@pytest.fixture
def small(tmp_path):
    (tmp_path / "small.toml").write_text(SMALL)
    return tmp_path / "small.toml"


@pytest.mark.slow
@pytest.mark.one_week_in(3)
def test_only_missing_runs_run_and_the_picture_is_drawn(tmp_path, small):
    command = [sys.executable, "-m", "reproduction", str(small), "--quick", "--jobs", "2",
               "--out", str(tmp_path / "runs"), "--json"]  # fmt: skip
    said = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    home = tmp_path / "runs" / "quick" / "small"
    assert "2 runs, 2 beside each other; 0 are here already" in said.stderr
    assert "2/2 steps-" in said.stderr
    drawn = json.loads(said.stdout)["figures"]["small"]
    assert drawn == [str(home / "figure-small.png"), str(home / "figure-small.pdf")]
    assert Path(drawn[0]).stat().st_size > 10_000
    assert Path(drawn[1]).read_bytes().startswith(b"%PDF")
    assert {RunFolder(home / f"steps-{s}-seed-0").manifest()["final"]["rounds"]
            for s in ("short", "long")} == {5}  # fmt: skip
    before = (home / "steps-long-seed-0" / "metrics.csv").stat().st_mtime_ns
    again = subprocess.run([*command, "--seeds", "2", "--only", "*long"], capture_output=True,
                           text=True, check=True, cwd=ROOT)  # fmt: skip
    assert "1 runs, 2 beside each other; 1 are here already" in again.stderr
    assert (home / "steps-long-seed-0" / "metrics.csv").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("override", "is_made_again"),
    [("privacy.noise_source=seed", True), ("privacy.noise_source=os", False)],
)
def test_a_seeded_private_run_that_lost_a_round_is_made_again(
    tmp_path, small, override, is_made_again, monkeypatch
):
    """What was charged stays charged, so a resumed run would end before its last round."""
    asked = Asked(out=tmp_path, seeds=1, only=("*long",), sets=(override,))
    (run,) = runs_wanted(read_figure(small), asked)
    write_run(run.directory, rounds=3)
    RunFolder(run.directory).experiment_path.write_text(to_toml(run.config))
    assert run.is_finished != is_made_again
    requests = []
    monkeypatch.setattr("reproduction.figures.run_silently", requests.append)
    if is_made_again:
        with held(run.directory):
            assert "holds" in (run.play() or "")
        assert run.directory.exists()
    assert run.play() is None
    (request,) = requests
    assert run.directory.exists() != is_made_again, "no release is removed"
    assert (request.resume is None) == is_made_again


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["000-11"], "did you mean '000-1'?"),
        ([], "expected figures as 000-1, checks as 4, papers as 000"),
        (["000-3", "--only", "rsgd", "--only", "none"], "got 'none'; figure 000-3 has 000_3"),
        (
            ["000-1", "--epsilon", "1"],
            "expected curves that state one epsilon, got 0.08, 0.15, 0.3",
        ),
        (["004-2", "--epsilon", "1"], "expected curves that state one epsilon, got none"),
        (["9", "--epsilon", "1"], "--epsilon changes the runs of figures"),
        (["000-3", "--epsilon", "0"], "expected a positive number, got '0'"),
        (["000-1", "--set", "training.stepsize=1"], "did you mean 'step_size'?"),
        (["nowhere.toml"], "expected a figure, got 'nowhere.toml'"),
    ],
)
def test_a_wrong_word_is_a_line_and_nothing_runs(tmp_path, capsys, words, text):
    try:
        code = main([*words, "--out", str(tmp_path / "runs")])
    except SystemExit as end:
        code = end.code
    said = capsys.readouterr()
    assert (code, said.out) == (2, "")
    assert text in said.err
    assert not (tmp_path / "runs").exists()


def test_a_folder_of_another_run_is_refused_before_a_run(tmp_path, small):
    figure = read_figure(small)
    first, second = runs_wanted(figure, Asked(out=tmp_path, seeds=1))
    write_run(first.directory, rounds=3)
    RunFolder(first.directory).experiment_path.write_text(to_toml(second.config))
    with pytest.raises(ConfigError, match="expected a run of this config"):
        runs_wanted(figure, Asked(out=tmp_path, seeds=1))


def test_what_a_computed_figure_reads_is_missed_before_it_is_computed(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.delenv("MANIFED_DATA", raising=False)
    assert main(["figure:002-6", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert "left out: 002-6: Data set 'mnist'" in said.err
    assert "not drawn" in said.out


def test_the_list_says_what_a_figure_takes(capsys):
    assert main(["000-1", "000-5", "004-2", "--list", "--json"]) == 0
    first, second, third = json.loads(capsys.readouterr().out)["figures"]
    assert (first["runs"], first["rounds"], first["data"]) == (27, 5400, [])
    assert second["data"] == ["reproduction.mammals:WordnetEmbedding"]
    assert third["runs"] == 0


def test_every_check_of_a_figure_is_one():
    known = {name for paper in PAPERS.values() for name in paper}
    for path in FIGURES.glob("*.toml"):
        assert set(read_figure(path).file.checks) <= known, path


@pytest.mark.parametrize(
    ("asked", "differ"),
    [
        ({}, None),
        ({"seeds": 3}, None),
        ({"seeds": 1, "only": ("rsgd",)}, "--seeds 1 --only rsgd"),
        ({"is_quick": True, "epsilon": 2.0}, "--quick --epsilon 2"),
    ],
)
def test_a_recorded_verdict_says_so_where_other_runs_were_made(asked, differ):
    known = archived(ARCHIVE)["7"]
    file = figure_named("000-3-regime").file.model_copy(update={"checks": ["7"]})
    told = judged(file, Asked(**asked))
    assert told[0] == f"check 7, recorded {known['date']}: {known['verdict']}"
    assert [line.rpartition(": ")[2] for line in told[1:-1]] == ([differ] if differ else [])


def test_only_takes_a_part_of_a_name_and_epsilon_the_place_of_the_targets(tmp_path, small):
    figure = read_figure(small)
    assert named_by(["steps-long", "*-sh*"], figure) == ["steps-short", "steps-long"]
    asked = Asked(tmp_path, seeds=1, only=("long",), epsilon=3.0)
    (run,) = runs_wanted(figure, asked)
    assert run.config.privacy.noise.epsilon == 3
    assert run.directory == tmp_path / "epsilon-3" / "small" / "steps-long-seed-0"
    assert asked.note == "epsilon = 3 in place of the figure's"


def test_panels_are_drawn_of_what_is_there(tmp_path, small, monkeypatch):
    saved = pictures.save
    drawn = []

    def kept(*given, **named):
        drawn.append(given[0])
        return saved(*given, **named)

    monkeypatch.setattr(pictures, "save", kept)
    long = 'least = 0.5\n\n[labels]\nlong = "a label that is about as long as they are"'
    small.write_text(small.read_text().replace('log = ["x", "y"]\n', f'log = ["x", "y"]\n{long}\n'))
    figure = read_figure(small)
    runs = {}
    for k, curve in enumerate(figure.choices):
        for seed in (1, 2):
            write_run(tmp_path / f"{curve}-{seed}", name=curve, seed=seed, gap=1.0 + k)
        runs[curve] = [read(tmp_path / f"{curve}-{seed}") for seed in (1, 2)]
    picture, pdf = draw_panels(figure, runs, tmp_path / "drawn")
    draw_panels(figure, runs, tmp_path / "quick", note=pictures.QUICK_LOOK)
    assert drawn[0].get_suptitle() == ""
    assert drawn.pop().get_suptitle() == pictures.QUICK_LOOK
    assert picture.stat().st_size > 10_000
    assert pdf.stat().st_size > 5_000
    assert draw_panels(figure, {}, tmp_path / "none") == []
    legend = drawn[0].legends[0].get_window_extent()
    room = drawn[0].bbox
    assert 0 <= legend.x0 < legend.x1 <= room.width
    assert drawn[0].axes[1].get_ylim()[0] == 0.5
    x, rows = values_of(runs["steps-long"], figure.file.axes[1])
    assert rows.shape == (2, len(x))


@pytest.mark.slow
def test_what_is_downloaded_is_what_cannot_be_read_without_a_folder():
    data = {}
    for path in FIGURES.glob("*.toml"):
        figure = read_figure(path)
        for curve in list(figure.choices)[:: max(1, len(figure.choices) // 3)]:
            found = load(figure.source(curve)).data
            data[found.kind] = found
    for kind, found in data.items():
        if kind in DOWNLOADED:
            with pytest.raises(DataMissing):
                found.load(None, 0)
    assert set(data) >= DOWNLOADED
