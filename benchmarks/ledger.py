"""What a privacy ledger costs: an append and an audit, by clients.

    python benchmarks/ledger.py [--rounds 2000] [--reserve 1] [--json]

Half of the clients are drawn anew in every round, under example-level privacy. An append is timed
with its fsyncs, on the disk of --folder (default: the temporary one), and in turn with it a write
of 200 bytes with one fsync. Memory is the growth of the process's resident set over the appends.
The audit verifies the chain and prices every adversary from the file alone, in a process of its
own.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.page import Page
from manifed.privacy.charging import Account
from manifed.privacy.events import Release, SampledWithoutReplacement
from manifed.privacy.ledger import Ledger
from manifed.privacy.statement import Promise
from manifed.privacy.tariff import ClientReleases, Tariff, Terms

AUDIT = """
import json, sys, time
from pathlib import Path
from manifed.privacy.statement import audit_ledger
begun = time.perf_counter()
found = audit_ledger(Path(sys.argv[1]), float(sys.argv[2]))
print(json.dumps({"audit seconds": time.perf_counter() - begun, "charges": found["charges"],
                  "epsilons": [v["epsilon"] for v in found["adversaries"]]}))
"""


def terms_of(clients: int, groups: int = 5) -> Terms:
    """Half of the clients a round; shards of ``groups`` sizes."""
    turns = tuple(
        ClientReleases(
            partitions=tuple(range(group, clients, groups)),
            releases=(
                Release(
                    unit="example",
                    neighboring_relation="add-or-remove",
                    noise_multiplier=60.0 + group,
                    count=5,
                ),
            ),
        )
        for group in range(groups)
    )
    half = SampledWithoutReplacement(sample_size=clients // 2, population=clients)
    return Terms(population=clients, updates=turns, sampling=half)


def resident_bytes() -> int:
    """Of this process, now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def cohorts(clients: int, rounds: int) -> list[tuple[int, ...]]:
    """Up to 50 different cohorts, in turn."""
    rng = np.random.default_rng(0)
    drawn = (rng.choice(clients, clients // 2, replace=False) for _ in range(50))
    some = [tuple(np.sort(cohort).tolist()) for cohort in drawn]
    return [some[r % 50] for r in range(rounds)]


def append(path: Path, clients: int, rounds: int, block: int) -> dict[str, float]:
    """Milliseconds, bytes and resident bytes of an append."""
    promise = Promise(Tariff((terms_of(clients),)), rounds)
    account = Account(promise, Ledger.create(path, {}), block=block)
    seconds, bare = [], []
    beside = os.open(path.with_suffix(".bare"), os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    for server_round, cohort in enumerate(cohorts(clients, rounds + 10), 1):
        if server_round == 11:  # the first ten pay for imports and for the terms
            before = resident_bytes()
            last = path.stat().st_size
        begun = time.perf_counter()
        account.charge(server_round, 0, cohort)
        charged = time.perf_counter()
        os.write(beside, b"x" * 200)
        os.fsync(beside)
        seconds.append(charged - begun)
        bare.append(time.perf_counter() - charged)
    os.close(beside)
    grown = resident_bytes() - before
    account.settle()
    account.ledger.close()
    return {
        "append ms (first half)": 1e3 * float(np.median(seconds[10 : 10 + rounds // 2])),
        "append ms (second half)": 1e3 * float(np.median(seconds[10 + rounds // 2 :])),
        "bare append with fsync ms": 1e3 * float(np.median(bare[10:])),
        "charge / bare append": float(np.mean(seconds[10:]) / np.mean(bare[10:])),
        "bytes a round": (path.stat().st_size - last) / rounds,
        "resident bytes a round": grown / rounds,
    }


def audit(path: Path, delta: float) -> dict[str, Any]:
    """Seconds of an audit in a fresh process, imports not counted, and what it says."""
    command = [sys.executable, "-c", AUDIT, str(path), str(delta)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Print the table."""
    page = Page(__doc__, "ledger.md", rounds=2000)
    page.parser.add_argument("--clients", type=int, nargs="+", default=[1000, 10_000])
    page.parser.add_argument("--reserve", type=int, default=1, help="rounds of a reservation")
    page.parser.add_argument("--folder", type=Path)
    given = page.parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        for clients in given.clients:
            path = Path(folder) / f"{clients}.jsonl"
            row = append(path, clients, given.rounds, given.reserve) | audit(path, 1e-5)
            found[name := f"{clients} clients, {given.rounds} rounds"] = row
            shown = "  ".join(f"{k} {v:.4g}" for k, v in row.items() if isinstance(v, float))
            page.say(f"{name}\n    {shown}")
    page.save(given, found)


if __name__ == "__main__":
    main()
