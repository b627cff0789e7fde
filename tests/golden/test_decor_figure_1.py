"""The configs of DECOR's Figure 1: their noise is that of the stated budget, and they run."""

import re
from dataclasses import replace

import pytest

from manifed.experiment.load import load
from reproduction import figures
from reproduction.decor_figure_1 import PANELS, noise_of
from reproduction.figure_files import FIGURES, curve_path, curves, read_figure
from reproduction.figures import Asked

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
    config = load(curve_path(named))
    own, masks = noise_of(config, curve, float(stated))
    assert own <= config.privacy.noise_stddev <= own * (1 + 1e-5)
    assert masks <= config.privacy.mask_stddev <= masks * (1 + 1e-5)


@pytest.mark.slow
def test_a_panel_runs_at_its_budgets_and_leaves_a_picture_and_a_table(tmp_path, monkeypatch):
    name = "004-1b-breast-cancer"
    whole = read_figure(FIGURES / "004_1b_breast_cancer.toml")
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
    assert len(rows) == 2 * len(PANELS[name].curves)
