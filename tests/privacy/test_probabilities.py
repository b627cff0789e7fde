"""Cohorts whose clients take part with different probabilities: each is amplified by its own."""

import json

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from scipy import stats

import manifed
from manifed.algorithms.rsgd import RSGD
from manifed.cli.launch import Request, launch
from manifed.errors import ConfigError
from manifed.experiment.load import load
from manifed.federation.cohorts import PoissonEach
from manifed.manifolds import Euclidean
from manifed.plan import promise_of
from manifed.privacy.events import (
    EXTERNAL,
    SERVER,
    PoissonSampled,
    repeated,
)
from manifed.privacy.ledger import Entry
from manifed.privacy.random_numbers import NoiseSource
from manifed.privacy.statement import audit_ledger
from manifed.privacy.tariff import ClientReleases, Tariff, Terms
from manifed.problems.frechet import FrechetMean
from tests.fresh import QUICKSTART
from tests.privacy.releases import cost, outside
from tests.privacy.test_spending import DELTA, LARGE, SMALL, odometer_of

ROUNDS = 20
SOURCE = NoiseSource.from_seed(0)
EACH = "federation.cohort={kind='poisson-each',probabilities=[0.2,0.9,0.4]}"


def terms(probabilities, updates=(SMALL,), **more):
    """Client i releases the i-th update, the last one holding on."""
    named = [updates[min(i, len(updates) - 1)] for i in range(len(probabilities))]
    groups = tuple(
        ClientReleases(
            partitions=tuple(i for i, mine in enumerate(named) if mine == one), releases=one
        )
        for one in dict.fromkeys(named)
    )
    return Terms(
        population=len(probabilities),
        updates=groups,
        sampling=PoissonSampled(sampling_probability=max(probabilities)),
        probabilities=probabilities,
        **more,
    )


def spent(of, rounds=ROUNDS, adversary=EXTERNAL):
    """After so many rounds of which an outsider sees the models."""
    return odometer_of([(0,)] * rounds, of).epsilon(adversary, DELTA)


# -- prices ----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("probabilities", "updates"),
    [
        ((0.1, 1.0, 0.2), (SMALL,)),  # who always takes part is not amplified
        ((0.2, 0.9), (SMALL, LARGE)),
        ((0.2, 0.7, 0.1), (SMALL,)),  # of those that release alike the one most often asked
        ((0.7, 0.1, 0.2), (SMALL,)),
        ((0.3, 0.3, 0.3), (SMALL,)),
    ],
)
def test_each_client_is_priced_by_its_own_probability_and_release(probabilities, updates):
    named = (*updates, *[updates[-1]] * 3)
    own = [outside(*each, ROUNDS) for each in zip(named, probabilities, strict=False)]
    assert spent(terms(probabilities, updates)) == pytest.approx(max(own), rel=1e-9)


def test_draws_that_are_planned_count_although_one_client_is_in_all_of_them():
    planned = terms((0.95, 1.0), planned_draws=3 * ROUNDS)
    assert planned.is_drawn
    assert spent(planned) >= outside(SMALL, 0.95, 3 * ROUNDS)
    assert spent(planned) > cost(*repeated(SMALL, ROUNDS))


@pytest.mark.parametrize("probabilities", [(0.1, 0.9), (0.5, 1.0), (1.0, 1.0), (0.3, 0.3)])
@pytest.mark.parametrize("adversary", [SERVER, EXTERNAL])
def test_the_filter_never_promises_less_than_is_charged(probabilities, adversary):
    of = terms(probabilities, (SMALL, LARGE))
    priced = Tariff((of,)).ahead(adversary, (ROUNDS,), DELTA / 2)
    charged = spent(of) if adversary is EXTERNAL else priced
    assert priced >= charged
    assert priced >= max(
        outside(u, p, ROUNDS) for u, p in zip((SMALL, LARGE), probabilities, strict=True)
    ) * (1 - 1e-9)


def test_a_schedule_reckons_with_all_attempts_while_any_client_may_miss_a_round():
    tariff = Tariff((terms((0.95, 1.0)),) * 2, attempts=3)
    assert tariff.ahead(EXTERNAL, (1, 1), DELTA) >= outside(SMALL, 0.95, 6)


# -- on disk ---------------------------------------------------------------------------------
def test_terms_say_every_probability_on_disk_and_refuse_others():
    of = terms((0.1, 1 / 3))
    assert Entry.model_validate_json(Entry(terms=of).model_dump_json()).terms == of
    body = of.model_dump(mode="json")
    for wrong, told in (
        ({"probabilities": [0.1]}, "each of 2 clients, got 1"),
        ({"probabilities": [0.1, 0.9]}, "largest probability 0.9"),
        ({"probabilities": [0.1, 0.2]}, "largest probability 0.2"),
        ({"probabilities": [0.0, 1 / 3]}, "greater than 0"),
        ({"sampling": {"kind": "unsampled"}}, "largest probability"),
    ):
        with pytest.raises(ValidationError, match=told):
            Terms.model_validate(body | wrong)


# -- cohorts ---------------------------------------------------------------------------------
def test_every_client_has_its_own_rate():
    rates = (0.05, 0.5, 0.95, 1.0)
    draws = 1000
    cohort = PoissonEach(probabilities=rates)
    counts = np.zeros(4)
    for r in range(draws):
        counts[list(cohort.draw(4, r, 0, SOURCE))] += 1
    for count, rate in zip(counts, rates, strict=True):
        assert stats.binomtest(int(count), draws, rate).pvalue > 1e-6
    assert counts[3] == draws
    assert cohort.expected_size(4) == sum(rates)


# -- configs ---------------------------------------------------------------------------------
def quick(*sets):
    rounds = "federation.num_rounds=6", "federation.num_clients=3"
    return load(QUICKSTART, (*rounds, EACH, *sets))


NOISE = "noise={kind='multiplier',noise_multiplier=4.0},delta=1e-5"


def test_a_release_about_clients_is_that_of_the_client_most_often_asked():
    private = f"privacy={{kind='client-level',l2_norm_clip=1.0,{NOISE}}}"
    one = "federation.cohort={kind='poisson',sampling_probability=0.9}"
    own = quick(private)
    alike = quick(private, one)
    mine, theirs = (promise_of(one.setting, (100, 100, 100)) for one in (own, alike))
    assert mine.terms.aggregate == theirs.terms.aggregate
    assert mine.terms.aggregate[0].sampling == PoissonSampled(sampling_probability=0.9)


def test_a_target_against_an_outsider_holds_for_the_client_most_often_asked():
    target = (
        "privacy.noise={kind='target',epsilon=1.0,delta=1e-5,adversary='external'}",
        "privacy.max_epsilon=1.0",
    )
    promise = promise_of(quick(*target).setting, (100, 100, 50))
    found = {one["name"]: one["epsilon"] for one in promise.planned(6)["adversaries"]}
    assert 0.9 < found["external"] <= 1.0 < found["server"]


@pytest.mark.parametrize(
    ("sets", "told"),
    [
        (["federation.cohort.probabilities=[0.5]"], "federation.num_clients = 3, got 1"),
        (["federation.cohort.probabilities=[0.5,1.5,0.5]"], "less than or equal to 1"),
        (["federation.cohort.probabilities=[]"], "at least 1"),
        (
            ["training={kind='rfedags',step_size=0.1,local_steps=1,participation=0.5,"
             "minibatch={kind='full'}}"],
            "at most 0.2, the probability of client 0 in federation.cohort, got 0.5",
        ),
    ],
)  # fmt: skip
def test_probabilities_that_do_not_fit_are_refused_in_one_line(sets, told):
    with pytest.raises(ConfigError) as found:
        quick(*sets)
    assert told in str(found.value)
    assert "\n" not in str(found.value)


def test_a_ledger_proves_what_a_run_states_and_streams_are_divided_by_their_own_p(tmp_path):
    streams = "training={kind='rfedags',step_size=0.1,local_steps=1,minibatch={kind='full'}}"
    sets = (
        "federation.num_rounds=6", "federation.num_clients=3", EACH, streams,
        f"privacy={{kind='example-level',l2_norm_clip=1.0,{NOISE}}}",
    )  # fmt: skip
    launch(Request(str(QUICKSTART), sets, out=tmp_path / "run", plain=True))
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["config"]["training"]["participation"] == [0.2, 0.9, 0.4]
    stated = {a["name"]: a["epsilon"] for a in manifest["privacy"]["adversaries"]}
    proved = audit_ledger(tmp_path / "run" / "ledger.jsonl", 1e-5)["adversaries"]
    assert {one["name"]: one["epsilon"] for one in proved} == pytest.approx(stated, rel=1e-9)
    (update,) = {
        u.releases for u in promise_of(load(QUICKSTART, sets).setting, (599,) * 3).terms.updates
    }
    assert stated["external"] == pytest.approx(outside(update, 0.9, 6), rel=1e-6)


def test_probabilities_of_other_clients_draw_nobody():
    cohort = PoissonEach(probabilities=(0.5,))
    with pytest.raises(ConfigError, match="num_clients = 3, got 1"):
        cohort.draw(3, 1, 0, SOURCE)
    shards = [torch.ones(2, 3).double()] * 3
    private = manifed.ExampleLevel(epsilon=2, delta=1e-3)
    for privacy in (None, private):
        with pytest.raises(ConfigError, match="num_clients = 3, got 1"):
            manifed.fit(
                FrechetMean(Euclidean()), shards, RSGD(step_size=0.1), rounds=1, cohort=cohort,
                privacy=privacy,
            )  # fmt: skip
