"""External and server prices: bounds that hold when participation shows."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from manifed.privacy import accountant
from manifed.privacy.accountant import NoValidBound
from manifed.privacy.events import (
    GaussianRelease,
    PoissonSampled,
    SampledWithoutReplacement,
    Unsampled,
)
from manifed.privacy.participation import (
    Guarantee,
    external_epsilon,
    external_epsilon_of_rounds,
    server_epsilon,
    server_epsilon_a_priori,
)

settings.register_profile("privacy", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("privacy")
PAPER = Guarantee(epsilon=0.15, delta=1e-4)


def release(z, sampling=None, count=1, relation="add-or-remove"):
    return GaussianRelease(
        unit="example",
        neighboring_relation=relation,
        noise_multiplier=z,
        sampling=sampling or Unsampled(),
        count=count,
    )


POISSON = [release(1.1, PoissonSampled(sampling_probability=0.05), 3)]


@pytest.mark.golden
@pytest.mark.parametrize(
    ("rounds", "delta", "epsilon"), [(50, 1.05e-3, 0.2705), (500, 1.5e-3, 0.8778)]
)
def test_the_sound_numbers_of_the_addendum(rounds, delta, epsilon):
    found = external_epsilon(PAPER, participation_probability=0.01, num_rounds=rounds, delta=delta)
    assert found == pytest.approx(epsilon, rel=5e-3)


@pytest.mark.parametrize("rho", [0.01, 0.3, 1.0])
def test_one_round_scales_delta_and_keeps_epsilon(rho):
    """delta_round(eps) = rho delta_local(eps), spec/000 §11."""
    for delta in (1e-3, 1e-5):
        local = accountant.epsilon([release(1.0)], delta)
        found = external_epsilon(
            [release(1.0)], participation_probability=rho, num_rounds=1, delta=rho * delta
        )
        assert found == pytest.approx(local, rel=1e-4)


def test_many_rounds_are_the_binomial_mixture_of_closed_forms():
    """Participation revealed: delta(eps) = sum_k P[Bin = k] delta(eps; k updates)."""
    rho, rounds, z = 0.2, 12, 3.0
    epsilon = external_epsilon(
        [release(z)], participation_probability=rho, num_rounds=rounds, delta=1e-5
    )
    delta = sum(
        stats.binom.pmf(k, rounds, rho) * accountant.delta([release(z, count=k)], epsilon)
        for k in range(rounds + 1)
    )
    assert 0.999e-5 < delta <= 1e-5


def test_certain_participation_is_plain_composition():
    exact = accountant.epsilon([release(4.0, count=30)], 1e-5)
    whole = external_epsilon(
        [release(4.0)], participation_probability=1.0, num_rounds=30, delta=1e-5
    )
    assert whole == exact
    assert external_epsilon_of_rounds([([release(4.0)], 1.0)] * 30, 1e-5) == exact
    assert server_epsilon([release(4.0)], participations=30, delta=1e-5) == exact


def test_rounds_that_differ_compose():
    same = external_epsilon(POISSON, participation_probability=0.2, num_rounds=20, delta=1e-5)
    rounds = [(POISSON, 0.2)] * 20
    assert external_epsilon_of_rounds(rounds, 1e-5) == pytest.approx(same, rel=1e-9)
    more = external_epsilon_of_rounds([*rounds, ([release(3.0)], 0.5)], 1e-5)
    assert more > same
    assert external_epsilon_of_rounds([*rounds, ([release(3.0)], 1.0)], 1e-5) > more


def test_subsets_are_mixed_in_renyi_divergence():
    sampling = SampledWithoutReplacement(sample_size=10, population=1000)
    update = [release(2.0, sampling, 3, "replace-one")]
    mixed = external_epsilon(update, participation_probability=0.1, num_rounds=50, delta=1e-5)
    full = server_epsilon(update, participations=50, delta=1e-5)
    assert 0 < mixed < full
    near = external_epsilon(update, participation_probability=1 - 1e-9, num_rounds=50, delta=1e-5)
    assert near == pytest.approx(full, rel=1e-6)


@given(st.integers(1, 99), st.integers(1, 60), st.integers(8, 40))
def test_the_external_price_is_monotone_and_below_the_worst_server_price(percent, rounds, tenths):
    rho, update = percent / 100, [release(tenths / 10)]

    def price(rho, rounds, delta=1e-5):
        return external_epsilon(
            update, participation_probability=rho, num_rounds=rounds, delta=delta
        )

    base = price(rho, rounds)
    assert price(min(1.0, rho * 1.02), rounds) >= base * (1 - 1e-9)
    assert price(rho, rounds + 1) >= base * (1 - 1e-9)
    assert price(rho, rounds, 5e-6) >= base * (1 - 1e-9)
    assert base <= server_epsilon(update, participations=rounds, delta=1e-5) * (1 + 1e-4)
    a_priori = server_epsilon_a_priori(
        update, participation_probability=rho, num_rounds=rounds, delta=1e-5
    )
    assert base <= a_priori * (1 + 1e-4)
    assert a_priori <= server_epsilon(update, participations=rounds, delta=1e-5)


def test_an_update_over_most_examples_costs_no_more_than_one_over_all():
    """Known to hold: the participation shows, and the sample inside an update hides nothing."""

    def price(sampling):
        update = [release(4.0, sampling, count=3, relation="replace-one")]
        return external_epsilon(update, participation_probability=0.3, num_rounds=40, delta=1e-5)

    most = price(None)
    for size in (300, 600, 900):
        sampling = SampledWithoutReplacement(sample_size=size, population=1000)
        assert price(sampling) <= most * (1 + 1e-9)
    assert price(SampledWithoutReplacement(sample_size=30, population=1000)) < 0.5 * most


def test_the_a_priori_server_price_pays_the_tail_of_the_count():
    rho, rounds, delta = 0.1, 200, 1e-5
    found = server_epsilon_a_priori(
        [release(5.0)], participation_probability=rho, num_rounds=rounds, delta=delta
    )
    best = min(
        accountant.epsilon([release(5.0, count=k)], delta - tail)
        for k in range(1, rounds)
        if (tail := float(stats.binom.sf(k, rounds, rho))) < delta
    )
    assert best <= found <= best * 1.02
    assert found < 0.8 * server_epsilon([release(5.0)], participations=rounds, delta=delta)


def test_a_guarantee_composes_and_its_delta_counts():
    assert server_epsilon(PAPER, participations=1, delta=1e-4) == pytest.approx(0.15)
    assert server_epsilon(PAPER, participations=11, delta=1e-3) == math.inf
    assert server_epsilon(PAPER, participations=5, delta=1e-3) < 5 * 0.15
    assert server_epsilon(PAPER, participations=0, delta=0.0) == 0.0
    pure = Guarantee(epsilon=0.15, delta=0.0)
    assert server_epsilon(pure, participations=4, delta=0.0) == pytest.approx(0.6)


def test_nothing_costs_nothing_and_no_noise_costs_everything():
    assert external_epsilon([], participation_probability=0.5, num_rounds=9, delta=1e-5) == 0.0
    for update in (POISSON, PAPER):
        assert (
            external_epsilon(update, participation_probability=0.5, num_rounds=0, delta=0.0) == 0.0
        )
    bare = [release(0.0)]
    for rho in (0.1, 1.0):
        found = external_epsilon(bare, participation_probability=rho, num_rounds=2, delta=1e-3)
        assert found == math.inf


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"participation_probability": 0.0}, "participation_probability"),
        ({"participation_probability": 1.2}, "participation_probability"),
        ({"num_rounds": -1}, "number of rounds"),
        ({"delta": 2.0}, "delta"),
    ],
)
def test_arguments_out_of_range_are_refused(change, message):
    good = {"participation_probability": 0.5, "num_rounds": 3, "delta": 1e-5}
    with pytest.raises(ValueError, match=message):
        external_epsilon(POISSON, **{**good, **change})


def test_a_turn_without_a_bound_is_refused():
    mixed = [release(1.0), release(1.0, relation="replace-one")]
    with pytest.raises(NoValidBound):
        external_epsilon(mixed, participation_probability=0.5, num_rounds=3, delta=1e-5)


def test_amplification_by_client_sampling_is_not_claimed():
    """The counter-example of spec/000 §11: two clients, one drawn; client 1 shows who it is.

    Client 1 answers (1, RR(z)) by randomised response with epsilon; client 2 answers (2, 0). The
    likelihood ratio of the output (1, 1) between z = 1 and z = 0 is e^epsilon, whatever rho is.
    """
    epsilon, rho = 1.0, 0.5
    keep = math.exp(epsilon) / (1 + math.exp(epsilon))
    law = {
        z: np.array([rho * (keep if z else 1 - keep), rho * (1 - keep if z else keep), 1 - rho])
        for z in (0, 1)
    }
    true_epsilon = float(np.log(law[1] / law[0]).max())
    assert true_epsilon == pytest.approx(epsilon)
    for bound in (0.01, 0.5, epsilon - 1e-6):
        true_delta = float(np.maximum(law[1] - math.exp(bound) * law[0], 0).sum())
        ours = external_epsilon(
            Guarantee(epsilon=epsilon, delta=0.0),
            participation_probability=rho,
            num_rounds=1,
            delta=true_delta,
        )
        assert ours == pytest.approx(bound, abs=1e-6)
