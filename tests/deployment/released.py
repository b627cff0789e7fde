"""The release of three sites on real processes: what dies and attacks, and the audits after it."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from app.superlink import submit
from manifed.experiment.assembly import client_setup, facts_of
from manifed.experiment.load import load
from manifed.privacy import epsilon_bounds
from manifed.privacy.events import repeated
from manifed.privacy.ledger import Ledger
from manifed.privacy.odometer import Odometer
from manifed.privacy.statement import audit_ledger
from manifed.runs.folder import RunFolder
from manifed.runs.statement import SENTENCES, verdict
from manifed.site.account import compared
from tests.deployment.kills import PATIENCE, end, gone, killed, program_under, rounds_done, soon
from tests.fresh import ROOT

RELEASE = ROOT / "configs" / "examples" / "three_sites_release.toml"
HOSTILE = Path(__file__).parent / "hostile_project"
LEDGER = "ledger.jsonl"
NAMES = ("north", "middle", "south")
ROUNDS = 3
DELTA = 1e-5
AFFORDS = {"north": 10, "middle": 10, "south": 2}
"""Answers that each site's own limit pays: south's ends before the run does."""


def release_with_a_killed_server(federation, files, folder):
    """ServerApp and SuperLink are killed, a site reaches its limit, a bundle is hostile."""
    folder.mkdir()
    path, config = _release(folder)
    data = {name: Path(shutil.copy(files[name], folder)) for name in NAMES}
    limits = {name: _price(config, AFFORDS[name]) + 1e-9 for name in NAMES}
    before = {name: len(federation.tap(name).answers) for name in NAMES}

    def start(name):
        gone(killed(federation.sites[name].process))
        federation.start_site(name, NAMES.index(name), data[name], path, limits[name])

    for name in NAMES:
        start(name)
    _run_with_deaths(federation, path, folder / "run")
    run = RunFolder.open(folder / "run")
    _check_the_run(run)
    for name in NAMES:
        ledger = federation.ledger(data[name])
        found = compared(run.ledger_path, ledger / LEDGER)
        said = federation.flower.call(
            "manifed", "privacy", "reconcile", str(run.directory), str(ledger)
        )
        assert "the ledgers agree" in said
        _check_the_ledger(ledger, config, found, federation.tap(name).answers[before[name] :])
    assert (
        f"this site's limit is {limits['south']:g}"
        in federation.sites["south"].log_file.read_text()
    )
    start("middle")
    _hostile_bundle(federation, path, folder / "loot.json", before)
    beside = compared(run.ledger_path, federation.ledger(data["north"]) / LEDGER)
    assert not beside.is_whole  # the server of this run did not ask for what the bundle got
    for name in NAMES:
        assert len(federation.tap(name).answers[before[name] :]) == AFFORDS[name]
        paid = audit_ledger(federation.ledger(data[name]) / LEDGER, DELTA)
        assert paid["charges"] == AFFORDS[name]
        assert paid["adversaries"][0]["epsilon"] <= limits[name]


def _release(folder):
    """The example, with a budget for rounds that are made twice."""
    text = RELEASE.read_text()
    old = "l2_norm_clip = 1.0"
    assert text.count(old) == 1
    path = folder / "release.toml"
    path.write_text(text.replace(old, f"{old}\nmax_epsilon = 4.0"))
    return path, load(path)


def _event(config):
    """What one answer releases."""
    (event,) = client_setup(config, facts_of(config).sizes).releases(1, 100)
    assert event.kind == "gaussian"
    return event


def _price(config, answers):
    return epsilon_bounds.epsilon(repeated([_event(config)], answers), DELTA)


def _run_with_deaths(federation, path, out):
    """The ServerApp is killed after round 1, the SuperLink after round 2; each time it goes on."""
    first = federation.submit(path, out)
    soon(lambda: rounds_done(out) >= 1)
    end(program_under(federation.link.process.pid, "flwr-serverapp"))
    second = federation.submit(path, out, "output.resume=true")  # at once
    soon(lambda: rounds_done(out) >= 2)
    left = federation.kill_link()
    federation.start_link()
    gone(left)
    assert federation.submit(path, out, "output.resume=true").result() == "finished:completed"
    assert [first.result(), second.result()] == ["finished:failed"] * 2


def _check_the_run(run):
    manifest = run.manifest()
    assert run.metrics()["round"] == list(range(ROUNDS + 1))
    assert manifest["final"]["rounds"] == ROUNDS
    assert verdict(manifest["privacy"]) == SENTENCES["declared"]
    assert manifest["randomness_source"] == "os"
    missed = manifest["replies"]["missed"]
    assert set(missed) == {"2"}  # south, beyond its limit; the others went on
    assert set(missed["2"]) == {"absent"}
    assert missed["2"]["absent"][-1][1] == ROUNDS
    found = Ledger.verify(run.ledger_path)
    odometer = Odometer()
    Ledger.verify(run.ledger_path, feed=odometer.feed)
    assert odometer.covered == ROUNDS
    assert min(odometer.participations_by_client().tolist()) >= ROUNDS + 1  # some rounds twice
    assert str(found.head) == manifest["ledger_head"]


def _check_the_ledger(ledger, config, found, answers):
    """Of a site: each of its answers stands in both ledgers, and nothing else in its own."""
    places = sorted((one.header.server_round, one.header.attempt) for one in answers)
    assert found.is_whole
    assert list(found.both) == places
    assert len({place[0] for place in places}) >= 2
    paid = audit_ledger(ledger / LEDGER, DELTA)
    assert paid["charges"] == len(answers)
    wanted = pytest.approx(_price(config, len(answers)), rel=1e-9)
    assert paid["adversaries"][0]["epsilon"] == wanted


def _hostile_bundle(federation, path, loot, before):
    """An app without budget, clip and noise, on the same nodes: it gets what is left, noised."""
    left = {
        number: AFFORDS[name] - len(federation.tap(name).answers[before[name] :])
        for number, name in enumerate(NAMES)
    }
    hostile = replace(federation.flower, app=HOSTILE)
    given = {"experiment": str(path), "out": str(loot)}
    submit(hostile, given, (), timeout=2 * PATIENCE, on_line=federation.said.append)
    *told, control = sorted(json.loads(loot.read_text()), key=lambda one: one["rows"])
    assert control["rows"] == 200  # of the node without a site process: the attack is a real one
    assert {one["partition"]: len(one["ups"]) for one in told} == left
    for one in told:
        said = " ".join(one["told"])
        assert "not on this site's list" in said
        assert "Expected the broadcast" in said
        assert "this site's limit is" in said
        answers = federation.tap(NAMES[one["partition"]]).answers
        came = [answer.up["u"].tolist() for answer in answers if answer.run == "hostile"]
        assert came == one["ups"]
