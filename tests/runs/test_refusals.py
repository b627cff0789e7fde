"""What `--resume` refuses: exit code 2, one line, and no byte or date of the folder changed."""

import json
import os
import shutil

import pytest

from manifed.cli.launch import Request, launch, launch_or_exit
from manifed.durable import held
from manifed.privacy.account import Account
from manifed.privacy.chain import GENESIS, written
from manifed.privacy.ledger import Head, Ledger, write_head
from manifed.runs import checkpoint, driver
from manifed.runs.run_folder import RunFolder, experiment_digest
from tests.runs.test_cli import QUICKSTART

SETS = (
    "federation.num_clients=2",
    "federation.num_rounds=5",
    "output.plots=false",
    "output.checkpoint_every=2",
    "evaluation.is_enabled=false",
    "privacy.noise={kind='multiplier',noise_multiplier=5.0}",
    "privacy.delta=1e-5",
)


class Killed(BaseException):
    """Stands for a kill."""


def killed_run(request, at_round):
    """A run folder as a kill in the middle of ``at_round`` leaves it."""
    with pytest.MonkeyPatch.context() as patch:
        charge = Account.charge

        def charge_then_die(self, server_round, *rest):
            charge(self, server_round, *rest)
            if server_round == at_round:
                raise Killed

        patch.setattr(Account, "charge", charge_then_die)
        patch.setattr(driver._Run, "_keep_the_newest", lambda _: None)
        with pytest.raises(Killed):
            launch(request)
    return request.resume or request.out


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Killed runs: one, its twin, its continuation, one of another config, a keyed one; the end."""
    root = tmp_path_factory.mktemp("runs")

    def begun(name, *more, at_round=4):
        return killed_run(
            Request(QUICKSTART, (*SETS, *more), out=root / name, plain=True), at_round
        )

    begun("one")
    begun("twin")
    begun("other", "federation.seed=1")
    shutil.copytree(root / "one", root / "later")
    killed_run(Request(QUICKSTART, resume=root / "later", plain=True), 5)
    shutil.copytree(root / "one", root / "finished")
    launch(Request(QUICKSTART, resume=root / "finished", plain=True))
    with pytest.MonkeyPatch.context() as patch:
        (root / "key").write_bytes(b"0123456789abcdef")
        patch.setenv("MANIFED_LEDGER_KEY_FILE", str(root / "key"))
        begun("keyed")
    return root


def everything(root):
    """Names, contents and dates of all that is under ``root``."""
    found = {}
    for path in [root, *sorted(root.rglob("*"))] if root.exists() else []:
        content = path.read_bytes() if path.is_file() else None
        found[str(path)] = (content, path.stat().st_mtime_ns, path.stat().st_ino)
    return found


def refusal(**request):
    """The line and exit code of a resumption that is refused, and the folder as it was."""
    said = []

    def fail(message, code=2):
        said.append((message, code))
        raise Killed

    root = request["resume"]
    before = everything(root)
    with pytest.raises(Killed):
        launch_or_exit(Request(QUICKSTART, plain=True, **request), fail)
    assert everything(root) == before
    ((message, code),) = said
    assert code == 2
    assert "\n" not in message
    return message


def tear_the_rows(folder):
    with (folder / "metrics.csv").open("a") as file:
        file.write("4,torn: a run that is gone on with cuts it")


def rewritten(folder, change):
    """A consistent chain of the bodies that ``change`` gives, with its head: a forger's work."""
    run, previous, lines = RunFolder(folder), GENESIS, []
    for entry in Ledger.read(run.ledger_path):
        if (body := change(entry)) is not None:
            made, line = written(len(lines), entry.kind, body, previous)
            lines.append(line)
            previous = made.sha256
    run.ledger_path.write_bytes(b"".join(lines))
    write_head(run.ledger_path, Head(len(lines) - 1, previous))
    return Head(len(lines) - 1, previous)


def checkpoint_with(folder, **changes):
    path = RunFolder(folder).checkpoint_path
    saved = checkpoint.load(path)
    checkpoint.save(path, saved.server_round, saved.tensors, {**saved.meta, **changes})


def no_folder(folder, runs):
    shutil.rmtree(folder)


def another_folder(folder, runs):
    for path in folder.iterdir():
        path.rename(folder / f"{path.name}.txt")


def a_finished_run(folder, runs):
    shutil.rmtree(folder)
    shutil.copytree(runs / "finished", folder)


def an_edited_seed(folder, runs):
    path = RunFolder(folder).experiment_path
    path.write_text(path.read_text().replace("seed = 0", "seed = 3"))


def an_edited_comment(folder, runs):
    path = RunFolder(folder).experiment_path
    path.write_text(path.read_text() + "# mine\n")


def an_edited_experiment_and_manifest(folder, runs):
    run = RunFolder(folder)
    run.experiment_path.write_bytes((runs / "other" / "experiment.toml").read_bytes())
    manifest = run.manifest()
    manifest["experiment_sha256"] = experiment_digest(run.experiment_path.read_bytes())
    manifest["config_sha256"] = RunFolder(runs / "other").manifest()["config_sha256"]
    run.manifest_path.write_text(json.dumps(manifest))


def the_ledger_of_another_config(folder, runs):
    for name in ("ledger.jsonl", "ledger.jsonl.head"):
        shutil.copy(runs / "other" / name, folder / name)


def the_ledger_of_its_twin(folder, runs):
    for name in ("ledger.jsonl", "ledger.jsonl.head"):
        shutil.copy(runs / "twin" / name, folder / name)


def no_ledger(folder, runs):
    for name in ("ledger.jsonl", "ledger.jsonl.head"):
        (folder / name).unlink()


def no_head(folder, runs):
    (folder / "ledger.jsonl.head").unlink()


def a_ledger_rolled_back_with_its_head(folder, runs):
    rewritten(folder, lambda entry: entry.body if entry.sequence <= 1 else None)


def a_ledger_without_round_1(folder, runs):
    def one_round_later(entry):
        body = dict(entry.body)
        if "rounds" in body:
            body["rounds"] = [server_round + 1 for server_round in body["rounds"]]
        if "consumed" in body:
            body["consumed"] = {**body["consumed"], "upto": body["consumed"]["upto"] + 1}
        return body

    head = rewritten(folder, one_round_later)
    checkpoint_with(folder, ledger_head=str(head))


def a_changed_line(folder, runs):
    path = folder / "ledger.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"attempt":0', b'"attempt":1', 1))


def a_checkpoint_of_another_config(folder, runs):
    shutil.copy(runs / "other" / "checkpoint.safetensors", folder / "checkpoint.safetensors")


def a_checkpoint_of_its_twin(folder, runs):
    shutil.copy(runs / "twin" / "checkpoint.safetensors", folder / "checkpoint.safetensors")


def a_checkpoint_newer_than_the_ledger(folder, runs):
    shutil.copy(runs / "later" / "checkpoint.safetensors", folder / "checkpoint.safetensors")


def a_damaged_checkpoint(folder, runs):
    path = folder / "checkpoint.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def no_manifest(folder, runs):
    (folder / "manifest.json").unlink()


def no_manifest_and_no_rows(folder, runs):
    for name in ("manifest.json", "metrics.csv", "checkpoint.safetensors"):
        (folder / name).unlink()


def an_older_format(folder, runs):
    run = RunFolder(folder)
    manifest = run.manifest()
    del manifest["format"]
    run.manifest_path.write_text(json.dumps(manifest))


def a_torn_manifest(folder, runs):
    path = folder / "manifest.json"
    path.write_bytes(path.read_bytes()[:-20])


def a_keyed_ledger_without_its_key(folder, runs):
    shutil.rmtree(folder)
    shutil.copytree(runs / "keyed", folder)


CASES = {
    no_folder: "expected a run folder",
    another_folder: "expected a run folder",
    a_finished_run: "expected an unfinished run",
    an_edited_seed: "resume with the same settings",
    an_edited_comment: "expected experiment.toml as the run wrote it",
    an_edited_experiment_and_manifest: "expected a checkpoint of this config",
    the_ledger_of_another_config: "expected a ledger of this config",
    the_ledger_of_its_twin: "expected the ledger of run",
    no_ledger: "expected the run's ledger.jsonl",
    no_head: "head is missing",
    a_ledger_rolled_back_with_its_head: "rolled back",
    a_ledger_without_round_1: "expected rounds 1 to 2 in the ledger, got 1 to 0",
    a_changed_line: "was changed",
    a_checkpoint_of_another_config: "expected a checkpoint of this config",
    a_checkpoint_of_its_twin: "expected a checkpoint of run",
    a_checkpoint_newer_than_the_ledger: "rolled back",
    a_damaged_checkpoint: "Expected a whole checkpoint",
    no_manifest: "expected manifest.json",
    no_manifest_and_no_rows: "expected manifest.json",
    an_older_format: "expected a run folder of format 2",
    a_torn_manifest: "expected JSON, got",
    a_keyed_ledger_without_its_key: "no key was given",
}


@pytest.mark.parametrize("spoil", CASES, ids=lambda spoil: spoil.__name__)
def test_a_run_that_is_not_whole_is_refused_and_left_as_it_is(runs, tmp_path, spoil):
    folder = tmp_path / "run"
    shutil.copytree(runs / "one", folder)
    tear_the_rows(folder)
    (folder / ".manifest.json.draft").write_text("an unfinished write")
    spoil(folder, runs)
    assert CASES[spoil] in refusal(resume=folder)


def test_other_settings_are_refused(runs, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(runs / "one", folder)
    assert "same settings" in refusal(resume=folder, sets=("federation.seed=5",))


def test_a_running_run_is_not_touched(runs, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(runs / "one", folder)
    with held(folder):
        assert "another process holds" in refusal(resume=folder)


def test_a_folder_that_was_rolled_back_whole_needs_an_anchor_that_was_kept(runs, tmp_path):
    head = json.loads((runs / "later" / "ledger.jsonl.head").read_text())
    anchor = f"{head['sequence']}:{head['sha256']}"
    folder = tmp_path / "run"
    shutil.copytree(runs / "one", folder)
    assert "rolled back" in refusal(resume=folder, ledger_head=anchor)
    assert "ledger head" in refusal(resume=folder, ledger_head="41")
    shutil.copytree(runs / "later", tmp_path / "later")
    request = Request(QUICKSTART, resume=tmp_path / "later", ledger_head=anchor, plain=True)
    assert launch(request).manifest()["final"]["rounds"] == 5


def test_what_is_whole_is_gone_on_with_and_prints_its_head(runs, tmp_path):
    """The control: the folder that every case spoils is not refused."""
    folder = tmp_path / "run"
    shutil.copytree(runs / "one", folder)
    tear_the_rows(folder)
    (folder / ".manifest.json.draft").write_text("an unfinished write")
    run = launch(Request(QUICKSTART, resume=folder, plain=True))
    assert run.metrics()["round"] == [0, 1, 2, 3, 4, 5]
    assert not [name for name in os.listdir(folder) if "draft" in name]
    head = Head.parse(run.manifest()["ledger_head"])
    assert Ledger.verify(run.ledger_path, anchors=[head]).head == head
