"""Three sites with a file each, on real processes: what is trained, and what goes wrong."""

import re
import threading
from pathlib import Path

import pytest
import torch

from app.processes import private_flower
from app.superlink import submit
from deploy.three_sites import tables
from manifed.cli.launch import Request, launch
from manifed.errors import EngineFailed
from manifed.experiment.assembly import initial_point
from manifed.experiment.load import load, sha256, to_toml
from manifed.experiment.schema import Experiment
from manifed.federation.header import Header
from manifed.flower.run_config import run_config_of
from manifed.privacy.ledger import Ledger
from manifed.runs.run_folder import RunFolder
from manifed.site.audit import compared
from manifed.site.protocol import Question, Refusal, ask
from tests.deployment.planted import rows_in
from tests.deployment.sites import Sites, Watched, end, soon, stopped

REPOSITORY = Path(__file__).parents[2]
EXAMPLES = REPOSITORY / "configs" / "examples"
LEDGER = "ledger.jsonl"
NAMES = ("north", "middle", "south")
SETS = ("output.checkpoint_every=1", "output.plots=false", "engine.kind=deployment")
PROJECTED = """
[problem]
kind = "kpca"
num_components = 1
scaling = "mean"
[training]
kind = "projected"
step_size = 1.0
local_steps = 2
tube_radius = 5.0
"""
pytestmark = [pytest.mark.deployment, pytest.mark.slow]


@pytest.mark.usefixtures("leaves_nothing")
@pytest.mark.parametrize("name", ["three_sites", "three_sites_classifier"])
def test_a_rehearsal_is_the_run_in_memory(name: str, tmp_path: Path) -> None:
    config = str(EXAMPLES / f"{name}.toml")
    sets = ("output.plots=false",)
    found = launch(Request(config, sets, "deployment", out=tmp_path / "sites", plain=True))
    wanted = launch(Request(config, sets, "inline", out=tmp_path / "memory", plain=True))
    models = [folder.load_tensors("model")["x"] for folder in (found, wanted)]
    torch.testing.assert_close(*models, rtol=0, atol=1e-10)
    text = found.manifest_path.read_text()
    assert "three_sites/" not in text
    assert found.manifest()["randomness_source"] == "seed"


def _with_memory(folder: Path) -> Path:
    """The rehearsal with an algorithm whose clients remember something from round to round."""
    text = (EXAMPLES / "three_sites.toml").read_text()
    for table in ("problem", "training"):
        text = re.sub(rf"\[{table}\]\n(?:[^\[\n].*\n|\n)*", "", text)
    path = folder / "rehearsal.toml"
    path.write_text(text.replace('"three_sites/', f'"{EXAMPLES}/three_sites/') + PROJECTED)
    return path


def _run(federation: Sites, path: Path, out: Path) -> None:
    config = run_config_of(load(path, SETS, {"output.directory": str(out)}))
    submit(federation.flower, config, (), timeout=900.0, on_line=federation.said.append)


def _in_the_background(
    federation: Sites, path: Path, out: Path
) -> tuple[threading.Thread, list[BaseException]]:
    failed: list[BaseException] = []

    def go() -> None:
        try:
            _run(federation, path, out)
        except EngineFailed as error:
            failed.append(error)

    thread = threading.Thread(target=go, daemon=True)
    thread.start()
    return thread, failed


def _files(folder: Path) -> dict[str, Path]:
    """Each site's own file, which nobody else may read."""
    found = {name: folder / f"{name}.csv" for name in NAMES}
    for path in found.values():
        path.write_bytes(tables()[path.name])
        path.chmod(0o600)
    return found


def _hostile_letters(federation: Sites, config: Experiment, data: Path, off: torch.Tensor) -> None:
    """A wrong config, a point ``off`` the manifold, a replay: refused, nothing paid or shown."""
    ledger = federation.ledger(data) / LEDGER
    run, before = re.findall(r'"run":"(\d+)"', ledger.read_text())[-1], Ledger.verify(ledger).head
    digest, phase = sha256(config), config.training.phases[0].name

    def said(now: int, point: torch.Tensor, digest: str = digest, attempt: int = 0) -> str:
        header = Header(digest, now, attempt, phase, 1)
        question = Question(digest, to_toml(config), run, header)
        told, up = ask(federation.socket("middle"), question, {"x": point}, 60.0)
        assert isinstance(told, Refusal)
        assert not up
        return told.reason

    x = initial_point(config)
    assert "not on this site's list" in said(1, x, "0" * 64)
    assert "Expected the broadcast" in said(3, off, attempt=7)
    assert "nothing is answered twice" in said(1, x)
    assert "expected rounds up to 3" in said(4, x)
    assert Ledger.verify(ledger).head == before


@pytest.mark.usefixtures("leaves_nothing")
def test_everything_that_goes_wrong_goes_as_documented(tmp_path: Path) -> None:
    with private_flower(REPOSITORY) as flower:
        federation = Sites(flower, num_nodes=4)
        _rehearsal_with_a_killed_supernode(federation, tmp_path)
        shown = [path for path in [*federation.log_files(), *tmp_path.rglob("*")] if path.is_file()]
        shown = [path for path in shown if path.suffix != ".csv"]
        assert len(shown) > 10
        for name, table in tables().items():
            assert rows_in(shown, table) == [], name


def _rehearsal_with_a_killed_supernode(federation: Sites, folder: Path) -> None:
    """A SuperNode and its site are killed, one node has a wrong file: the run is that in memory."""
    path, files, out = _with_memory(folder), _files(folder), folder / "rehearsal"

    def start(name: str) -> None:
        number = NAMES.index(name)
        federation.start_site(name, number, files[name], path, 10.0)
        federation.start_node(name, number, number, {"site-socket": federation.socket(name)})

    wrong = folder / "wrong.csv"
    wrong.write_text(files["south"].read_text().replace("pulse", "puls"))
    federation.start_node("wrong", 3, 2, {"data-path": wrong})
    for name in NAMES:
        start(name)
    seen = Watched(out)
    thread, failed = _in_the_background(federation, path, out)
    soon(lambda: seen.newest >= 1)
    stopped(federation.sites["middle"].process.pid, is_stopped=True)  # round 2 waits for it
    log = federation.nodes["north"].log_file
    soon(lambda: re.search(r"ROUND 2\](?s:.*)Sent successfully", log.read_text()) is not None)
    assert seen.newest == 1
    end(federation.nodes["north"].process)
    end(federation.sites["north"].process)
    start("north")
    stopped(federation.sites["middle"].process.pid, is_stopped=False)
    thread.join()
    seen.stop()
    assert failed == []

    wanted = launch(Request(str(path), SETS[:2], "inline", out=folder / "memory", plain=True))
    models = [each.load_tensors("model")["x"] for each in (RunFolder.open(out), wanted)]
    torch.testing.assert_close(*models, rtol=0, atol=1e-10)
    assert "puls" in federation.nodes["wrong"].log_file.read_text()
    left_out = [line for line in federation.said if "is left out" in line]
    for line in left_out:  # none, where the three others were all there before it answered
        assert "this node is absent; its own log says why" in line
    for name in NAMES:
        found = compared(out / LEDGER, federation.ledger(files[name]) / LEDGER)
        assert found.is_whole
        assert len(found.both) == 3
    config = load(path)
    _hostile_letters(federation, config, files["middle"], 1e101 * initial_point(config))
