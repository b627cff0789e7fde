"""Parts of other packages: named by their class, checked at load, part of the hash."""

import re
import sys

import pytest

from manifed.errors import ConfigError
from manifed.experiment.assembly import check_first_update
from manifed.experiment.load import dump, from_toml, load, parse, to_toml
from manifed.experiment.plugins import VARIABLE, sha256_of
from manifed.experiment.schema import sha256
from manifed.flower.run_config import experiment_of, run_config_of
from tests.fresh import QUICKSTART

PARTS = """
from dataclasses import replace
from typing import Literal

from pydantic import Field

from manifed.oracles.minibatch import Full, Minibatch
from manifed.problems.data import Equal, PartitionRule
from manifed.algorithms.algorithm import GradientSteps, Phase, ServerUpdate
from manifed.algorithms.payloads import Point, PointAndDisplacement
from manifed.problems.pca import PrincipalEigenvector

class Halves(PartitionRule):
    share: float = Field(default=0.5, gt=0, lt=1)
    minibatch: Minibatch = Full()

    def split(self, dataset, num_partitions, rng):
        return Equal().split(dataset, num_partitions, rng)

class Thirds(Halves):
    share: float

class Lists(Halves):
    sizes: list[int] = []

class Unfinished(PartitionRule):

class Centred(PrincipalEigenvector):
    def prepare(self, shard, meta):
        return super().prepare(shard, meta)

class Honest(Centred):
    def mixes_records(self):
        return "problem.kind: the mean of all records is taken from each"

class Renamed(PrincipalEigenvector):

class Step(GradientSteps):
    times: int = 1
    is_noised: bool = True

    def client(self, x, oracle, here):
        for _ in range(self.times):
            u = oracle.gradient(x)
        return -self.step_size * u

    def queries(self, mechanism, num_examples):
        (asked,) = super().queries(mechanism, num_examples)
        return (asked if self.is_noised else replace(asked, drawn=None),)

class Silent(Step):
    def releases(self, mechanism, num_examples):
        return ()

class Forgotten(Step):
    def releases(self, mechanism, num_examples):
        return self.charges

class Pairs(Step):
    @property
    def phases(self):
        return (Phase("train", Point, PointAndDisplacement),)

class Peeking(Step, ServerUpdate):
    def server(self, state, mean, here):
        return {"x": here.manifold.expmap(state["x"], here.collected.rows[0])}

class Server(ServerUpdate):
    def server(self, state, mean, here):
        return state

ELSEWHERE = 3
"""
"""A module of plug-ins; `orchard` writes each class's ``kind`` below its head."""


@pytest.fixture
def orchard(tmp_path, monkeypatch):
    """A package outside of this repository; the folder that holds it."""
    folder = tmp_path / "orchard"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    kind = r'\1\n    kind: Literal["orchard.parts:\2"] = "orchard.parts:\2"'
    (folder / "parts.py").write_text(re.sub(r"(class (\w+)\(.*\):)", kind, PARTS))
    (folder / "broken.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    for name in [name for name in sys.modules if name.split(".")[0] == "orchard"]:
        del sys.modules[name]


def cut_by(name, **fields):
    partition = {"kind": f"orchard{name}", **fields}
    return dump(load(QUICKSTART)) | {
        "federation": {"num_clients": 10, "num_rounds": 2, "partition": partition}
    }


@pytest.mark.usefixtures("orchard")
@pytest.mark.parametrize("name", ["Halves", "Thirds"])
def test_a_class_of_another_package_is_read_written_and_hashed(name):
    config, other = (parse(cut_by(f".parts:{name}", share=share)) for share in (0.25, 0.75))
    rule = config.federation.partition
    assert (type(rule).__module__, type(rule).__name__) == ("orchard.parts", name)
    assert rule.share == 0.25
    assert dump(config)["federation"]["partition"]["kind"] == f"orchard.parts:{name}"
    assert from_toml(to_toml(config)) == config
    assert sha256(other) != sha256(config)


@pytest.mark.usefixtures("orchard")
def test_with_privacy_a_plugin_says_whether_it_mixes_records():
    table = dump(load(QUICKSTART))
    for name, words in (
        ("Centred", r"must also define mixes_records\(\)"),
        ("Honest", "the mean of all"),
    ):
        theirs = table | {"problem": {"kind": f"orchard.parts:{name}"}}
        with pytest.raises(ConfigError, match=rf"^problem\.kind: .*{words}"):
            parse(theirs)
        assert parse(theirs | {"privacy": {"kind": "none"}}).problem.kind.endswith(name)
    assert parse(table | {"problem": {"kind": "orchard.parts:Renamed"}}).privacy.kind != "none"


AT_CLIENTS = {
    "privacy": {
        "kind": "client-level", "l2_norm_clip": 1.0, "delta": 1e-5,
        "noise": {"kind": "multiplier", "noise_multiplier": 1.0},
    }
}  # fmt: skip


# -- algorithms ------------------------------------------------------------------------------
def with_training(name, **fields):
    table = {"kind": f"orchard.parts:{name}", "step_size": 0.1, **fields}
    return dump(load(QUICKSTART)) | {"training": table, "strategy": None}


@pytest.mark.usefixtures("orchard")
@pytest.mark.parametrize(
    ("table", "words"),
    [
        (
            cut_by(".parts:halves"),
            "partition.kind.*expected a class.*:halves",
        ),
        (
            cut_by(".parts:ELSEWHERE"),
            "partition.kind.*expected a class.*int",
        ),
        (cut_by(":parts:x"), "partition.kind.*'package.module:Class'"),
        (
            cut_by("s.parts:Halves"),
            "partition.kind.*No module.*install",
        ),
        (
            cut_by(".broken:Halves"),
            "partition.kind.*ZeroDivisionError",
        ),
        (
            cut_by(".parts:Unfinished"),
            "partition.kind.*abstract.*split",
        ),
        (cut_by(".parts:Lists"), "partition.kind.*unhashable"),
        (
            cut_by(".parts:Thirds"),
            "federation.partition.share.*required",
        ),
        (cut_by(".parts:Thirds", shares=1.0, share=0.5), r"did you mean 'share'\?"),
        (
            cut_by(".parts:Halves", minibatch={"kind": "poisson", "batch_size": -1.0}),
            "federation.partition.minibatch.batch_size: .*greater than 0",
        ),
        (with_training("Silent"), "training.kind.*states no release.*example-level"),
        (with_training("Forgotten"), "training.kind.*releases failed.*charges"),
        (with_training("Server"), "training.kind.*is no ClientUpdate; derive it"),
        (
            with_training("Step", minibatch={"kind": "without-replacement", "batch_size": 8}),
            "privacy.neighboring_relation.*'replace-one' only",
        ),
        (
            with_training("Step") | {"strategy": {"kind": "orchard.parts:Step"}},
            "strategy.kind.*no ServerUpdate",
        ),
        (with_training("Pairs") | AT_CLIENTS, "client-level.*it uploads several"),
    ],
)
def test_a_plugin_that_cannot_be_or_breaks_a_promise_is_refused_in_one_line(table, words):
    with pytest.raises(ConfigError, match=words) as caught:
        parse(table)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("orchard")
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"times": 3, "local_steps": 2}, "asked for 3 noised answers 'gradient'.* charge 2"),
        ({"is_noised": False}, "asked for 1 un-noised answers 'gradient'.* charge 0"),
        ({"times": 0}, r"a first update failed: UnboundLocalError.*\(parts.py:\d+\)"),
    ],
)
def test_an_update_that_does_not_keep_to_its_charge_is_refused_before_round_1(fields, words):
    with pytest.raises(ConfigError, match=rf"^training\.kind: .*{words}"):
        check_first_update(parse(with_training("Step", **fields)))
    check_first_update(parse(with_training("Step", times=2, local_steps=2)))


@pytest.mark.usefixtures("orchard")
def test_under_client_level_privacy_a_server_update_sees_no_upload():
    check_first_update(parse(with_training("Peeking")))
    with pytest.raises(ConfigError, match="a first update failed: ValueError: Expected uploads"):
        check_first_update(parse(with_training("Peeking") | AT_CLIENTS))
    own = {"strategy": {"kind": "orchard.parts:Server"}}
    check_first_update(parse(with_training("Step") | AT_CLIENTS | own))


def test_the_hash_follows_the_source_of_the_package(orchard):
    table = cut_by(".parts:Halves")
    hashes = set()
    for text in ("", "# another way to cut"):
        (orchard / "cuts.py").write_text(text)
        sha256_of.cache_clear()
        hashes.add(sha256(parse(table)))
    assert len(hashes) == 2


# -- a run config comes from somebody else ----------------------------------------------------
def test_a_run_config_imports_only_what_this_node_allows(orchard, monkeypatch):
    config = parse(cut_by(".parts:Halves"))
    text = run_config_of(config)
    (orchard / "other.py").write_text("raise SystemExit('imported')")
    cases = (
        ("federation.partition", text),
        ("federation.partition",
         text | {"resolved": text["resolved"].replace("orchard.parts:", "orchard.other:")}),
        ("problem", {"experiment": str(QUICKSTART), "overrides": "problem.kind='orchard.other:X'"}),
    )  # fmt: skip
    for allowed in ("", "orchards,numpy"):
        monkeypatch.setenv(VARIABLE, allowed)
        for place, given in cases:
            with pytest.raises(ConfigError, match=rf"^{place}\.kind: .*MANIFED_PLUGINS"):
                experiment_of(given)
    assert "orchard.other" not in sys.modules
    monkeypatch.setenv(VARIABLE, "numpy, orchard")
    assert experiment_of(text) == config
