"""The mod at a client: whatever an app does, a bounded and noised update leaves, or nothing."""

import inspect
import pickle
import subprocess
import sys

import numpy as np
import pytest
from flwr.app import ArrayRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from scipy import stats

from manifed.errors import ConfigError
from manifed.flower.grids import InlineGrid
from manifed.flower.guard_mod import REFUSED, guard_mod
from manifed.privacy.composition import gaussian_epsilon
from manifed.privacy.statement import audit_ledger
from tests.flower.test_guard import NOTHING, SOMETHING, START, broken, flat, model, raw, shifted

CLIP = 1.0


def message(arrays=None, kind="train"):
    made = Message(RecordDict({"arrays": model(arrays)}), dst_node_id=2, message_type=kind)
    made.metadata.__dict__["_message_id"] = "one"
    return made


def app_of(answer, tmp_path, **named):
    """A ClientApp behind the mod; ``answer(arrays)`` gives an array record, or a whole reply."""
    named = {
        "clip": CLIP, "noise_multiplier": 1e-6, "delta": 1e-5,
        "ledger": tmp_path / "ledger.jsonl",
    } | named  # fmt: skip
    app = ClientApp(mods=[guard_mod(**named)])

    def replied(asked, own):
        made = answer(dict(asked.content["arrays"]))
        if isinstance(made, Message) or made is None:
            return made
        records = made if isinstance(made, dict) else {"arrays": made}
        said = MetricRecord({"num-examples": 7.0, "train_loss": 1.2345})
        return Message(RecordDict({**records, "metrics": said}), reply_to=asked)

    app.train()(replied)
    app.evaluate()(replied)
    grid = InlineGrid(app, 1, {})
    return lambda asked=None: next(iter(grid.send_and_receive([asked or message()])))


def moved(reply):
    start = np.concatenate([np.ravel(a) for a in START.values()])
    return flat(reply.content["arrays"]) - start


MISBEHAVED = {
    **NOTHING,
    "no message": lambda a: None,
    "an error reply": lambda a: Message(Error(7, "my data are 1, 2, 3"), reply_to=message()),
    "an exit": lambda a: sys.exit(3),
    "an exception with data in it": lambda a: int("row 17 is 3.14"),
}


@pytest.mark.parametrize("name", MISBEHAVED)
def test_an_app_that_sends_no_update_releases_noise_alone(name, tmp_path):
    reply = app_of(MISBEHAVED[name], tmp_path)()
    assert not reply.has_error()
    assert {*reply.content} == {"arrays", "metrics"}
    assert dict(reply.content["metrics"]) == {"num-examples": 1.0}
    assert np.abs(moved(reply)).max() < 1e-4


@pytest.mark.parametrize("name", SOMETHING)
def test_an_update_is_clipped_over_all_arrays_together(name, tmp_path):
    start = {key: a.astype(np.float64) for key, a in START.items()}
    reply = app_of(SOMETHING[name], tmp_path)(message(start))
    assert np.linalg.norm(moved(reply)) == pytest.approx(CLIP, abs=1e-4)
    assert dict(reply.content["metrics"]) == {"num-examples": 1.0}


def test_every_number_is_noised_also_that_of_an_array_without_dimensions(tmp_path):
    start = {"w": np.zeros(20_000), "log_scale": np.asarray(0.0)}
    seen = app_of(ArrayRecord, tmp_path, noise_multiplier=3.0)
    reply = seen(message(start))
    noise = reply.content["arrays"]["w"].numpy() / (2 * CLIP * 3.0)
    assert stats.kstest(noise, "norm").pvalue > 1e-6
    first = float(reply.content["arrays"]["log_scale"].numpy())
    assert first not in (0.0, float(seen(message(start)).content["arrays"]["log_scale"].numpy()))


def test_the_limit_holds_for_all_runs_and_is_asked_before_the_app(tmp_path):
    asked = []
    named = {"noise_multiplier": 2.0, "max_epsilon": 8.0}
    seen = app_of(lambda a: asked.append(1) or ArrayRecord(a), tmp_path, **named)
    for _ in range(6):
        assert not seen().has_error()
    again = app_of(lambda a: asked.append(1) or ArrayRecord(a), tmp_path, **named)  # another run
    found = [again() for _ in range(7)]
    assert [one.has_error() for one in found] == [False] * 5 + [True] * 2
    assert (found[-1].error.code, found[-1].error.reason) == (REFUSED, "not answered")
    assert len(asked) == 11
    paid = {one["name"]: one["epsilon"] for one in
            audit_ledger(tmp_path / "ledger.jsonl", 1e-5)["adversaries"]}  # fmt: skip
    wanted = gaussian_epsilon(1e-5, mu=11**0.5 / 2.0)
    assert paid["server"] == pytest.approx(wanted, rel=1e-6)
    assert 7.9 < wanted < 8.0


def test_the_line_is_on_disk_before_the_app_is_called(tmp_path):
    path = tmp_path / "ledger.jsonl"
    seen = []

    def answer(arrays):
        seen.append(path.read_text().count('"reserves"'))
        return ArrayRecord(arrays)

    asked = app_of(answer, tmp_path)
    asked(), asked(), asked()
    assert seen == [1, 2, 3]


def refused(reply, asked):
    return reply.has_error() and reply.error.code == REFUSED and not asked


def test_what_cannot_be_paid_or_bounded_is_not_answered(tmp_path):
    asked = []
    seen = app_of(lambda a: asked.append(1) or ArrayRecord(a), tmp_path)
    assert refused(seen(message(kind="evaluate")), asked)
    assert refused(seen(message({"w": np.zeros(2), "count": np.asarray(3)})), asked)
    assert refused(seen(message({"w": np.zeros(2), "bn.running_mean": np.zeros(2)})), asked)
    (tmp_path / "ledger.jsonl").write_text("something else\n")
    assert refused(seen(), asked)
    (tmp_path / "ledger.jsonl").unlink()
    assert not seen().has_error()
    other = app_of(ArrayRecord, tmp_path, noise_multiplier=5.0)  # of other terms
    assert refused(other(), [])
    nowhere = app_of(ArrayRecord, tmp_path / "no" / "folder")
    assert refused(nowhere(), [])


def test_frozen_arrays_go_back_as_they_came_and_evaluation_may_be_kept(tmp_path):
    start = {"w": np.zeros(2), "bn.running_mean": np.ones(2)}

    def answer(arrays):
        return broken(dict(shifted(arrays, 0, 5.0)), **{"bn.running_mean": raw((2,))})

    seen = app_of(answer, tmp_path, frozen=("*running_*",), evaluate="keep")
    reply = seen(message(start))
    assert (reply.content["arrays"]["bn.running_mean"].numpy() == 1).all()
    assert np.linalg.norm(reply.content["arrays"]["w"].numpy()) == pytest.approx(1.0, abs=1e-4)
    kept = seen(message(start, kind="evaluate"))
    assert kept.content["metrics"]["train_loss"] == 1.2345


def test_a_limit_below_one_answer_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="max_epsilon: expected at least"):
        guard_mod(
            clip=1.0, noise_multiplier=1.0, delta=1e-5, max_epsilon=0.1, ledger=tmp_path / "l"
        )


def test_a_mod_with_a_limit_travels_to_the_workers_of_a_simulation(tmp_path):
    named = {"clip": 1.0, "noise_multiplier": 2.0, "delta": 1e-5, "max_epsilon": 8.0}
    mod = guard_mod(ledger=tmp_path / "ledger.jsonl", **named)
    (paid,) = (
        one for one in inspect.getclosurevars(mod).nonlocals.values() if inspect.isfunction(one)
    )
    promise = inspect.getclosurevars(paid).nonlocals["promise"]
    again = pickle.loads(pickle.dumps(promise))
    assert again == promise
    assert (again.pays((11,)), again.pays((12,))) == (True, False)


WORKER = """
import sys
from pathlib import Path
from flwr.app import ArrayRecord
from tests.flower.test_guard_mod import app_of
seen = app_of(ArrayRecord, Path(sys.argv[1]), noise_multiplier=2.0, max_epsilon=8.0)
print(sum(not seen().has_error() for _ in range(9)))
"""


@pytest.mark.slow
def test_two_processes_share_one_limit(tmp_path):
    each = [
        subprocess.Popen([sys.executable, "-c", WORKER, str(tmp_path)], stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    assert sum(int(one.communicate()[0]) for one in each) == 11


def test_code_in_the_same_interpreter_can_go_round_the_mod(tmp_path):
    """The sharp edge that the page names: against malice a mod is a declaration."""
    leaked = []
    seen = app_of(lambda a: leaked.append("a record of this site") or ArrayRecord(a), tmp_path)
    assert not seen().has_error()
    assert leaked  # an app may open a socket of its own as well as append to a list
