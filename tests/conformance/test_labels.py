"""Every place that shows an epsilon says first whether it is a release, a seeded run or unknown.

All places are listed here: the commands, the files that they write, and the modules that have the
words. A new one fails until it stands in a list and has its label (manifed/privacy/events.py).
"""

import ast
import csv
import json
import re
import shutil
from pathlib import Path

import pytest
import torch

import manifed
from manifed.algorithms.rsgd import RSGD
from manifed.cli.launch import Request, launch
from manifed.privacy.events import Label, label_of
from manifed.problems.pca import PrincipalEigenvector
from manifed.runs.folder import RunFolder
from manifed.site import process
from tests.command import invoke
from tests.conformance.test_commands import LEAVES
from tests.runs.test_cli import QUICKSTART
from tests.site.sites import DELTA, Peer, site_of, write

RELEASE, SEEDED, PLANNED, NOT_PRIVATE, UNKNOWN = Label
SILENT = {
    ("intervals",): "statistics of a run, whose statement has its epsilon",
    ("privacy", "reconcile"): "rounds of two ledgers",
    ("predict",): "predictions of a model, whose card has its epsilon",
}
"""Commands that show no epsilon."""
SETS = (
    "federation.num_clients=3",
    "federation.num_rounds=2",
    "privacy.noise={kind='multiplier',noise_multiplier=5.0}",
    "privacy.delta=1e-5",
    "privacy.max_epsilon=9.0",
)
WORDS = [word for one in SETS for word in ("--set", one)]
DP_SGD = ("num_rounds=2", "delta=1e-5", "noise_multiplier=1.0", "sampling_probability=0.01",
          "steps_per_round=9")  # fmt: skip
THEIRS_SETS = [word for one in DP_SGD for word in ("--set", one)]
SHOWN = re.compile(r"(?<![-\w])epsilon|\(\S+, \S+\)-DP|budget left|claimed")
"""Words beside a number that is one."""
TABLES = {("sweep",), ("report",)}
"""Commands whose words are a table with a column of labels."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("labels")
    for source in ("seed", "os"):
        sets = (*SETS, f"privacy.noise_source={source}")
        launch(Request(QUICKSTART, sets, out=root / source, plain=True))
    return root


@pytest.fixture
def places(runs, tmp_path):
    """The words of every command that shows an epsilon."""
    for source in ("seed", "os"):
        shutil.copytree(runs / source, tmp_path / source)
    target = ["--target-epsilon", "1", "--target-delta", "1e-5", "--steps", "1"]
    site = ["--partition", 0, "--max-epsilon", 50, "--delta", DELTA, "--socket", tmp_path / "s"]
    masks = ["--graph", "ring", "--nodes", "6", "--clip", 1, "--sigma-cdp", 4, "--sigma-cor", 9]
    return {
        ("audit",): (PLANNED, ["audit", QUICKSTART, "--trials", 60, *WORDS,
                               "--set", "privacy.noise_source=os"]),
        ("export",): (RELEASE, ["export", tmp_path / "os", "--out", tmp_path / "out"]),
        ("plan",): (SEEDED, ["plan", "configs/best.toml"]),
        ("privacy", "app"): (PLANNED, ["privacy", "app", "--wrapper", "opacus", *THEIRS_SETS]),
        ("privacy", "calibrate"): (PLANNED, ["privacy", "calibrate", *target]),
        ("privacy", "curve"): (SEEDED, ["privacy", "curve", QUICKSTART, *WORDS]),
        ("privacy", "ledger"): (SEEDED, ["privacy", "ledger", tmp_path / "seed/ledger.jsonl",
                                         "--delta", "1e-5"]),
        ("privacy", "secldp"): (PLANNED, ["privacy", "secldp", *masks, "--rounds", 3,
                                          "--delta", "1e-5"]),
        ("privacy", "secure-sum"): (PLANNED, ["privacy", "secure-sum", "--nodes", 6, "--rounds", 2,
                                              "--epsilon", 1, "--client-level"]),
        ("privacy", "statement"): (SEEDED, ["privacy", "statement", QUICKSTART, *WORDS]),
        ("report",): (SEEDED, ["report", tmp_path / "seed", "--out", tmp_path / "page"]),
        ("run",): (SEEDED, ["run", QUICKSTART, *WORDS, "--plain", "--out", tmp_path / "new"]),
        ("site",): (RELEASE, ["site", "--config", write(tmp_path), "--ledger", tmp_path / "site",
                              *site]),
        ("sweep",): (SEEDED, ["sweep", QUICKSTART, *WORDS, "--out", tmp_path / "sweep"]),
    }  # fmt: skip


def of_text(text):
    """What stands before the first epsilon."""
    found = SHOWN.search(text)
    return text if found is None else text[: found.start()]


def says(label, text):
    """Whether a text says this label and no other one."""
    verdict = {SEEDED: "SEEDED RUN", RELEASE: "RELEASE: "}.get(label, label)
    said = {word for word in Label if re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text)}
    return said == {label} or (verdict in text and not said)


def test_every_command_is_in_one_of_the_lists(places):
    assert set(LEAVES) == set(places) | set(SILENT)
    assert not set(places) & set(SILENT)


@pytest.mark.parametrize("command", sorted(set(LEAVES) - set(SILENT)), ids=" ".join)
def test_every_command_says_first_what_its_epsilon_is(command, places, tmp_path, monkeypatch):
    monkeypatch.setattr(process, "serve", lambda *_: None)  # as if it were stopped at once
    label, words = places[command]
    if command == ("site",):
        with site_of(tmp_path, write(tmp_path)) as site:
            Peer(site, write(tmp_path)).ask(1)
    done = invoke(*words, "--json")
    assert done.exit_code == (command == ("privacy", "app")), done.stderr  # 1: it has findings
    *_, document = done.stdout.splitlines()
    if SHOWN.search(document):
        assert json.loads(document)["label"] == label
        assert document.index('"label"') < len(of_text(document))
    words_too = done.stderr if done.stderr else invoke(*words).stdout
    if command in TABLES:
        header = next(line for line in words_too.splitlines() if " epsilon " in line)
        assert "label " in header.partition("epsilon")[0]
        assert says(label, words_too)
    else:
        assert says(label, of_text(words_too)), words_too
    for line in words_too.splitlines():
        if command == ("run",) and line.startswith("round "):
            assert says(label, of_text(line)), line


# -- files -----------------------------------------------------------------------------------------
def columns(path):
    header, *rows = list(csv.reader(path.read_text().splitlines()))
    at = header.index("label")
    assert header[at + 1] == "epsilon", header
    return [row[at] for row in rows]


@pytest.mark.parametrize(("source", "label"), [("seed", SEEDED), ("os", RELEASE)])
def test_every_file_with_an_epsilon_has_its_label_before_it(source, label, runs, tmp_path):
    folder = runs / source
    out = tmp_path / "out"
    assert set(columns(folder / "metrics.csv")[1:]) == {label}
    assert columns(folder / "metrics.csv")[0] == (SEEDED if source == "seed" else PLANNED)
    assert RunFolder(folder).metrics()["epsilon"][-1] > 0  # the words are no numbers
    assert invoke("export", folder, "--out", out).exit_code == 0
    assert invoke("report", folder, "--out", tmp_path).exit_code == 0
    for path in (folder / "manifest.json", out / "manifest.json"):
        found = json.loads(path.read_text())
        for table in ("privacy", "final"):
            assert next(iter(found[table])) == "label"
            assert found[table]["label"] == label
    if source == "seed":
        assert set(columns(out / "metrics.csv")) == {label}
    else:
        assert "epsilon" not in (out / "metrics.csv").read_text().splitlines()[0] or columns(
            out / "metrics.csv"
        )
    assert says(label, of_text((out / "statement.txt").read_text()))
    page = (tmp_path / "report.html").read_text()
    assert {SEEDED: "SEEDED RUN", RELEASE: "RELEASE: "}[label] in page


@pytest.mark.slow
def test_a_table_of_a_sweep_has_a_column_of_labels(tmp_path):
    both = ["--set", 'privacy.noise_source="seed","os"']
    words = ["sweep", QUICKSTART, *WORDS, *both, "--json"]
    done = invoke(*words, "--out", tmp_path / "out")
    assert done.exit_code == 0, done.stderr
    table = [line for line in done.stderr.splitlines() if line.startswith("| noise_source=")]
    assert len(table) == 2
    for line in table:
        assert (SEEDED if "=seed" in line else RELEASE) in line
    found = json.loads(done.stdout)
    assert found["label"] == f"{RELEASE} / {SEEDED}"
    assert {row["privacy"] for row in found["rows"]} == {SEEDED, RELEASE}


def test_what_a_fit_leaves_has_its_label(tmp_path):
    shards = [torch.randn(40, 4, dtype=torch.float64) for _ in range(2)]
    privacy = manifed.ExampleLevel(epsilon=2, delta=1e-5, noise_source="seed")
    result = manifed.fit(
        PrincipalEigenvector(), shards, RSGD(step_size=0.1), rounds=2, privacy=privacy
    )
    assert result.statement["label"] == SEEDED
    saved = result.save(tmp_path / "fit")
    assert set(columns(saved / "metrics.csv")) == {SEEDED}
    assert SEEDED in of_text((saved / "statement.json").read_text())


# -- modules ---------------------------------------------------------------------------------------
SHOWING = {
    "cli/privacy.py": "`privacy: LABEL` is the first line of every command in it",
    "runs/predict.py": "a model card, below its label",
    "runs/report.py": "titles of fits and axes of epsilon begin with the label",
    "runs/statement.py": "below the verdict",
    "site/process.py": "the ready line has the label before what was spent",
}
NOT_SHOWING = {
    "privacy/foreign.py": "lines below the label of a guarded app's statement",
    "cli/app.py": "the name of an argument in a call that it proposes",
    "plan.py": "the name of a field",
    "privacy/statement.py": "a warning of a run whose lines and statement have the label",
}
REFUSING = ("fail", "ConfigError", "ValueError", "FolderDamaged", "BudgetExhausted", "Refused")


def words_of(node):
    """Formatted texts with an epsilon in them, but those of errors."""
    name = getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""
    if isinstance(node, ast.Raise) or name in REFUSING:
        return
    if isinstance(node, ast.JoinedStr):
        text = "".join(getattr(part, "value", "") for part in node.values
                       if isinstance(part, ast.Constant))  # fmt: skip
        if "epsilon" in text or "-DP" in text:
            yield text
        return
    for child in ast.iter_child_nodes(node):
        yield from words_of(child)


def test_every_module_that_puts_an_epsilon_into_words_is_listed():
    root = Path(manifed.__file__).parent
    found = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if any(words_of(ast.parse(path.read_text())))
    }
    assert found == set(SHOWING) | set(NOT_SHOWING)


# -- words -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("source", "origins", "more", "label"),
    [
        ("os", {"os"}, {}, RELEASE),
        (None, {"os"}, {}, RELEASE),
        ("seed", set(), {}, SEEDED),
        ("seed", {"os"}, {}, SEEDED),
        ("os", {"os", "seed"}, {}, SEEDED),
        (None, {"seed"}, {}, SEEDED),
        ("os", set(), {}, UNKNOWN),
        (None, set(), {}, UNKNOWN),
        ("os", {"os", "undeclared"}, {}, UNKNOWN),
        ("another", {"os"}, {}, UNKNOWN),
        ("os", set(), {"is_charged": False}, PLANNED),
        (None, {"os"}, {"is_private": False}, NOT_PRIVATE),
    ],
)
def test_a_release_is_said_where_every_key_is_an_operating_system_s(source, origins, more, label):
    assert label_of(source, origins, **more) == label
