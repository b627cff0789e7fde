"""Streams of DECOR and noise over rounds under attack, by the nodes' own code."""

from dataclasses import replace

import pytest

from extras.tests.correlated import CorrelatedAttack
from extras.tests.streams import stream_faults, stream_mechanisms
from manifed.audit.attacks import SHORT_STEP, worst_case
from manifed.audit.bound import Audited, find
from manifed.privacy.mechanism import ExampleMechanism, Noise
from manifed.privacy.random_numbers import NoiseSource
from manifed_extras.correlated import CorrelatedRSGD
from manifed_extras.correlation import BandedInverse
from tests.attacks.shipped import as_a

SOURCE = NoiseSource.from_seed(11)
SERVER, ONE = (audited.attack for audited in stream_mechanisms(SOURCE))


@pytest.mark.statistical
@pytest.mark.parametrize("attack", [SERVER, ONE], ids=["I", "II"])
def test_scores_are_two_gaussians_as_far_apart_as_the_noise_says(attack):
    """Each side's mean within 4.9 standard errors of half the distance, its variance in a range."""
    separation = attack.separation
    count = 340
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


@pytest.mark.slow
@pytest.mark.parametrize("fault", stream_faults(SOURCE), ids=lambda m: m.name)
def test_every_planted_fault_of_streams_is_caught(fault):
    assert find(fault).is_violated


def test_noise_over_rounds_holds_its_price_and_not_that_of_one_participation():
    """The canary pulls the same way in all of eight rounds."""
    update = CorrelatedRSGD(step_size=SHORT_STEP, correlation=BandedInverse(bands=3))
    mechanism = ExampleMechanism(l2_norm_clip=0.5, noise=Noise(multiplier=6.0))
    attack = as_a(CorrelatedAttack, worst_case(update, mechanism, 20, SOURCE, 8))
    honest, wrong = (
        find(Audited("correlated", attack, 20000, "a canary in every round", claim))
        for claim in (attack.claim, attack.claim_of_one)
    )
    assert not honest.is_violated
    assert wrong.is_violated
