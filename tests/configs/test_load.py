"""Bad input ends in one line that names the field, the value and the bound."""

from pathlib import Path

import pytest

from configs.load import ConfigError, dump, load, parse, sha256, split_overrides

QUICKSTART = Path(__file__).resolve().parents[2] / "configs" / "quickstart.toml"
EXPERIMENTS = sorted((QUICKSTART.parent / "experiments").glob("*.toml"))


def test_quickstart_parses_to_the_objects_that_run():
    config = load(QUICKSTART)
    assert config.training.kind == "rsgd"
    assert config.strategy.kind == "tangent-mean"
    assert config.federation.num_clients == 10


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda p: p.stem)
def test_every_shipped_experiment_parses(path):
    assert load(path).name == path.stem


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("federation.num_round=5", ["federation.num_round", "unknown key"]),
        ("federation.num_rounds=many", ["federation.num_rounds", "integer", "'many'"]),
        ("federation.num_rounds=0", ["federation.num_rounds", "greater than or equal to 1", "0"]),
        ("training.step_size=-1", ["training", "step_size", "greater than 0", "-1"]),
        ("training.kind=sgd", ["training", "rsgd", "sgd"]),
        ("privacy.noise.delta=2.0", ["privacy.noise.delta", "less than 1", "2.0"]),
        ("privacy.l2_norm_clip=nan", ["privacy", "l2_norm_clip", "nan"]),
        (
            "federation.cohort={kind='fixed-size',cohort_size=11}",
            ["federation.cohort.cohort_size", "10", "11"],
        ),
        (
            "privacy.neighboring_relation=replace-one "
            "training.minibatch={kind='poisson',batch_size=8}",
            ["privacy.neighboring_relation", "replace-one", "add-or-remove"],
        ),
        ("training.output=random-output", ["training.output", "strategy.output_rule", "last"]),
        ("engine.kind=ray engine.execution=cohort", ["engine.execution", "inline", "ray"]),
        ("problem.kind=nothing", ["problem", "nothing"]),
        ("x", ["federation.num_rounds=50", "'x'"]),
        ("name.first=a", ["name.first", "value"]),
    ],
)
def test_bad_overrides_name_field_value_and_bound(override, words):
    with pytest.raises(ConfigError) as caught:
        load(QUICKSTART, split_overrides(override))
    text = str(caught.value)
    assert "\n" not in text
    for word in words:
        assert word in text


def test_a_missing_file_and_broken_toml_are_named(tmp_path):
    with pytest.raises(ConfigError, match="does not exist"):
        load(tmp_path / "no.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("a = = 1")
    with pytest.raises(ConfigError, match=r"broken\.toml"):
        load(broken)


def test_the_hash_changes_with_what_matters_and_with_nothing_else():
    base = sha256(load(QUICKSTART))
    assert sha256(load(QUICKSTART, ["engine.kind=ray", "output.directory=/tmp/x"])) == base
    assert sha256(load(QUICKSTART, ["federation.seed=1"])) != base
    assert sha256(load(QUICKSTART, ["privacy.l2_norm_clip=2.0"])) != base


def test_a_dumped_config_parses_to_itself():
    config = load(QUICKSTART)
    assert parse(dump(config)) == config


def test_overrides_split_at_spaces_outside_quotes_and_brackets():
    text = "a.b=1 c={k = 'v w', n = [1, 2]} d='x y'"
    assert split_overrides(text) == ["a.b=1", "c={k = 'v w', n = [1, 2]}", "d='x y'"]
