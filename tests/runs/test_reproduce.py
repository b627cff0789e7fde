"""A figure of a paper: only what is missing runs, and panels are drawn from run folders."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from manifed.cli.main import main
from manifed.durable import held
from manifed.errors import ConfigError
from manifed.experiment.figure_files import read_figure
from manifed.experiment.load import load, to_toml
from manifed.problems.readers import DOWNLOADED, DataMissing
from manifed.runs.figure_runs import duration_of, tasks_of, verdicts_of
from manifed.runs.report import panels
from manifed.runs.report.panels import draw_panels, passes_a_round, values_of
from manifed.runs.report.runs import read
from manifed.runs.run_folder import RunFolder
from tests.runs.test_report import write_run

ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "configs" / "figures"
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
def test_only_missing_runs_run_and_the_picture_is_drawn(tmp_path, small):
    command = [sys.executable, "-m", "manifed", "reproduce", str(small), "--quick", "--jobs", "2",
               "--out", str(tmp_path / "runs"), "--json"]  # fmt: skip
    said = subprocess.run(command, capture_output=True, text=True, check=True)
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
                           text=True, check=True)  # fmt: skip
    assert "1 runs, 2 beside each other; 1 are here already" in again.stderr
    assert (home / "steps-long-seed-0" / "metrics.csv").stat().st_mtime_ns == before
    figure = read_figure(small)
    whole = tasks_of(figure, list(figure.choices), [0, 1], tmp_path / "runs" / "small")
    quick = tasks_of(figure, list(figure.choices), [0], home, is_quick=True)
    assert duration_of(whole, []) is None
    spent = duration_of(whole, quick)
    assert spent is not None
    assert spent.seconds > 0
    assert not spent.is_measured


def test_a_quick_look_with_fewer_steps_counts_for_the_steps_of_the_whole(tmp_path, small):
    """Five rounds of 50 steps take 1.2 of 1.5 s; 100 rounds of 1000 take twenty times 24 s.

    Another 0.3 s are evaluations, which last as long after more steps.
    """
    longer = "training.local_steps = 1000, federation.num_rounds = 100 }"
    small.write_text(small.read_text().replace("= 0.5 }", f"= 0.5, {longer}"))
    figure = read_figure(small)
    (whole,) = tasks_of(figure, ["steps-long"], [0], tmp_path / "whole")
    looked = tasks_of(figure, ["steps-long"], [0], tmp_path / "quick", is_quick=True)
    write_run(looked[0].directory, rounds=5)
    folder = RunFolder(looked[0].directory)
    ran = folder.manifest() | {"config": looked[0].config.model_dump(mode="json")}
    ran["seconds_by_part"] = {"rounds": 1.2, "evaluation": 0.3}
    folder.manifest_path.write_text(json.dumps(ran))
    spent = duration_of([whole], looked)
    assert spent is not None
    assert spent.seconds == pytest.approx((0.3 + 1.2 * 1000 / 50) / 5 * 100)


@pytest.mark.parametrize(
    ("override", "is_made_again"),
    [
        ("privacy.noise_source=seed", True),
        ("privacy={ kind = 'none' }", False),
        ("privacy.noise_source=os", False),
    ],
)
def test_a_seeded_private_run_that_lost_a_round_is_made_again(
    tmp_path, small, override, is_made_again
):
    """What was charged stays charged, so a resumed run would end before its last round."""
    (task,) = tasks_of(read_figure(small), ["steps-long"], [0], tmp_path, [override])
    assert not task.starts_anew
    write_run(task.directory, rounds=3)
    RunFolder(task.directory).experiment_path.write_text(to_toml(task.config))
    assert task.is_finished != is_made_again
    assert task.starts_anew == is_made_again
    with held(task.directory), pytest.raises(ConfigError, match="one that another process holds"):
        task.clear()
    assert task.starts_anew == is_made_again, "it is still there"
    task.clear()
    assert task.directory.exists() != is_made_again, "no release is removed"


def said_of(capsys, *words):
    with pytest.raises(SystemExit) as end:
        main(["reproduce", *words])
    said = capsys.readouterr()
    return end.value.code, said.out, said.err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["000-11"], "did you mean '000-1'?"),
        (["zzz"], "expected a figure, got 'zzz'; --list shows them"),
        ([], "expected figures as 000-1, or --all, or --list"),
        (["000-1", "--all"], "expected figures as 000-1, or --all, or --list"),
        (["000-1", "--only", "nothing"], "--only: expected a pattern of curves, got 'nothing'"),
        (["000-1", "--set", "training.stepsize=1"], "did you mean 'step_size'?"),
        (["nowhere.toml"], "does not exist"),
        (["000-1", "--epsilon", "2"], "--epsilon: expected a figure with budgets"),
        (["004-1a", "--epsilon", "-1"], "--epsilon: expected an epsilon above 0, got -1.0"),
        (["004-1a", "--epsilon", "1", "--epsilon", "1"], "--epsilon: expected different"),
        (["000-1", "--set", "federation.seed=3"], "federation.seed is set by --seeds"),
    ],
)
def test_a_wrong_word_is_one_line_and_nothing_runs(tmp_path, capsys, words, text):
    code, out, err = said_of(capsys, *words, "--out", str(tmp_path / "runs"))
    assert (code, out) == (2, "")
    assert text in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "runs").exists()


FOREIGN = {
    "computed": 'drawing = "computed"',
    "budgets": 'drawing = "budgets"\nbudgets = [1.0]\nname = "a"\nbase = "x.toml"',
    "of itself": 'drawing = "disk"\nruns_of = "foreign.toml"',
    "no disk": f'drawing = "disk"\nname = "a"\nbase = "{ROOT}/configs/quickstart.toml"',
}


@pytest.mark.parametrize("named", FOREIGN)
def test_a_figure_that_only_the_clone_could_draw_is_refused_before_a_run(tmp_path, capsys, named):
    head = 'title = "t"\npaper = "p"\nshows = "s"\n'
    (tmp_path / "foreign.toml").write_text(head + FOREIGN[named])
    told = said_of(capsys, str(tmp_path / "foreign.toml"), "--out", str(tmp_path / "runs"))
    assert told[0] == 2
    assert "foreign.toml: " in told[2]
    assert len(told[2].splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def test_a_folder_that_cannot_be_made_is_met_before_a_run(tmp_path, capsys, small):
    (tmp_path / "file").write_text("")
    code, out, err = said_of(capsys, str(small), "--out", str(tmp_path / "file"))
    assert (code, out) == (2, "")
    assert "--out: expected a folder" in err


def test_a_run_that_somebody_runs_is_refused_before_another_is_removed(tmp_path, small):
    (task,) = tasks_of(read_figure(small), ["steps-long"], [0], tmp_path)
    write_run(task.directory, rounds=3)
    RunFolder(task.directory).experiment_path.write_text(to_toml(task.config))
    with held(task.directory), pytest.raises(ConfigError, match="that another process holds"):
        tasks_of(read_figure(small), ["steps-long"], [0], tmp_path)


def test_what_a_computed_figure_reads_is_missed_before_it_is_computed(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.delenv("MANIFED_DATA", raising=False)
    code, out, err = said_of(capsys, "002-6", "--out", str(tmp_path))
    assert code == 0
    assert "left out: 002-6: Data set 'mnist'" in err
    assert "not drawn" in out


def test_the_list_says_what_a_figure_takes(tmp_path, capsys):
    code, out, words = said_of(capsys, "000-1", "000-5", "004-2", "--list", "--out", str(tmp_path),
                           "--json")  # fmt: skip
    assert code == 0
    first, second, third = json.loads(out)["figures"]
    assert (first["runs"], first["rounds"], first["data"]) == (27, 5400, [])
    assert second["data"] == ["wordnet-embedding"]
    assert (third["runs"], third["duration"]) == (0, None)
    assert "not measured: --quick tells" in words
    code, _, words = said_of(capsys, "000-1", "--list", "--only", "nothing*")
    assert (code, "--only: expected a pattern of curves" in words) == (2, True)


def test_panels_are_drawn_of_what_is_there(tmp_path, small, monkeypatch):
    saved, drawn = panels.save, []

    def kept(*given, **named):
        drawn.append(given[0])
        return saved(*given, **named)

    monkeypatch.setattr(panels, "save", kept)
    long = 'least = 0.5\n\n[labels]\nlong = "a label that is about as long as they are"'
    small.write_text(small.read_text().replace('log = ["x", "y"]\n', f'log = ["x", "y"]\n{long}\n'))
    figure = read_figure(small)
    runs = {}
    for k, curve in enumerate(figure.choices):
        for seed in (1, 2):
            write_run(tmp_path / f"{curve}-{seed}", name=curve, seed=seed, gap=1.0 + k)
        runs[curve] = [read(tmp_path / f"{curve}-{seed}") for seed in (1, 2)]
    picture, pdf = draw_panels(figure, runs, tmp_path / "drawn")
    draw_panels(figure, runs, tmp_path / "quick", is_quick=True)
    assert drawn[0].get_suptitle() == ""
    assert drawn.pop().get_suptitle() == panels.QUICK_LOOK
    assert picture.stat().st_size > 10_000
    assert pdf.stat().st_size > 5_000
    assert draw_panels(figure, {}, tmp_path / "none") == []
    legend, room = drawn[0].legends[0].get_window_extent(), drawn[0].bbox
    assert 0 <= legend.x0 < legend.x1 <= room.width
    assert drawn[0].axes[1].get_ylim()[0] == 0.5
    for old, new, text in (
        ('y = "cost"', 'y = "csot"', r"axes.y: expected a column .* 'csot'; did you mean 'cost'"),
        ('title = "quick', r'title = "$\\frac{x$', "titles and labels that can be set"),
    ):
        wrong = tmp_path / "wrong.toml"
        wrong.write_text(small.read_text().replace(old, new))
        with pytest.raises(ConfigError, match=text):
            draw_panels(read_figure(wrong), runs, tmp_path / "wrong")
        read_figure.cache_clear()
    x, rows = values_of(runs["steps-long"], figure.file.axes[1])
    assert rows.shape == (2, len(x))


PROSE = ("check PARTIAL: see ", "check EXAMPLE: see ", "check CLIENT: see ")
"""Of checks that the page describes without a row in a table."""


@dataclass
class Made:
    """A run as a report knows it, of a config alone."""

    manifest: dict


@pytest.mark.slow
def test_gradients_are_counted_in_passes_over_the_records():
    """IFO calls of spec 003: n a step of DP-RGD, n + 2 m an epoch of DP-RSVRG; b a step else."""
    of = "configs/figures/003_3c.toml::003_3c_tree_eps0.1_"
    counts = {"rgd": 1.0, "rsgd": 0.1, "rsvrg": 1.2}
    for curve, count in counts.items():
        config = load(ROOT / f"{of}{curve}").model_dump(mode="json")
        assert passes_a_round(Made({"config": config})) == pytest.approx(count, rel=1e-6)


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


def test_every_check_of_a_figure_has_a_verdict_on_its_page():
    for path in sorted(FIGURES.glob("*.toml")):
        figure = read_figure(path)
        found = verdicts_of(figure)
        assert [line.partition(":")[0] for line in found] == [
            f"check {check}" for check in figure.file.checks
        ], path
        for line in found:
            said = any(word in line for word in ("reproduced", "regime", "contradicted"))
            assert said != any(check in line for check in PROSE), line
