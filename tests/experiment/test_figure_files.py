"""A figure file gives every curve the config that it always had, and says what is wrong with it."""

import json
from pathlib import Path

import pytest

from manifed.errors import ConfigError
from manifed.experiment.figure_files import read_figure, selected, split
from manifed.experiment.load import load, sha256

FIGURES = sorted((Path(__file__).resolve().parents[2] / "configs" / "figures").glob("*.toml"))
HASHES = json.loads(Path(__file__).with_name("curve_hashes.json").read_text())
SMALL = """
title = "t"
paper = "p"
shows = "s"
name = "c_{method}-{eps}"
base = { problem = { kind = "kpca", rank = 1 }, training = { kind = "rsgd", maps = "exp" } }
parts.method.a = { training = { kind = "rsvrg", epochs = 2 } }
parts.method.b = { training.step_size = 0.5 }
parts.eps."1" = { privacy.epsilon = 1 }
parts.eps."2" = {}
labels.a = "A"

[[when]]
parts = { method = ["a", "b"], eps = "2" }
put = { privacy.epsilon = 7 }

[[axes]]
y = "cost"

[[panels]]
title = "eps = {eps}"
label = "{method}"
by = ["eps"]
"""


@pytest.mark.parametrize("path", FIGURES, ids=lambda path: path.stem)
def test_every_curve_has_the_config_that_it_always_had(path):
    figure = read_figure(path)
    found = {name: load(figure.source(name)) for name in figure.choices}
    assert {name: config.name for name, config in found.items()} == {name: name for name in found}
    assert {name: sha256(config) for name, config in found.items()} == {
        name: HASHES[name] for name in found
    }


def test_every_curve_is_of_one_figure():
    names = [name for path in FIGURES for name in read_figure(path).choices]
    assert len(names) == len(set(names))
    assert set(names) == set(HASHES)


def written(tmp_path, text):
    path = tmp_path / "small.toml"
    path.write_text(text)
    return path


def test_layers_are_merged_and_a_kind_replaces(tmp_path):
    figure = read_figure(written(tmp_path, SMALL))
    assert list(figure.choices) == ["c_a-1", "c_a-2", "c_b-1", "c_b-2"]
    assert figure.table("c_a-1") == {
        "problem": {"kind": "kpca", "rank": 1},
        "training": {"kind": "rsvrg", "epochs": 2},
        "privacy": {"epsilon": 1},
        "name": "c_a-1",
    }
    assert figure.table("c_b-2")["training"] == {"kind": "rsgd", "maps": "exp", "step_size": 0.5}
    assert figure.table("c_b-2")["privacy"] == {"epsilon": 7}
    first, second = figure.panels
    assert (first.title, first.curves) == ("eps = 1", (("c_a-1", "A"), ("c_b-1", "b")))
    assert second.title == "eps = 2"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('title = "t"', 'titel = "t"', ["titel", "unknown key", "'title'"]),
        ('shows = "s"', "", ["shows", "required"]),
        ('eps = "2" }', 'eps = "3" }', ["when.eps", "'3'", "['1', '2']"]),
        ('by = ["eps"]', 'by = ["esp"]', ["panels.by", "'esp'", "did you mean 'eps'"]),
        ("c_{method}-{eps}", "c_{methd}", ["name", "'methd'", "did you mean 'method'"]),
        ("c_{method}-{eps}", "c_{method}", ["name", "two curves"]),
        ('y = "cost"', "y = 3", ["axes.0.y", "string", "3"]),
        ('title = "t"', 'title = "t"\nseeds = 0', ["seeds", "greater than or equal to 1", "0"]),
        ('title = "t"', 'title = "t"\ndrawing = "disk"', ["panels", "drawing"]),
        ('title = "t"', 'title = "t"\nruns_of = "000-1"', ["runs_of", '"disk"']),
        ('title = "t"', 'title = "t"\ndata = ["mnist"]', ["data", '"computed"']),
        ('y = "cost"', 'y = "cost"\nleast = nan', ["axes.0.least", "finite", "nan"]),
        ('y = "cost"', 'y = "cost"\nlog = ["y"]\nleast = 0.0', ["axes.least", "more than 0"]),
        ('eps."1" = { privacy.epsilon = 1 }', "none = {}", ["parts.none", "choices"]),
        ('title = "t"', "title = ", ["valid TOML"]),
    ],
)
def test_a_fault_of_a_figure_file_is_one_line(tmp_path, old, new, words):
    assert old in SMALL
    path = written(tmp_path, SMALL.replace(old, new, 1))
    with pytest.raises(ConfigError) as found:
        read_figure(path)
    text = str(found.value)
    assert all(word in text for word in [*words, str(path)]), text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("budgets", "words"),
    [
        ("[nan]", ["budgets.0", "finite", "nan"]),
        ("[-1.0]", ["budgets.0", "greater than 0", "-1.0"]),
        ("[1.0, 1.0000001]", ["budgets", "different", "1.0000001"]),
        ("[]", ["budgets", "expected epsilons"]),
    ],
)
def test_budgets_are_different_epsilons_above_zero(tmp_path, budgets, words):
    head = f'title = "t"\ndrawing = "budgets"\nbudgets = {budgets}'
    text = SMALL.replace('title = "t"', head, 1).partition("[[axes]]")[0]
    with pytest.raises(ConfigError) as found:
        read_figure(written(tmp_path, text))
    assert all(word in str(found.value) for word in words), found.value


def test_a_curve_that_is_not_there_is_met_with_the_nearest(tmp_path):
    path = written(tmp_path, SMALL)
    with pytest.raises(ConfigError, match="no curve 'c_a-11'; did you mean 'c_a-1'"):
        load(f"{path}::c_a-11")
    with pytest.raises(ConfigError, match=r"does not exist; did you mean .*small\.toml"):
        load(tmp_path / "smal.toml::c_a-1")
    with pytest.raises(ConfigError, match=r"expected a config, got a figure file; name .*::CURVE"):
        load(path)
    assert split("a.toml") == (Path("a.toml"), None)


def test_a_pattern_selects_curves_in_order():
    names = ["x_a-1", "x_b-1", "x_b-2"]
    assert selected(names, []) == names
    assert selected(names, ["*-2", "x_a*"]) == ["x_a-1", "x_b-2"]
    with pytest.raises(ConfigError, match="--only: expected a pattern of curves, got 'x_c-1'"):
        selected(names, ["x_c-1"])
