"""The report page: whole, without network, escaped, and read without a picture or a mouse."""

import base64
import hashlib
import itertools
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from manifed.experiment.load import from_toml, load, sha256
from manifed.runs.report.__main__ import main as report
from manifed.runs.report.chart import Chart, Line, number
from manifed.runs.report.page import page_of
from manifed.runs.report.runs import read
from manifed.runs.report.words import of_bound
from tests.runs.browser import Browser
from tests.runs.test_public import launched
from tests.runs.test_report import write_run

HOSTILE = "</title></pre><script>alert(1)</script><img src=x onerror=alert(2)>\"'&"
VOID = {"meta", "br", "img", "input", "link", "hr"}


class Tree(HTMLParser):
    """Tags with their attributes, text by tag, and a check that tags are closed in order."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.text, self.open = [], [], []
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    def all(self, name):
        return [attrs for tag, attrs in self.tags if tag == name]


@pytest.fixture(scope="module")
def private(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    sets = ("privacy.noise_source=seed", "federation.cohort={kind='all'}",
            "training.step_size=0.4",
            "federation.replies.timeout=99")  # fmt: skip
    return launched(folder / "run", *sets)


@pytest.fixture(scope="module")
def pages(private, tmp_path_factory):
    """A private run's page, several runs' page, and the server's view."""
    folder = tmp_path_factory.mktemp("several")
    several = [write_run(folder / f"{n}{s}", rounds=n, seed=s) for n in (4, 60) for s in (1, 2)]
    runs = [read(private)]
    return {
        "one": page_of(runs),
        "several": page_of([*runs, *map(read, several)]),
        "server": page_of(runs, is_server_view=True),
    }


@pytest.mark.parametrize("name", ["one", "several", "server"])
def test_a_page_needs_nothing_beside_it_and_allows_no_script_but_its_own(pages, name):
    tree = Tree(pages[name])
    assert not [a for _, a in tree.tags if {"src", "style", "action"} & set(a)]
    assert not [key for _, a in tree.tags for key in a if key.startswith("on")]
    assert all(a["href"].startswith("#") for a in tree.all("a"))
    assert not re.search(r"https?:|url\(|@import", pages[name])
    assert not tree.all("link")
    policy = next(a["content"] for a in tree.all("meta") if "http-equiv" in a)
    for tag in ("style", "script"):
        (inside,) = re.findall(rf"<{tag}>(.*?)</{tag}>", pages[name], re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")


@pytest.mark.parametrize("name", ["one", "several", "server"])
def test_a_page_can_be_read_without_seeing_it(pages, name):
    tree = Tree(pages[name])
    ids = [a["id"] for _, a in tree.tags if "id" in a]
    assert len(set(ids)) == len(ids)
    for _, attributes in tree.tags:
        for key in ("aria-labelledby", "aria-describedby"):
            assert set(attributes.get(key, "").split()) <= set(ids)
    assert {a["href"][1:] for a in tree.all("a")} <= set(ids)
    assert tree.tags[0] == ("html", {"lang": "en"})
    assert [tag for tag, _ in tree.tags if tag in {"header", "main", "footer", "nav"}] == [
        "header", "nav", "main", "footer"
    ]  # fmt: skip
    levels = [int(tag[1]) for tag, _ in tree.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b <= a + 1 for a, b in itertools.pairwise(levels))
    assert len(tree.all("table")) == len(tree.all("caption"))
    assert all("scope" in a for a in tree.all("th"))
    for svg in tree.all("svg"):
        assert svg.get("aria-hidden") == "true" or (
            svg["role"] == "img" and "aria-labelledby" in svg
        )
    assert all("aria-label" in a for a in (t for _, t in tree.tags) if a.get("role") == "region")


def test_what_a_folder_says_is_text_and_never_markup(tmp_path):
    run = write_run(tmp_path / "run", name=HOSTILE)
    manifest = read(run).manifest
    table = {**manifest["config"], "description": HOSTILE, HOSTILE: {HOSTILE: HOSTILE}}
    hostile = {**manifest, "config": table, "stopped": HOSTILE, "engine": HOSTILE}
    hostile["versions"] = {HOSTILE: HOSTILE}
    hostile["git"] = {"commit": HOSTILE, "is_dirty": True}
    found = read(run)
    for is_server_view in (False, True):
        page = page_of(
            [type(found)(found.directory, HOSTILE, hostile, found.columns)],
            is_server_view=is_server_view,
        )
        tree = Tree(page)
        assert len(tree.all("script")) == 1
        assert not tree.all("img")
        assert "".join(tree.text).count(HOSTILE) > 8
        assert "manifed run title-pre-script-alert-1" in "".join(tree.text)


def contrast(one, other):
    def luminance(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        parts = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_text_and_lines_stand_out_in_light_in_dark_and_on_paper(pages):
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    palettes = [
        dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6})", inside))
        for inside in re.findall(r":root \{(.*?)\}", pages["one"], re.DOTALL)
    ]
    assert len(palettes) == 3
    for colours in palettes:
        for ink in ("ink", "soft", "accent"):
            for back in ("page", "card"):
                assert contrast(colours[ink], colours[back]) >= 4.5, (ink, back)
        for word in ("good", "warn", "bad"):
            assert contrast(colours[word], colours[f"{word}-back"]) >= 4.5, word
        for i in range(8):
            assert contrast(colours[f"c{i}"], colours["page"]) >= 3, i


def test_every_value_of_a_curve_stands_in_a_table_and_at_its_point(pages, private):
    run, text = read(private), Tree(pages["one"]).text
    for value in run.columns["cost"]:
        assert number(float(value)) in text
        assert any(said.endswith(f", {number(float(value))}") for said in text)
    assert "(unsaid)" not in text
    assert "40 of 61 rows, evenly; all are in metrics.csv" in pages["several"]


def test_the_config_on_the_page_repeats_the_run(pages, private):
    toml = re.findall(r"<pre>(name = .*?)</pre>", pages["one"], re.DOTALL)[0]
    again = from_toml(toml.replace("&#34;", '"').replace("&#39;", "'"))
    ran = load(private / "experiment.toml")
    assert sha256(again) == sha256(ran)
    assert again.federation.seed == ran.federation.seed


def test_what_differs_from_the_default_is_marked_and_the_rest_is_not(pages):
    rows = re.findall(
        r"<code>(\S+)</code></th><td( class=\"mark\")?><code>(.*?)</code>", pages["one"]
    )
    marked = {key: value for key, mark, value in rows if mark}
    assert marked == {"federation.replies.timeout": "99.0"}
    assert ("training.step_size", "", "0.4") in rows
    assert {key for key, _, _ in rows} >= {"federation.replies.timeout", "privacy.l2_norm_clip"}


def test_the_bound_in_words_is_what_a_test_of_that_bound_can_do():
    assert "5 of 100" in of_bound(0.0, 0.0)
    assert "factor e^0 = 1" in of_bound(0.0, 0.0)
    assert "at most 36.9 of 100" in of_bound(2.0, 1e-5)
    assert "at most 100 of 100" in of_bound(50.0, 1e-5)
    assert "no bound" in of_bound("infinity", 1e-5)
    assert "no bound" in of_bound(float("inf"), 1e-5)


def test_no_guarantee_is_stated_for_a_bound_that_does_not_hold(private):
    run = read(private)
    one = {"name": "published", "text": "t", "epsilon": 0.5, "delta": 1e-4, "remark": "r"}
    privacy = {**run.manifest["privacy"]}
    privacy["adversaries"] = [*privacy["adversaries"], one]
    page = page_of([replace(run, manifest={**run.manifest, "privacy": privacy})])
    (said,) = re.findall(r"<h4>published:.*?</div>", page, re.DOTALL)
    assert "does not hold" in said
    assert "odds" not in said
    assert "None" not in said
    assert "who are there" not in page


def test_axes_show_every_curve_inside_the_frame():
    tiny = Line("tiny", [0, 1, 2], [1e-16, 0.0, 3e-15])
    flat = Line("flat", [0, 1, 2], [2.0, 2.0, 2.0])
    for lines, is_log in (([tiny], True), ([flat], False), ([tiny, flat], True), ([flat], True)):
        drawn = Chart("k", "t", "x", "y", lines, is_log=is_log).drawn()
        for line in drawn["lines"]:
            assert all(72 <= dot["x"] <= 548 and 12 <= dot["y"] <= 280 for dot in line["dots"])
        assert len(drawn["y_ticks"]) >= 1


def test_a_pattern_of_folders_takes_the_runs_among_them(tmp_path, capsys, monkeypatch):
    runs = tmp_path / "runs"
    write_run(runs / "a", rounds=3)
    write_run(runs / "b", rounds=4)
    (runs / "figures").mkdir()
    (runs / "sweep.csv").write_text("x\n")
    monkeypatch.chdir(tmp_path)
    assert report([*map(str, sorted(runs.iterdir())), "--json"]) == 0
    shown = capsys.readouterr()
    assert (tmp_path / "report" / "report.html").is_file()
    assert shown.err.count("skipped: ") == 2
    assert json.loads(shown.out)["files"][0] == "report/report.html"
    assert report([str(runs / "a"), str(runs / "nope")]) == 2
    assert "which is not there" in capsys.readouterr().err


@pytest.mark.slow
def test_a_browser_opens_the_page_and_a_keyboard_a_dark_screen_and_paper_will_do(pages, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(pages["several"])
    assert path.stat().st_size < 2_000_000
    with Browser(tmp_path / "profile") as browser:
        browser.open(path.as_uri())
        tree = Tree(browser.value("document.documentElement.outerHTML"))
        plots = [a for a in tree.all("div") if a.get("class") == "plot"]
        assert plots
        assert all(a["tabindex"] == "0" and a["role"] == "group" and a["aria-label"] for a in plots)
        assert len(tree.all("output")) == len(plots)
        assert steps_through_values(browser) == {
            "ArrowRight": [0, 0], "ArrowDown": [1, 0], "ArrowUp": [0, 0], "ArrowLeft": [0, 0]
        }  # fmt: skip
        colours = {media: shown(browser, media) for media in ("light", "dark")}
        assert colours["light"] != colours["dark"]
        pdf = printed(browser)
        assert not browser.heard("Runtime.consoleAPICalled", "Log.entryAdded")
        assert not browser.heard("Runtime.exceptionThrown")
    assert 3 <= len(re.findall(rb"/Type /Page\b", pdf)) <= 40


FOCUS = "document.activeElement"
POINT = f"""(() => {{
  const lines = [...{FOCUS}.querySelectorAll(".dots")].map(g => [...g.children]);
  const on = {FOCUS}.querySelector(".on"), i = lines.findIndex(dots => dots.includes(on));
  const said = {FOCUS}.nextElementSibling.textContent;
  return on.querySelector("title").textContent === said ? [i, lines[i].indexOf(on)] : said;
}})()"""


def steps_through_values(browser):
    """Which curve and value each arrow leads to, from the first figure that Tab reaches."""
    for _ in range(200):
        if browser.value(f"{FOCUS}.className") == "plot":
            break
        browser.press("Tab")
    found = {}
    for key in ("ArrowRight", "ArrowDown", "ArrowUp", "ArrowLeft"):
        browser.press(key)
        found[key] = browser.value(POINT)
    return found


def shown(browser, scheme):
    """The colours of page and text, which differ enough to be read."""
    scheme = [{"name": "prefers-color-scheme", "value": scheme}]
    browser("Emulation.setEmulatedMedia", features=scheme)
    style = "getComputedStyle(document.body)"
    found = browser.value(f"[{style}.backgroundColor, {style}.color]")
    page, ink = ("#" + "".join(f"{int(n):02x}" for n in re.findall(r"[0-9]+", c)) for c in found)
    assert contrast(page, ink) >= 7
    return page, ink


def printed(browser):
    """The page on A4, without what only a screen needs, on white even where the screen is dark."""
    browser("Emulation.setEmulatedMedia", media="print")
    for hidden in ("nav", "output", ".screen", "details"):
        assert browser.value(f"getComputedStyle(document.querySelector('{hidden}')).display") == (
            "none"
        )
    assert browser.value("getComputedStyle(document.querySelector('.paper')).display") == "block"
    assert browser.value(f"getComputedStyle({FOCUS}).outlineStyle") == "none"
    assert browser.value("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    browser("Emulation.setEmulatedMedia", media="")
    paper = {"paperWidth": 8.27, "paperHeight": 11.69}
    made = browser("Page.printToPDF", printBackground=True, preferCSSPageSize=True, **paper)
    return base64.b64decode(made["data"])
