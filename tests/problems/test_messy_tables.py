"""Tables as they are: empty cells, other names and units, classes in other words, categories."""

import numpy as np
import pytest
import torch

from manifed.errors import ConfigError
from manifed.experiment.load import load
from manifed.experiment.schema import canonical, sha256
from manifed.problems.file_formats import BadFile
from manifed.problems.own_files import FileData
from manifed.site import process
from tests.command import invoke

RULES = {
    "examples": "classification",
    "columns": ["age", "glucose"],
    "label": "ill",
    "classes": ["no", "yes"],
    "aliases": {"yes": ["y", "1"], "no": ["n", "0"]},
    "missing": {"glucose": 100.0},
    "empty_cells": ["NA", "?"],
    "categories": {"ward": ["A", "B"]},
    "synonyms": {"glucose": {"glucose_mmol": 18.0}, "ill": {"diabetes": 1}},
    "has_intercept": True,
}
HERE = "age,glucose,ward,ill\n50,90,A,yes\n60,NA,B,n\n70,,A,1\n"
THERE = "ward,diabetes,age,glucose_mmol\nA,y,50,5\nB,no,60,?\nA,yes,70,\n"


def read(tmp_path, text, name="file.csv", **changes):
    path = tmp_path / name
    path.write_text(text)
    return FileData.model_validate({"kind": "file", **RULES, **changes}).read(path)


def test_two_sites_with_other_words_and_units_are_alike(tmp_path):
    here, there = read(tmp_path, HERE), read(tmp_path, THERE)
    expected = [[50, 90, 1, 0, 1], [60, 100, 0, 1, 1], [70, 100, 1, 0, 1]]
    assert here["feature"].tolist() == there["feature"].tolist() == expected
    assert here["label"].tolist() == there["label"].tolist() == [1, -1, 1]


def test_a_column_says_which_cells_were_empty(tmp_path):
    found = read(tmp_path, HERE, has_missing_columns=True)
    assert found["feature"][:, -2].tolist() == [0, 1, 1]


def test_bounds_hold_for_constants_and_not_for_what_is_appended(tmp_path):
    found = read(tmp_path, HERE, range=[[0, 100], [80, 95]], outside="clip", rescale_to=[0, 1])
    assert found["feature"][1].tolist() == [0.6, 1.0, 0.0, 1.0, 1.0]


def test_a_row_is_read_alike_whatever_else_is_in_the_file(tmp_path):
    rows = HERE.splitlines()
    whole = read(tmp_path, HERE, has_missing_columns=True)
    for i in range(3):
        alone = read(tmp_path, f"{rows[0]}\n{rows[i + 1]}\n", has_missing_columns=True)
        assert all(torch.equal(alone[key][0], whole[key][i]) for key in whole.tensors)


def test_parquet_has_names_units_and_nulls_too(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "file.parquet"
    columns = {"glucose_mmol": [5.0, None], "age": [50, 60], "ward": ["A", "B"], "ill": ["y", "n"]}
    parquet.write_table(pyarrow.table(columns), path)
    found = FileData.model_validate({"kind": "file", **RULES}).read(path)
    assert found["feature"].tolist() == [[50, 90, 1, 0, 1], [60, 100, 0, 1, 1]]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HERE.replace("60", ""), "line 3, column 'age': expected a finite number"),
        (HERE.replace("B", "C"), "line 3, column 'ward': expected one of data.categories"),
        (HERE.replace("1\n", "2\n"), "line 4, column 'ill': expected one of data.classes"),
        (
            "glucose_mmol," + HERE.replace("\n", "\n5,")[:-2],
            "'glucose': expected one column of this",
        ),
    ],
)
def test_what_no_rule_explains_is_refused_with_its_line(tmp_path, text, said):
    with pytest.raises(BadFile, match=said):
        read(tmp_path, text)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"missing": {"bmi": 27.0}}, "missing: expected names among"),
        ({"synonyms": {"bmi": {"BMI": 1.0}}}, "synonyms: expected names among"),
        ({"synonyms": {"ill": {"sick": 2.0}}}, "synonyms: expected factors 1 for the text column"),
        ({"aliases": {"maybe": ["m"]}}, "aliases: expected classes among"),
        ({"categories": {"ward": ["A", "A"]}}, "categories: expected the values of a column"),
        ({"missing": {}, "has_missing_columns": True}, "has_missing_columns: needs missing"),
    ],
)
def test_rules_that_do_not_fit_are_refused(change, said):
    with pytest.raises(ValueError, match=said):
        FileData.model_validate({"kind": "file", **RULES, **change})


# -- in a config, and at a site ------------------------------------------------------------------
CONFIG = """
name = "messy"
[problem]
kind = "logistic"
[data]
kind = "file"
examples = "classification"
columns = ["age", "glucose"]
label = "ill"
classes = ["no", "yes"]
range = [[0, 100], [40, 400]]
paths = ["a.csv", "a.csv"]
[federation]
num_clients = 2
num_rounds = 1
[training]
kind = "rsgd"
step_size = 0.1
minibatch = { kind = "full" }
"""


OPTIONS = ("--partition", 0, "--max-epsilon", 1, "--delta", 1e-5, "--socket", "socket", "--check")


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "messy.toml"
    path.write_text(CONFIG)
    return path


def test_rules_are_public_statements_of_the_config(config):
    sets = ["data.missing={glucose=100.0}"], ["data.missing={glucose=110.0}"], []
    assert len({sha256(load(config, one)) for one in sets}) == 3
    assert "missing" not in canonical(load(config))


def test_a_dry_run_tells_the_owner_alone_which_rows_count(config, tmp_path, monkeypatch):
    monkeypatch.setattr(process, "run", lambda *_: pytest.fail("the site was opened"))
    path = tmp_path / "own.csv"
    path.write_text("age,glucose,ill\n50,90,yes\n60,,no\n700,90,no\n40,80,maybe\n30,100,no\n")
    words = (*OPTIONS, "--data", path, "--ledger", tmp_path / "ledger", "--config", config)
    before = sorted(tmp_path.iterdir())
    done = invoke("site", *words)
    assert done.exit_code == 2
    lines = done.stdout.splitlines()
    assert lines[0].endswith("5 rows, 2 count, 3 are refused")
    assert [line.split(": ")[0].split(", ", 1)[1] for line in lines[1:]] == [
        "line 3, column 'glucose'", "line 4, column 'age'", "line 5, column 'ill'",
    ]  # fmt: skip
    assert sorted(tmp_path.iterdir()) == before
    path.write_text("age,glucose,ill\n50,90,yes\n")
    assert invoke("site", *words).exit_code == 0


def test_a_dry_run_needs_a_file_and_a_config(config, tmp_path):
    done = invoke("site", *OPTIONS, "--ledger", tmp_path / "ledger", "--config", config)
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "--check: expected --data and --config" in done.stderr


def test_a_constant_never_comes_from_the_data(tmp_path):
    """An empty cell is the config's number, also where all other cells are far from it."""
    text = "age,glucose,ward,ill\n" + "50,300,A,yes\n" * 9 + "50,,A,yes\n"
    assert np.array(read(tmp_path, text)["feature"])[-1, 1] == 100.0
    with pytest.raises(ConfigError, match="missing"):
        FileData(**{**RULES, "missing": {"glucose": "mean"}})
