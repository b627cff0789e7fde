"""The statement and the ledger agree, for every adversary and every kind of privacy."""

import os
from dataclasses import replace

import pytest

from manifed.experiment.assembly import facts_of
from manifed.experiment.load import load
from manifed.plan import promise_of
from manifed.privacy import epsilon_bounds
from manifed.privacy.charging import opened
from manifed.privacy.events import Release
from manifed.privacy.statement import audit_ledger
from manifed.privacy.tariff import ClientReleases, Tariff
from tests.command import invoke
from tests.runs.running import QUICKSTART, ROOT, run_in

SETS = (
    "federation.num_clients=6",
    "federation.num_rounds=4",
    "evaluation.is_enabled=false",
)
CLIENT_LEVEL = (
    "{kind='client-level',l2_norm_clip=0.1,delta=0.01,"
    "noise={kind='multiplier',noise_multiplier=3.0}}"
)
CASES = {
    "everyone": (),
    "fixed-size": ("federation.cohort={kind='fixed-size',cohort_size=2}",),
    "poisson": ("federation.cohort={kind='poisson',sampling_probability=0.3}",),
    "unequal shards": ("federation.partition={kind='dirichlet',alpha=5.0}",),
    "poisson batches": ("training.minibatch={kind='poisson',batch_size=64}",),
    "stopped early by its budget": (
        "federation.cohort={kind='fixed-size',cohort_size=2}",
        "privacy.noise={kind='multiplier',noise_multiplier=5.0}",
        "privacy.delta=1e-5",
        "privacy.max_epsilon=1.2",
    ),
    "retries planned": (
        "federation.cohort={kind='fixed-size',cohort_size=2}",
        "federation.replies={on_failure='retry',max_attempts=3}",
        "privacy.max_epsilon=9.0",
    ),
    "client-level": (f"privacy={CLIENT_LEVEL}",),
    "client-level poisson": (
        f"privacy={CLIENT_LEVEL}",
        "federation.cohort={kind='poisson',sampling_probability=0.3}",
    ),
}


@pytest.mark.parametrize("sets", CASES.values(), ids=CASES)
def test_the_statement_is_what_an_auditor_reads_from_the_ledger_alone(tmp_path, sets):
    folder = run_in(tmp_path / "run", *SETS, *sets)
    manifest = folder.manifest()
    audited = {
        one["name"]: one
        for one in audit_ledger(folder.ledger_path, manifest["final"]["delta"])["adversaries"]
    }
    assert audited
    if (stopped := manifest["stopped"]) is not None:
        assert "privacy.max_epsilon" in stopped
        assert manifest["final"]["rounds"] in range(1, 4)
        assert manifest["final"]["epsilon"] <= 1.2
    assert (stopped is None) is (sets != CASES["stopped early by its budget"])
    for one in manifest["privacy"]["adversaries"]:
        assert audited[one["name"]]["epsilon"] == pytest.approx(one["epsilon"], rel=1e-9)
        assert audited[one["name"]]["unit"] == manifest["privacy"]["unit"]


@pytest.mark.parametrize("name", ["everyone", "fixed-size", "poisson"])
def test_a_realised_number_says_that_other_draws_would_cost_something_else(name):
    config = load(QUICKSTART, [*SETS, *CASES[name]])
    promise = promise_of(config.setting, facts_of(config).sizes)
    made = promise.statement(promise.odometer(4))["adversaries"][0]["remark"]
    planned = promise.planned(4)["adversaries"][0]["remark"]
    assert made.startswith("realised: at most 4 rounds a client")
    assert ("other draws costs more or less" in made) == (name != "everyone")
    assert ("if a client is invited to all 4 rounds" in planned) == (name != "everyone")


@pytest.mark.parametrize("command", ["statement", "curve"])
def test_pricing_opens_no_file_of_a_client_whose_size_is_declared(command, tmp_path):
    """Whoever prices a config need not have the files of the sites, nor the right to read them."""
    pipe = tmp_path / "pipe.csv"
    os.mkfifo(pipe)  # it hangs whoever opens it
    files = f"data.paths=['{pipe}', '{tmp_path}/none.csv', '{tmp_path}']"
    done = invoke(
        "privacy",
        command,
        str(ROOT / "configs" / "examples" / "three_sites_classifier.toml"),
        "--set",
        files,
    )
    assert done.exit_code == 0, done.stderr
    assert "external" in done.stdout


def test_the_statement_counts_what_stands_in_the_ledger_and_nothing_else(tmp_path):
    """A ledger whose charges cost more than the config's is seen and stated."""
    promise = promise_of(load(QUICKSTART, [*SETS, *CASES["fixed-size"]]).setting, (300,) * 6)
    path = tmp_path / "ledger.jsonl"
    noisier = Release(unit="example", neighboring_relation="add-or-remove", noise_multiplier=0.5)
    update = ClientReleases(partitions=tuple(range(6)), releases=(noisier,))
    terms = promise.terms.model_copy(update={"updates": (update,)})
    other = replace(promise, tariff=Tariff((terms,)), target=None, budget=None)
    with opened(path, other, header={}, last_round=4) as account:
        account.charge(1, 0, (0, 1))
    odometer = account.odometer
    found = {one["name"]: one["epsilon"] for one in promise.statement(odometer)["adversaries"]}
    assert found["server"] == pytest.approx(epsilon_bounds.epsilon([noisier], 1e-5), rel=1e-9)
    assert promise.headline(odometer) == pytest.approx(found["server"], rel=1e-12)
