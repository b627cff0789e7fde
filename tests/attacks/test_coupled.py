"""Growing samples under attack: the published bound fails on streams of data, the charges hold."""

from dataclasses import replace

import pytest

from manifed.algorithms.growing_samples import GrowingSamples
from manifed.audit.bound import find
from manifed.audit.of_config import attacks_of
from manifed.errors import ConfigError
from manifed.privacy.mechanism import ExampleMechanism, Noise
from manifed.privacy.random_numbers import NoiseSource
from reproduction.powers import EXAMPLES
from tests.algorithms.test_growing_samples import experiment
from tests.attacks.coupled import (
    CoupledAttack,
    audited_coupling,
)

SOURCE = NoiseSource.from_seed(3)
TRIALS = 1500
CLIPPED = ExampleMechanism(
    l2_norm_clip=0.5, neighboring_relation="replace-one", noise=Noise(multiplier=1.0)
)
WAYS = {
    "own": {"perturbation": "output", "lipschitz": 1.0},
    "mixed": {"perturbation": "output", "grad_point": "mixed"},
    "gradient": {"perturbation": "gradient"},
}


def growing(**table):
    example = EXAMPLES[1 if table["perturbation"] == "output" else 2]
    more = {"schedules": example.schedules, "graph": {"kind": "ring"}, "num_nodes": 6}
    return GrowingSamples(**more, **table)


def verdict(training, mechanism, rounds=6, trials=TRIALS):
    return find(audited_coupling("-", training, mechanism, rounds, SOURCE, trials))


def test_the_published_bound_of_algorithm_1_is_violated_on_a_stream_of_data():
    found = verdict(growing(perturbation="output", mode="paper"), None)
    assert found.claimed_epsilon == 1
    assert found.is_violated
    assert found.epsilon_lower_bound > 1.5


def test_at_one_point_the_published_sum_is_no_further_off_than_said():
    """The pair's loss is the corrected sum, which exceeds the printed one by the newest terms."""
    audited = audited_coupling(
        "-", growing(perturbation="output", mode="paper", grad_point="mixed"), None, 30, SOURCE, 10
    )
    assert 1 < audited.attack.loss() < 1.1


@pytest.mark.parametrize("way", WAYS)
def test_what_is_charged_for_the_rigorous_mode_is_not_violated_and_nearly_proved(way):
    found = verdict(growing(**WAYS[way]), CLIPPED)
    assert not found.is_violated
    assert found.power > 0.5


@pytest.mark.parametrize("way", WAYS)
def test_too_little_noise_is_seen(way):
    """Planted: half of the noise that is charged."""
    honest = audited_coupling("-", growing(**WAYS[way]), CLIPPED, 6, SOURCE, TRIALS)
    assert isinstance(honest.attack, CoupledAttack)
    broken = replace(honest.attack, mechanism=CLIPPED.scaled(0.5))
    quiet = replace(honest, attack=broken, claim=honest.attack.claim)
    assert find(quiet).is_violated


def test_the_audit_of_a_config_refuses_coupled_streams_by_name():
    with pytest.raises(ConfigError, match="steps or statistics, got 'growing-samples'"):
        attacks_of(experiment("output, mixed"), 10)
