"""The config reference is written from the schema, is current, and leaves no key unexplained."""

import re
import runpy
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "reference"


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
