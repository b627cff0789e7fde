"""The figures of growing samples: every one is drawn, with a table that says what is in it."""

from itertools import islice

import numpy as np
import pytest

from reproduction import time_varying_figures as figures
from reproduction.checks_002.settings import NODES, RING, START, STREAM, releases
from reproduction.time_varying_rivals import RIVALS, Constants, epsilon_of_an_iteration

pytestmark = pytest.mark.golden


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(figures, "ROUNDS", 30)
    monkeypatch.setattr(figures, "MARKS", (1, 5, 30))
    monkeypatch.setattr(figures, "SEEDS", 2)
    monkeypatch.setattr(figures, "TRAINED", (1, 3))
    monkeypatch.setattr(figures, "GAMMAS", (0.9, 1.2))


def table_of(folder, name):
    figures.draw(name, folder)
    assert (folder / f"figure-{name}.png").stat().st_size > 10_000
    head, *rows = (folder / f"figure-{name}.csv").read_text().splitlines()
    values = np.array([[float(v) for v in row.split(",")] for row in rows])
    assert values.shape[1] == len(head.split(","))
    return dict(zip(head.split(","), values.T, strict=True))


@pytest.mark.slow
@pytest.mark.usefixtures("short")
def test_every_figure_is_drawn(tmp_path):
    first = table_of(tmp_path, "002-1")
    np.testing.assert_allclose(first["Algorithm 1"][0], 232.0, rtol=1e-5)
    totals = table_of(tmp_path, "002-2")
    assert totals["Algorithm 2; eta 0"].tolist()[0] == np.inf
    assert totals["Algorithm 1; eta 0.05"][1] == pytest.approx(0.9194, abs=2e-3)
    for number, rivals in ((3, ("DOLA [42]", "Q-DPSGD-2 [44]")),
                           (4, ("A(DP)^2SGD [43]", "Q-DPSGD-1 [44]"))):  # fmt: skip
        found = table_of(tmp_path, f"002-{number}")
        own = releases(number - 2).series(30).partial
        assert found[f"Algorithm {number - 2}: epsilon"][-1] == pytest.approx(own, rel=1e-6)
        for name in rivals:
            assert np.all(found[f"{name}: MSE"] > 0)
            spent = found[f"{name}: epsilon"]
            np.testing.assert_allclose(spent, spent[0] * np.array([1, 5, 30]), rtol=1e-6)
    accuracy = table_of(tmp_path, "002-5")
    assert len(accuracy) == 1 + 2 * 3
    assert all(0 <= v <= 1 for name, row in accuracy.items() if name != "iteration" for v in row)


@pytest.mark.slow
def test_a_quick_look_is_a_few_iterations_without_the_large_images(tmp_path):
    figures.draw("002-6", tmp_path, is_quick=True)
    assert (tmp_path / "figure-002-6.png").stat().st_size > 10_000
    head, *rows = (tmp_path / "figure-002-6.csv").read_text().splitlines()
    assert len(rows) == len(figures.QUICK)
    assert "digits" in head
    assert "mnist" not in head


@pytest.mark.parametrize("name", RIVALS)
def test_a_rival_without_noise_is_gradient_descent_that_arrives(name):
    """Its noise, batch and grid gone, every rule contracts to the minimiser."""
    calm = Constants(RING, noise_scale=1e-9, batch=10**6, cell=1e-7)
    start = np.tile(START, (1, NODES, 1))
    made = RIVALS[name](calm, STREAM, start, np.random.default_rng(0))
    *_, models = islice(made, 150)
    assert np.abs(models - 0.5).max() < 0.02


def test_rivals_are_priced_by_what_an_example_moves():
    """C = 0.2, batch 10, step 0.05, scale 1: by hand."""
    prices = {name: epsilon_of_an_iteration(name, Constants(RING), 6) for name in RIVALS}
    assert prices == pytest.approx(
        {"DOLA [42]": 0.001, "A(DP)^2SGD [43]": 0.02, "Q-DPSGD-1 [44]": 0.02,
         "Q-DPSGD-2 [44]": 0.061}
    )  # fmt: skip
