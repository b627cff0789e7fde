"""Bad input ends in one line that names the field, the value and the bound."""

import hashlib
import json
from types import SimpleNamespace

import pytest
import tomli_w

from manifed.algorithms.projected import Projected
from manifed.algorithms.rsgd import RSGD
from manifed.algorithms.rsvrg import RSVRG
from manifed.errors import ConfigError
from manifed.experiment.load import (
    from_toml,
    load,
    parse,
    parse_overrides,
    table_of_canonical,
    to_toml,
)
from manifed.experiment.schema import canonical, sha256
from manifed.manifolds.spd import SPD
from manifed.setting import NoPrivacy
from manifed_extras.fixed_rank import FixedRank
from tests.fresh import QUICKSTART


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("privacy.noise.view=server", "privacy.noise.view.*unknown key.*'adversary'"),
        ("federation.num_rounds=many", "federation.num_rounds.*integer.*'many'"),
        ("privacy.noise.delta=2.0", "privacy.noise.delta.*less than 1.*2.0"),
        ("privacy.l2_norm_clip=nan", "privacy.*l2_norm_clip.*nan"),
        (
            "privacy.neighboring_relation=replace-one "
            "training.minibatch={kind='poisson',batch_size=8}",
            "privacy.neighboring_relation.*add-or-remove.*replace-one",
        ),
        ("training.output=random-output", "training.output.*random-iterate"),
        ("engine.kind=ray engine.execution=cohort", "engine.execution.*inline.*ray"),
        ("x", "federation.num_rounds=50.*'x'"),
        ("training.kind=rsgdd", r"training.kind.*expected one of.*did you mean 'rsgd'\?"),
        ("training.minibatch={batch_size=3}", "training.minibatch.kind.*required.*poisson"),
        ("federation.num_rounds=true", "federation.num_rounds.*valid integer.*True"),
        ("federation.num_rounds='5'", "federation.num_rounds.*integer.*'5'"),
        ("evaluation.is_enabled=1", "evaluation.is_enabled.*valid boolean.*1"),
        ("federation.num_rounds=1" + "0" * 5000, "federation.num_rounds.*5001 digits"),
        ("federation.num_rounds=1" + "0" * 300, r"federation.num_rounds.*2\^63.*997 bits"),
        ("federation.num_rounds=16777216", "federation.num_rounds.*16777215.*16777216"),
        ("training.local_steps=1048577", "training.local_steps.*1048576.*1048577"),
        ("privacy.l2_norm_clip=5e-324", "privacy.l2_norm_clip.*1e-100.*5e-324"),
        ("training.step_size=1e301", r"training.step_size.*1e\+100.*1e\+301"),
        ("name=" + "[" * 2000, "name.*recursion"),
        ("x=" + "{a=" * 40 + "1" + "}" * 40, "nested at most 32 deep.*x.a.a"),
        ("name.first=a", "name.first.*value"),
        ("strategy.maps=retraction", "strategy.maps.*training.maps.*'retraction'"),
    ],
)
def test_bad_overrides_name_field_value_and_bound(override, words):
    with pytest.raises(ConfigError, match=words) as caught:
        load(QUICKSTART, override.split(" "))
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_broken_toml_are_named(tmp_path):
    with pytest.raises(ConfigError, match="does not exist"):
        load(tmp_path / "no.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("a = = 1")
    with pytest.raises(ConfigError, match=r"broken\.toml"):
        load(broken)


def test_the_hash_changes_with_what_matters_and_with_nothing_else():
    base, same, *others = (
        sha256(load(QUICKSTART, sets))
        for sets in (
            [],
            ["engine.kind=ray", "output.directory=/tmp/x"],
            ["federation.seed=1"],
            ["privacy.l2_norm_clip=2.0"],
        )
    )
    assert same == base
    assert base not in others


@pytest.mark.parametrize(
    "path",
    sorted((*QUICKSTART.parent.glob("*.toml"), *QUICKSTART.parent.glob("examples/*.toml"))),
    ids=lambda path: path.stem,
)
def test_the_text_that_is_hashed_tells_the_whole_experiment(path):
    sets = ["engine.dtype=float32"]
    if path.stem.startswith("own_"):
        sets.append("evaluation={kind='public',path='held_out.csv'}")
    config = load(path, sets)
    text = canonical(config)
    found = parse(table_of_canonical(text))
    assert canonical(found) == text
    assert hashlib.sha256(text.encode()).hexdigest() == sha256(config) == sha256(found)
    assert (found.training, found.privacy) == (config.training, config.privacy)
    assert found.engine.dtype == config.engine.dtype


def test_a_plan_is_left_to_no_one_who_reads_a_resolved_config():
    auto = {"name": "x", "training": {"kind": "auto"}}
    for read, text in ((from_toml, tomli_w.dumps(auto)), (table_of_canonical, json.dumps(auto))):
        with pytest.raises(ConfigError, match=r"^training\.kind: expected a method"):
            read(text)


# -- the one string of overrides that people type for `flwr run` ---------------------------------
def test_overrides_in_one_string_are_lines_of_toml():
    text = "# mine\na.b = 1\n\nc={k = 'v w', n = [1, 2]}\r\n d . e='x # y' # z"
    assert parse_overrides(text) == {"a.b": 1, "c": {"k": "v w", "n": [1, 2]}, "d.e": "x # y"}


@pytest.mark.parametrize(
    "text",
    [
        "a.b=1 c.d=2",
        "engine.kind=ray",
        "description=[draft privacy.noise.epsilon=0.1",
        "[privacy]",
        "a=1\na=2",
        "a.b=1\na={b=2}",
        "a={b=2}\na.c=1",
        "a=",
        "=1",
        "a..b=1",
        "a=[1,\n2]",
        "a='''x\ny'''",
        "a",
    ],
)
def test_overrides_in_one_string_are_never_guessed(text):
    with pytest.raises(ConfigError, match=r"^overrides: ") as caught:
        parse_overrides(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["[draft", "try privacy={kind='none'}", "1\nname = 2", "é \"' \\ \x7f\t\U0001f600", ""]
)
def test_an_override_is_one_value_and_toml_keeps_it(text):
    config = load(QUICKSTART, [f"description={text}"])
    assert config.description == text
    assert config.privacy == load(QUICKSTART).privacy
    assert from_toml(to_toml(config)) == config


# -- what a manifold can do is known before anything runs ------------------------------------
def test_exact_maps_need_an_exponential_and_a_logarithm():
    flat, full = (
        SimpleNamespace(privacy=NoPrivacy(), manifold=manifold)
        for manifold in (FixedRank(rows=4, columns=3, rank=2), SPD())
    )
    for training in (RSGD(step_size=0.1), RSVRG(step_size=0.1, inner_steps=2)):
        with pytest.raises(ValueError, match="needs expmap and logmap, and"):
            training.check(flat)
        training.check(full)
    for training in (RSGD(step_size=0.1, maps="retraction"), Projected(step_size=0.1)):
        training.check(flat)
