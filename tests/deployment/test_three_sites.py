"""Three sites with a file each, on real processes: what is trained, and what goes wrong."""

import re
import signal

import pytest
import torch

from app.processes import private_flower
from deploy.three_sites import tables
from manifed.cli.launch import Request, launch
from manifed.experiment.load import load, save
from manifed.runs.folder import RunFolder
from manifed.site.account import compared
from tests.deployment.kills import gone, killed, rounds_done, soon
from tests.deployment.planted import rows_in
from tests.deployment.released import release_with_a_killed_server
from tests.deployment.sites import SETS, Sites
from tests.fresh import ROOT
from tests.tensors import assert_near

EXAMPLES = ROOT / "configs" / "examples"
LEDGER = "ledger.jsonl"
NAMES = ("north", "middle", "south")
PROJECTED = (
    "problem={kind='kpca',num_components=1,scaling='mean'}",
    "training={kind='projected',step_size=1.0,local_steps=2,tube_radius=5.0}",
    "federation.num_rounds=2",
    "evaluation={kind='private',every=2,hold_out=0.25,loss_range=[-1.0,0.0]}",
)
pytestmark = [pytest.mark.deployment, pytest.mark.slow]


@pytest.mark.one_week_in(2)
@pytest.mark.usefixtures("leaves_nothing")
def test_a_rehearsal_is_the_run_in_memory(tmp_path):
    config = str(EXAMPLES / "three_sites_classifier.toml")
    sets = ("federation.num_rounds=1",)
    found = launch(Request(config, sets, "deployment", out=tmp_path / "sites", plain=True))
    wanted = launch(Request(config, sets, "inline", out=tmp_path / "memory", plain=True))
    models = [folder.load_tensors("model")["x"] for folder in (found, wanted)]
    assert_near(*models, 1e-10)
    assert "three_sites/" not in found.manifest_path.read_text()
    assert found.manifest()["randomness_source"] == "seed"


def _with_memory(folder):
    """The rehearsal with an algorithm whose clients remember something from round to round."""
    path = folder / "rehearsal.toml"
    save(load(EXAMPLES / "three_sites.toml", PROJECTED), path)
    return path


def _files(folder):
    """Each site's own file, which nobody else may read."""
    found = {name: folder / f"{name}.csv" for name in NAMES}
    for path in found.values():
        path.write_bytes(tables()[path.name])
        path.chmod(0o600)
    return found


@pytest.mark.usefixtures("leaves_nothing")
def test_everything_that_goes_wrong_goes_as_documented(tmp_path):
    with private_flower(ROOT) as flower:
        federation = Sites(flower, num_nodes=4)
        files = _files(tmp_path)
        _rehearsal_with_a_killed_supernode(federation, files, tmp_path)
        release_with_a_killed_server(federation, files, tmp_path / "release")
        left = [*flower.home.rglob("*"), *tmp_path.rglob("*")]  # the SuperLink's database too
        shown = [path for path in left if path.is_file() and path.suffix != ".csv"]
        assert {*federation.log_files(), flower.home / "state.db"} <= set(shown)
        sent = tmp_path / "sent"
        sent.write_bytes(b"".join(tap.bytes for tap in federation.taps.values()))
        for name, table in tables().items():
            assert rows_in([*shown, sent], table) == [], name


def _rehearsal_with_a_killed_supernode(federation, files, folder):
    """A SuperNode and its site are killed, one node has a wrong file: the run is that in memory."""
    path = _with_memory(folder)
    out = folder / "rehearsal"

    def start(name):
        number = NAMES.index(name)
        federation.start_site(name, number, files[name], path, 10.0, "--rehearsal")
        federation.start_node(name, number, number, {"site-socket": federation.tap(name).path})

    wrong = folder / "wrong.csv"
    wrong.write_text(files["south"].read_text().replace("pulse", "puls"))
    federation.start_node("wrong", 3, 2, {"data-path": wrong})
    for name in NAMES:
        start(name)
    run = federation.submit(path, out)
    soon(lambda: rounds_done(out) >= 1)
    middle = federation.sites["middle"].process
    middle.send_signal(signal.SIGSTOP)  # round 2 waits for it
    log = federation.nodes["north"].log_file
    done = re.compile(r"ROUND 2\](?s:.*)Sent successfully")
    soon(lambda: done.search(log.read_text()))  # north's answer in round 2
    assert rounds_done(out) == 1
    gone(killed(federation.nodes["north"].process))
    gone(killed(federation.sites["north"].process))
    start("north")
    middle.send_signal(signal.SIGCONT)
    assert run.result() == "finished:completed"

    wanted = launch(Request(str(path), SETS[:2], "inline", out=folder / "memory", plain=True))
    both = (RunFolder.open(out), wanted)
    torch.testing.assert_close(
        *[each.load_tensors("model")["x"] for each in both], rtol=0, atol=1e-10
    )
    losses = [each.metrics()["held_out_loss"][-1] for each in both]
    assert losses[0] == pytest.approx(losses[1], abs=1e-10)
    assert losses[0] is not None
    assert "puls" in federation.nodes["wrong"].log_file.read_text()
    left_out = [line for line in federation.said if "is left out" in line]
    for line in left_out:  # none, where the three others were all there before it answered
        assert "this node is absent; its own log says why" in line
    for name in NAMES:
        found = compared(out / LEDGER, federation.ledger(files[name]) / LEDGER)
        assert found.is_whole
        assert len(found.both) == 2
