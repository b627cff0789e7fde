"""Growing samples under Laplace noise: clip, law, charge and price are of L1."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from manifed.errors import ConfigError
from manifed.experiment.assembly import client_side
from manifed.experiment.load import dump, parse
from manifed.experiment.schema import sha256
from manifed.oracles.minibatch import Ask, Query
from manifed.oracles.noisy_oracle import Draws
from manifed.oracles.sums import gradient_sum
from manifed.plan import planned_statement
from manifed.privacy import epsilon_bounds
from manifed.privacy.mechanism import ExampleMechanism
from manifed.privacy.random_numbers import NoiseSource, Stream
from manifed.problems.examples import Examples
from manifed.problems.linear import LeastSquares
from reproduction.endless import Releases
from tests.algorithms.test_growing_samples import (
    CLIP,
    DELTA,
    L1,
    NODES,
    NOISE,
    PRIVATE,
    answer,
    experiment,
)
from tests.statistics.laws import MUTANTS, assert_chi_square, kolmogorov_accepts
from tests.tensors import assert_near

CASES = ["output, mixed", "gradient"]


def config_of(case, rounds=5, privacy=L1, **training):
    return experiment(case, rounds, privacy, **training)


# -- the law ---------------------------------------------------------------------------------
@pytest.mark.statistical
@pytest.mark.parametrize("precision", ["single", "summed"])
def test_the_whole_distribution_is_laplace(precision):
    """2 sum |x_i| of n draws is chi-square with 2 n degrees of freedom, and not 2 sum |x_i| m."""
    draws = Draws(NoiseSource.from_seed(2024, precision=precision), 1, 2)
    x = draws.laplaces((400_000,), Stream.GRADIENT_NOISE, 0).numpy()
    assert kolmogorov_accepts(x, stats.laplace.cdf)
    assert not kolmogorov_accepts(x * 1.03, stats.laplace.cdf)
    assert_chi_square(2 * np.abs(x).sum(), 2 * x.size, np.sqrt(MUTANTS))


def test_the_quantile_is_exact_from_tail_to_tail(monkeypatch):
    small = np.concatenate([[0], 2 ** np.arange(52)])
    k = np.unique(np.concatenate([small, 2**52 - 1 - small]))
    u = (k + 0.5) / 2.0**52
    monkeypatch.setattr(NoiseSource, "uniforms", lambda *_: torch.from_numpy(u))
    found = NoiseSource.from_seed(0).laplaces((len(u),)).numpy()
    np.testing.assert_allclose(stats.laplace.cdf(found), u, rtol=1e-9)
    assert np.abs(found).max() == pytest.approx(53 * math.log(2) - math.log(2), rel=1e-9)


@pytest.mark.parametrize("case", CASES)
def test_what_leaves_a_node_carries_the_noise_that_is_charged(case):
    config = config_of(case)
    side = client_side(config)
    quiet = replace(side.setup, mechanism=side.setup.mechanism.scaled(0.0))
    schedules = config.training.schedules
    is_output = case != "gradient"
    for k in range(5):
        setup = side.setup.in_round(k + 1)
        (query,) = setup.queries(4)
        (event,) = setup.releases(k + 1, 4)
        assert event.kind == "laplace"
        assert query.stddev == pytest.approx(event.noise_multiplier * query.sensitivity, rel=1e-12)
        assert query.stddev == pytest.approx(
            NOISE * 2 * CLIP * schedules.noise_scale(k + is_output), rel=1e-12
        )
        done = answer(config, i=1, server_round=k + 1)
        if is_output:
            noise = done.up.x - done.memory.x
        else:
            bare = answer(config, i=1, server_round=k + 1, setup=quiet)
            noise = (bare.up.x - done.up.x) / schedules.step_size(k)
        draws = Draws(side.source.fresh(), 1, k + 1)
        drawn = draws.laplaces((4,), Stream.GRADIENT_NOISE, int(is_output))
        assert_near(noise, query.stddev * drawn, 1e-12)


# -- the clip --------------------------------------------------------------------------------
@pytest.mark.parametrize("length", [1e-3, 1.0, 1e3, 1e150, 1e308, math.inf, math.nan])
def test_no_record_adds_more_than_the_bound_in_l1(length):
    rng = np.random.default_rng(0)
    rows = torch.from_numpy(rng.standard_normal((1, 7))) * length
    examples = Examples({"feature": rows, "target": torch.ones(1).double()})
    x = torch.from_numpy(rng.standard_normal(7))
    query = Query.of(ExampleMechanism(l2_norm_clip=0.4, l1_norm_clip=0.4), Ask(), 1)
    vectors = gradient_sum(LeastSquares(), query, (x,), examples)
    added = vectors.sum(torch.ones(1).double())
    assert added.abs().sum() <= 0.4 * (1 + 1e-12)
    bare = LeastSquares().rgrads(x, examples)[0]
    if math.isfinite(length) and float(bare.abs().sum()) < 0.4:
        assert_near(added, bare)


# -- the price -------------------------------------------------------------------------------
@pytest.mark.parametrize("case", CASES)
def test_the_ledgers_charges_are_what_the_series_says(case):
    config = config_of(case, rounds=40)
    training = config.training
    setup = client_side(config).setup
    events = [one for r in range(1, 41) for one in setup.releases(r, 4)]
    series = Releases(
        algorithm=training.perturbation, schedules=training.schedules, sensitivity=1 / NOISE,
        noise="laplace", num_examples=4,
    )  # fmt: skip
    pure = math.fsum(1 / one.noise_multiplier for one in events)
    assert pure == pytest.approx(series.series(40).partial, rel=1e-9)
    assert epsilon_bounds.epsilon(events, 0.0) == pytest.approx(pure, rel=1e-9)
    assert epsilon_bounds.epsilon(events, DELTA) <= pure
    said = planned_statement(config.setting, (4,) * NODES)
    assert (
        "Laplace in every coordinate, gradients clipped in L1, at each client"
        in (said["mechanism"])
    )
    assert said["adversaries"][0]["epsilon"] == pytest.approx(
        epsilon_bounds.epsilon(events, DELTA), rel=1e-9
    )


# -- what is refused -------------------------------------------------------------------------
def test_configs_of_before_keep_their_hash_and_wrong_ones_are_refused_by_name():
    assert sha256(experiment("gradient")) == sha256(
        experiment("gradient", privacy={**PRIVATE, "l1_norm_clip": None})
    )
    with pytest.raises((ConfigError, ValueError), match=r"l1_norm_clip = 0.4 takes its place"):
        config_of("gradient", privacy={**L1, "l2_norm_clip": 1.0})
    with pytest.raises((ConfigError, ValueError), match=r"training.lipschitz: a clip in L1"):
        config_of("output, own")
    training = {"kind": "rsgd", "step_size": 0.1, "minibatch": {"kind": "full"}}
    with pytest.raises(ValueError, match=r"is drawn by training.kind = 'growing"):
        parse(dump(config_of("gradient")) | {"training": training})
