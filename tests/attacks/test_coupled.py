"""Growing samples under attack: the published bound fails on streams of data, the charges hold."""

from dataclasses import replace

import pytest

from manifed.algorithms.growing_samples import GrowingSamples
from manifed.audit.bound import find
from manifed.audit.of_config import attacks_of
from manifed.errors import ConfigError
from manifed.privacy import accountant
from manifed.privacy.mechanism import ExampleMechanism, Noise
from manifed.privacy.noise import NoiseSource
from manifed.schedules.schedule import EXAMPLES
from tests.algorithms.test_growing_samples import experiment
from tests.attacks.coupled import (
    CoupledAttack,
    audited_coupling,
    charged,
    rounds_attacked,
    shipped_coupling,
)

SOURCE, TRIALS = NoiseSource.from_seed(3), 1500
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
    return find(audited_coupling("-", training, mechanism, rounds, SOURCE, trials)).verdict


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
    assert find(quiet).verdict.is_violated


def test_the_claim_is_what_a_run_of_these_rounds_is_charged():
    audited = shipped_coupling(SOURCE)
    training, rounds = audited.attack.training, audited.attack.num_rounds
    setup = [training.in_round(r + 1).releases(CLIPPED, 10**6) for r in range(rounds)]
    events = [event for releases in setup for event in releases]
    assert audited.attack.claim(1e-3) == pytest.approx(accountant.epsilon(events, 1e-3), rel=1e-9)
    assert len(charged(audited.attack)) == rounds


def test_so_many_rounds_are_attacked_as_samples_allow():
    training = growing(perturbation="output", mode="paper")
    assert rounds_attacked(training, 5) == 5
    assert rounds_attacked(training, 10**5) == 45
    huge = {"kind": "ceil-polynomial", "scale": 5000.0, "exponent": 1.0}
    schedules = training.schedules.model_dump() | {"sample_size": huge}
    assert rounds_attacked(growing(perturbation="gradient").model_copy(
        update={"schedules": type(training.schedules)(**schedules)}), 10) == 1  # fmt: skip


def test_the_audit_of_a_config_refuses_coupled_streams_by_name():
    with pytest.raises(ConfigError, match="steps or statistics, got 'growing-samples'"):
        attacks_of(experiment("output, mixed"), 10)
