"""The configs of DECOR's Figure 1: their noise is that of the stated budget, and they run."""

import re

import pytest

from manifed.cli.launch import Request
from manifed.experiment.figure_files import read_figure
from manifed.experiment.load import load
from manifed.runs.figure_runs import FigureTask, tasks_of
from reproduction import figure
from reproduction.decor_figure_1 import PANELS, noise_of
from reproduction.experiments import FIGURES, curves, experiment_path
from reproduction.trials import run_silently

pytestmark = pytest.mark.golden
ALL = [(name, curve) for name, panel in PANELS.items() for curve in panel.curves]
QUICK = {"004-1a", "004-1b"}


@pytest.mark.parametrize(
    ("name", "curve"),
    [pytest.param(*one, marks=[] if one[0] in QUICK else pytest.mark.slow) for one in ALL
     if one[0] != "004-1c"],
)  # fmt: skip
def test_the_noise_of_a_config_is_that_of_its_budget_or_a_little_more(name, curve):
    named = f"{name.replace('-', '_')}_{curve}"
    (stated,) = re.findall(r"that of epsilon = (\d+);", curves()[named].file.left_open)
    config = load(experiment_path(named))
    own, masks = noise_of(config, curve, float(stated))
    assert own <= config.privacy.noise_stddev <= own * (1 + 1e-5)
    assert masks <= config.privacy.mask_stddev <= masks * (1 + 1e-5)


@pytest.mark.slow
def test_a_panel_runs_at_its_budgets_and_leaves_a_picture_and_a_table(tmp_path):
    name, short = "004-1b-breast-cancer", ("federation.num_rounds=40",)
    whole = read_figure(FIGURES / "004_1b_breast_cancer.toml")
    tasks: list[FigureTask] = []
    for budget in (3.0, 40.0):
        for curve in whole.choices:
            noise = figure.noise_for(load(whole.source(curve), short), curve, budget)
            folder = tmp_path / f"epsilon-{budget:g}"
            tasks += tasks_of(whole, [curve], [0], folder, (*short, *noise))
    for task in tasks:
        run_silently(Request(task.source, task.overrides, out=task.directory, plain=True))
    picture, pdf, table = figure.draw_runs(whole, tasks, tmp_path / "drawn")
    assert picture.stat().st_size > 10_000
    assert pdf.read_bytes().startswith(b"%PDF")
    head, *rows = table.read_text().splitlines()
    assert head == "curve,epsilon,seeds,mean,least,greatest"
    assert len(rows) == 2 * len(PANELS[name].curves)
