"""The report page: whole, without network, escaped, and read without a picture or a mouse."""

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from manifed.runs.export import viewed
from manifed.runs.report import page_of, read
from manifed.runs.statement import said
from tests.command import invoke
from tests.runs.browser import Browser
from tests.runs.test_public import launched, page_of_the_server, public_page
from tests.runs.test_report import write_run

HOSTILE = "</title></pre><script>alert(1)</script><img src=x onerror=alert(2)>\"'&"
VOID = {"meta", "br", "img", "input", "link", "hr"}


class Tree(HTMLParser):
    """Tags with their attributes, text by tag, and a check that tags are closed in order."""

    def __init__(self, page):
        super().__init__()
        self.tags = []
        self.text = []
        self.open = []
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert tag in VOID or self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    def all(self, name):
        return [attrs for tag, attrs in self.tags if tag == name]


@pytest.fixture(scope="module")
def private(tmp_path_factory):
    return launched(
        tmp_path_factory.mktemp("page") / "run",
        "privacy.noise_source=seed",
        "federation.cohort={kind='all'}",
    )


@pytest.fixture(scope="module")
def pages(private, tmp_path_factory):
    """A private run's page, several runs' page, and the server's view."""
    several = [
        write_run(tmp_path_factory.mktemp("several") / f"{n}{s}", rounds=n, seed=s)
        for n in (4, 90)
        for s in (1, 2)
    ]
    return {
        "one": public_page(private),
        "several": page_of([viewed(read(private)), *map(read, several)]),
        "server": page_of_the_server(private),
    }


@pytest.mark.parametrize("name", ["one", "several", "server"])
def test_a_page_needs_nothing_beside_it_and_can_be_read_without_seeing_it(pages, name):
    page = pages[name]
    tree = Tree(page)
    every = [attrs for _, attrs in tree.tags]
    assert not [key for attrs in every for key in attrs if key == "action" or key.startswith("on")]
    pictures = [a["src"].partition(",") for a in every if "src" in a]
    assert {before for before, *_ in pictures} == {"data:image/svg+xml;base64"}
    assert all(base64.b64decode(drawn).rstrip().endswith(b"</svg>") for *_, drawn in pictures)
    links = [a.get("href", "#") for a in every] + re.findall(r"url\((.)", page)
    assert all(link.startswith("#") for link in links)
    assert not re.search(r"https?:|@import", page)
    assert not tree.all("link")
    policy = next(a["content"] for a in tree.all("meta") if "http-equiv" in a)
    (inside,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")
    ids = [a["id"] for a in every if "id" in a]
    assert len(set(ids)) == len(ids)
    assert tree.tags[0] == ("html", {"lang": "en"})
    levels = [tag for tag, _ in tree.tags if re.fullmatch("h[1-6]", tag)]
    assert (levels[0], {*levels[1:]}) == ("h1", {"h2"})
    figures = tree.all("figure")
    assert figures
    assert len(tree.all("table")) == len(tree.all("caption")) == 1 + len(figures)
    assert all("scope" in a for a in tree.all("th"))
    assert all(a["tabindex"] == "0" and a["aria-label"] for a in figures)
    assert len(tree.all("img")) == len(figures)


def test_what_a_folder_says_is_text_and_never_markup(tmp_path):
    found = read(write_run(tmp_path / "run", name=HOSTILE))
    hostile = {
        **found.manifest,
        "config": {**found.manifest["config"], "description": HOSTILE, HOSTILE: {HOSTILE: HOSTILE}},
        "stopped": HOSTILE,
        "engine": HOSTILE,
    }
    run = replace(found, name=HOSTILE, manifest=hostile)
    for is_server_view in (False, True):
        tree = Tree(page_of([run], is_server_view=is_server_view))
        assert len(tree.all("script")) == 1
        assert len(tree.all("img")) == len(tree.all("figure"))
        text = "".join(tree.text)
        assert text.count(HOSTILE) + text.count(json.dumps(HOSTILE)[1:-1]) > 8


def test_every_value_of_a_curve_stands_in_a_table(pages, private):
    run = read(private)
    text = Tree(pages["one"]).text
    assert all(said(float(value)) in text for value in run.columns["cost"])


def test_a_pattern_of_folders_takes_the_runs_among_them(tmp_path, monkeypatch):
    runs = tmp_path / "runs"
    write_run(runs / "a", rounds=3)
    write_run(runs / "b", rounds=4)
    (runs / "figures").mkdir()
    (runs / "sweep.csv").write_text("x\n")
    done = invoke("report", *sorted(runs.iterdir()), "--out", tmp_path / "report", "--json")
    assert (tmp_path / "report" / "report.html").is_file()
    assert done.stderr.count("skipped: ") == 2
    assert json.loads(done.stdout)["files"][0] == str(tmp_path / "report" / "report.html")
    done = invoke("report", runs / "a", runs / "nope")
    assert done.exit_code == 2
    assert "which does not exist" in done.stderr


@pytest.mark.slow
def test_a_browser_opens_the_page_and_a_keyboard_and_a_dark_screen_will_do(pages, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(pages["several"])
    assert path.stat().st_size < 2_000_000
    with Browser(tmp_path / "profile") as browser:
        browser.open(path.as_uri())
        for _ in range(50):
            if browser.value("document.activeElement.tagName") == "FIGURE":
                break
            browser.press("Tab")
        spoken = 'document.activeElement.querySelector("output").textContent'
        found = []
        for key in ("ArrowRight", "ArrowRight", "ArrowLeft"):
            browser.press(key)
            found.append(browser.value(spoken))
        assert found[0] == found[2] != found[1]
        style = "getComputedStyle(document.body)"
        colours = []
        for scheme in ("light", "dark"):
            browser(
                "Emulation.setEmulatedMedia",
                features=[{"name": "prefers-color-scheme", "value": scheme}],
            )
            colours.append(browser.value(f"[{style}.backgroundColor, {style}.color]"))
        (light, ink), (dark, chalk) = colours
        assert len({light, dark}) == len({ink, chalk}) == len({dark, chalk}) == 2
        phone = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
        browser("Emulation.setDeviceMetricsOverride", **phone)
        browser.value('document.querySelector("table").scrollLeft = 200')
        name = 'document.querySelector("td").getBoundingClientRect()'
        assert browser.value(f"{name}.left") >= 0, "the first column stays while others scroll"
        assert 120 <= browser.value(f"{name}.width") <= 200
        assert browser.value("document.documentElement.scrollWidth") == 390
        assert not browser.heard("Runtime.consoleAPICalled", "Log.entryAdded")
        assert not browser.heard("Runtime.exceptionThrown")
