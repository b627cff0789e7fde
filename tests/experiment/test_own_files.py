"""A config whose clients have files of their own."""

import sys

import pytest

from manifed.errors import ConfigError
from manifed.experiment.assembly import own_examples
from manifed.experiment.load import from_toml, load, parse, to_toml, without_paths
from manifed.experiment.schema import sha256

CONFIG = """
[problem]
kind = "principal-eigenvector"
[data]
kind = "file"
examples = "rows"
columns = ["age", "bmi"]
paths = "files/site-{partition}.csv"
[federation]
num_clients = 3
num_rounds = 2
[training]
kind = "rsgd"
step_size = 0.1
"""
PREDICTION = "configs/examples/own_hyperbolic_prediction.toml"


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text(CONFIG)
    return path


def test_a_pattern_names_a_file_for_each_client_beside_the_config(own):
    config = load(own)
    folder = own.parent / "files"
    assert config.data.paths == tuple(str(folder / f"site-{i}.csv") for i in range(3))
    assert config.federation.partition.kind == "natural"
    assert from_toml(to_toml(config)) == config


def test_where_the_files_lie_is_no_part_of_the_hash(own):
    here, elsewhere, other = (
        sha256(load(own, sets))
        for sets in (
            [],
            ['data.paths=["a.csv", "b.csv", "c.csv"]'],
            ['data.columns=["age", "sex"]'],
        )
    )
    assert here == elsewhere != other


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ('data.paths="a.csv"', "data.paths: expected a list, or a pattern"),
        ('data.range=["a", 1]', "data.range"),
        (
            'data.paths=["a\\u0000.csv", "b.csv", "c.csv"]',
            r"data\.paths\.0: expected text without NUL",
        ),
        ('data.labels="age"', "did you mean 'label'"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(own, override, expected):
    with pytest.raises(ConfigError, match=expected) as refused:
        load(own, [override])
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("section", "field", "more"), [("data", "source", {}), ("problem", "model", {"kind": "module"})]
)
def test_code_needs_the_consent_of_the_node_before_it_is_imported(own, section, field, more):
    table = load(own).model_dump(mode="json", exclude_none=True)
    table[section] |= more | {field: "antigravity:fly"}
    with pytest.raises(ConfigError, match=rf"{section}.{field}: expected a plug-in that this node"):
        parse(table, ["orchard"])
    assert "antigravity" not in sys.modules


def test_weights_that_depend_on_all_rows_take_no_row_more():
    assert load(PREDICTION).privacy.neighboring_relation == "replace-one"
    with pytest.raises(ConfigError, match="changes the kernel weights of all others"):
        load(PREDICTION, ["privacy.neighboring_relation=add-or-remove"])


def test_records_that_make_a_kernel_fail_are_one_line_for_their_owner(tmp_path):
    path = tmp_path / "site.csv"
    path.write_text("px,py,feature\n0.1,0.2,1e308\n" + "0.1,0.1,0.5\n" * 59)
    with pytest.raises(ConfigError, match=r"^data: client 0: cannot be prepared: "):
        own_examples(without_paths(load(PREDICTION)), 0, path)
