"""Flower apps of eight kinds under guard: what it says of each, and what is changed in it."""

import importlib
import re
import sys

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from manifed.errors import ConfigError
from manifed.flower.grids import InlineGrid
from manifed.privacy.statement import audit_ledger
from tests.flower.foreign_apps import KINDS, config_of, laid, lines_changed
from tests.fresh import ROOT
from tests.runs.test_privacy_app import priced

PAGE = (ROOT / "docs" / "guard.md").read_text()
CALL = """    strategy = guard(
        strategy, population=4, clip=1.0, noise_multiplier=1.0, delta=1e-3, evaluate="skip",
        ledger={!r},
    )
"""
OF_MOD = ("local_dp", "zero_d")
SAYS = {
    "batch_norm": "arrays: expected floating-point parameters, got .*running_mean",
    "by_loss": "strategy: expected one that reads no client's metrics, got .*'train_loss'",
    "client_clip": "noises already; hand guard the strategy inside",
    "seeded_adam": "noises already; hand guard the strategy inside",
}
"""What guard says of an app as it stands; the others run."""
CODES = {
    "batch_norm": "M1 M2",
    "by_loss": "M1",
    "client_clip": "L5 W1 W3 W4 W7 W8 M1",
    "local_dp": "L1 L2 L3 L5 W8 M1",
    "logistic": "M1",
    "mlp": "M1",
    "seeded_adam": "L5 W1 W2 W3 W4 W8 M1",
    "zero_d": "L1 L2 L4 L5 W8 M1",
}
"""What ``manifed privacy app`` finds in each as it stands."""


@pytest.fixture
def running(tmp_path, monkeypatch):
    """Runs an app in this process, in a folder of its own; returns that folder and its grid."""

    def run(folder, nodes=4):
        for name in [name for name in sys.modules if name.split(".")[0] == "mine"]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.syspath_prepend(folder)
        monkeypatch.chdir(folder)
        config = config_of(folder)
        clients = importlib.import_module("mine.client_app").app
        server = importlib.import_module("mine.server_app").app
        grid = Counting(clients, nodes, config)
        context = Context(
            run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=config
        )
        try:
            server(grid, context)
        finally:
            for name in [name for name in sys.modules if name.split(".")[0] == "mine"]:
                del sys.modules[name]
        return grid

    return run


class Counting(InlineGrid):
    """Knows how many messages of each type were answered, and with what."""

    def _deliver(self, message):
        reply = super()._deliver(message)
        self.replies = [*getattr(self, "replies", ()), (message.metadata.message_type, reply)]
        return reply


def model_of(folder):
    """The arrays of the model that the app saved."""
    (path,) = folder.glob("final_model.*")
    if path.suffix == ".npz":
        return [*np.load(path).values()]
    import torch

    return [one.numpy() for one in torch.load(path).values()]


@pytest.mark.parametrize("kind", KINDS)
def test_an_app_is_guarded_in_at_most_ten_lines_and_runs(kind, tmp_path, running):
    folder = laid(kind, tmp_path / kind, is_guarded=True)
    grid = running(folder)
    assert all(np.isfinite(one).all() for one in model_of(folder))
    trained = [reply for what, reply in grid.replies if what == "train"]
    assert not any(reply.has_error() for reply in trained)
    is_mod = kind in OF_MOD
    told = audit_ledger(
        folder / ("site-ledger.jsonl" if is_mod else "ledger.jsonl"), 1e-5 if is_mod else 1e-3
    )
    assert told["label"] == "release"
    # the mods of all clients share a ledger here; two clients are asked in each of three rounds
    assert told["charges"] == (6 if is_mod else 3)
    others = [reply for what, reply in grid.replies if what != "train"]
    assert all(reply.has_error() for reply in others)
    assert bool(others) == is_mod  # the mod refuses them, guard asks none
    added, left_out = lines_changed(kind, tmp_path)
    assert added <= 10
    end = rf"\| {CODES[kind]} \| {added} and {left_out} \|$"
    assert re.search(rf"^\| {PAGE_NAMES[kind]} \|.*{end}", PAGE, re.M)


PAGE_NAMES = {
    "mlp": "FedAvg, a torch network",
    "batch_norm": "FedAdam, BatchNorm",
    "logistic": "scikit-learn, unequal shards",
    "client_clip": "Flower's client-side clipping",
    "by_loss": "clients chosen by their loss",
    "local_dp": "`LocalDpMod`, a platform's defaults",
    "zero_d": "`LocalDpMod`, a 0-d parameter",
    "seeded_adam": "Flower's clipping around FedAdam, a seed",
}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in OF_MOD])
def test_guard_around_an_app_as_it_stands_runs_it_or_says_what_to_change(kind, tmp_path, running):
    folder = laid(kind, tmp_path / kind, is_guarded=False)
    path = folder / "mine" / "server_app.py"
    text = path.read_text().replace(
        "    result = ", CALL.format(str(folder / "ledger.jsonl")) + "    result = "
    )
    path.write_text("from manifed.flower.guard import guard\n" + text)
    if kind not in SAYS:
        running(folder)
        assert model_of(folder)
        return
    with pytest.raises(ConfigError, match=SAYS[kind]) as refused:
        running(folder)
    assert "\n" not in str(refused.value)
    assert not list(folder.glob("final_model.*"))


@pytest.mark.parametrize("kind", KINDS)
def test_the_auditor_finds_what_an_app_has_at_its_line_and_nothing_in_the_guarded_one(
    kind, tmp_path
):
    known = {*sys.modules}
    plain = laid(kind, tmp_path / "plain", is_guarded=False)
    done, found = priced(plain)
    assert done.exit_code == 1
    codes = {one["code"]: one["place"] for one in found["findings"]}
    assert [*codes] == CODES[kind].split()
    for place in codes.values():
        file, line = place.split(":")
        text = (plain / file).read_text().splitlines()[int(line) - 1]
        words = r"MetricRecord|BatchNorm|DpMod|Clipping|seed|Parameter|clipping_mod"
        assert re.search(words, text), (place, text)
    done, found = priced(laid(kind, tmp_path / "guarded", is_guarded=True))
    assert (done.exit_code, found["findings"]) == (0, [])
    assert "mine" not in {name.split(".")[0] for name in {*sys.modules} - known}


def test_the_page_has_no_other_kinds():
    assert sorted(PAGE_NAMES) == KINDS
    assert len(re.findall(r"^\| .* \| \d+ and \d+ \|$", PAGE, re.M)) == len(KINDS)
