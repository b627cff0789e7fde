"""The configs of DECOR's Figure 1: their noise is that of the stated budget, and they run."""

import re
from dataclasses import replace

import pytest

from reproduction import figures
from reproduction.decor_figure_1 import PANELS, noise_of
from reproduction.figure_files import figure_named
from reproduction.figures import Asked
from reproduction.trials import experiment

pytestmark = pytest.mark.golden
ALL = [(name, named) for name in PANELS if name != "004-1c" for named in figure_named(name).choices]
QUICK = {"004-1a", "004-1b"}


@pytest.mark.parametrize(
    ("name", "named"),
    [pytest.param(*one, marks=[] if one[0] in QUICK else pytest.mark.slow) for one in ALL],
)
def test_the_noise_of_a_config_is_that_of_its_budget_or_a_little_more(name, named):
    curve = named.rpartition("_")[2]
    (stated,) = re.findall(r"that of epsilon = (\d+);", figure_named(name).file.left_open)
    config = experiment(named)
    own, masks = noise_of(config, curve, float(stated))
    assert own <= config.privacy.noise_stddev <= own * (1 + 1e-5)
    assert masks <= config.privacy.mask_stddev <= masks * (1 + 1e-5)


@pytest.mark.slow
@pytest.mark.one_week_in(3)
def test_a_panel_runs_at_its_budgets_and_leaves_a_picture_and_a_table(tmp_path, monkeypatch):
    name = "004-1b-breast-cancer"
    whole = figure_named(name)
    file = whole.file.model_copy(update={"budgets": [3.0, 40.0]})
    short = replace(whole, file=file)
    asked = Asked(out=tmp_path, seeds=1, sets=("federation.num_rounds=40",))
    monkeypatch.setattr(figures, "figure_named", lambda _: short)
    drawn, failed = figures.reproduce([name], asked, jobs=1)
    assert not failed
    picture, pdf, table = drawn[name]
    assert picture.stat().st_size > 10_000
    assert pdf.read_bytes().startswith(b"%PDF")
    head, *rows = table.read_text().splitlines()
    assert head == "curve,epsilon,seeds,mean,least,greatest"
    assert len(rows) == 2 * len(whole.choices)
