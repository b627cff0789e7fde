"""The second moments, draws and clips that the checks of growing samples count on."""

import numpy as np
import pytest

from reproduction.checks_002 import least_squares
from reproduction.checks_002.settings import (
    NODES,
    RING,
    START,
    STREAM,
    errors,
    schedules,
)
from reproduction.decor_reference import clipped
from reproduction.time_varying_reference import Setting, last_models, run

pytestmark = pytest.mark.golden


@pytest.mark.parametrize("number", [1, 2])
def test_the_second_moments_are_those_of_the_table(number):
    assert least_squares.off_table(number, 1000) < 1e-4


@pytest.mark.parametrize(("number", "seed"), [(1, 0), (2, 1)])
def test_draws_agree_with_the_second_moments(number, seed):
    algorithm = least_squares.NAMES[number]
    start = np.broadcast_to(START, (400, NODES, len(START)))
    setting = Setting(algorithm, schedules(number), RING)
    models = last_models(run(setting, STREAM, start, 30, np.random.default_rng(seed)))
    found = errors(models)
    table = schedules(number)
    exact = least_squares.moments(algorithm, table, (30,))[30].mse
    assert abs(found.mean() - exact) < 5 * found.std() / 400**0.5


@pytest.mark.parametrize("norm", [1, 2])
def test_a_clip_bounds_how_far_one_example_moves_the_mean(norm):
    rng = np.random.default_rng(0)
    rows = clipped(rng.standard_normal((50, 6)) * 10 ** rng.uniform(-3, 3, (50, 1)), 0.1, norm)
    lengths = np.linalg.norm(rows, ord=norm, axis=-1)
    assert lengths.max() <= 0.1 * (1 + 1e-12)
    assert (lengths < 0.05).any()
