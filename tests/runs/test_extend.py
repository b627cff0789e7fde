"""More rounds for a run: the run that had them from the start, priced as a whole, or a refusal."""

import os
import shutil

import pytest

from manifed.algorithms.algorithm import ClientUpdate
from manifed.durable import held
from manifed.errors import ConfigError
from manifed.experiment.load import load
from manifed.experiment.schema import sha256
from manifed.privacy.account import Account
from manifed.privacy.events import EXTERNAL, SERVER, PoissonSampled, Release
from manifed.privacy.ledger import Amendment, Entry, Ledger, LedgerDamaged
from manifed.privacy.odometer import Odometer
from manifed.privacy.tariff import ClientReleases, Terms
from manifed.runs.evidence import amended, evidence_of
from manifed.runs.folder import RunFolder
from manifed.runs.resume import extend
from tests.privacy.forging import entries_of
from tests.privacy.test_spending import reserved
from tests.runs.running import Died, go_on, run_in

SETS = ("federation.num_clients=2", "output.plots=false", "output.checkpoint_every=2")
PAID = (*SETS, "privacy.max_epsilon=3.0")
DRAWN = "federation.cohort={kind='poisson',sampling_probability=0.5}"
CLIENTS = (
    "privacy={kind='client-level',l2_norm_clip=0.1,max_epsilon=9.0,"
    "noise={kind='target',epsilon=3.0,delta=1e-3},adaptive={quantile_noise_multiplier=20.0}}"
)
OPTION_2 = ("training.local_steps=2", "training.output='random-iterate'",
            "strategy={kind='tangent-mean',output_rule='uniform'}")  # fmt: skip


def run(folder, *sets, rounds=3):
    return run_in(folder, *sets, f"federation.num_rounds={rounds}")


def odometer_of(folder):
    odometer = Odometer()
    Ledger.verify(folder / "ledger.jsonl", feed=odometer.feed)
    return odometer


def kept(multiplier):
    return f"privacy.noise={{kind='multiplier',noise_multiplier={multiplier!r}}}"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Three rounds of a target that max_epsilon allows to pass."""
    return run(tmp_path_factory.mktemp("finished") / "run", *PAID).directory


@pytest.fixture
def folder(finished, tmp_path):
    """A copy of it."""
    return shutil.copytree(finished, tmp_path / "run")


@pytest.mark.parametrize(
    ("sets", "delta"), [((), 1e-5), ((DRAWN, *OPTION_2), 1e-5), ((DRAWN, CLIENTS), 1e-3)]
)
def test_an_extended_run_is_the_run_that_had_these_rounds_and_this_noise(tmp_path, sets, delta):
    folder = run(tmp_path / "run", *PAID, *sets).directory
    said = extend(folder, 5)
    multiplier = odometer_of(folder).amendments[-1].noise_multiplier
    go_on(folder)
    whole = run(
        tmp_path / "whole", *PAID, *sets, kept(multiplier), f"privacy.delta={delta}", rounds=5
    )
    name = "model.safetensors"
    assert (folder / name).read_bytes() == (whole.directory / name).read_bytes()
    mine, theirs = RunFolder(folder).metrics(), whole.metrics()
    assert {**mine, "seconds": None} == {**theirs, "seconds": None}
    assert RunFolder(folder).manifest()["final"]["rounds"] == 5
    one, other = odometer_of(folder), odometer_of(whole.directory)
    for mine, theirs in zip(one.spent(delta), other.spent(delta), strict=True):
        assert mine["epsilon"] == pytest.approx(theirs["epsilon"])
    stated = {row["name"]: row["epsilon"] for row in whole.manifest()["privacy"]["adversaries"]}
    unseen = "client-level" if delta == 1e-3 else "external"  # who is priced whoever is drawn
    assert f"{unseen}: epsilon {stated[unseen]:.6g} at delta" in said


def test_past_and_coming_rounds_keep_the_noise_that_was_used(folder):
    extend(folder, 5)
    go_on(folder)
    entries = entries_of(folder / "ledger.jsonl")
    said = [entry.terms for entry in entries if entry.terms]
    assert len(said) == 1  # the amendment plans more draws and leaves the releases as they were
    manifest = RunFolder(folder).manifest()
    now = evidence_of(folder).config
    assert sha256(now) == manifest["config_sha256"] == manifest["amendments"][0]["config_sha256"]
    assert now.federation.num_rounds == manifest["config"]["federation"]["num_rounds"] == 5
    assert (now.privacy.noise.epsilon, now.privacy.max_epsilon) == (2.0, 3.0)


def test_beyond_its_budget_nothing_is_written_and_the_possible_rounds_are_named(tmp_path, folder):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(ConfigError, match=r"would cost epsilon .* at most 6 rounds are possible"):
        extend(folder, 7)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    extend(folder, 5)
    go_on(folder)
    with pytest.raises(ConfigError, match=r"charged already.* at most 6 rounds are possible"):
        extend(folder, 7)
    assert odometer_of(folder).epsilon(SERVER, 1e-5) <= 3.0
    target = run(tmp_path / "target", *SETS).directory
    with pytest.raises(ConfigError, match=r"privacy\.noise\.epsilon\) is 2; at most 3 rounds"):
        extend(target, 4)


def test_a_schedule_with_more_rounds_of_the_same_terms_counts_each_draw_once():
    release = Release(
        count=1, noise_multiplier=2.0, unit="example", neighboring_relation="add-or-remove"
    )
    updates = (ClientReleases(partitions=(0, 1), releases=(release,)),)
    sampling = PoissonSampled(sampling_probability=0.5)

    def planned(draws):
        return Terms(population=2, updates=updates, sampling=sampling, planned_draws=draws)

    def charged(odometer, rounds, draws):
        for r in rounds:
            terms = planned(draws)
            entry = reserved(r, (0,), terms=terms)
            odometer.feed(entry.model_copy(update={"planned": (terms,)}))
        return odometer

    extended = charged(Odometer().after(Entry(said={"config_sha256": "a"})), (1, 2), 3)
    more = Amendment(amends="a", config_sha256="b", num_rounds=(3, 5), planned_draws=5)
    extended.feed(Entry(amends=more, sequence=3))
    charged(extended, (3,), 5)
    whole = charged(Odometer(), (1, 2, 3), 5)
    assert extended.epsilon(EXTERNAL, 1e-5) == pytest.approx(whole.epsilon(EXTERNAL, 1e-5))


def test_the_same_twice_says_so_fewer_are_refused_and_so_is_a_run_that_is_held(folder):
    assert extend(folder, 3).startswith("nothing to do")
    extend(folder, 4)
    ledger = (folder / "ledger.jsonl").read_bytes()
    assert "nothing to do" in extend(folder, 4)
    assert (folder / "ledger.jsonl").read_bytes() == ledger
    with pytest.raises(ConfigError, match="--rounds above 4"):
        extend(folder, 2)
    with held(folder), pytest.raises(ConfigError, match="another process holds"):
        extend(folder, 5)
    extend(folder, 5)
    assert odometer_of(folder).amendments[-1].num_rounds == (4, 5)


def test_an_amendment_that_is_not_chained_to_the_config_before_is_damage(tmp_path, folder):
    extend(folder, 4)
    (amendment,) = odometer_of(folder).amendments
    for change, what in (({"amends": "0" * 64}, "config"), ({"num_rounds": (3, 9)}, "rounds"),
                         ({"planned_draws": 0}, "draws")):  # fmt: skip
        other = {"amends": amendment.config_sha256, "num_rounds": (4, 9), "planned_draws": 9}
        wrong = amendment.model_copy(update=other | change)
        bad = shutil.copytree(folder, tmp_path / what)
        with Ledger.recover(bad / "ledger.jsonl") as ledger:
            ledger.append(Entry(amends=wrong))
        with pytest.raises(LedgerDamaged, match=f"no charge that can be counted.*{what}"):
            odometer_of(bad)
        with pytest.raises((LedgerDamaged, ConfigError)):
            go_on(bad)


@pytest.mark.parametrize("left", [5, 200])
def test_a_crash_while_the_amendment_is_written_costs_at_most_a_round(
    tmp_path, finished, folder, left
):
    whole = shutil.copytree(finished, tmp_path / "whole")
    extend(whole, 4)
    line = (whole / "ledger.jsonl").read_bytes().splitlines(keepends=True)[-1]
    with (folder / "ledger.jsonl").open("ab") as file:
        file.write(line[: len(line) - 1 if left == 200 else left])
    extend(folder, 4)
    assert odometer_of(folder).rounds_counted == (3 if left == 200 else 4)
    assert go_on(folder).manifest()["final"]["rounds"] == 4


def test_a_crash_after_the_amendment_loses_nothing(folder, monkeypatch):

    write = Account.write

    def writes_and_dies(self, entry):
        write(self, entry)
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(Account, "write", writes_and_dies)
        with pytest.raises(Died):
            extend(folder, 4)
    assert "nothing to do" in extend(folder, 4)
    assert go_on(folder).manifest()["final"]["rounds"] == 4


def test_what_cannot_go_on_is_refused_in_one_line(tmp_path, finished, monkeypatch):
    with pytest.raises(ConfigError, match=r"no experiment\.toml"):
        extend(tmp_path, 4)
    monkeypatch.setattr(ClientUpdate, "setup_phases", ("keys",))
    with pytest.raises(ConfigError, match="without exchanges before round 1"):
        extend(finished, 4)
    with pytest.raises(ConfigError, match="num_rounds"):
        amended(load(finished / "experiment.toml"), 1 << 40, None)
    assert os.listdir(tmp_path) == []
