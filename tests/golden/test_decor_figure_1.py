"""The configs of DECOR's Figure 1: their noise is that of the stated budget, and they run."""

import re

import pytest

from manifed.experiment.load import load
from reproduction import figure
from reproduction.decor_figure_1 import PANELS, config_of, noise_of
from reproduction.experiments import curves, experiment_path

pytestmark = pytest.mark.golden
ALL = [(name, curve) for name, panel in PANELS.items() for curve in panel.curves]
QUICK = {"004-1a", "004-1b"}


@pytest.mark.parametrize(
    ("name", "curve"),
    [pytest.param(*one, marks=[] if one[0] in QUICK else pytest.mark.slow) for one in ALL
     if one[0] != "004-1c"],
)  # fmt: skip
def test_the_noise_of_a_config_is_that_of_its_budget_or_a_little_more(name, curve):
    named = config_of(name, curve)
    (stated,) = re.findall(r"that of epsilon = (\d+);", curves()[named].file.left_open)
    config = load(experiment_path(named))
    own, masks = noise_of(config, curve, float(stated))
    assert own <= config.privacy.noise_stddev <= own * (1 + 1e-5)
    assert masks <= config.privacy.mask_stddev <= masks * (1 + 1e-5)


@pytest.mark.slow
def test_a_panel_runs_at_its_budgets_and_leaves_a_picture_and_a_table(tmp_path, capsys):
    name = "004-1b-breast-cancer"
    given = ["--epsilons", "3", "40", "--seeds", "1", "--set", "federation.num_rounds=40"]
    assert figure.main([name, "--out", str(tmp_path), *given]) == 0
    *_, picture, table = capsys.readouterr().out.splitlines()
    assert picture.endswith(f"figure-{name}.png")
    head, *rows = (tmp_path / f"figure-{name}.csv").read_text().splitlines()
    assert table == str(tmp_path / f"figure-{name}.csv")
    assert head == "curve,epsilon,seeds,mean,least,greatest"
    assert len(rows) == 2 * len(PANELS[name].curves)
    assert figure.main(["004-9"]) == 2
    assert "004-1a" in capsys.readouterr().err
