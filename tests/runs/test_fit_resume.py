"""`fit(resume=folder)` goes on after a kill at any call that changes files."""

import os
import signal

import pytest
import torch

import manifed
from manifed.algorithms.rsgd import RSGD
from manifed.errors import ConfigError
from manifed.federation.cohorts import Everyone, FixedSize
from manifed.federation.stack import StackTransport
from manifed.manifolds import Euclidean
from manifed.privacy.statement import audit_ledger
from manifed.problems import FrechetMean
from manifed.runs.checkpoint import Pace
from manifed.runs.folder import RunFolder
from tests.federation.test_door import PRIVATE, STEPS, points
from tests.federation.test_door import fitted as once
from tests.robustness.crash_points import Killer, crashes_of, under_reported
from tests.runs.running import run_in

ROUNDS = 3
COHORT = FixedSize(cohort_size=2)
FILES = {
    "ledger.jsonl", "ledger.jsonl.head", "checkpoint.safetensors", "metrics.csv",
    "model.safetensors", "statement.json",
}  # fmt: skip
CLOSED = ("offer", "deal", "send")
"""The exchanges of a secure sum that tell nothing yet."""
SUMS = {
    "privacy": PRIVATE.model_copy(
        update={"noise_source": "os", "trust": manifed.SecureSum(max_dropped=1, collusion=1)}
    ),
    "shards": points(5), "algorithm": RSGD(step_size=0.2), "cohort": Everyone(),
}  # fmt: skip
write = os.write


def fitted(**changes):
    evaluate = {"evaluate": lambda x: {"first": float(x[0])}}
    return once(**{"rounds": ROUNDS, "cohort": COHORT} | evaluate | changes)


def witness(say):
    """A transport that says what it is about to have released."""

    class Witness(StackTransport):
        def exchange(self, asked):
            for i in () if asked.header.phase in CLOSED else asked.partitions:
                say(f"{asked.header.server_round} {asked.header.attempt} {i}\n".encode())
            return super().exchange(asked)

    return Witness


def part(folder, crash, **changes):
    """(how one part of a fit ended, all that was released so far, the calls it made)."""
    folder.mkdir(exist_ok=True)
    seen, calls = folder / "witness", folder / "calls"
    pid = os.fork()
    if pid == 0:
        code = 70
        torch.set_num_threads(1)
        file = os.open(seen, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        Pace.is_due = lambda self, server_round: True
        killer = Killer(crash, lambda name: None)
        killer.install()
        try:
            fitted(
                resume=folder / "fit", transport=witness(lambda line: write(file, line)), **changes
            )
            code = 0
        except OSError:
            code = 1
        finally:
            write(os.open(calls, os.O_CREAT | os.O_WRONLY), " ".join(killer.names).encode())
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    released = [tuple(map(int, line.split())) for line in seen.read_text().splitlines()]
    return code, released, calls.read_text().split() if calls.exists() else []


def uninterrupted(privacy, attempts):
    """The model of a fit in one go whose round r is attempt ``attempts[r - 1]``."""
    fit = manifed.federate(
        FrechetMean(manifed.manifolds.Sphere()), points(), STEPS, rounds=ROUNDS, cohort=COHORT,
        privacy=privacy,
    )  # fmt: skip
    fit.account.attempts = lambda r: attempts[r - 1]
    *_, last = fit
    return last.model


def findings(folder, privacy, released, kills):
    """What is wrong with a fit that was gone on with to its end."""
    fit = RunFolder(folder / "fit")
    found = [] if {one.name for one in fit.directory.iterdir()} == FILES else ["files"]
    found += [] if fit.metrics()["round"] == [1, 2, 3] else ["rows"]
    if privacy:
        found += under_reported(fit.ledger_path, {*released})
        found += [] if len(released) == len({*released}) else ["the same noise twice"]
    attempts = [max(a for r, a, _ in released if r == one) for one in range(1, ROUNDS + 1)]
    found += [] if sum(attempts) <= kills else ["paid again"]
    same = torch.equal(fit.load_tensors("model")["x"], uninterrupted(privacy, attempts))
    return found if same else [*found, f"model, attempts {attempts}"]


def crash_and_go_on(root, privacy, every):
    """Fits that die at every so manieth crash point, and then go on."""
    code, released, names = part(root / "whole", None, privacy=privacy)
    assert (code, findings(root / "whole", privacy, released, 0)) == (0, [])
    killed = 0
    for number, crash in enumerate([*crashes_of(names)][::every]):
        folder = root / str(number)
        code, *_ = part(folder, crash, privacy=privacy)
        killed += code == -signal.SIGKILL
        assert code in (-signal.SIGKILL, 1), crash
        code, released, _ = part(folder, None, privacy=privacy)
        if code:  # it had been killed after its last write
            assert (folder / "fit" / "statement.json").exists(), crash
        assert findings(folder, privacy, released, 1) == [], crash
    assert killed > 1


@pytest.mark.parametrize("privacy", [PRIVATE, None], ids=["private", "not private"])
def test_a_killed_fit_ends_as_one_in_one_go_and_its_ledger_has_all_that_left(tmp_path, privacy):
    crash_and_go_on(tmp_path, privacy, 29)


@pytest.mark.slow
@pytest.mark.parametrize("privacy", [PRIVATE, None], ids=["private", "not private"])
def test_a_fit_may_be_killed_at_a_ninth_of_all_calls(tmp_path, privacy):
    crash_and_go_on(tmp_path, privacy, 9)


def unfinished(folder, **changes):
    """A fit that was left after its first round."""
    settings = {"rounds": ROUNDS, "cohort": COHORT, "privacy": PRIVATE, "resume": folder, **changes}
    fit = manifed.federate(
        FrechetMean(manifed.manifolds.Sphere()), points(), STEPS, **settings
    )  # fmt: skip
    next(fit)
    fit.close()
    return fit


def test_a_loop_that_is_left_goes_on_and_epsilon_composes(tmp_path):
    first = unfinished(tmp_path / "fit")
    again = manifed.federate(
        FrechetMean(manifed.manifolds.Sphere()), points(), STEPS, rounds=ROUNDS, cohort=COHORT,
        privacy=PRIVATE, resume=tmp_path / "fit",
    )  # fmt: skip
    rounds = [*again]
    assert [one.server_round for one in rounds] == [2, 3]
    assert torch.equal(rounds[-1].model, uninterrupted(PRIVATE, [0, 0, 0]))
    assert rounds[-1].spending > first.curves["epsilon"][0] > 0
    assert again.curves["round"] == [1, 2, 3]


E = {"evaluate": None}
ANOTHER = {
    "num_rounds": E | {"rounds": 4},
    "seed": E | {"seed": 1},
    "cohort": E | {"cohort": None},
    "privacy": E | {"privacy": PRIVATE.model_copy(update={"l2_norm_clip": 2.0})},
    "algorithm": E | {"algorithm": STEPS.model_copy(update={"step_size": 0.1})},
    "problem": E | {"problem": FrechetMean(Euclidean(1))},
    "shards": E | {"shards": points(rows=41)},
    "evaluate": {},
}


@pytest.mark.parametrize("name", ANOTHER)
def test_a_fit_of_another_setting_is_refused_by_name_before_any_write(name, tmp_path):
    unfinished(tmp_path)
    before = {one: (one.read_bytes(), one.stat().st_mtime_ns) for one in tmp_path.iterdir()}
    with pytest.raises(ConfigError, match=f"^resume: .* {name.removeprefix('num_')} of the fit"):
        fitted(resume=tmp_path, **ANOTHER[name])
    assert {one: (one.read_bytes(), one.stat().st_mtime_ns) for one in tmp_path.iterdir()} == before


def test_what_is_no_unfinished_fit_is_refused(tmp_path):
    unfinished(tmp_path / "fit")
    fitted(resume=tmp_path / "fit", **E)
    run_in(tmp_path / "run", "federation.num_rounds=1")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").touch()
    for name, said in (("fit", "a finished one"), ("run", "other files"), ("other", "other files")):
        with pytest.raises(ConfigError, match=f"^resume: .*{name}.*got {said}"):
            fitted(resume=tmp_path / name)
    with pytest.raises(ConfigError, match=r"^ledger: is in the folder of resume"):
        fitted(resume=tmp_path / "new", ledger=tmp_path / "ledger.jsonl")
    with pytest.raises(ConfigError, match=r"^evaluate: expected names like test_loss, got a, b"):
        fitted(resume=tmp_path / "new", evaluate=lambda x: {"a, b": 1.0})
    assert not (tmp_path / "new").exists()


def spent(folder):
    """Epsilon against the coalition."""
    told = audit_ledger(folder / "fit" / "ledger.jsonl", 1e-3)["adversaries"]
    return {one["name"]: one["epsilon"] for one in told}["coalition"]


def test_the_ledger_of_a_killed_fit_tells_of_every_sum_that_was_opened(tmp_path):
    code, released, names = part(tmp_path / "whole", None, **SUMS)
    assert (code, len(released)) == (0, 5 * ROUNDS)
    whole = spent(tmp_path / "whole")
    for number, crash in enumerate([*crashes_of(names)][::37]):
        folder = tmp_path / str(number)
        for now in (crash, None):
            _, released, _ = part(folder, now, **SUMS)
            assert len(released) == len({*released})
            ledger = folder / "fit" / "ledger.jsonl"
            assert not released or under_reported(ledger, {*released}) == [], crash
        assert {r for r, _, _ in released} == {1, 2, 3}
        assert spent(folder) >= whole, crash
