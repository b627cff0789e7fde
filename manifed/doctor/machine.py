"""The machine itself: versions, threads, ports, clock, folders, disk, randomness."""

import importlib.metadata
import os
import platform
import re
import shutil
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

from manifed.doctor.finding import Finding, fail, ok, warn
from manifed.privacy.noise import NoiseSource

DISTRIBUTION = "manifed"
_PYTHON = re.compile(r"Programming Language :: Python :: (3\.[0-9]+)")
LINK_PORT, NODE_PORT = 8000, 9094
"""Flower's own: of a SuperLink, and of the part of a SuperNode that its apps ask."""
LEAST_BYTES, FEW_BYTES = 100 << 20, 1 << 30
MOST_SKEW, SOME_SKEW = 60.0, 2.0
"""Seconds. TLS and the authentication of nodes compare times; logs of two machines are compared."""


def examine(ports: Sequence[int], folder: Path) -> Iterator[Finding]:
    """All checks of this machine; runs would be written into ``folder``."""
    yield python()
    yield from packages()
    yield threads()
    for port in ports:
        yield free_port(port)
    yield file_clock(_there(folder))
    yield from folders(folder)
    yield disk(folder)
    yield randomness()


def python() -> Finding:
    """This Python among those that the product names."""
    mine = f"{sys.version_info[0]}.{sys.version_info[1]}"
    try:
        classifiers = importlib.metadata.metadata(DISTRIBUTION).get_all("Classifier") or []
    except importlib.metadata.PackageNotFoundError:
        return warn("python", f"{mine}; manifed is not installed here", "pip install it")
    tested = [found[1] for line in classifiers if (found := _PYTHON.fullmatch(line))]
    said = f"{platform.python_version()}, tested are {', '.join(tested)}"
    if mine in tested:
        return ok("python", said)
    return warn("python", said, f"make the environment with Python {tested[0]}")


def packages() -> Iterator[Finding]:
    """Every package that the product requires, in the versions that it was tested with."""
    try:
        required = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return
    for text in required:
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        name, mend = requirement.name, f"pip install '{requirement}'"
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield fail(name, f"is not installed, needed is {requirement.specifier}", mend)
            continue
        is_met = requirement.specifier.contains(Version(version), prereleases=True)
        said = f"{version}, needed is {requirement.specifier}"
        yield ok(name, said) if is_met else fail(name, said, mend)


def threads() -> Finding:
    """Threads that torch takes, against the cores that this process may use."""
    import torch

    mine, cores = torch.get_num_threads(), len(os.sched_getaffinity(0))
    said = f"torch takes {mine} of {cores} cores"
    if mine > cores:
        return warn("threads", said, f"export OMP_NUM_THREADS={cores}, or 1 for several nodes here")
    return ok("threads", said)


def free_port(port: int) -> Finding:
    """Whether a service of Flower can listen on a port of this machine."""
    check, whose = f"port {port}", "SuperNode" if port == NODE_PORT else "SuperLink"
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return warn(
                check,
                f"taken or closed to a {whose} ({error.strerror})",
                f"is one running already? else start it with another --port than {port}",
            )
    return ok(check, f"free for a {whose}")


def file_clock(folder: Path) -> Finding:
    """The clock against the file system of ``folder`` (a server's, where it is a network's)."""
    before = time.time()
    try:
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            written = os.fstat(file.fileno()).st_mtime
    except OSError as error:
        return warn("clock", f"not compared, {folder} cannot be written ({error.strerror})", _CLOCK)
    skew = max(before - written, written - time.time(), 0.0)
    return clock(skew, f"the file system of {folder}")


_CLOCK = "synchronise it (timedatectl set-ntp true)"


def clock(skew: float, reference: str) -> Finding:
    """A clock that is so many seconds off from ``reference``."""
    said = f"{skew:.1f} s off {reference}"
    if skew > MOST_SKEW:
        return fail("clock", said, _CLOCK)
    return warn("clock", said, _CLOCK) if skew > SOME_SKEW else ok("clock", said)


def folders(folder: Path) -> Iterator[Finding]:
    """Whether runs, and what nodes remember, can be written, and by nobody else."""
    home = Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr")
    for path, what in ((folder, "folder of runs"), (home, "Flower's folder")):
        there = _there(path)
        mode = stat.S_IMODE(there.stat().st_mode)
        if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
            yield fail(what, f"{there} cannot be written", f"make it writable, or leave {path}")
        elif mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            yield fail(what, f"{there} has mode {mode:04o}: anybody may replace files in it",
                       f"chmod o-w {there}")  # fmt: skip
        else:
            yield ok(what, f"{path} can be written")


def _there(path: Path) -> Path:
    """The folder itself, or the nearest one above it that exists."""
    return next(p for p in (path.absolute(), *path.absolute().parents) if p.exists())


def disk(folder: Path) -> Finding:
    """Space on the disk of ``folder``."""
    there = _there(folder)
    free = shutil.disk_usage(there).free
    said = f"{free / (1 << 30):.1f} GiB free at {there}"
    if free < LEAST_BYTES:
        return fail("disk", said, "make room: ledgers and checkpoints must be written")
    return warn("disk", said, "make room") if free < FEW_BYTES else ok("disk", said)


def randomness() -> Finding:
    """The operating system's generator, which keys the noise of a release."""
    mend = "wait until the system has gathered entropy (rng-tools), then look again"
    try:
        os.getrandom(32, os.GRND_NONBLOCK)
    except (BlockingIOError, OSError) as error:
        return fail("randomness", f"the system's generator is not ready ({error})", mend)
    if NoiseSource.from_os().key == NoiseSource.from_os().key:
        return fail("randomness", "two keys of the operating system are equal", mend)
    return ok("randomness", "the operating system gives fresh keys without waiting")
