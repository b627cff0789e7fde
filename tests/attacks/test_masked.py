"""DECOR under attack: best linear tests through the nodes' own code."""

from dataclasses import replace
from typing import Literal

import pytest

from manifed.algorithms.decor import Decor
from manifed.audit.attacks import MaskedAttack
from manifed.audit.of_config import attacks_of
from manifed.errors import ConfigError
from manifed.experiment.load import load
from manifed.privacy.random_numbers import NoiseSource
from manifed.privacy.secldp import against
from tests.attacks.shipped import NOISE, RING

SOURCE = NoiseSource.from_seed(11)
ATTACK = MaskedAttack(RING, NOISE, SOURCE)
CLIP = 1.0


class Other(Decor):
    kind: Literal["other"] = "other"


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


@pytest.mark.slow
def test_fresh_masks_of_a_config_are_attacked_and_other_masks_refused():
    ring = load("configs/examples/decor_ring.toml")
    attacks = attacks_of(ring, 10)
    assert [len(a.attack.coalition) for a in attacks] == [0, 1, 2]
    claims = [a.attack.claim(0.05) for a in attacks]
    assert 0 < claims[0] < claims[1] < claims[2]
    assert attacks[2].how.startswith("nodes ")
    assert max(a.attack.scores(2, is_present=True).size for a in attacks) == 2
    other = Other(**ring.training.model_dump(exclude={"kind"}))
    with pytest.raises(ConfigError, match="got 'other'"):
        attacks_of(ring.model_copy(update={"training": other}), 10)
