"""The audit: shipped mechanisms hold, planted faults are caught, a published calibration is not."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from manifed.algorithms.rsgd import RSGD
from manifed.algorithms.rsvrg import RSVRG
from manifed.audit.attack import Audited
from manifed.audit.client_attacks import (
    SHORT_STEP,
    CorrectionAttack,
    ExampleAttack,
    canary,
    pole,
    shard,
)
from manifed.audit.mechanisms import planted_faults, price
from manifed.audit.own_problem import OwnProblemAttack
from manifed.audit.report import audit_all, find, line
from manifed.experiment.assembly import initial_point, load_shards
from manifed.experiment.load import load
from manifed.oracles.minibatch import Full, Poisson, WithoutReplacement
from manifed.privacy import accountant, gaussian
from manifed.privacy.audit import Verdict, audit, clopper_pearson
from manifed.privacy.mechanism import ExampleMechanism, RelativeNoise
from manifed.privacy.noise import NoiseSource
from manifed.problems.pca import PrincipalEigenvector

SOURCE = NoiseSource.from_seed(1)
CONFIGS = Path(__file__).parents[2] / "configs"


def test_the_canary_pulls_with_exactly_its_length_and_the_others_not_at_all():
    rows = shard(5, canary(0.7))
    norms = PrincipalEigenvector().rgrads(pole(), rows).norm(dim=-1)
    assert float(norms[0]) == pytest.approx(0.7, rel=1e-12)
    assert float(norms[1:].max()) < 1e-12


@pytest.mark.statistical
@pytest.mark.parametrize("mu", [0.5, 1.0, 2.0])
def test_the_bound_never_exceeds_the_truth_of_a_gaussian_and_comes_near(mu):
    rng, n = np.random.default_rng(5), 40000
    present, absent = rng.normal(mu, 1, n), rng.normal(0, 1, n)
    found = audit(
        present, absent, claim=lambda delta: gaussian.epsilon(delta, mu=mu), confidence=1 - 1e-6
    )
    assert found.claimed_epsilon == gaussian.epsilon(found.delta, mu=mu)
    assert 0.7 < found.power <= 1
    understated = audit(
        present, absent, claim=lambda delta: gaussian.epsilon(delta, mu=0.7 * mu), confidence=0.95
    )
    assert understated.power > 1


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_what_only_one_side_of_the_scores_tells_is_found(sign):
    """One dataset alone has an atom, with the canary or without: both directions are tried."""
    rng, n = np.random.default_rng(6), 5000
    plain = rng.normal(0, 1, n)
    marked = np.where(rng.random(n) < 0.4, -9.0, rng.normal(0, 1, n))
    present, absent = (marked, plain) if sign > 0 else (plain, marked)
    found = audit(present, absent, claim=lambda delta: 3.0 if delta == 0.02 else 0.0)
    assert found.epsilon_lower_bound > 3.0


def test_a_claim_of_nothing_is_not_audited():
    scores = np.random.default_rng(7).normal(0, 1, 100)
    with pytest.raises(ValueError, match="attack more rounds at once"):
        audit(scores, scores, claim=lambda _: 0.01)


def test_an_attack_that_proves_less_than_half_is_called_weak():
    found = Verdict(0.9, 2.0, 0.05, 50, 40, 100, 0.95)
    assert found.is_weak
    assert not found.is_violated
    assert found.power == 0.45
    assert " weak" in line("half", found)


def test_clopper_pearson_is_the_exact_binomial_bound():
    low, high = clopper_pearson(7, 50, 0.975)
    assert stats.binom.sf(6, 50, low) == pytest.approx(0.025, rel=1e-9)
    assert stats.binom.cdf(7, 50, high) == pytest.approx(0.025, rel=1e-9)
    assert clopper_pearson(0, 50, 0.975)[0] == 0.0
    assert clopper_pearson(50, 50, 0.975)[1] == 1.0


def test_the_attack_is_as_strong_as_the_worst_case_of_the_accountant():
    """Scores of a full-batch step are Gaussian at distance mu = 1 / multiplier: nothing is lost."""
    mechanism = ExampleMechanism(l2_norm_clip=0.5, noise=RelativeNoise(multiplier=1.25))
    training = RSGD(step_size=SHORT_STEP, minibatch=Full())
    attack = ExampleAttack(training, mechanism, 20, 5.0, None, SOURCE)
    n = 20000
    present, absent = attack.scores(n, is_present=True), attack.scores(n, is_present=False)
    distance = (present.mean() - absent.mean()) / absent.std()
    assert distance == pytest.approx(1 / 1.25, abs=5 * np.sqrt(2 / n))
    assert price(attack)(1e-5) == pytest.approx(gaussian.epsilon(1e-5, mu=1 / 1.25), rel=1e-9)


def test_whoever_is_in_a_subset_of_fixed_size_takes_the_place_of_one_that_pulls_away():
    """With the canary absent no coin shows; present it moves the mean by the whole sensitivity."""
    mechanism = ExampleMechanism(
        l2_norm_clip=0.5, neighboring_relation="replace-one", noise=RelativeNoise(multiplier=1.0)
    )
    training = RSGD(step_size=SHORT_STEP, minibatch=WithoutReplacement(batch_size=10))
    attack = ExampleAttack(training, mechanism, 20, 5.0, -1.0, SOURCE, others_pull=True)
    present, absent = (attack.scores(4000, is_present=p) for p in (True, False))
    sensitivity, error = mechanism.sensitivity(0.5, 10.0), 5 / np.sqrt(4000)
    assert absent.std() == pytest.approx(sensitivity, rel=error)
    assert (present.mean() - absent.mean()) / sensitivity == pytest.approx(0.5, abs=2 * error)
    assert present.std() / sensitivity == pytest.approx(np.sqrt(1.25), rel=error)


class Quiet(RSVRG):
    """Planted: corrections get half of the noise that is charged."""

    def queries(self, mechanism, num_examples):
        reference, correction = super().queries(mechanism, num_examples)
        return reference, replace(correction, drawn=0.5 * correction.drawn)


@pytest.mark.parametrize("correction_clip", ["each", "difference"])
def test_the_answers_of_an_oracle_prove_most_of_the_claim_and_tell_a_quiet_one(correction_clip):
    mechanism = ExampleMechanism(l2_norm_clip=0.5, noise=RelativeNoise(multiplier=1.5))
    table = {
        "step_size": SHORT_STEP,
        "inner_steps": 4,
        "minibatch": Poisson(batch_size=15),
        "correction_clip": correction_clip,
    }
    honest = CorrectionAttack(RSVRG(**table), mechanism, 20, SOURCE)
    broken = replace(honest, training=Quiet(**table))

    def found(attack):
        return find(Audited("-", attack, honest.claim, 4000, "-"), 0.95).verdict

    assert 0.5 < found(honest).power <= 1
    assert found(broken).is_violated


@pytest.mark.parametrize("fault", planted_faults(SOURCE), ids=lambda fault: fault.name)
def test_every_planted_fault_is_caught(fault):
    assert find(fault, 0.95, scale=0.5).verdict.is_violated


@pytest.mark.slow
def test_all_shipped_mechanisms_pass_and_the_published_calibration_fails():
    result = audit_all(0)
    assert result["violations"] == 0
    assert result["planted_faults_caught"] == result["planted_faults"] == 12
    assert result["published_dp_rsvrg_violated"]
    assert result["mechanisms"] >= 18
    assert result["weakest_power"] >= 0.5
    assert result["weak"] == []


OWN = {
    "sphere": ("quickstart.toml", ()),
    "SPD": (
        "figures/000_3.toml::000_3_wishart-rsgd-N-50",
        ('training.minibatch={ kind = "full" }',),
    ),
}


@pytest.mark.parametrize(
    ("name", "sets"),
    [
        OWN["sphere"],
        pytest.param(*OWN["SPD"], marks=pytest.mark.slow),
    ],
    ids=OWN,
)
def test_a_config_is_attacked_on_its_own_problem_at_its_own_steps(name, sets):
    config = load(CONFIGS / name, sets)
    mechanism = ExampleMechanism(l2_norm_clip=0.5, noise=RelativeNoise(multiplier=0.8))
    shards = load_shards(config)
    shard, x = min(shards.examples, key=len), initial_point(config)
    attack = OwnProblemAttack(shards.problem, config.training, mechanism, shard, x, SOURCE)
    releases = config.training.releases(mechanism, len(shard))

    def audited(attack):
        return Audited(name, attack, lambda d: accountant.epsilon(releases, d), 2000, "-")

    honest = find(audited(attack), 0.999).verdict
    assert 0.2 < honest.power <= 1
    broken = mechanism.model_copy(update={"noise": RelativeNoise(multiplier=0.2)})
    assert find(audited(replace(attack, mechanism=broken)), 0.999).verdict.is_violated
