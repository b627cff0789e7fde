"""Ends a command at SIGTERM and SIGHUP as at Ctrl-C: open files closed, a line, an exit code.

The exit code is 128 plus the signal's number: 130 for SIGINT, 143 for SIGTERM, 129 for SIGHUP.
"""

import signal
import threading
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Ended(BaseException):
    """Raised when a signal ends the command; handlers of errors do not catch it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.code = 128 + number


@contextmanager
def ending_signals() -> Generator[None]:
    """Raises `Ended` at SIGINT, SIGTERM and SIGHUP, except those that are ignored (nohup).

    A signal that meets an import is raised after it: libraries take any exception inside an import
    for a missing module, and some go on without it. A library that turns `Ended` into an error of
    its own, as pydantic does while it builds a validator, does not hide it: that error is `Ended`
    again at the end of the block. Outside the main thread nothing is set, as Python demands.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {n: signal.getsignal(n) for n in (*ENDING, signal.SIGALRM)}
    waiting = list[int]()
    raised = list[int]()

    def end(number: int, frame: FrameType | None) -> None:
        if all(
            below.f_code.co_filename != "<frozen importlib._bootstrap>"
            for below, _ in traceback.walk_stack(frame)
        ):
            waiting.clear()
            raised[:] = [number]
            raise Ended(number)
        waiting[:] = [number]
        signal.signal(signal.SIGALRM, lambda _, later: end(number, later))
        signal.setitimer(signal.ITIMER_REAL, 0.02)  # when it is looked at again

    for number in [n for n in ENDING if before[n] is not signal.SIG_IGN]:
        signal.signal(number, end)
    try:
        yield
    except Exception as error:
        if raised and not hasattr(error, "exit_code"):
            raise Ended(raised[0]) from error
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
    if waiting:
        raise Ended(waiting[0])
