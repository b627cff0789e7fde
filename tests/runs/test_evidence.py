"""What a folder refutes no reader believes; what nobody can exclude all of them say."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from manifed.experiment.load import load, to_toml
from manifed.experiment.schema import sha256
from manifed.privacy.events import AUTHENTICITY, Label
from manifed.runs.evidence import evidence_of
from tests.privacy.forging import head_file, rewritten
from tests.runs.folder_damage import consistent_checkpoint
from tests.runs.running import one_line, read, run_in

SETS = (
    "federation.num_clients=4",
    "federation.num_rounds=3",
    "evaluation.is_enabled=false",
)
READERS = ("export", "status", "report", "report --server-view", "ledger", "ledger ledger.jsonl")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A seeded run and a release, finished."""
    root = tmp_path_factory.mktemp("runs")
    for source in ("seed", "os"):
        run_in(root / source, *SETS, f"privacy.noise_source={source}")
    return root


@pytest.fixture
def copy(runs, tmp_path):
    def made(source="os"):
        return Path(shutil.copytree(runs / source, tmp_path / f"a {source} run"))

    return made


def edit(folder, change):
    """Change the manifest."""
    path = folder / "manifest.json"
    table = json.loads(path.read_text())
    change(table)
    path.write_text(json.dumps(table))


# -- what is rewritten -----------------------------------------------------------------------------
def edit_lines(folder, change):
    """Change the lines of the ledger; the chain is made anew. Its new head, as it is kept."""
    head = rewritten(folder / "ledger.jsonl", lambda found: (change(found), found)[1])
    return {"ledger_head": str(head)}


def ten_times_the_noise(folder):
    def louder(found):
        for update in found.get("terms", {}).get("updates", ()):
            for release in update["releases"]:
                release["noise_multiplier"] *= 10

    return edit_lines(folder, louder)


def with_the_manifest_s_head(folder):
    head = ten_times_the_noise(folder)
    edit(folder, lambda found: found.update(head))
    return head


def with_in_its_checkpoint(folder, **said):
    consistent_checkpoint(meta=lambda meta: meta | said)(folder / "checkpoint.safetensors")


def with_both_heads(folder):
    with_in_its_checkpoint(folder, **with_the_manifest_s_head(folder))


def without_a_checkpoint(folder):
    with_the_manifest_s_head(folder)
    (folder / "checkpoint.safetensors").unlink()


def with_other_rounds(folder):
    """The terms of the config, and two rounds fewer."""

    def fewer(found):
        found.pop("settles", None)
        if found.get("reserves", {"first": 0})["first"] > 1:
            found["said"] = {"note": "nothing"}
            del found["reserves"]

    edit_lines(folder, fewer)


def with_another_note(folder):
    """No term and no price changes: heads alone refute it."""

    def noted(found):
        if "noise_origins" in found.get("said", {}):
            found["said"]["note"] = "more"

    edit_lines(folder, noted)


def seeded_called_a_release(folder, *, checkpoint=False):
    """A seeded run whose config, manifest and ledger are rewritten together, as a release's."""
    before = load(folder / "experiment.toml")
    config = before.model_copy(
        update={"privacy": before.privacy.model_copy(update={"noise_source": "os"})}
    )
    (folder / "experiment.toml").write_text(to_toml(config))

    def released(found):
        said = found.get("said", {})
        said |= {"config_sha256": sha256(config)} if "format" in said else {}
        said |= {"noise_origins": ["os"]} if "noise_origins" in said else {}

    said = edit_lines(folder, released) | {"config_sha256": sha256(config)}

    def change(found):
        found["config"]["privacy"]["noise_source"] = "os"
        found["privacy"] |= {"noise_source": "os", "noise_origins": ["os"]}
        digest = hashlib.sha256((folder / "experiment.toml").read_bytes()).hexdigest()
        found |= said | {"experiment_sha256": digest, "randomness_source": "os"}

    edit(folder, change)
    if checkpoint:
        with_in_its_checkpoint(folder, **said)


REWRITTEN = {
    "a line that costs nothing": (with_another_note, "is not the line that was written"),
    "the ledger and its head": (ten_times_the_noise, "ledger.jsonl"),
    "and the manifest's head": (with_the_manifest_s_head, "ledger.jsonl"),
    "and the checkpoint's": (with_both_heads, "other terms than those of the run's config"),
    "and the checkpoint is gone": (without_a_checkpoint, "other terms"),
    "rounds are left out": (with_other_rounds, "ledger.jsonl"),
    "a seeded run as a release": (
        seeded_called_a_release, "checkpoint.safetensors: expected for config_sha256"),
}  # fmt: skip


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("rewritten_are", REWRITTEN)
def test_a_folder_that_is_rewritten_in_part_is_believed_by_no_reader(
    reader, rewritten_are, copy, tmp_path
):
    rewrite, why = REWRITTEN[rewritten_are]
    folder = copy("seed" if rewrite is seeded_called_a_release else "os")
    rewrite(folder)
    assert why in one_line(read(reader, folder, tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("manifest.json", '"kind": "example-level",\n    "noise_source": "seed"',
         '"kind": "example-level",\n    "noise_source": "os"'),
        ("manifest.json", '"noise_origins": [\n      "seed"', '"noise_origins": [\n      "os"'),
        ("experiment.toml", 'noise_source = "seed"', 'noise_source = "os"'),
        ("manifest.json", '"kind": "example-level"', '"kind": "none"'),
    ],
)  # fmt: skip
def test_one_edited_file_is_no_release(copy, file, old, new):
    """Neither the manifest alone, nor the config in it, nor experiment.toml, nor a note."""
    path = copy("seed") / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(ValueError, match=r"[eE]xpected"):
        evidence_of(path.parent)


@pytest.mark.parametrize("factor", [0.1, 10])
def test_an_epsilon_of_the_manifest_that_the_ledger_does_not_price_is_refused(copy, factor):
    folder = copy()

    def change(found):
        found["privacy"]["adversaries"][0]["epsilon"] *= factor

    edit(folder, change)
    with pytest.raises(ValueError, match="as its ledger says"):
        evidence_of(folder)


# -- what cannot be excluded -----------------------------------------------------------------------
@pytest.mark.parametrize("reader", READERS)
def test_what_cannot_be_excluded_without_a_key_is_said_by_every_reader(reader, copy, tmp_path):
    folder = copy("seed")
    seeded_called_a_release(folder, checkpoint=True)
    done = read(reader, folder, tmp_path / "out")
    assert (done.exit_code, done.stderr) == (0, "")
    assert AUTHENTICITY["unkeyed"] in done.stdout
    written = {"export": ("statement.txt", "manifest.json"), "report": ("report.html",)}
    for name in written.get(reader.split()[0], ()):
        assert AUTHENTICITY["unkeyed"] in (tmp_path / "out" / name).read_text()


def test_a_key_refutes_what_nothing_else_does(tmp_path, monkeypatch):
    key = tmp_path / "key"
    folder = tmp_path / "run"
    key.write_text("ab" * 32)
    monkeypatch.setenv("MANIFED_LEDGER_KEY_FILE", str(key))
    run_in(folder, *SETS)
    assert evidence_of(folder).doubts[-1].endswith(AUTHENTICITY["verified"])
    monkeypatch.delenv("MANIFED_LEDGER_KEY_FILE")
    assert evidence_of(folder).doubts[-1].endswith(AUTHENTICITY["not checked"])
    assert AUTHENTICITY["not checked"] in read("status", folder, tmp_path).stdout


def test_the_label_of_a_folder_is_what_its_config_and_its_ledger_say(runs, copy):
    assert evidence_of(runs / "os").label == Label.RELEASE
    assert evidence_of(runs / "seed").label == Label.SEEDED
    folder = copy()
    edit_lines(folder, lambda found: found.get("said", {}).pop("noise_origins", None))
    for name in ("manifest.json", "checkpoint.safetensors"):
        (folder / name).unlink()
    assert evidence_of(folder).label == Label.UNKNOWN
    head_file(folder / "ledger.jsonl").unlink()
    with pytest.raises(ValueError, match="its head"):
        evidence_of(folder)


def test_a_config_that_this_version_reads_otherwise_is_no_release(copy):
    """The bytes are those of the run, and the hash is another: nobody knows which is right."""
    folder = copy()

    def older(found):
        if "format" in found.get("said", {}):
            found["said"]["config_sha256"] = "ab" * 32

    said = edit_lines(folder, older) | {"config_sha256": "ab" * 32}
    with_in_its_checkpoint(folder, **said)
    edit(folder, lambda found: found.update(said))
    found = evidence_of(folder)
    assert found.label == Label.UNKNOWN
    assert "reads it otherwise" in found.doubts[0]


def test_reading_a_folder_imports_no_plug_in_that_this_machine_does_not_allow(runs, copy):
    """Nor does it call such a run a release: its config cannot be read."""
    folder = copy()
    (folder / "experiment.toml").write_text(
        (folder / "experiment.toml").read_text().replace('kind = "rsgd"', 'kind = "no.such:Step"')
    )
    edit(
        folder,
        lambda found: found.update(
            experiment_sha256=hashlib.sha256((folder / "experiment.toml").read_bytes()).hexdigest()
        ),
    )
    found = evidence_of(folder)
    assert found.label == Label.UNKNOWN
    assert "MANIFED_PLUGINS" in found.doubts[0]
