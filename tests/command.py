"""A command of ``manifed`` in this process: what it says, and how it ends."""

import io
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass

from manifed.cli.main import main


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    exit_code: int
    stdout: str
    stderr: str


def invoke(*words, call=main):
    """The end of ``manifed WORDS``."""
    out = io.StringIO()
    err = io.StringIO()
    code = 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            call([str(word) for word in words])
        except SystemExit as end:
            code = end.code
    return Done(code, out.getvalue(), err.getvalue())
