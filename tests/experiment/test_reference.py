"""The config reference and the JSON Schema are written from the schema, and are current."""

import json
import re
import runpy
import tomllib
from pathlib import Path

import jsonschema
import pytest

from reproduction.figure_files import FIGURES, read_figure

FOLDER = Path(__file__).parents[2] / "docs" / "reference"
QUICKSTART = (FIGURES.parent / "quickstart.toml").read_text()


@pytest.fixture(scope="module")
def written():
    return runpy.run_path(str(FOLDER / "write_config.py"))


@pytest.fixture(scope="module")
def page(written):
    return written["page"](is_short=False)


def rows(page):
    lines = [line for line in page.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.replace("\\|", "/").split("|")[1:-1]] for line in lines]


def test_the_page_that_is_checked_in_is_the_one_that_the_schema_gives(written):
    page = written["page"]()
    assert (FOLDER / "config.md").read_text() == page, "run python docs/reference/write_config.py"


@pytest.fixture(scope="module")
def editor():
    """What an editor knows of a config."""
    text = (FOLDER / "config.schema.json").read_text()
    script = str(FOLDER / "write_schema.py")
    assert text == runpy.run_path(script)["text"](), f"run python {script}"
    jsonschema.Draft202012Validator.check_schema(json.loads(text))
    return jsonschema.Draft202012Validator(json.loads(text))


def test_an_editor_takes_the_configs_of_this_repository(editor):
    figures = map(read_figure, sorted(FIGURES.glob("*.toml")))
    tables = [one.table(name) for one in figures for name in list(one.choices)[::20]]
    files = [path for path in FIGURES.parent.glob("**/*.toml") if path.parent != FIGURES]
    assert QUICKSTART.splitlines()[0] == "#:schema ../docs/reference/config.schema.json"
    for table in [*tables, *(tomllib.loads(path.read_text()) for path in files)]:
        assert not [*editor.iter_errors(table)], table["name"]


@pytest.mark.parametrize(
    ("old", "new", "is_taken"),
    [
        ("step_size = 0.5", "stepsize = 0.5", False),
        ("step_size = 0.5", 'step_size = "0.5"', False),
        ('kind = "rsgd"', 'kind = "sgd"', False),
        ('kind = "rsgd"', "", False),
        ('kind = "digits" ', 'kind = "own.rows:Rows"\npath = "x"', True),
        ('kind = "rsgd"\nstep_size = 0.5', 'kind = "auto"', True),
        ("noise = {", "noise_ = {", False),
        ("name = ", "label = ", False),
    ],
)
def test_an_editor_underlines_what_a_run_would_refuse(editor, old, new, is_taken):
    assert old in QUICKSTART
    table = tomllib.loads(QUICKSTART.replace(old, new, 1))
    assert editor.is_valid(table) == is_taken


def test_every_key_has_a_type_a_default_and_a_meaning(page):
    found = rows(page)
    assert len(found) > 250
    for name, kind, default, meaning in found:
        assert all((kind, default, meaning)), name


def test_the_short_page_names_every_key_of_the_long_one(written, page):
    assert {name for name, *_ in rows(page)} <= set(re.findall(r"`\w+`", written["page"]()))


def test_every_place_with_readers_is_that_of_a_key_that_exists(written, page):
    names = {name.strip("`") for name, *_ in rows(page)}
    assert {place.rpartition(".")[2] for place in written["CONCERNS"]} <= names


def test_a_table_that_is_deep_in_the_schema_is_found(page):
    assert '**`kind = "dirichlet"`**' in page
    assert "| `timeout` | number, > 0 | `3600.0` | Seconds" in page
