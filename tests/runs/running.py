"""Runs of the quickstart that the tests of this folder share, and how a command refuses."""

import os
import signal
import time
from pathlib import Path

import pytest

from manifed.cli.launch import Request, launch
from manifed.privacy.charging import Account
from manifed.runs import driver
from tests.command import invoke

ROOT = Path(__file__).resolve().parents[2]
QUICKSTART = str(ROOT / "configs" / "quickstart.toml")

SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
"""With the exit codes of who is ended by them."""


def run_in(out, *sets, **more):
    """The folder of a run of the quickstart with these settings."""
    return launch(Request(QUICKSTART, sets, out=out, **more))


def go_on(folder, **more):
    """The same folder after its run was gone on with."""
    return launch(Request(QUICKSTART, resume=folder, **more))


class Died(BaseException):
    """Stands for a kill: nothing catches it."""


def fails_in_round(at_round, error, patch, *, is_charged=False):
    """Raise ``error`` in the middle of a round, before or after it is charged."""
    charge = Account.charge

    def fails(self, server_round, *rest):
        if is_charged or server_round != at_round:
            charge(self, server_round, *rest)
        if server_round == at_round:
            raise error

    patch.setattr(Account, "charge", fails)


def told(patch, then):
    """Call ``then`` with the number of the newest round after each row of a run."""
    tell = driver._Run._tell

    def tell_and_go_on(self, held_out=None):
        tell(self, held_out)
        then(self.done)

    patch.setattr(driver._Run, "_tell", tell_and_go_on)


def killed_in(at_round, start, *arguments):
    """What ``start(*arguments)`` leaves of a run when a kill ends it in the middle of a round."""
    with pytest.MonkeyPatch.context() as patch:
        fails_in_round(at_round, Died(), patch, is_charged=True)
        patch.setattr(driver._Run, "_keep_the_newest", lambda _: None)
        with pytest.raises(Died):
            start(*arguments)
    return arguments[0]


def read(reader, folder, out):
    """How a command that reads the folder ends, which is named with its further words."""
    command, *rest = reader.split()
    words = {
        "resume": ["run", "--plain", "--resume", folder],
        "status": ["run", "--resume", folder, "--status"],
        "report": ["report", folder, "--out", out, *rest],
        "export": ["export", folder, "--out", out],
        "ledger": ["privacy", "ledger", folder.joinpath(*rest), "--delta", "1e-5"],
    }
    return invoke(*words[command])


def wait_for(is_there):
    """Until that is so, or for a minute."""
    deadline = time.monotonic() + 60
    while not is_there() and time.monotonic() < deadline:
        time.sleep(0.005)


def everything(root):
    """Names, kinds, contents and dates of all that is under ``root``."""
    found = {}
    for place, folders, files in os.walk(root):
        for name in [*folders, *files, "."]:
            path = Path(place) / name
            seen = path.lstat()
            is_file = path.is_file() and not path.is_symlink()
            found[str(path)] = (seen.st_mode, seen.st_mtime_ns, is_file and path.read_bytes())
    return found


def one_line(done, code=2):
    """What went wrong, when it is one line of this exit code with nothing beside it."""
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (code, "", 1), done.stderr
    assert done.stderr.startswith("error: ")
    return done.stderr


def refused(*words, **more):
    """The one line in which a command says why it does nothing."""
    return one_line(invoke(*words), **more)
