"""Callbacks of a fit and trackers of a run: what they are shown, and what real stores then hold."""

import os
import sqlite3
import struct
import time

import pytest

import manifed
from manifed.algorithms import RSGD
from manifed.callbacks import EarlyStopping, ServerView, mlflow, tensorboard, wandb
from manifed.errors import ConfigError
from manifed.federation.cohorts import FixedSize
from manifed.oracles.minibatch import Full
from manifed.privacy.statement import audit_ledger
from tests.federation.test_door import PRIVATE, fitted
from tests.federation.test_module_door import trained
from tests.fresh import ROOT
from tests.runs.running import run_in

HELD = manifed.PrivateEvaluation(hold_out=0.3, loss_range=(0.0, 4.0), noise_multiplier=1.0)
STEPS = RSGD(step_size=0.2, minibatch=Full())
SECRET = {"evaluate": lambda x: {"secret": float(x[0])}}


def names_shown(wrap=lambda callback: callback, **changes):
    seen = []
    fitted(callbacks=[wrap(lambda curves, model: seen.append({*curves}))], **SECRET | changes)
    assert len(seen) == 5, "round 0, and 4 more"
    return set.intersection(*seen[1:])


def test_a_private_run_shows_what_may_be_published_unless_its_server_asks():
    everything = {"round", "epsilon", "participants", "failures", "secret"}
    assert names_shown() == {"round", "epsilon"}
    assert names_shown(cohort=FixedSize(cohort_size=2)) == {"round"}, "the unluckiest client's"
    assert names_shown(ServerView) == names_shown(privacy=None) == everything
    held = {"held_out_loss", "held_out_accuracy"}
    assert names_shown(algorithm=STEPS, held_out=HELD) == {"round", "epsilon"} | held
    named = {"evaluate": lambda x: {"held_out_loss": float(x[0]), "uploads": float(x[0])}}
    assert names_shown(**named) == {"round", "epsilon"}, "whatever it is called"
    seen = []
    trained(callbacks=[lambda curves, model: seen.append({*curves})])
    assert seen[-1] == {"round", "epsilon", "test_loss", "test_accuracy"}


def test_a_paid_evaluation_ends_a_fit_that_pays_for_all_its_rounds(tmp_path):
    stop = EarlyStopping(column="held_out_loss", no_better_for=2)
    settings = {"algorithm": STEPS, "held_out": HELD, "rounds": 12}
    found = fitted(callbacks=[stop], ledger=tmp_path / "ledger.jsonl", **settings)
    losses = found.curves["held_out_loss"]
    assert len(losses) < 12
    assert min(losses[-2:]) >= min(losses[:-2])
    assert f"after round {len(losses)}; all 12 rounds are charged" in found.stopped
    assert audit_ledger(tmp_path / "ledger.jsonl", 1e-3)["charges"] == 12
    assert found.statement["adversaries"] == fitted(**settings).statement["adversaries"]


def test_only_what_may_be_shown_ends_a_fit():
    assert len(fitted(callbacks=[ServerView(lambda *_: True)]).curves["round"]) == 4
    assert len(fitted(callbacks=[lambda *_: True]).curves["round"]) == 1
    stop = EarlyStopping(column="secret", no_better_for=1)
    assert len(fitted(callbacks=[stop], privacy=None, **SECRET).curves["round"]) < 4
    with pytest.raises(ConfigError, match=r"column: expected one of .* got 'secret'"):
        fitted(callbacks=[stop], **SECRET)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"callbacks": [lambda: None]}, "callbacks: expected functions of .*TypeError"),
        ({"callbacks": [3]}, "callbacks: expected a list of functions"),
        ({"held_out": HELD.model_copy(update={"keep": "best"})}, "held_out: expected no stop_when"),
        ({"held_out": HELD, "privacy": None}, "evaluation.kind: 'private' .*'none'"),
        ({"device": "cuda:99"}, "device: expected a CUDA device for 'cuda:99', got"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_written(changes, said, tmp_path):
    with pytest.raises(ConfigError, match=said):
        fitted(**{"algorithm": STEPS, "resume": tmp_path / "fit"} | changes)
    assert not (tmp_path / "fit").exists()


# -- trackers --------------------------------------------------------------------------------------
def in_events(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return {
        name: [(one.step, one.value, one.wall_time) for one in found.Scalars(name)]
        for name in found.Tags()["scalars"]
    }


def in_wandb(folder):
    """The history in an offline log: records in blocks of 32 KiB, as LevelDB writes them."""
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = folder.rglob("*.wandb")
    data = path.read_bytes()
    rows, at, whole = [], 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        size, kind = struct.unpack_from("<HB", data, at + 4)
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or its last part
            items = Record.FromString(whole).history.item
            rows += (
                [{(i.key or i.nested_key[0]): float(i.value_json) for i in items}] if items else []
            )
            whole = b""
    return rows


def test_tensorboard_holds_what_may_be_published_and_no_clock(tmp_path):
    found = fitted(callbacks=[tensorboard(tmp_path)], **SECRET)
    (curve,) = in_events(tmp_path).values()
    assert curve == [(r, pytest.approx(found.curves["epsilon"][r - 1]), r) for r in range(1, 5)]


def test_a_run_of_a_config_is_tracked_and_a_tracker_out_of_reach_ends_none(
    tmp_path, monkeypatch, caplog
):
    sets = ("federation.num_rounds=2", "output.trackers=['tensorboard']")
    cohort = "federation.cohort={kind='fixed-size',cohort_size=5}"
    for name, more, shown in (
        ("public", (), {"uploads"}),
        ("server", ("output.is_server_view=true",), {"uploads", "epsilon", "bytes_up", "cost"}),
    ):
        run = run_in(tmp_path / name, *sets, cohort, *more, "privacy.noise_source=os")
        found = in_events(run.directory / "tensorboard")
        assert {*found} & {"uploads", "epsilon", "bytes_up"} == shown - {"cost"}
        assert [step for step, *_ in found["uploads"]] == [0, 1, 2]

    def add_scalar(sink, name, value, step, **_):
        assert step == 0, "out of reach"

    monkeypatch.setattr("torch.utils.tensorboard.SummaryWriter.add_scalar", add_scalar)
    assert run_in(tmp_path / "lost", *sets).is_finished
    assert "Round 2 was not tracked: AssertionError: out of reach" in caplog.text
    monkeypatch.setattr("torch.utils.tensorboard.SummaryWriter.add_scalar", None)
    with pytest.raises(ConfigError, match="NoneType"):
        run_in(tmp_path / "never", *sets)


@pytest.mark.slow
def test_weights_and_biases_hold_the_rows_offline(tmp_path):
    found = trained(
        callbacks=[wandb(mode="offline", dir=str(tmp_path))], cohort=FixedSize(cohort_size=2)
    )
    until = time.monotonic() + 20
    while len(rows := in_wandb(tmp_path)) < 4 and time.monotonic() < until:
        time.sleep(0.1)  # W&B writes from a process of its own
    assert [row["test_loss"] for row in rows[1:]] == found.curves["test_loss"]
    assert {name for name in rows[-1] if name[0] != "_"} == {"test_loss", "test_accuracy"}


@pytest.mark.slow
def test_mlflow_holds_the_rows_in_sqlite(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.chdir(tmp_path)
    found = fitted(callbacks=[mlflow()], privacy=PRIVATE, **SECRET)
    with sqlite3.connect(tmp_path / "mlflow.db") as store:
        rows = store.execute("select key, value, step, timestamp from metrics").fetchall()
        (status,) = store.execute("select status from runs").fetchone()
    assert rows == [("epsilon", found.curves["epsilon"][r - 1], r, r) for r in range(1, 5)]
    assert status == "FINISHED"
    assert "mlruns" not in os.listdir(tmp_path)


@pytest.mark.slow
def test_the_block_of_the_page_runs_as_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    block = (ROOT / "docs" / "callbacks.md").read_text().split("```python\n")[1].split("```")[0]
    exec(compile(block, "docs/callbacks.md", "exec"), said := {})
    losses = said["found"].curves["test_loss"]
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [float(loss) for _, loss in printed[1:]] == losses
    assert len(in_events(tmp_path / "runs" / "digits-curves")["test_loss"]) == len(losses) + 1
    with pytest.raises(ConfigError, match="a finished one"):
        exec(compile(block, "docs/callbacks.md", "exec"), {})
