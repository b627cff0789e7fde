"""A figure file gives every curve the config that it always had, and says what is wrong with it."""

import json
from pathlib import Path

import pytest

from manifed.errors import ConfigError
from manifed.experiment.load import load
from manifed.experiment.plugins import is_plugin
from manifed.experiment.schema import sha256
from reproduction.figure_files import read_figure

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
    own = {
        name: config
        for name, config in found.items()
        if not any(map(is_plugin, (config.data.kind, config.problem.kind)))
    }
    assert {name: sha256(config) for name, config in own.items()} == {
        name: HASHES[name] for name in own
    }  # a plug-in's source is a part of the hash


def test_every_curve_is_of_one_figure():
    names = [name for path in FIGURES for name in read_figure(path).choices]
    assert len(names) == len(set(names))
    assert set(names) >= set(HASHES)


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
    assert first == ("eps = 1", {"c_a-1": "A", "c_b-1": "b"})
    assert second[0] == "eps = 2"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('title = "t"', 'titel = "t"', ["title", "required"]),
        ('eps = "2" }', 'esp = "2" }', ["a part or a choice", "'esp'"]),
        ('by = ["eps"]', 'by = ["esp"]', ["a part or a choice", "'esp'"]),
        ("c_{method}-{eps}", "c_{methd}", ["a part or a choice", "'methd'"]),
        ("c_{method}-{eps}", "c_{method}", ["name", "two curves"]),
        ('y = "cost"', "y = 3", ["axes.0.y", "string"]),
        ('title = "t"', 'title = "t"\nseeds = 0', ["seeds", "greater than or equal to 1"]),
        ('title = "t"', "title = ", ["expected a figure file"]),
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


def test_a_curve_that_is_not_there_is_met_with_the_nearest(tmp_path):
    path = written(tmp_path, SMALL)
    with pytest.raises(ConfigError, match="no curve 'c_a-11'; did you mean 'c_a-1'"):
        read_figure(path).source("c_a-11")
    with pytest.raises(ConfigError, match=r"expected a config, got a figure file; draw it: "):
        load(path)
