"""What a privacy ledger costs: an append and an audit, by clients, beside what format 1 costs.

    python benchmarks/ledger.py [--rounds 2000] [--json]

Half of the clients are drawn anew in every round, under example-level privacy. An append is timed
with its fsyncs, on the disk of --folder (default: the temporary one). Memory is the growth of the
process's resident set over the appends. Format 1 wrote one self-contained line a round and kept
every line in memory; its file is written here in that format, so that reading it is timed too. The
audit verifies the chain and prices every adversary from the file alone, in a process of its own.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from manifed.privacy.account import Account
from manifed.privacy.chain import GENESIS, written
from manifed.privacy.charges import Charge, ClientReleases, Terms
from manifed.privacy.events import GaussianRelease, SampledWithoutReplacement
from manifed.privacy.ledger import Head, Ledger, write_head
from manifed.privacy.odometer import Odometer

DELTA = 1e-5
AUDIT = """
import json, sys, time
from pathlib import Path
from manifed.privacy.statement import audit_ledger
begun = time.perf_counter()
found = audit_ledger(Path(sys.argv[1]), 1e-5)
print(json.dumps([time.perf_counter() - begun, [v["epsilon"] for v in found["adversaries"]]]))
"""


def terms_of(clients: int, groups: int = 5) -> Terms:
    """Half of the clients a round; shards of ``groups`` sizes."""
    turns = tuple(
        ClientReleases(
            partitions=tuple(range(group, clients, groups)),
            releases=(
                GaussianRelease(
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


def append(path: Path, clients: int, rounds: int) -> dict[str, float]:
    """Milliseconds, bytes and resident bytes of an append."""
    account = Account(Ledger.create(path, {}), Odometer(), terms_of(clients))
    drawn, seconds = cohorts(clients, rounds + 10), list[float]()
    before, last = 0, 0
    for server_round in range(1, rounds + 11):
        if server_round == 11:  # the first ten pay for imports and for the terms
            before, last = resident_bytes(), path.stat().st_size
        begun = time.perf_counter()
        account.charge(server_round, 0, drawn[server_round - 1])
        seconds.append(time.perf_counter() - begun)
    grown = resident_bytes() - before
    account.settle()
    account.ledger.close()
    return {
        "append ms (first half)": 1e3 * float(np.median(seconds[10 : 10 + rounds // 2])),
        "append ms (second half)": 1e3 * float(np.median(seconds[10 + rounds // 2 :])),
        "bytes a round": (path.stat().st_size - last) / rounds,
        "resident bytes a round": grown / rounds,
    }


def write_format_1(path: Path, clients: int, rounds: int) -> dict[str, float]:
    """The same run as format 1 wrote it, without its fsyncs; bytes and memory as it kept lines."""
    terms, entries = terms_of(clients), [written(0, "header", {}, GENESIS)]
    before = resident_bytes()
    for server_round, cohort in enumerate(cohorts(clients, rounds), start=1):
        charge = Charge(
            server_round=server_round,
            partitions=cohort,
            turns=terms.updates,
            sampling=terms.sampling,
        )
        body = charge.model_dump(mode="json")
        entries.append(written(server_round, "charge", body, entries[-1][0].sha256))
    grown = resident_bytes() - before
    path.write_bytes(b"".join(line for _, line in entries))
    write_head(path, Head(rounds, entries[-1][0].sha256))
    return {
        "bytes a round": path.stat().st_size / rounds,
        "resident bytes a round": grown / rounds,
    }


def audit(path: Path) -> dict[str, Any]:
    """Seconds of an audit in a fresh process, imports not counted, and what it says."""
    done = subprocess.run(
        [sys.executable, "-c", AUDIT, str(path)], check=True, capture_output=True, text=True
    )
    seconds, epsilons = json.loads(done.stdout.splitlines()[-1])
    return {"audit seconds": seconds, "epsilons": epsilons}


def measured(
    write: Callable[[Path, int, int], dict[str, float]], folder: Path, clients: int, rounds: int
) -> dict[str, Any]:
    """One row of the table."""
    path = folder / f"{write.__name__}-{clients}.jsonl"
    return write(path, clients, rounds) | audit(path)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--clients", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        for clients in args.clients:
            # format 1 keeps every line in memory: 200 rounds of many clients show what a round is
            old = args.rounds if clients <= 1000 else min(args.rounds, 200)
            for name, write, rounds in (
                ("format 2", append, args.rounds),
                ("format 1", write_format_1, old),
            ):
                row = measured(write, Path(folder), clients, rounds)
                found[f"{name}, {clients} clients, {rounds} rounds"] = row
    if args.json:
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
        return
    for name, row in found.items():
        shown = "  ".join(f"{k} {v:.4g}" for k, v in row.items() if isinstance(v, float))
        sys.stdout.write(f"{name}\n    {shown}\n")


if __name__ == "__main__":
    main()
