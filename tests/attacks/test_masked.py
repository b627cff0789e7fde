"""DECOR under attack: best linear tests through the nodes' own code, and a run's log read."""

from dataclasses import replace

import pytest
import torch

from manifed.audit.attacks import MaskedAttack
from manifed.audit.of_config import attacks_of
from manifed.errors import ConfigError
from manifed.experiment.load import load
from manifed.privacy.random_numbers import NoiseSource
from manifed.privacy.secldp import Correlated, against
from tests.attacks.shipped import NOISE, RING, MasksUsedTwice, as_a
from tests.attacks.transcript import Heard, read

SOURCE = NoiseSource.from_seed(11)
ATTACK = MaskedAttack(RING, NOISE, SOURCE)
CLIP = 1.0


@pytest.mark.statistical
@pytest.mark.parametrize("coalition", [(), (0,), (1, 3)], ids=["I", "II", "III"])
def test_the_best_test_separates_by_what_is_charged(coalition):
    """Scores are two Gaussians d' apart: each side's mean within 4.9 standard errors of its law."""
    attack = replace(ATTACK, coalition=coalition)
    count = 200
    worst = against(RING, NOISE, coalition)
    for is_present, sign in ((True, 1.0), (False, -1.0)):
        scores = attack.scores(count, is_present=is_present)
        mean = scores.mean() / (CLIP * worst.precision)
        spread = worst.precision**-0.5 / CLIP / count**0.5
        assert abs(mean - sign) < 4.9 * spread
        variance = scores.var(ddof=1) / worst.precision
        assert 0.55 < variance < 1.6


def test_fresh_masks_of_a_config_are_attacked_and_other_masks_refused():
    ring = load("configs/examples/decor_ring.toml")
    attacks = attacks_of(ring, 10)
    assert [len(a.attack.coalition) for a in attacks] == [0, 1, 2]
    claims = [a.attack.claim(0.05) for a in attacks]
    assert 0 < claims[0] < claims[1] < claims[2]
    assert attacks[2].how.startswith("nodes ")
    assert max(a.attack.scores(2, is_present=True).size for a in attacks) == 2
    with pytest.raises(ConfigError, match="got 'masked-mean'"):
        attacks_of(load("configs/examples/masked_mean.toml"), 10)


# -- a log ------------------------------------------------------------------------------------
def log_of(attack, rounds):
    """The rounds of one copy, as the server relays them, along the canary."""
    had = torch.zeros(8, 1, dtype=torch.float64)
    return [Heard(had, -attack.seen(r, is_present=True).mT, 1.0) for r in range(1, rounds + 1)]


def clean(attack):
    """Nothing, but where the canary is."""
    return lambda x: CLIP * (torch.arange(8) == attack.victim).to(x).unsqueeze(-1)


@pytest.mark.statistical
def test_a_log_of_masked_messages_reads_as_charged_and_planted_faults_do_not():
    one = replace(ATTACK, copies=1)
    for reading in read(log_of(one, 60), clean(one), RING, NOISE):
        assert reading.is_as_charged, reading
    twice = as_a(MasksUsedTwice, one)
    for reading in read(log_of(twice, 60), clean(twice), RING, NOISE):
        assert reading.change < reading.lowest[1]
    bare = log_of(one, 60)
    for heard in bare:  # one node forgets its masks
        heard.sent[3] = heard.had[3] - clean(one)(heard.had)[3] - 0.01
    verdicts = [r.is_as_charged for r in read(bare, clean(one), RING, NOISE)]
    assert verdicts == [i != 3 for i in range(8)]


@pytest.mark.slow
@pytest.mark.statistical
@pytest.mark.parametrize("scale", [0.8, 1.25])
def test_noise_of_another_size_is_read_in_a_log(scale):
    one = replace(ATTACK, copies=1)
    other = Correlated(NOISE.sigma_cdp * scale, NOISE.sigma_cor * scale)
    found = read(log_of(one, 300), clean(one), RING, other)
    assert not all(reading.is_as_charged for reading in found)
