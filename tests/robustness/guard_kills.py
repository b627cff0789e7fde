"""Guarded runs that are killed at every call that changes files, at every client, at every model.

python -m tests.robustness.guard_kills [--out tests/robustness/results]

A guarded run in a process of its own is killed (SIGKILL) before, half-way through or after each of
its calls that change files, as a client is called, and as a model leaves; trials beyond that are
killed twice. The process bears witness, in a file of its own, of each client that is called and
each model that leaves. At every stop the ledger is compared with that: an anomaly is a ledger that
does not verify or that counts fewer rounds, or fewer of a client, than the witness; a run that does
not go on with its ledger; more rounds in all than the budget pays; or more than one paid round lost
to a kill.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from benchmarks.common.stopwatch import circumstances, table
from manifed.flower.grids import InlineGrid
from manifed.flower.guard import guard
from manifed.flower.guard_mod import guard_mod
from manifed.privacy.foreign import DPSGD
from manifed.privacy.ledger import Ledger, LedgerDamaged
from manifed.privacy.odometer import Odometer
from manifed.privacy.random_numbers import NoiseSource
from tests.robustness.crash_points import crashes_of, forked, said

PROJECT = Path(__file__).resolve().parents[2]
PAID = 3
"""Rounds, or answers of the mod, that the budget of every case pays."""
NODES = 4
POISSON = {"cohort": "poisson", "clients_per_round": 2, "max_epsilon": 0.95}
CASES = {
    "Poisson cohorts": POISSON,
    "cohorts of a fixed size, a declared DP-SGD": {
        "cohort": "fixed-size", "clients_per_round": 2, "max_epsilon": 2.0,
        "declares": DPSGD(noise_multiplier=1.0, sampling_probability=0.1, steps_per_round=3),
    },
    "the mod at a client": None,
}  # fmt: skip
COMMON = {"clip": 1.0, "noise_multiplier": 2.0, "delta": 1e-2}
START = {"w": np.zeros(3), "log_scale": np.asarray(0.5)}


def app_of(called, mods=()):
    """A ClientApp that calls ``called(partition)`` and sends what it was sent."""
    app = ClientApp(mods=[*mods])

    @app.train()
    def train(message, context):
        called(int(context.node_config["partition-id"]))
        content = {"arrays": message.content["arrays"], "metrics": MetricRecord({"loss": 1.0})}
        return Message(RecordDict(content), reply_to=message)

    return app


def guarded_run(case, ledger, called, left, seed):
    """A server's run to the end of its budget, with the ledger that is there.

    Its cohorts are those of the seed, so that the points are the same in every run.
    """
    named = CASES[case] | COMMON | {"ledger": ledger, "population": NODES}
    named["source"] = NoiseSource.from_seed(seed)
    strategy = guard(FedAvg(fraction_evaluate=0.0), resume=ledger.exists(), **named)
    rounds = strategy.payable(9)
    if rounds:
        arrays = ArrayRecord({name: Array(a) for name, a in START.items()})
        grid = InlineGrid(app_of(called), NODES, {})
        strategy.start(grid, arrays, rounds, evaluate_fn=lambda r, _: left() if r else None)
    strategy.close()


def answering_run(ledger, called, left):
    """A client that answers until the mod refuses."""
    app = app_of(called, [guard_mod(ledger=ledger, max_epsilon=MOD_BUDGET, **COMMON)])
    grid = InlineGrid(app, 1, {})
    content = RecordDict({"arrays": ArrayRecord({name: Array(a) for name, a in START.items()})})
    for _ in range(9):
        message = Message(content, dst_node_id=2, message_type="train")
        (reply,) = grid.send_and_receive([message])
        if reply.has_error():
            return
        left()


MOD_BUDGET = 2.0


def live_of(case, folder, number):
    """What part ``number`` of a run of ``case`` does in its process."""

    def live(write, killer):
        witness = os.open(folder / "witness", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        now = [f"{number}.1"]

        def say(what):
            write(witness, f"{now[0]} {what}\n".encode())

        point = {name: killer.twin(name, lambda: None) for name in ("client", "model")}

        def called(partition):
            say(partition)
            point["client"]()

        def left():
            say("model")
            point["model"]()
            now[0] = f"{number}.{int(now[0].split('.')[1]) + 1}"

        killer.install()
        path = folder / "ledger.jsonl"
        if CASES[case] is None:
            answering_run(path, called, left)
        else:
            guarded_run(case, path, called, left, number)

    return live


def witnessed(folder):
    """(round, client or None for its model) of all that left."""
    path = folder / "witness"
    lines = path.read_text().splitlines() if path.exists() else []
    pairs = (line.split() for line in lines)
    return [(one, None if what == "model" else int(what)) for one, what in pairs]


def judge(folder, stops, *, is_over):
    """What is wrong after so many stops."""
    found = list[str]()
    seen = witnessed(folder)
    rounds = {one for one, _ in seen}
    clients = Counter(who for _, who in seen if who is not None)
    models = sum(who is None for _, who in seen)
    if len(rounds) > PAID:
        found.append(f"{len(rounds)} rounds left, the budget pays {PAID}")
    for path in [folder / "ledger.jsonl", *folder.glob("*.declared")]:
        odometer = Odometer()
        try:
            Ledger.verify(path, feed=odometer.feed)
        except FileNotFoundError:
            if seen:
                found.append("no ledger, and something left")
            continue
        except LedgerDamaged as error:
            found.append(f"{path.name}: {error}")
            continue
        counted = odometer.rounds_counted
        if counted < len(rounds):
            found.append(f"{path.name} counts {counted} rounds of {len(rounds)} that left")
        served = odometer.participations_by_client()
        if fewer := [i for i, n in clients.items() if len(served) <= i or served[i] < n]:
            found.append(f"{path.name} counts clients {fewer} less often than they were called")
        if is_over and path.name == "ledger.jsonl" and counted != PAID:
            found.append(f"{counted} rounds were paid at the end, the budget pays {PAID}")
    if is_over and models < PAID - stops:
        found.append(f"{models} models after {stops} kills")
    return found


def attempt(case, folder, crashes):
    """(calls it was killed at, findings) of a run that is killed, gone on with and judged."""
    at = list[str]()
    found = list[str]()
    for number, crash in enumerate([*crashes, None], start=1):
        code, name = forked(folder, crash, live_of(case, folder, number))
        at += [name] if name else []
        if code != (-signal.SIGKILL if name else 0):
            found.append(f"part {number} ended with {code} at {name or 'its end'}: {said(folder)}")
        found += judge(folder, len(at), is_over=crash is None)
    return at, found


def points(case, folder):
    """The names of all points of one whole run, in order."""
    note = folder / "calls"
    code, _ = forked(
        folder,
        None,
        live_of(case, folder, 1),
        lambda names: note.write_text("\n".join(names)),
    )
    assert code == 0, said(folder)
    return note.read_text().splitlines()


def trials_of(names, pairs=10):
    """(case, crashes) of every way to be killed at every point, then of seeded pairs."""
    ways = {
        case: [one for one in crashes_of(calls) if one.mode != "full"]
        for case, calls in names.items()
    }
    draw = random.Random(0)
    single = [(case, (one,)) for case, them in ways.items() for one in them]
    twice = [
        (case, tuple(draw.choices(them, k=2))) for case, them in ways.items() for _ in range(pairs)
    ]
    return single + twice


def main(arguments=None):
    """0 when no run showed an anomaly."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="folder for guard_kills.md")
    given = parser.parse_args(arguments)
    began = time.perf_counter()
    torch.set_num_threads(1)
    circumstance = circumstances().replace(f"{PROJECT}/", "")
    counts = Counter()
    bad = list[str]()
    with tempfile.TemporaryDirectory(prefix="manifed-guard-") as root:
        names = {case: points(case, Path(root) / f"points-{i}") for i, case in enumerate(CASES)}
        for number, (case, crashes) in enumerate(trials_of(names)):
            at, found = attempt(case, Path(root) / f"{number}", crashes)
            is_one = len(crashes) == 1
            key = case, crashes[0].mode if is_one else "twice", at[0] if is_one else "any"
            counts[key] += 1
            counts[(*key, "bad")] += bool(found)
            bad += [f"- {case}, {crashes}: {'; '.join(found)}"] if found else []
    rows = [
        [*key, str(n), str(counts[(*key, "bad")])]
        for key, n in sorted(counts.items())
        if len(key) == 3
    ]
    runs = sum(int(row[3]) for row in rows)
    head = (
        f"# Killed guarded runs\n\n{circumstance}\n\n{time.perf_counter() - began:.0f} s. {runs} "
        f"runs at {sum(map(len, names.values()))} points; **{len(bad)} anomalies**.\n"
    )
    told = table(["case", "killed", "at", "runs", "anomalies"], rows)
    page = "\n".join([head, told, "", *bad]).rstrip() + "\n"
    if given.out is not None:
        (given.out / "guard_kills.md").write_text(page, encoding="utf-8")
    print(page)
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
