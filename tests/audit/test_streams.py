"""DECOR with streams under attack: the best linear test over rounds, by the nodes' own code."""

from dataclasses import replace

import pytest

from manifed.audit.of_config import attacks_of
from manifed.audit.report import find
from manifed.audit.streams import stream_faults, stream_mechanisms
from manifed.errors import ConfigError
from manifed.experiment.load import load
from manifed.privacy.noise import NoiseSource
from tests.algorithms.test_stationary_decor import streaming

SOURCE = NoiseSource.from_seed(11)
SERVER, ONE = (audited.attack for audited in stream_mechanisms(SOURCE))


@pytest.mark.statistical
@pytest.mark.parametrize("attack", [SERVER, ONE], ids=["I", "II"])
def test_scores_are_two_gaussians_as_far_apart_as_the_noise_says(attack):
    """Each side's mean within 4.9 standard errors of half the distance, its variance in a range."""
    separation, count = attack.separation, 340
    for is_present, sign in ((True, 1.0), (False, -1.0)):
        scores = attack.scores(count, is_present=is_present) / (separation / 2)
        assert abs(scores.mean() - sign * separation / 2) < 4.9 / count**0.5
        assert 0.65 < scores.var(ddof=1) < 1.5


@pytest.mark.parametrize("attack", [SERVER, ONE], ids=["I", "II"])
def test_the_attack_reaches_nearly_what_is_charged_and_never_more(attack):
    charged = 2 * attack.num_rounds**0.5 / attack.hidden
    assert 0.96 * charged < attack.separation < charged
    longer = replace(attack, num_rounds=16)
    assert longer.separation / (2 * 16**0.5 / longer.hidden) > attack.separation / charged


def test_of_a_config_each_adversary_attacks_its_own_graph_and_streams():
    server, one, two = attacks_of(streaming(privacy={"collusion": 2, "noise_stddev": 9.0}), 10)
    assert [a.attack.coalition for a in (server, one)] == [(), one.attack.coalition]
    assert len(two.attack.coalition) == 2
    assert two.how.startswith("nodes ")
    assert server.attack.num_rounds == 5  # all there are
    assert 0 < server.claim(0.05) < one.claim(0.05) < two.claim(0.05)


def test_fresh_masks_of_a_config_are_attacked_and_other_masks_refused():
    ring = load("configs/examples/decor_ring.toml")
    assert [len(a.attack.coalition) for a in attacks_of(ring, 10)] == [0, 1, 2]
    with pytest.raises(ConfigError, match="got 'masked-mean'"):
        attacks_of(load("configs/examples/masked_mean.toml"), 10)


@pytest.mark.slow
@pytest.mark.parametrize("fault", stream_faults(SOURCE), ids=lambda m: m.name)
def test_every_planted_fault_of_streams_is_caught(fault):
    assert find(fault, 0.95).verdict.is_violated
