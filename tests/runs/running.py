"""Runs of the quickstart that the tests of this folder share, and how a command refuses."""

import os
from pathlib import Path

import pytest

from manifed.cli.launch import Request, launch
from manifed.privacy.account import Account
from manifed.runs import driver

ROOT = Path(__file__).resolve().parents[2]
QUICKSTART = str(ROOT / "configs" / "quickstart.toml")


def run_in(out, *sets, **more):
    """The folder of a run of the quickstart with these settings."""
    return launch(Request(QUICKSTART, sets, out=out, plain=True, **more))


def go_on(folder, **more):
    """The same folder after its run was gone on with."""
    return launch(Request(QUICKSTART, resume=folder, plain=True, **more))


class Died(BaseException):
    """Stands for a kill: nothing catches it."""


def killed_in(at_round, start, *arguments):
    """What ``start(*arguments)`` leaves of a run when a kill ends it in the middle of a round."""
    charge = Account.charge

    def charge_then_die(self, server_round, *rest):
        charge(self, server_round, *rest)
        if server_round == at_round:
            raise Died

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Account, "charge", charge_then_die)
        patch.setattr(driver._Run, "_keep_the_newest", lambda _: None)
        with pytest.raises(Died):
            start(*arguments)
    return arguments[0]


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


def ended(call, words, capsys):
    """Exit code, what was said, and what went wrong."""
    with pytest.raises(SystemExit) as caught:
        call([str(word) for word in words])
    shown = capsys.readouterr()
    return caught.value.code, shown.out, shown.err


def one_line(code, said, error, expected=2):
    """What went wrong, when it is one line of this exit code with nothing beside it."""
    assert (code, said) == (expected, ""), error
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    return error


def refused(capsys, call, words, code=2):
    """The one line in which a command says why it does nothing."""
    return one_line(*ended(call, words, capsys), code)
