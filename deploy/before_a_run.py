"""Looks at a site before the day of a run: its config, its file, its key, the way to the SuperLink.

    python deploy/before_a_run.py CONFIG --data FILE --key KEY \
        --superlink HOST:PORT --root-certificates ca.crt

Each line starts with ok or FAIL; the exit code is 1 after a FAIL. Nothing is written or sent but a
TLS handshake, and a line about the file stays on this machine.
"""

import argparse
import datetime as dt
import socket
import ssl
import sys
from collections.abc import Callable
from pathlib import Path

from manifed.errors import one_line
from manifed.experiment.load import load
from manifed.experiment.schema import sha256
from manifed.problems.data import NUM_EXAMPLES, SiteData
from manifed.problems.shards import check_pair


def config_hash(path: Path) -> str:
    """The hash that nodes and sites are pinned to; the config itself is checked."""
    return f"sha256 {sha256(load(path))}"


def data_file(config: Path, path: Path) -> str:
    """How many valid records a site's file has for the config; an error names file and record."""
    wanted = load(config)
    if not isinstance(wanted.data, SiteData):
        raise ValueError(f"expected data.kind = 'file' in the config, got {wanted.data.kind!r}")
    check_pair(wanted.problem, wanted.data)
    found = wanted.data.read(path)
    meta = {**wanted.data.meta, NUM_EXAMPLES: len(found)}
    wanted.problem.check_records(wanted.problem.prepare(found, meta))
    return f"{len(found)} valid records; federation.num_examples: {wanted.federation.num_examples}"


def private_key(path: Path) -> str:
    """The mode of a SuperNode's key, which nobody but its owner may read."""
    mode = path.stat().st_mode & 0o7777
    if mode & 0o077:
        raise ValueError(f"others can read it (mode {mode:04o}): chmod 600, or make a new key")
    return f"mode {mode:04o}"


def superlink(address: str, roots: Path) -> str:
    """Until when the SuperLink's certificate holds; chain, name and dates are checked by TLS."""
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context(cafile=str(roots))
    with (
        socket.create_connection((host, int(port)), timeout=5.0) as plain,
        context.wrap_socket(plain, server_hostname=host) as line,
    ):
        until = ssl.cert_time_to_seconds(str((line.getpeercert() or {})["notAfter"]))
    return f"certificate valid until {dt.datetime.fromtimestamp(until, dt.UTC):%Y-%m-%d}"


def look(name: str, check: Callable[[], str]) -> bool:
    """Say what a check found; whether all is well."""
    try:
        sys.stdout.write(f"ok   {name}: {check()}\n")
    except (OSError, ValueError, RuntimeError) as error:
        sys.stdout.write(one_line(f"FAIL {name}: {error}", 1500) + "\n")
        return False
    return True


def main() -> int:
    """Look at what the options name; 1 where something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path)
    for option in ("--data", "--key", "--root-certificates"):
        parser.add_argument(option, type=Path)
    parser.add_argument("--superlink", metavar="HOST:PORT")
    given = parser.parse_args()
    checks: dict[str, Callable[[], str]] = {"config": lambda: config_hash(given.config)}
    if given.data is not None:
        checks["data"] = lambda: data_file(given.config, given.data)
    if given.key is not None:
        checks["key"] = lambda: private_key(given.key)
    if given.superlink is not None:
        checks["superlink"] = lambda: superlink(given.superlink, given.root_certificates)
    is_well = [look(name, check) for name, check in checks.items()]
    return int(not all(is_well))


if __name__ == "__main__":
    sys.exit(main())
