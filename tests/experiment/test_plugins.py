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
from tests.experiment.test_load import QUICKSTART

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


def with_partition(table):
    return dump(load(QUICKSTART)) | {"federation": {
        "num_clients": 10, "num_rounds": 2, "partition": table}}  # fmt: skip


@pytest.mark.usefixtures("orchard")
@pytest.mark.parametrize("name", ["Halves", "Thirds"])
def test_a_class_of_another_package_is_read_written_and_hashed(name):
    config = parse(with_partition({"kind": f"orchard.parts:{name}", "share": 0.25}))
    rule = config.federation.partition
    assert (type(rule).__module__, type(rule).__name__) == ("orchard.parts", name)
    assert rule.share == 0.25
    assert dump(config)["federation"]["partition"]["kind"] == f"orchard.parts:{name}"
    assert from_toml(to_toml(config)) == config
    other = parse(with_partition({"kind": f"orchard.parts:{name}", "share": 0.75}))
    assert sha256(other) != sha256(config)


@pytest.mark.usefixtures("orchard")
def test_with_privacy_a_plugin_says_whether_it_mixes_records():
    table = dump(load(QUICKSTART))
    for name, words in (("Centred", r"needs mixes_records\(\)"), ("Honest", "the mean of all")):
        theirs = table | {"problem": {"kind": f"orchard.parts:{name}"}}
        with pytest.raises(ConfigError, match=rf"^problem\.kind: .*{words}"):
            parse(theirs)
        assert parse(theirs | {"privacy": {"kind": "none"}}).problem.kind.endswith(name)
    assert parse(table | {"problem": {"kind": "orchard.parts:Renamed"}}).privacy.kind != "none"


AT_CLIENTS = {
    "kind": "client-level",
    "l2_norm_clip": 1.0,
    "delta": 1e-5,
    "noise": {"kind": "multiplier", "noise_multiplier": 1.0},
}


# -- algorithms ------------------------------------------------------------------------------
def with_training(name, privacy=None, **fields):
    base = {key: value for key, value in dump(load(QUICKSTART)).items() if key != "strategy"}
    table = {"kind": f"orchard.parts:{name}", "step_size": 0.1} | fields
    return base | {"training": table} | ({} if privacy is None else {"privacy": privacy})


@pytest.mark.usefixtures("orchard")
@pytest.mark.parametrize(
    ("table", "words"),
    [
        (
            with_partition({"kind": "orchard.parts:halves"}),
            ["partition.kind", "expected a class", ":halves"],
        ),
        (
            with_partition({"kind": "orchard.parts:ELSEWHERE"}),
            ["partition.kind", "expected a class", "int"],
        ),
        (with_partition({"kind": "orchard:parts:x"}), ["partition.kind", "'package.module:Class'"]),
        (
            with_partition({"kind": "orchards.parts:Halves"}),
            ["partition.kind", "No module", "install"],
        ),
        (
            with_partition({"kind": "orchard.broken:Halves"}),
            ["partition.kind", "ZeroDivisionError"],
        ),
        (
            with_partition({"kind": "orchard.parts:Unfinished"}),
            ["partition.kind", "abstract", "split"],
        ),
        (with_partition({"kind": "orchard.parts:Lists"}), ["partition.kind", "unhashable"]),
        (
            with_partition({"kind": "orchard.parts:Thirds"}),
            ["federation.partition.share", "required"],
        ),
        (
            with_partition({"kind": "orchard.parts:Thirds", "shares": 1.0, "share": 0.5}),
            ["did you mean 'share'?"],
        ),
        (
            with_partition(
                {
                    "kind": "orchard.parts:Halves",
                    "minibatch": {"kind": "poisson", "batch_size": -1.0},
                }
            ),
            ["federation.partition.minibatch.batch_size: ", "greater than 0"],
        ),
        (with_training("Silent"), ["training.kind", "states no release", "example-level"]),
        (with_training("Forgotten"), ["training.kind", "releases failed", "charges"]),
        (with_training("Server"), ["training.kind", "is no ClientUpdate; derive it"]),
        (
            with_training("Step", minibatch={"kind": "without-replacement", "batch_size": 8}),
            ["privacy.neighboring_relation", "'replace-one' only"],
        ),
        (
            with_training("Step") | {"strategy": {"kind": "orchard.parts:Step"}},
            ["strategy.kind", "no ServerUpdate"],
        ),
        (with_training("Pairs", AT_CLIENTS), ["client-level", "it uploads several"]),
    ],
)
def test_a_plugin_that_cannot_be_or_breaks_a_promise_is_refused_in_one_line(table, words):
    with pytest.raises(ConfigError) as caught:
        parse(table)
    text = str(caught.value)
    assert "\n" not in text
    assert [word for word in words if word not in text] == []


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
        check_first_update(parse(with_training("Peeking", AT_CLIENTS)))
    config = with_training("Step", AT_CLIENTS) | {"strategy": {"kind": "orchard.parts:Server"}}
    check_first_update(parse(config))


def test_the_hash_follows_the_source_of_the_package(orchard):
    table = with_partition({"kind": "orchard.parts:Halves"})
    hashes = set()
    for text in ("", "# another way to cut"):
        (orchard / "cuts.py").write_text(text)
        sha256_of.cache_clear()
        hashes.add(sha256(parse(table)))
    assert len(hashes) == 2


# -- a run config comes from somebody else ----------------------------------------------------
def test_a_run_config_imports_only_what_this_node_allows(orchard, monkeypatch):
    config = parse(with_partition({"kind": "orchard.parts:Halves"}))
    text = run_config_of(config)
    (orchard / "other.py").write_text("raise SystemExit('imported')")
    hostile = {**text, "resolved": text["resolved"].replace("orchard.parts:", "orchard.other:")}
    for allowed in ("", "orchards,numpy"):
        monkeypatch.setenv(VARIABLE, allowed)
        for given in (text, hostile):
            with pytest.raises(ConfigError, match=r"^federation\.partition\.kind: .*MANIFED_PLUGI"):
                experiment_of(given)
        with pytest.raises(ConfigError, match=r"^problem\.kind: .*MANIFED_PLUGINS"):
            experiment_of(
                {"experiment": str(QUICKSTART), "overrides": "problem.kind='orchard.other:X'"}
            )
    assert "orchard.other" not in sys.modules
    monkeypatch.setenv(VARIABLE, "numpy, orchard")
    assert experiment_of(text) == config
