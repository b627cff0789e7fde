"""More rounds for a run: the run that had them from the start, priced as a whole, or a refusal."""

import os
import shutil

import pytest

from manifed.cli.launch import Request, launch
from manifed.durable import held
from manifed.errors import ConfigError
from manifed.experiment.load import load, sha256
from manifed.privacy.adversaries import EXTERNAL, SERVER
from manifed.privacy.charges import Amendment, ClientReleases, Reservation, Terms
from manifed.privacy.cohorts import members
from manifed.privacy.events import GaussianRelease, PoissonSampled
from manifed.privacy.ledger import Ledger, LedgerDamaged, torn_file
from manifed.privacy.odometer import Odometer
from manifed.runs import extend as extension
from manifed.runs.extend import extend
from manifed.runs.in_force import amended, in_force
from manifed.runs.run_folder import RunFolder
from tests.runs.test_cli import QUICKSTART

SETS = ("federation.num_clients=2", "output.plots=false", "output.checkpoint_every=2")
PAID = (*SETS, "privacy.max_epsilon=3.0")
DRAWN = "federation.cohort={kind='poisson',sampling_probability=0.5}"
CLIENTS = (
    "privacy={kind='client-level',l2_norm_clip=0.1,max_epsilon=9.0,"
    "noise={kind='target',epsilon=3.0,delta=1e-3},adaptive={quantile_noise_multiplier=20.0}}"
)
OPTION_2 = ("training.local_steps=2", "training.output='random-output'",
            "strategy={kind='tangent-mean',output_rule='uniform'}")  # fmt: skip


def run(folder, *sets, rounds=3):
    sets = (*sets, f"federation.num_rounds={rounds}")
    return launch(Request(QUICKSTART, sets, out=folder, plain=True))


def go_on(folder):
    return launch(Request(QUICKSTART, resume=folder, plain=True))


def copied(folder, to):
    shutil.copytree(folder, to)
    return to


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


@pytest.mark.parametrize(
    ("sets", "delta"), [((), 1e-5), ((DRAWN, *OPTION_2), 1e-5), ((DRAWN, CLIENTS), 1e-3)]
)
def test_an_extended_run_is_the_run_that_had_these_rounds_and_this_noise(tmp_path, sets, delta):
    folder = run(tmp_path / "run", *PAID, *sets).directory
    found = extend(folder, 5)
    assert found.amendment is not None
    multiplier = found.amendment.noise_multiplier
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
        assert mine.epsilon == pytest.approx(theirs.epsilon)
    stated = {row["name"]: row["epsilon"] for row in whole.manifest()["privacy"]["adversaries"]}
    unseen = "client-level" if delta == 1e-3 else "external"  # who is priced whoever is drawn
    assert found.epsilons[unseen][1] == pytest.approx(stated[unseen])


def test_past_and_coming_rounds_keep_the_noise_that_was_used(tmp_path, finished):
    folder = copied(finished, tmp_path / "run")
    before = load(folder / "experiment.toml")
    extend(folder, 5)
    go_on(folder)
    entries = Ledger.read(folder / "ledger.jsonl")
    said = [e.body["terms"] for e in entries if e.kind == "reserved" and "terms" in e.body]
    assert len(said) == 1  # the amendment plans more draws and leaves the releases as they were
    manifest = RunFolder(folder).manifest()
    now = in_force(before, folder)
    assert sha256(now) == manifest["config_sha256"] == manifest["amendments"][0]["config_sha256"]
    assert now.federation.num_rounds == manifest["config"]["federation"]["num_rounds"] == 5
    assert (now.privacy.noise.epsilon, now.privacy.max_epsilon) == (2.0, 3.0)


def test_beyond_its_budget_nothing_is_written_and_the_possible_rounds_are_named(tmp_path, finished):
    folder = copied(finished, tmp_path / "run")
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
    release = GaussianRelease(
        count=1, noise_multiplier=2.0, unit="example", neighboring_relation="add-or-remove"
    )
    updates = (ClientReleases(partitions=(0, 1), releases=(release,)),)
    sampling = PoissonSampled(sampling_probability=0.5)

    def planned(draws):
        return Terms(population=2, updates=updates, sampling=sampling, planned_draws=draws)

    def charged(odometer, rounds, draws):
        for r in rounds:
            terms = planned(draws)
            odometer.reserve(Reservation(r, r, 0, members((0,)), terms=terms, planned=(terms,)))
        return odometer

    extended = charged(Odometer(), (1, 2), 3)
    more = Amendment(amends="a", config_sha256="b", num_rounds=(3, 5), planned_draws=5)
    extended.config_sha256 = "a"
    extended.amend(more)
    charged(extended, (3,), 5)
    whole = charged(Odometer(), (1, 2, 3), 5)
    assert extended.epsilon(EXTERNAL, 1e-5) == pytest.approx(whole.epsilon(EXTERNAL, 1e-5))


def test_the_same_twice_says_so_fewer_are_refused_and_so_is_a_run_that_is_held(tmp_path, finished):
    folder = copied(finished, tmp_path / "run")
    assert extend(folder, 3).text().endswith("it is finished")
    extend(folder, 4)
    ledger = (folder / "ledger.jsonl").read_bytes()
    assert "nothing to do" in extend(folder, 4).text()
    assert (folder / "ledger.jsonl").read_bytes() == ledger
    with pytest.raises(ConfigError, match="--rounds above 4"):
        extend(folder, 2)
    with held(folder), pytest.raises(ConfigError, match="another process holds"):
        extend(folder, 5)
    assert extend(folder, 5).amendment.num_rounds == (4, 5)


def test_an_amendment_that_is_not_chained_to_the_config_before_is_damage(tmp_path, finished):
    folder = copied(finished, tmp_path / "run")
    found = extend(folder, 4)
    assert found.amendment is not None
    for change, what in (({"amends": "0" * 64}, "config"), ({"num_rounds": (3, 9)}, "rounds"),
                         ({"planned_draws": 0}, "draws")):  # fmt: skip
        other = {"amends": found.amendment.config_sha256, "num_rounds": (4, 9), "planned_draws": 9}
        wrong = found.amendment.model_copy(update=other | change).model_dump(mode="json")
        bad = copied(folder, tmp_path / what)
        with Ledger.open(bad / "ledger.jsonl") as ledger:
            ledger.append("amended", wrong)
        with pytest.raises(LedgerDamaged, match=f"no charge that can be counted.*{what}"):
            odometer_of(bad)
        with pytest.raises((LedgerDamaged, ConfigError)):
            go_on(bad)


@pytest.mark.parametrize("left", [12, 200])
def test_a_crash_while_the_amendment_is_written_costs_at_most_a_round(tmp_path, finished, left):
    folder = copied(finished, tmp_path / "run")
    whole = copied(finished, tmp_path / "whole")
    extend(whole, 4)
    line = (whole / "ledger.jsonl").read_bytes().splitlines(keepends=True)[-1]
    with (folder / "ledger.jsonl").open("ab") as file:
        file.write(line[: len(line) - 1 if left == 200 else left])
    extend(folder, 4)
    assert not torn_file(folder / "ledger.jsonl").exists()
    assert odometer_of(folder).rounds_counted == (3 if left == 200 else 4)
    assert go_on(folder).manifest()["final"]["rounds"] == 4


def test_a_crash_after_the_amendment_loses_nothing(tmp_path, finished, monkeypatch):
    folder = copied(finished, tmp_path / "run")

    class Died(BaseException):
        pass

    def die(*_):
        raise Died

    monkeypatch.setattr(extension, "_stated", die)  # what is done right after the entry
    with pytest.raises(Died):
        extend(folder, 4)
    assert "nothing to do" in extend(folder, 4).text()
    assert go_on(folder).manifest()["final"]["rounds"] == 4


def test_what_cannot_go_on_is_refused_in_one_line(tmp_path, finished, monkeypatch):
    with pytest.raises(ConfigError, match=r"no experiment\.toml"):
        extend(tmp_path, 4)
    monkeypatch.setattr(extension, "setup_phases_of", lambda _: ("keys",))
    with pytest.raises(ConfigError, match="without exchanges before round 1"):
        extend(finished, 4)
    with pytest.raises(ConfigError, match="num_rounds"):
        amended(load(finished / "experiment.toml"), 1 << 40, None)
    assert os.listdir(tmp_path) == []
