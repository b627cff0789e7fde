"""SIGTERM and SIGHUP end a command as Ctrl-C does: what is open is closed, then a line and a code.

The exit code is 128 plus the signal's number: 130 for SIGINT, 143 for SIGTERM, 129 for SIGHUP.
"""

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

INTERRUPTED = "interrupted before anything was written"


class Ended(BaseException):
    """A signal that ends the command; no handler of errors takes it for one."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.code = 128 + number


@contextmanager
def ending_signals() -> Generator[None, None, None]:
    """Raise `Ended` at SIGINT, SIGTERM and SIGHUP, but for those that are ignored (nohup).

    Outside the main thread nothing is set, as Python demands.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    for number in [n for n, handler in before.items() if handler is not signal.SIG_IGN]:
        signal.signal(number, _end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    raise Ended(number)
