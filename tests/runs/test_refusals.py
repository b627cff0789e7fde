"""What `--resume` refuses: exit code 2, one line, and no byte or date of the folder changed."""

import hashlib
import json
import shutil

import pytest

from manifed.cli.launch import Request, launch
from manifed.cli.options import outcome
from manifed.durable import held
from manifed.errors import ConfigError
from manifed.privacy.ledger import Head, Ledger, LedgerDamaged
from manifed.runs import checkpoint
from manifed.runs.folder import FolderDamaged, RunFolder
from tests.privacy.forging import rewritten
from tests.runs.folder_damage import CHECKPOINT, EXPERIMENT, HEAD, LEDGER, MANIFEST
from tests.runs.running import QUICKSTART, everything, go_on, killed_in, run_in
from tests.runs.test_evidence import with_both_heads

SETS = (
    "federation.num_clients=2",
    "federation.num_rounds=5",
    "output.checkpoint_every=2",
    "evaluation.is_enabled=false",
    "privacy.noise={kind='multiplier',noise_multiplier=5.0}",
    "privacy.delta=1e-5",
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Killed runs: one, its twin, its continuation, one of another config, a keyed one; the end."""
    root = tmp_path_factory.mktemp("runs")
    for name, more in (("one", ()), ("twin", ()), ("other", ("federation.seed=1",))):
        killed_in(4, run_in, root / name, *SETS, *more)
    killed_in(5, go_on, shutil.copytree(root / "one", root / "later"))
    go_on(shutil.copytree(root / "one", root / "finished"))
    with pytest.MonkeyPatch.context() as patch:
        (root / "key").write_bytes(b"0123456789abcdef")
        patch.setenv("MANIFED_LEDGER_KEY_FILE", str(root / "key"))
        killed_in(4, run_in, root / "keyed", *SETS)
    return root


@pytest.fixture
def folder(runs, tmp_path):
    """A killed run, with a torn row and a draft: what is gone on with removes both."""
    folder = shutil.copytree(runs / "one", tmp_path / "run")
    with (folder / "metrics.csv").open("a") as file:
        file.write("4,torn: a run that is gone on with cuts it")
    (folder / ".manifest.json.draft").write_text("an unfinished write")
    return folder


def refusal(**request):
    """The line and exit code of a resumption that is refused, and the folder as it was."""
    root = request["resume"]
    before = everything(root)
    with pytest.raises((ConfigError, FolderDamaged, LedgerDamaged)) as caught:
        launch(Request(QUICKSTART, **request))
    assert everything(root) == before
    message, code = outcome(caught.value)
    assert (code, message.count("\n")) == (2, 0)
    return message


def without(*names):
    return lambda folder, _: [(folder / name).unlink() for name in names]


def with_those_of(other, *names):
    return lambda folder, runs: [shutil.copy(runs / other / name, folder / name) for name in names]


def with_bytes(name, change):
    return lambda folder, _: (folder / name).write_bytes(change((folder / name).read_bytes()))


def replaced_by(other):
    def spoil(folder, runs):
        shutil.rmtree(folder)
        shutil.copytree(runs / other, folder)

    return spoil


def with_other_names(folder, runs):
    for path in folder.iterdir():
        path.rename(folder / f"{path.name}.txt")


def with_an_edited_experiment_and_manifest(folder, runs):
    with_those_of("other", EXPERIMENT)(folder, runs)
    manifest, other = (RunFolder(of).manifest() for of in (folder, runs / "other"))
    manifest["experiment_sha256"] = hashlib.sha256((folder / EXPERIMENT).read_bytes()).hexdigest()
    manifest |= {key: other[key] for key in ("config", "config_sha256")}
    (folder / MANIFEST).write_text(json.dumps(manifest))


def with_a_ledger_that_begins_in_round_2(folder, runs):
    def one_round_later(found):
        for part in (found.get("reserves", {}), found.get("settles", {})):
            part |= {key: part[key] + 1 for key in ("first", "last", "upto") if key in part}
        return found

    head = rewritten(folder / LEDGER, one_round_later)
    saved = checkpoint.load(folder / CHECKPOINT)
    checkpoint.save(
        folder / CHECKPOINT,
        saved.server_round,
        saved.tensors,
        saved.meta.model_copy(update={"ledger_head": str(head)}),
    )


def with_lines(change):
    return lambda folder, _: rewritten(folder / LEDGER, change)


CASES = {
    "no folder": (lambda folder, _: shutil.rmtree(folder), "expected a run folder"),
    "another folder": (with_other_names, "expected a run folder"),
    "a finished run": (replaced_by("finished"), "expected an unfinished run"),
    "an edited seed": (
        with_bytes(EXPERIMENT, lambda data: data.replace(b"seed = 0", b"seed = 3")),
        "expected experiment.toml as the run wrote it",
    ),
    "an edited comment": (
        with_bytes(EXPERIMENT, lambda data: data + b"# mine\n"),
        "expected experiment.toml as the run wrote it",
    ),
    "an edited experiment and manifest": (
        with_an_edited_experiment_and_manifest, "expected the config that its ledger names"),
    "the ledger of another config": (
        with_those_of("other", LEDGER, HEAD), "expected the config that its ledger names"),
    "the ledger of its twin": (
        with_those_of("twin", LEDGER, HEAD), "expected for ledger_run_id"),
    "no ledger": (without(LEDGER, HEAD), "expected the run's ledger.jsonl"),
    "no head": (without(HEAD), "head is missing"),
    "a ledger under other terms": (
        lambda folder, _: with_both_heads(folder), "other terms than those of the run's config"),
    "a ledger rolled back with its head": (
        with_lines(lambda found: found if found["sequence"] <= 1 else None), "rolled back"),
    "a ledger without round 1": (
        with_a_ledger_that_begins_in_round_2,
        "expected rounds 1 to 2 in the ledger, got 1 to 0",
    ),
    "a ledger with an entry that earlier versions wrote": (
        with_lines(lambda found: found | (
            {"amends": {"num_rounds": [5, 9]}} if found["sequence"] == 2 else {})),
        "no charge that can be counted: 1 validation error for Entry amends"),
    "a changed line": (
        with_bytes(LEDGER, lambda data: data.replace(b'"attempt":0', b'"attempt":1', 1)),
        "was changed",
    ),
    "a checkpoint of another config": (
        with_those_of("other", CHECKPOINT), "expected for config_sha256"),
    "a checkpoint of its twin": (
        with_those_of("twin", CHECKPOINT), "expected for ledger_run_id"),
    "a checkpoint newer than the ledger": (with_those_of("later", CHECKPOINT), "rolled back"),
    "a damaged checkpoint": (
        with_bytes(CHECKPOINT, lambda data: data[:-1] + bytes([data[-1] ^ 1])),
        "expected a whole checkpoint",
    ),
    "no manifest": (without(MANIFEST), "expected the manifest.json"),
    "no manifest and no rows": (
        without(MANIFEST, "metrics.csv", CHECKPOINT), "expected the manifest.json"),
    "an older format": (
        with_bytes(MANIFEST, lambda data: data.replace(b'"format"', b'"former"')),
        "expected a run folder of format 3",
    ),
    "a torn manifest": (with_bytes(MANIFEST, lambda data: data[:-20]), "expected JSON, got"),
    "a keyed ledger without its key": (replaced_by("keyed"), "no key was given"),
}  # fmt: skip


@pytest.mark.parametrize(("spoil", "why"), CASES.values(), ids=CASES)
def test_a_run_that_is_not_whole_is_refused_and_left_as_it_is(runs, folder, spoil, why):
    spoil(folder, runs)
    assert why in refusal(resume=folder)


def test_other_settings_are_refused(folder):
    assert "same settings" in refusal(resume=folder, sets=("federation.seed=5",))


def test_a_running_run_is_not_touched(folder):
    with held(folder):
        assert "another process holds" in refusal(resume=folder)


def test_a_folder_that_was_rolled_back_whole_needs_an_anchor_that_was_kept(runs, folder, tmp_path):
    anchor = str(Head.read(runs / "later" / LEDGER).head)
    assert "rolled back" in refusal(resume=folder, ledger_head=anchor)
    assert "ledger head" in refusal(resume=folder, ledger_head="41")
    assert (
        go_on(shutil.copytree(runs / "later", tmp_path / "later"), ledger_head=anchor).manifest()[
            "final"
        ]["rounds"]
        == 5
    )


def test_what_is_whole_is_gone_on_with_and_prints_its_head(folder):
    """The control: the folder that every case spoils is not refused."""
    run = go_on(folder)
    assert run.metrics()["round"] == [0, 1, 2, 3, 4, 5]
    assert not list(folder.glob("*draft*"))
    head = Head.parse(run.manifest()["ledger_head"])
    assert Ledger.verify(run.ledger_path, anchors=[head]).head == head
