"""Nodes with clocks of their own: the synchronous loop with equal clocks, bounded elsewhere."""

from itertools import pairwise

import numpy as np
import pytest

from manifed.privacy.series import Releases
from reproduction.asynchronous_samples import Clocks, run, spent
from reproduction.checks_002.asynchrony import EQUAL, MIXED, ONE_SLOW, outcome
from reproduction.checks_002.settings import NODES, RING, START, STREAM, releases, schedules
from reproduction.time_varying_reference import Setting
from reproduction.time_varying_reference import run as synchronous

pytestmark = pytest.mark.golden
WAYS = [
    (1, "output", "paper", "own"), (2, "gradient", "paper", "own"),
    (1, "output", "rigorous", "mixed"), (2, "gradient", "rigorous", "own"),
]  # fmt: skip


def ticks_of(setting, periods, stale, ticks, tables=None, seed=0):
    tables = tables or (setting.schedules,) * NODES
    start = np.tile(START, (2, NODES, 1))
    rng = np.random.default_rng(seed)
    return list(run(setting, tables, Clocks(periods, stale), STREAM, start, ticks, rng))


@pytest.mark.parametrize("period", [1, 3])
@pytest.mark.parametrize("stale", [0, 7])
@pytest.mark.parametrize(("number", "algorithm", "mode", "point"), WAYS)
def test_equal_clocks_are_the_synchronous_loop_bit_for_bit(
    number, algorithm, mode, point, stale, period
):
    setting = Setting(algorithm, schedules(number), RING, mode, 20.0, grad_point=point)
    start, rng = np.tile(START, (2, NODES, 1)), np.random.default_rng(0)
    expected = [one.models for one in synchronous(setting, STREAM, start, 12, rng)]
    found = ticks_of(setting, (period,) * NODES, stale, 12 * period)
    acted = [one for one in found if one.acted.any()]
    assert len(acted) == 12
    assert all(one.acted.all() for one in acted)
    for one, models in zip(acted, expected, strict=True):
        assert np.array_equal(one.models, models)
    if algorithm == "output":
        assert np.all(acted[-1].sent != acted[-1].models)


@pytest.mark.parametrize("stale", [0, 1, 5])
def test_nobody_begins_further_ahead_of_a_neighbour_than_is_allowed(stale):
    setting = Setting("gradient", schedules(2), RING)
    found = ticks_of(setting, ONE_SLOW, stale, 87)
    before = np.zeros(NODES, dtype=int)
    for one in found:
        for i in np.flatnonzero(one.acted):
            neighbours = [before[(i - 1) % NODES], before[(i + 1) % NODES]]
            assert before[i] <= min(neighbours) + stale
        before = one.done
    fastest, slow = before.max(), before[-1]
    assert slow == 80 // 8
    assert before[0] == min(87, slow + 1 + stale)  # a neighbour of the slow one
    assert fastest == min(87, slow + 3 * (1 + stale))  # three edges away


def test_a_node_that_does_not_act_keeps_what_it_has_and_what_it_showed():
    setting = Setting("output", schedules(1), RING)
    found = ticks_of(setting, MIXED, 100, 30)
    for earlier, later in pairwise(found):
        still = ~later.acted
        assert np.array_equal(earlier.models[:, still], later.models[:, still])
        assert np.array_equal(earlier.sent[:, still], later.sent[:, still])
        assert np.all(earlier.sent[:, later.acted] != later.sent[:, later.acted])


def test_every_node_pays_for_its_own_iterations_and_its_own_samples():
    found = outcome(1, MIXED, 100, ticks=40, seeds=1)
    assert found.done == [40, 20, 10, 40, 20, 10]
    for i, period in enumerate(MIXED):
        own = releases(1, a3=float(period))
        assert found.epsilon[i] == pytest.approx(own.series(found.done[i]).partial, rel=1e-12)
    assert found.epsilon[0] > 2 * found.epsilon[1] > 4 * found.epsilon[2]


def test_what_a_coupled_node_loses_is_at_most_its_own_price():
    """Two streams of node 0, one example an iteration apart, at the points that everybody sees."""
    table, periods = schedules(1), (3, 1, 2, 1, 2, 1)
    setting = Setting("output", table, RING, "rigorous", 20.0, grad_point="mixed")
    priced = Releases(algorithm="output", schedules=table, sensitivity=20.0)
    ticks, apart, loss = ticks_of(setting, periods, 4, 60), 0.0, 0.0
    for one in (t for t in ticks if t.acted[0]):
        k = int(one.done[0]) - 1
        apart = (1 - table.mixing(k)) * apart + 20.0 * table.step_size(k) / table.size(k)
        loss += apart / table.noise_scale(k + 1)
    done = ticks[-1].done
    assert loss == pytest.approx(spent((priced,) * NODES, done)[0], rel=1e-9)
    assert loss < priced.series(60).partial  # of a node that acts in every tick


def test_what_is_no_clock_is_refused():
    with pytest.raises(ValueError, match="periods: expected ticks >= 1, got 0"):
        Clocks((1, 0), 0)
    with pytest.raises(ValueError, match="max_staleness: expected a number >= 0, got -1"):
        Clocks(EQUAL, -1)
    with pytest.raises(ValueError, match="expected one of each for 6 nodes, got 6, 2"):
        ticks_of(Setting("gradient", schedules(2), RING), (1, 1), 0, 1)
