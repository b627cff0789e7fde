"""What a folder refutes no reader believes; what nobody can exclude all of them say."""

import json
import shutil
from pathlib import Path

import pytest

from manifed.cli.launch import Request, launch
from manifed.cli.main import main
from manifed.experiment.load import load, sha256, to_toml
from manifed.privacy.account import KEY_FILE
from manifed.privacy.label import AUTHENTICITY, RELEASE, SEEDED, UNKNOWN
from manifed.privacy.ledger import head_file, read_head
from manifed.runs.evidence import evidence_of
from manifed.runs.run_folder import experiment_digest
from tests.runs.folder_damage import consistent, consistent_checkpoint
from tests.runs.test_cli import QUICKSTART

SETS = (
    "federation.num_clients=4",
    "federation.num_rounds=3",
    "output.plots=false",
    "evaluation.is_enabled=false",
)
READERS = ("export", "status", "report", "report --server-view", "watch", "ledger", "ledger FILE")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A seeded run and a release, finished."""
    root = tmp_path_factory.mktemp("runs")
    for source in ("seed", "os"):
        sets = (*SETS, f"privacy.noise_source={source}")
        launch(Request(QUICKSTART, sets, out=root / source, plain=True))
    return root


@pytest.fixture
def copy(runs, tmp_path):
    def made(source="os"):
        return Path(shutil.copytree(runs / source, tmp_path / f"a {source} run"))

    return made


def read(reader, folder, out, capsys):
    """Exit code, what was said, and what went wrong."""
    words = {
        "export": ["export", folder, "--out", out],
        "status": ["status", folder],
        "report": ["report", folder, "--out", out],
        "report --server-view": ["report", folder, "--out", out, "--server-view"],
        "watch": ["watch", folder],
        "ledger": ["privacy", "ledger", folder, "--delta", "1e-5"],
        "ledger FILE": ["privacy", "ledger", folder / "ledger.jsonl", "--delta", "1e-5"],
    }[reader]
    with pytest.raises(SystemExit) as caught:
        main([str(word) for word in words])
    shown = capsys.readouterr()
    return caught.value.code, shown.out, shown.err


def edit(path, change):
    table = json.loads(path.read_text())
    change(table)
    path.write_text(json.dumps(table))


# -- what is rewritten -----------------------------------------------------------------------------
def ten_times_the_noise(folder):
    """The chain made anew, and its head."""

    def louder(_, kind, body):
        for turn in (body.get("terms") or {"turns": ()})["turns"]:
            for release in turn["releases"]:
                release["noise_multiplier"] *= 10
        return kind, body

    consistent(louder)(folder / "ledger.jsonl")


def with_the_manifest_s_head(folder):
    ten_times_the_noise(folder)
    head = str(read_head(folder / "ledger.jsonl")[0])
    edit(folder / "manifest.json", lambda found: found.update(ledger_head=head))


def with_both_heads(folder):
    with_the_manifest_s_head(folder)
    head = str(read_head(folder / "ledger.jsonl")[0])
    change = consistent_checkpoint(meta=lambda meta: meta | {"ledger_head": head})
    change(folder / "checkpoint.safetensors")


def without_a_checkpoint(folder):
    with_the_manifest_s_head(folder)
    (folder / "checkpoint.safetensors").unlink()


def with_other_rounds(folder):
    """The terms of the config, and two rounds fewer."""

    def fewer(at, kind, body):
        if kind == "reserved" and body["rounds"][0] > 1:
            return "note", {"said": "nothing"}
        return kind, {k: v for k, v in body.items() if k != "consumed"}

    consistent(fewer)(folder / "ledger.jsonl")


def with_another_note(folder):
    """No term and no price changes: heads alone refute it."""

    def noted(_, kind, body):
        return kind, (body | {"said": "more"} if kind == "note" else body)

    consistent(noted)(folder / "ledger.jsonl")


REWRITTEN = {
    "a line that costs nothing": (with_another_note, "is not the line that was written"),
    "the ledger and its head": (ten_times_the_noise, "ledger.jsonl"),
    "and the manifest's head": (with_the_manifest_s_head, "ledger.jsonl"),
    "and the checkpoint's": (with_both_heads, "other terms than those of the run's config"),
    "and the checkpoint is gone": (without_a_checkpoint, "other terms"),
    "rounds are left out": (with_other_rounds, "ledger.jsonl"),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(("rewrite", "why"), REWRITTEN.values(), ids=REWRITTEN)
def test_a_ledger_that_its_folder_refutes_is_believed_by_no_reader(
    reader, rewrite, why, copy, tmp_path, capsys
):
    folder = copy()
    rewrite(folder)
    code, said, error = read(reader, folder, tmp_path / "out", capsys)
    assert (code, said) == (2, "")
    assert why in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def seeded_called_a_release(folder, *, checkpoint=False):
    """A seeded run whose config, manifest and ledger are rewritten together, as a release's."""
    before = load(folder / "experiment.toml")
    privacy = before.privacy.model_copy(update={"noise_source": "os"})
    config = before.model_copy(update={"privacy": privacy})
    (folder / "experiment.toml").write_text(to_toml(config))

    def released(_, kind, body):
        body |= {"config_sha256": sha256(config)} if kind == "header" else {}
        body |= {"noise_origins": ["os"]} if "noise_origins" in body else {}
        return kind, body

    consistent(released)(folder / "ledger.jsonl")
    head = str(read_head(folder / "ledger.jsonl")[0])

    def change(found):
        found["config"]["privacy"]["noise_source"] = "os"
        found["privacy"] |= {"noise_source": "os", "noise_origins": ["os"]}
        digest = experiment_digest((folder / "experiment.toml").read_bytes())
        found |= {"experiment_sha256": digest, "config_sha256": sha256(config)}
        found |= {"ledger_head": head, "randomness_source": "os"}

    edit(folder / "manifest.json", change)
    if checkpoint:
        said = {"ledger_head": head, "config_sha256": sha256(config)}
        consistent_checkpoint(meta=lambda meta: meta | said)(folder / "checkpoint.safetensors")


@pytest.mark.parametrize("reader", READERS)
def test_a_seeded_run_that_is_rewritten_as_a_release_is_refuted_by_its_checkpoint(
    reader, copy, tmp_path, capsys
):
    folder = copy("seed")
    seeded_called_a_release(folder)
    code, said, error = read(reader, folder, tmp_path / "out", capsys)
    assert (code, said) == (2, "")
    assert "expected a checkpoint of this config" in error


def test_one_edited_file_is_no_release(copy):
    """Neither the manifest alone, nor the config in it, nor experiment.toml, nor a note."""
    for number, (file, old, new) in enumerate([
        ("manifest.json", '"kind": "example-level",\n    "noise_source": "seed"',
         '"kind": "example-level",\n    "noise_source": "os"'),
        ("manifest.json", '"noise_origins": [\n      "seed"', '"noise_origins": [\n      "os"'),
        ("experiment.toml", 'noise_source = "seed"', 'noise_source = "os"'),
        ("manifest.json", '"kind": "example-level"', '"kind": "none"'),
    ]):  # fmt: skip
        folder = copy("seed")
        text = (folder / file).read_text()
        assert old in text, number
        (folder / file).write_text(text.replace(old, new))
        with pytest.raises(ValueError, match=r"expected|Expected"):
            evidence_of(folder)
        shutil.rmtree(folder)


def test_an_epsilon_of_the_manifest_that_the_ledger_does_not_price_is_refused(copy):
    for factor in (0.1, 10):
        folder = copy()

        def change(found, factor=factor):
            found["privacy"]["adversaries"][0]["epsilon"] *= factor

        edit(folder / "manifest.json", change)
        with pytest.raises(ValueError, match="as its ledger says"):
            evidence_of(folder)
        shutil.rmtree(folder)


# -- what cannot be excluded -----------------------------------------------------------------------
@pytest.mark.parametrize("reader", READERS)
def test_what_cannot_be_excluded_without_a_key_is_said_by_every_reader(
    reader, copy, tmp_path, capsys
):
    folder = copy("seed")
    seeded_called_a_release(folder, checkpoint=True)
    code, said, error = read(reader, folder, tmp_path / "out", capsys)
    assert (code, error) == (0, "")
    assert AUTHENTICITY["unkeyed"] in said
    if reader == "export":
        assert AUTHENTICITY["unkeyed"] in (tmp_path / "out" / "statement.txt").read_text()
        assert AUTHENTICITY["unkeyed"] in (tmp_path / "out" / "manifest.json").read_text()
    if reader.startswith("report"):
        assert AUTHENTICITY["unkeyed"] in (tmp_path / "out" / "report.html").read_text()


def test_a_key_refutes_what_nothing_else_does(tmp_path, monkeypatch, capsys):
    key, folder = tmp_path / "key", tmp_path / "run"
    key.write_text("ab" * 32)
    monkeypatch.setenv(KEY_FILE, str(key))
    launch(Request(QUICKSTART, SETS, out=folder, plain=True))
    assert evidence_of(folder).doubts[-1].endswith(AUTHENTICITY["verified"])
    monkeypatch.delenv(KEY_FILE)
    assert evidence_of(folder).doubts[-1].endswith(AUTHENTICITY["not checked"])
    code, said, _ = read("status", folder, tmp_path / "out", capsys)
    assert code == 0
    assert AUTHENTICITY["not checked"] in said


def test_the_label_of_a_folder_is_what_its_config_and_its_ledger_say(runs, copy):
    assert evidence_of(runs / "os").label == RELEASE
    assert evidence_of(runs / "seed").label == SEEDED
    folder = copy()

    def silent(_, kind, body):
        return kind, ({"said": "nothing"} if "noise_origins" in body else body)

    consistent(silent)(folder / "ledger.jsonl")
    for name in ("manifest.json", "checkpoint.safetensors"):
        (folder / name).unlink()
    assert evidence_of(folder).label == UNKNOWN
    head_file(folder / "ledger.jsonl").unlink()
    with pytest.raises(ValueError, match="its head"):
        evidence_of(folder)


def test_a_config_that_this_version_reads_otherwise_is_no_release(copy):
    """The bytes are those of the run, and the hash is another: nobody knows which is right."""
    folder = copy()

    def older(_, kind, body):
        return kind, (body | {"config_sha256": "ab" * 32} if kind == "header" else body)

    consistent(older)(folder / "ledger.jsonl")
    head = str(read_head(folder / "ledger.jsonl")[0])
    said = {"ledger_head": head, "config_sha256": "ab" * 32}
    consistent_checkpoint(meta=lambda meta: meta | said)(folder / "checkpoint.safetensors")
    edit(folder / "manifest.json", lambda found: found.update(said))
    found = evidence_of(folder)
    assert found.label == UNKNOWN
    assert "reads it otherwise" in found.doubts[0]


def test_reading_a_folder_imports_no_plug_in_that_this_machine_does_not_allow(runs, copy):
    """Nor does it call such a run a release: its config cannot be read."""
    folder = copy()
    text = (folder / "experiment.toml").read_text()
    (folder / "experiment.toml").write_text(text.replace('kind = "rsgd"', 'kind = "no.such:Step"'))
    digest = experiment_digest((folder / "experiment.toml").read_bytes())
    edit(folder / "manifest.json", lambda found: found.update(experiment_sha256=digest))
    found = evidence_of(folder)
    assert found.label == UNKNOWN
    assert "MANIFED_PLUGINS" in found.doubts[0]
