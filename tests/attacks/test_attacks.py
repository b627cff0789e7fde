"""The audit: shipped mechanisms hold, planted faults are caught, a published calibration is not."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from manifed.algorithms.rsgd import RSGD, ScheduledRSGD
from manifed.algorithms.rsvrg import RSVRG
from manifed.audit.attacks import SHORT_STEP, ExampleAttack, worst_case
from manifed.audit.bound import Audited, Verdict, _clopper_pearson, audit, find, find_all
from manifed.audit.of_config import attacks_of, costliest_first
from manifed.experiment.assembly import initial_point, load_shards
from manifed.experiment.load import load
from manifed.oracles.minibatch import Full, Poisson
from manifed.privacy.composition import gaussian_epsilon
from manifed.privacy.mechanism import Noise
from manifed.privacy.random_numbers import NoiseSource
from manifed.schedules import Geometric
from reproduction.figure_files import curve_path
from tests.attacks.corrections import CorrectionAttack
from tests.attacks.shipped import everything, measured_sha256, mechanism_of, planted_faults
from tests.fresh import ROOT

SOURCE = NoiseSource.from_seed(1)
PROJECTED = ("training={kind='projected',step_size=0.1,minibatch={kind='full'}}",)
PARTIAL = "training.kind='projected-partial'"
CONFIGS = ROOT / "configs"


@pytest.mark.statistical
@pytest.mark.parametrize("mu", [0.5, 1.0, 2.0])
def test_the_bound_never_exceeds_the_truth_of_a_gaussian_and_comes_near(mu):
    rng = np.random.default_rng(5)
    n = 40000
    present = rng.normal(mu, 1, n)
    absent = rng.normal(0, 1, n)
    found = audit(
        present, absent, claim=lambda delta: gaussian_epsilon(delta, mu=mu), confidence=1 - 1e-6
    )
    assert found.claimed_epsilon == gaussian_epsilon(found.delta, mu=mu)
    assert 0.7 < found.power <= 1
    understated = audit(
        present, absent, claim=lambda delta: gaussian_epsilon(delta, mu=0.7 * mu), confidence=0.95
    )
    assert understated.power > 1


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_what_only_one_side_of_the_scores_tells_is_found(sign):
    """One dataset alone has an atom, with the canary or without: both directions are tried."""
    rng = np.random.default_rng(6)
    n = 5000
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
    found = Verdict(0.9, 2.0, 0.05)
    told = found.plain()
    assert (told["is_weak"], told["is_violated"], told["power"]) == (True, False, 0.45)
    assert found.line().endswith(" weak")


def test_clopper_pearson_is_the_exact_binomial_bound():
    low, high = _clopper_pearson(7, 50, 0.975)
    assert stats.binom.sf(6, 50, low) == pytest.approx(0.025, rel=1e-9)
    assert stats.binom.cdf(7, 50, high) == pytest.approx(0.025, rel=1e-9)
    assert _clopper_pearson(0, 50, 0.975)[0] == 0.0
    assert _clopper_pearson(50, 50, 0.975)[1] == 1.0


STEP = {"step_size": SHORT_STEP, "minibatch": Full()}
FALLING = ScheduledRSGD(**STEP, noise_multipliers=Geometric(scale=1.0, ratio=0.5))


@pytest.mark.parametrize(
    ("update", "multiplier", "rounds", "mu"),
    [(RSGD(**STEP), 1.25, (1,), 1 / 1.25), (FALLING, 8.0, (4, 3), np.hypot(1, 1 / 2))],
)
def test_the_attack_is_as_strong_as_the_worst_case_of_the_accountant(
    update, multiplier, rounds, mu
):
    """Scores of full-batch steps are Gaussian, at a distance that the noise says: nothing is lost.

    Where noise falls, the last rounds are attacked, and count by their noise.
    """
    mechanism = mechanism_of(multiplier)
    order = costliest_first(update, mechanism, 20, 4)
    attack = worst_case(update, mechanism, 20, SOURCE, len(rounds), order)
    assert attack.rounds == rounds
    n = 20000
    present = attack.scores(n, is_present=True)
    absent = attack.scores(n, is_present=False)
    distance = (present.mean() - absent.mean()) / absent.std()
    assert distance == pytest.approx(mu, abs=5 * np.sqrt(2 / n))
    assert attack.claim(1e-5) == pytest.approx(gaussian_epsilon(1e-5, mu=mu), rel=1e-9)


def test_a_plan_is_attacked_in_its_costliest_rounds():
    config = load(CONFIGS / "best.toml")
    for found in attacks_of(config, 100):
        assert found.attack.rounds[0] == config.federation.num_rounds


class Quiet(RSVRG):
    """Planted: corrections get half of the noise that is charged."""

    def queries(self, mechanism, num_examples):
        reference, correction = super().queries(mechanism, num_examples)
        return reference, replace(correction, drawn=0.5 * correction.drawn)


@pytest.mark.parametrize("correction_clip", ["each", "difference"])
def test_the_answers_of_an_oracle_prove_most_of_the_claim_and_tell_a_quiet_one(correction_clip):
    mechanism = mechanism_of(1.5)
    table = {
        "step_size": SHORT_STEP,
        "inner_steps": 4,
        "minibatch": Poisson(batch_size=15),
        "correction_clip": correction_clip,
    }
    honest = CorrectionAttack(RSVRG(**table), mechanism, 20, SOURCE)
    broken = replace(honest, training=Quiet(**table))

    def found(attack):
        return find(Audited("-", attack, 4000, "-", honest.claim))

    assert 0.5 < found(honest).power <= 1
    assert found(broken).is_violated


@pytest.mark.parametrize("fault", planted_faults(SOURCE), ids=lambda fault: fault.name)
def test_every_planted_fault_is_caught(fault):
    assert find(replace(fault, trials=fault.trials // 2)).is_violated


@pytest.mark.slow
@pytest.mark.one_week_in(9)
@pytest.mark.parametrize("share", range(9))
def test_a_ninth_of_the_mechanisms_passes_and_the_published_calibration_fails(share):
    shipped, faults, published = everything(NoiseSource.from_seed(0))
    assert len(shipped) >= 22
    assert len(faults) == 10
    shipped = shipped[share::9]
    faults = [*faults[share::9], published]
    found = list(find_all([*shipped, *faults]))
    assert all(0.5 <= verdict.power <= 1 for verdict in found[: len(shipped)])
    assert all(verdict.is_violated for verdict in found[len(shipped) :])


def test_the_table_of_audits_is_of_this_source_and_says_that_all_hold():
    page = (ROOT / "tests" / "robustness" / "results" / "audits.md").read_text(encoding="utf-8")
    assert measured_sha256() in page, "make evidence"
    assert page.endswith("wrong: 0\n")


@pytest.mark.parametrize(
    ("name", "sets"),
    [
        pytest.param("quickstart.toml", (), id="sphere"),
        pytest.param("quickstart.toml", PROJECTED, id="projected"),
        pytest.param("quickstart.toml", (*PROJECTED, PARTIAL), id="projected-partial"),
        pytest.param(
            curve_path("000_3_wishart-rsgd-N-50"),
            ('training.minibatch={ kind = "full" }',),
            id="SPD",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_config_is_attacked_on_its_own_problem_at_its_own_steps(name, sets):
    config = load(CONFIGS / name, sets)
    mechanism = mechanism_of(0.8)
    shards = load_shards(config)
    shard = min(shards.examples, key=len)
    x = initial_point(config)
    attack = ExampleAttack(shards.problem, config.training, mechanism, shard, x, SOURCE)
    honest = find(Audited(name, attack, 2000, "-"), 0.999)
    assert 0.2 < honest.power <= 1
    broken = mechanism.model_copy(update={"noise": Noise(multiplier=0.2)})
    quiet = Audited(name, replace(attack, mechanism=broken), 2000, "-", attack.claim)
    assert find(quiet, 0.999).is_violated
