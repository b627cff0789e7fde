"""The site's own check: it sees a broken link, a missing anchor, and what comes from elsewhere."""

import runpy
from pathlib import Path

check = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "links.py"))["check"]


def faults(tmp_path, text, name="index.html"):
    (tmp_path / "other.html").write_text('<h1 id="here">Here</h1>')
    (tmp_path / name).write_text(text)
    return check(tmp_path)


def test_a_site_without_faults_has_none(tmp_path):
    links = '<a href="other.html#here">a</a><a href="#x" id="x">b</a><a href="https://a.org">c</a>'
    assert faults(tmp_path, links) == []


def test_what_a_reader_would_miss_is_named(tmp_path):
    assert "links to gone.html: no such file" in faults(tmp_path, '<a href="gone.html">a</a>')[0]
    assert "no such anchor" in faults(tmp_path, '<a href="other.html#there">a</a>')[0]
    assert "loads https://a.org/x.js" in faults(tmp_path, '<script src="https://a.org/x.js">')[0]
    assert (
        "loads //a.org/f.css" in faults(tmp_path, '<link rel="stylesheet" href="//a.org/f.css">')[0]
    )
